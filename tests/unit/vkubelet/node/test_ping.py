"""What the answers of a provider do to the health of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define, field

from vkubelet.errors import Unavailable
from vkubelet.node.declared import HEALTHY, DeclaredNodes
from vkubelet.node.ping import Pinger, PingSettings
from vkubelet.provider import NodeDescription
from vkubelet.testing.clock import ManualClock


@define
class Answers:
    """A provider whose ping of a node raises what is planned for it, or hangs."""

    problems: dict[str, Exception] = field(factory=dict)
    hanging: set[str] = field(factory=set)
    pings: list[str] = field(factory=list)
    in_flight: int = 0
    most: int = 0

    async def ping(self, node: str) -> None:
        self.pings.append(node)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            if node in self.hanging:
                await asyncio.Event().wait()
            if node in self.problems:
                raise self.problems[node]
        finally:
            self.in_flight -= 1


def described(name: str) -> NodeDescription:
    return NodeDescription(name, {"cpu": "1"})


@asynccontextmanager
async def pinging(answers: Answers, *, timeout: float = 5.0) -> AsyncIterator[tuple[DeclaredNodes, ManualClock]]:
    clock = ManualClock()
    nodes = DeclaredNodes(clock)
    pinger = Pinger(answers, nodes, clock=clock, settings=PingSettings(every=10.0, timeout=timeout))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(pinger.run())
        yield nodes, clock
        await clock.settle()
        task.cancel()


async def test_node_whose_ping_fails_is_unhealthy_until_one_succeeds() -> None:
    answers = Answers({"a": Unavailable("the rack is dark")})
    async with pinging(answers) as (nodes, clock):
        nodes.declare(described("a"))
        nodes.declare(described("b"))
        await clock.settle()
        assert (nodes.health("a").reason, nodes.health("a").message) == ("PingFailed", "the rack is dark")
        assert nodes.health("b") == HEALTHY
        answers.problems.clear()
        await clock.advance(10.0)
        assert nodes.health("a") == HEALTHY


async def test_ping_that_hangs_counts_as_failed_and_delays_no_other() -> None:
    answers = Answers(hanging={"a"})
    timed_out = asyncio.Event()
    async with pinging(answers, timeout=0.01) as (nodes, clock):
        nodes.on_change(lambda name: timed_out.set() if nodes.health("a").reason else None)
        nodes.declare(described("a"))
        nodes.declare(described("b"))
        await clock.settle()
        assert answers.pings == ["a", "b"]
        await timed_out.wait()
        assert nodes.health("a").reason == "PingTimeout"
        assert nodes.health("b") == HEALTHY


async def test_error_that_no_provider_should_raise_ends_no_loop_and_is_not_shown() -> None:
    answers = Answers({"a": KeyError("canary")})
    async with pinging(answers) as (nodes, clock):
        nodes.declare(described("a"))
        nodes.declare(described("b"))
        await clock.settle()
        assert nodes.health("a").reason == "PingFailed"
        assert "canary" not in nodes.health("a").message
        answers.problems.clear()
        await clock.advance(10.0)
        assert nodes.health("a") == HEALTHY


async def test_each_node_is_pinged_once_per_period_whatever_else_changes() -> None:
    answers = Answers()
    async with pinging(answers) as (nodes, clock):
        for labels in ("x", "y", "z"):
            nodes.declare(NodeDescription("a", {"cpu": "1"}, labels={"l": labels}))
            await clock.settle()
        await clock.advance(10.0)
        assert answers.pings == ["a", "a"]
        assert answers.most == 1


async def test_only_declared_nodes_are_pinged() -> None:
    answers = Answers()
    async with pinging(answers) as (nodes, clock):
        nodes.found("unknown")
        nodes.declare(described("leaving"))
        await clock.settle()
        nodes.retire("leaving")
        await clock.advance(30.0)
        assert answers.pings == ["leaving"]
        nodes.declare(described("leaving"))
        await clock.settle()
        assert answers.pings == ["leaving", "leaving"]


async def test_stop_amid_a_ping_says_nothing_of_the_node() -> None:
    answers = Answers(hanging={"a"})
    async with pinging(answers) as (nodes, clock):
        nodes.declare(described("a"))
        await clock.settle()
    assert nodes.health("a") == HEALTHY
