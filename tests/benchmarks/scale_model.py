"""Thousands of nodes in virtual time, without clusters: what is counted grows with the number of nodes alone, up to 50,000 of them.

Invariant: each size is one run in a process of its own, and only counts are judged, which do not depend on the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.benchmarks.figures import Figure
from tests.faults.simulation.many_nodes import Counted, measured
from tests.support import limits
from vkubelet.testing.cluster import Site

SIZES = ((1000, 2, 6.0), (2000, 2, 6.0), (5000, 2, 6.0), (limits.NODES, 0, 1.0))
"""Nodes, pods on each, and minutes at rest."""
_CLOSE = 0.01
"""What is counted may differ from the arithmetic by that share."""


async def measure(site: Site) -> Sequence[Figure]:
    """The runtime at 1,000, 2,000, 5,000 and 50,000 nodes of an API server model; some ten minutes of CPU."""
    found = [await _run(*size) for size in SIZES]
    _show(found)
    return [figure for each in found for figure in _figures(each)]


async def _run(nodes: int, pods: int, minutes: float) -> Counted:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return await asyncio.wrap_future(pool.submit(measured, nodes, pods=nodes * pods, minutes=minutes))


def _figures(found: Counted) -> Sequence[Figure]:
    name, resting = f"scale_model_{found.nodes}", found.resting
    return [
        _judged(f"{name}_renewals", resting.requests["PUT leases"], limits.renewals(found.nodes) * resting.seconds),
        _judged(
            f"{name}_registration",
            sum(found.registering.requests[what] for what in limits.REGISTRATION),
            found.nodes * len(limits.REGISTRATION),
        ),
        Figure(name=f"{name}_heartbeats", value=resting.requests.get("PATCH nodes/status", 0), unit="writes"),
        Figure(name=f"{name}_node", value=found.node_memory / found.nodes, unit="bytes"),
    ]


def _judged(name: str, value: float, expected: float) -> Figure:
    """Compares a count with the arithmetic."""
    ratio = value / expected
    return Figure(
        name=name,
        value=value,
        unit="requests",
        ratio_to="the arithmetic",
        ratio=ratio,
        least_ratio=1 - _CLOSE,
        most_ratio=1 + _CLOSE,
    )


def _show(found: Sequence[Counted]) -> None:
    """Prints the rows of docs/explanation/scale.md."""
    for each in found:
        rest, pods = each.resting, each.pods
        kib = [each.node_memory / each.nodes, (each.pod_memory - each.node_memory) / (pods or 1), rest.event_bytes.get("nodes", 0)]
        cells = (
            f"{each.nodes:,}",
            f"{pods:,}",
            f"{rest.seconds / 60:.0f} min",
            f"{rest.requests['PUT leases']:,}",
            f"{rest.requests.get('PATCH nodes/status', 0):,}",
            f"{rest.events.get('nodes', 0):,}",
            f"{kib[2] / 2**20:.1f} MiB",
            f"{kib[0] / 1024:.1f} KiB",
            f"{kib[1] / 1024:.1f} KiB" if pods else "",
        )
        print(f"    | {' | '.join(cells)} |".replace("|  |", "| |"), flush=True)
