"""At 1,000 nodes with 20 pods each no turn of the event loop keeps leases and the leadership waiting."""

from __future__ import annotations

from tests.support.stall import MOST
from tests.unit.kubeocean.stalls import longest_turns


async def test_no_turn_of_the_loop_is_long_while_a_thousand_nodes_end_their_lease() -> None:
    found = {name: stall.longest for name, stall in (await longest_turns()).items()}
    assert found.keys() == {"window_end", "scrape", "hold", "fail_over", "worker_returns", "unbinding"}
    assert {name: seconds for name, seconds in found.items() if seconds > MOST} == {}
