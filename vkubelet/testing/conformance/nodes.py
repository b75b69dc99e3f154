"""Rules of nodes.

Invariant: a node description is compared with what kubectl shows.
"""

import asyncio

from vkubelet.api.quantity import Quantity
from vkubelet.provider import SupportsPing
from vkubelet.testing.conformance.rules import Broken, Phase, expect, rule
from vkubelet.testing.conformance.stand import Stand

STOP_SECONDS = 5.0
"""Seconds that the runtime gives a provider at a stop before it cancels it."""


@rule()
async def node_ready(stand: Stand) -> str:
    """Every node the provider declares becomes Ready in the cluster, with the capacity its description names."""
    found = await stand.nodes_ready()
    for name, description in stand.recording.nodes.items():
        shown = found[name]["status"].get("capacity", {})
        for resource, amount in description.capacity.items():
            same = resource in shown and Quantity.parse(shown[resource]) == Quantity.parse(amount)
            expect(same, f"node {name} is declared with {resource}: {amount}, and shown with {shown.get(resource)}")
        expect("pods" in description.capacity, f"node {name} is declared without a capacity of pods, so no pod can be scheduled there")
    return f"{len(found)} node" + ("s" if len(found) > 1 else "")


@rule(needs=SupportsPing)
async def ping_answers(stand: Stand) -> None:
    """ping responds for every declared node within the timeout of the runtime, and more than once."""
    provider, timeout = stand.capability(SupportsPing), stand.subject.settings.ping.timeout
    for name in list(stand.recording.nodes):
        for _ in range(2):
            try:
                async with asyncio.timeout(timeout):
                    await provider.ping(name)
            except TimeoutError:
                raise Broken(f"ping of node {name} did not answer within {timeout:g} s") from None


@rule(phase=Phase.LAST)
async def run_returns(stand: Stand) -> None:
    """run() returns within five seconds once until_stopped() has returned."""
    await stand.stop()
    expect(stand.recording.stops, "the runtime was stopped, and run() never returned")
    late = [stop for stop in stand.recording.stops if stop.cancelled or stop.seconds >= STOP_SECONDS]
    expect(not late, f"run() did not return within {STOP_SECONDS:g} s after until_stopped() had; it was cancelled")


@rule(phase=Phase.LAST)
async def loop_is_free(stand: Stand) -> str:
    """Nothing blocks the event loop: while the provider works, other tasks of the loop run."""
    stalls = stand.seen.blocking.stalls
    if stalls:
        worst = max(stalls, key=lambda stall: stall.seconds)
        raise Broken(f"the event loop was blocked for {worst.seconds:.2f} s at {worst.where}; {len(stalls)} times in total")
    return f"longest lag {stand.seen.blocking.longest:.2f} s, none of it in the provider"


RULES = (node_ready, ping_answers)
LAST = (run_returns, loop_is_free)
