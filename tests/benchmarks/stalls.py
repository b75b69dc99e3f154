"""How long the event loop is held up at 1,000 nodes with 20 pods each, in seconds of CPU of its thread."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.figures import Figure
from tests.support.stall import MOST
from tests.unit.kubeocean.stalls import longest_turns
from vkubelet.testing.cluster import Site


async def measure(site: Site) -> Sequence[Figure]:
    """The longest turn of the loop at the end of a window, a scrape, the loss of the worker and the end of the binding; no clusters."""
    found = {name: stall.longest for name, stall in (await longest_turns()).items()}
    figures = [Figure(name=f"kubeocean_loop_stall_{name}", value=seconds, unit="s", most=MOST) for name, seconds in found.items()]
    return [Figure(name="kubeocean_loop_stall", value=max(found.values()), unit="s", most=MOST), *figures]
