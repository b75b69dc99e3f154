"""An agent whose clock is an hour ahead of the hub's, or behind: it joins, renews and reports as any other."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.integration.fleet.agent.scene import MakeScene
from tests.support.ahead import ahead
from tests.support.peer import PeerHub
from tests.support.program import Program, eventually
from vkubelet.clock import parse_rfc3339


@pytest.mark.parametrize("ahead", [3600, -3600])
@ahead("scene", "tmp_path")
async def test_f_131_a_worker_joins_and_lives_with_a_clock_an_hour_off(scene: MakeScene, peer: PeerHub, tmp_path: Path, ahead: int) -> None:
    laptop = await scene()
    name, file = laptop.cluster, tmp_path / "ahead"
    file.write_text(str(ahead))
    usual = laptop.program()
    with Program("tests.support.shifted", str(file), "fleet", *usual.arguments, log=tmp_path / "shifted.log") as program:
        await eventually(lambda: peer.decide(name), "a request", by=[program])
        peer.accept(name, seconds=1)
        await eventually(lambda: "ManagedClusterJoined" in peer.conditions(name), "joined", by=[program])
        first = await eventually(lambda: peer.lease(name).get("renewTime"), "the Lease is renewed")
        await eventually(lambda: peer.lease(name)["renewTime"] > first, "it is renewed again")
        off = (parse_rfc3339(first) - datetime.now(UTC)).total_seconds()
        assert abs(off - ahead) < 600 and len(peer.requests(name)) == 1
        assert laptop.ready() == "ok"
