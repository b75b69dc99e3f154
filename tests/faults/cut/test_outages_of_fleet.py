"""Ten minutes in which a worker behind NAT, its API server or the hub does not answer, with the periods that the APIs have by default."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.cut.choice import WHOLE
from tests.integration.fleet.player import CLUSTERS, Body, Caller
from tests.integration.fleet.together.conftest import behind, fleet, fresh, laptop, laptops, lines, owner
from tests.integration.fleet.together.outages import TEN_MINUTES, all_ways_of_silence, joined, loses_its_api_server, loses_its_hub
from tests.integration.fleet.together.scene import Fleet, Laptop
from tests.integration.fleet.together.test_peers import stays_available

__all__ = ["behind", "fleet", "fresh", "laptop", "laptops", "lines", "owner"]

pytestmark = pytest.mark.skipif(WHOLE not in os.environ, reason="takes ten minutes: python -m tests.faults.cut -k ten_minutes")

FIVE_MINUTES = 300.0


@pytest.fixture(scope="session")
def hub_settings() -> Body:
    return {"heartbeat_threshold": TEN_MINUTES.threshold}


async def test_f_141_f_177_workers_recover_from_ten_minutes_of_silence(fleet: Fleet, laptops: Callable[[], Laptop], owner: Caller) -> None:
    await all_ways_of_silence(fleet, laptops, owner, TEN_MINUTES)


async def test_f_132_f_179_a_worker_without_api_server_for_ten_minutes_recovers(laptop: Laptop, owner: Caller) -> None:
    async with joined(laptop, owner, TEN_MINUTES) as made:
        print(f"API server of the worker stopped: {await loses_its_api_server(made)}")


async def test_f_141_a_hub_that_was_stopped_for_ten_minutes_makes_no_cluster_unknown(fleet: Fleet, laptop: Laptop, owner: Caller) -> None:
    async with joined(laptop, owner, TEN_MINUTES) as made:
        print(f"API server of the hub stopped: {await loses_its_hub(made, fleet.hub.stop_apiserver, fleet.hub.start_apiserver)}")


async def test_f_141_an_independent_worker_stays_available_for_five_minutes(fleet: Fleet, owner: Caller, tmp_path: Path) -> None:
    name, began = "independent", time.monotonic()
    await stays_available(fleet, owner, tmp_path, name=name, period=TEN_MINUTES.lease, seconds=FIVE_MINUTES)
    print(f"independent worker: available for {time.monotonic() - began:.0f} s")
    await owner.delete(f"{CLUSTERS}/{name}")
