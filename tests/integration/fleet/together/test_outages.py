"""Workers behind NAT, or their hub, do not answer for a while, or have a wrong clock: what the hub reports, and that all recover.

Ten minutes of it, with the periods that the APIs have by default: tests/faults/cut/test_outages_of_fleet.py.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.fleet.player import CLUSTERS, Caller, reaches
from tests.integration.fleet.together.outages import (
    CLOCK,
    OUT_OF_SYNC,
    SHORT,
    STEADY,
    SYNCED,
    Joined,
    all_ways_of_silence,
    joined,
    loses_its_api_server,
    loses_its_hub,
    stopped_and_started,
    traced,
    unchanged,
)
from tests.integration.fleet.together.scene import Fleet, Laptop
from tests.support.ahead import ahead
from tests.support.program import Program, eventually

HOUR = 3600
RENEWALS = 6
"""More periods than a cluster may be silent for."""


@ahead("laptops", group="outages")
async def test_f_141_f_177_workers_that_fall_silent_are_reported_and_recover(
    fleet: Fleet, laptops: Callable[[], Laptop], owner: Caller
) -> None:
    # F-5, F-25, F-142, F-144, F-180
    await all_ways_of_silence(fleet, laptops, owner, SHORT)


@ahead("laptop", group="worker stopped")
async def test_f_132_f_179_a_worker_whose_api_server_is_stopped_recovers(laptop: Laptop, owner: Caller) -> None:
    # F-142
    async with joined(laptop, owner, SHORT) as made:
        print(await loses_its_api_server(made))


@ahead("laptop", group="outages")
async def test_f_143_a_worker_clock_an_hour_off_changes_nothing_else(laptop: Laptop, owner: Caller) -> None:
    # F-25, F-141
    async with joined(laptop, owner, SHORT, ahead=0) as made:
        async with traced(laptop) as traces:
            for ahead, wanted in ((HOUR, OUT_OF_SYNC), (0, SYNCED), (-HOUR, OUT_OF_SYNC), (0, SYNCED)):
                laptop.set_clock(ahead)
                await reaches(owner, f"{CLUSTERS}/{laptop.name}", CLOCK, wanted)
                await renewals(made)
            await made.is_well()
        await unchanged(made, traces, {**STEADY, CLOCK: [SYNCED, OUT_OF_SYNC, SYNCED, OUT_OF_SYNC, SYNCED]})


async def test_f_141_f_143_a_hub_that_was_stopped_or_had_a_wrong_clock_changes_nothing(fleet: Fleet, laptop: Laptop, owner: Caller) -> None:
    # F-25
    async with joined(laptop, owner, SHORT) as made:
        print(f"API server: {await loses_its_hub(made, fleet.hub.stop_apiserver, fleet.hub.start_apiserver)}")
        print(f"process: {await loses_its_hub(made, *stopped_and_started(fleet.process))}")
        async with traced(laptop) as traces:
            await with_wrong_clocks_of_the_hub(made)
            await made.is_well()
        await unchanged(made, traces, STEADY)


async def renewals(made: Joined) -> None:
    """Waits for more renewals of the Lease than may be missed."""
    found: set[str] = set()

    async def enough() -> bool:
        found.add(await made.renewed())
        return len(found) > RENEWALS

    await eventually(enough, f"{RENEWALS} renewals", by=[made.agent])


async def with_wrong_clocks_of_the_hub(made: Joined) -> None:
    """Replaces the hub's process for a while by others whose clock is wrong; that of the hub's API server is right."""
    laptop, usual = made.laptop, made.laptop.fleet.process
    try:
        assert usual.terminate() == 0
        for ahead in (HOUR, -HOUR):
            (clock := laptop.directory / f"clock{ahead:+}").write_text(str(ahead))
            log = laptop.directory / f"hub{ahead:+}.log"
            with Program("tests.support.shifted", str(clock), "fleet", *usual.arguments, log=log) as shifted:
                await eventually(lambda log=log: '"message": "leading"' in log.read_text(), "it leads", by=[shifted])  # type: ignore[misc]
                await renewals(made)
    finally:
        usual.start()
