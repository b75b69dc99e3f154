"""A restart, a change of leader or a new kubeconfig at any step ends no pod that would have stayed, and none earlier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime

import pytest
from attrs import frozen

from tests.unit.kubeocean.world import Process, World, local_pod, policy_body, process
from vkubelet.api.objects import Json


@frozen
class Step:
    """After so many minutes something happens."""

    minute: float
    happens: Callable[[World, Process], None] = lambda world, made: None


def use(cpu: str) -> Callable[[World, Process], None]:
    """Local pods request so much from now on."""

    def change(world: World, made: Process) -> None:
        world.local["local"] = {**local_pod(cpu), "metadata": {**local_pod(cpu)["metadata"], "resourceVersion": world.version()}}
        made.take("local", world.local["local"])

    return change


def edit(body: Json) -> Callable[[World, Process], None]:
    """A policy reads like that from now on."""

    def change(world: World, made: Process) -> None:
        world.policies[body["metadata"]["name"]] = body
        made.take("policies", body)

    return change


FORCED = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 600}
QUARTER = {"resourceLimits": [{"resource": "cpu", "percent": 25}]}
MORNING, LATER = {"timeWindows": [{"start": "08:00", "end": "09:29"}]}, {"timeWindows": [{"start": "09:30", "end": "20:00"}]}
LOOKS = (Step(0), Step(29), Step(31), Step(35), Step(39), Step(41), Step(50))

SCENES: Mapping[str, tuple[Sequence[Json], Sequence[Step]]] = {
    "the window ends": ([policy_body("p", **FORCED, **MORNING)], [*LOOKS, Step(20, use("3")), Step(36, use("1"))]),
    "the window ends, and opens again": (
        [policy_body("p", **FORCED, timeWindows=[{"start": "08:00", "end": "09:29"}, {"start": "09:45", "end": "20:00"}])],
        [*LOOKS, Step(46, use("3")), Step(48)],
    ),
    "another policy follows that offers less": ([policy_body("a", **FORCED, **MORNING), policy_body("b", **QUARTER, **LATER)], LOOKS),
    "another policy follows, and local use grows later": (
        [policy_body("a", **FORCED, **MORNING), policy_body("b", **FORCED, **LATER)],
        [*LOOKS, Step(33, use("3")), Step(37, use("4"))],
    ),
    "the policy shrinks": ([policy_body("p", **FORCED)], [*LOOKS, Step(30, edit(policy_body("p", 2, **FORCED, **QUARTER)))]),
    "the policy shrinks twice": (
        [policy_body("p", **FORCED)],
        [*LOOKS, Step(30, edit(policy_body("p", 2, **FORCED, **QUARTER))), Step(34, edit(policy_body("p", 3, **FORCED, **QUARTER)))],
    ),
    "local use grows": ([policy_body("p", **FORCED, resourceLimits=[{"resource": "cpu", "percent": 50}])], [*LOOKS, Step(10, use("3"))]),
    "the policy is edited and everything fits, then local use grows": (
        [policy_body("p", **FORCED)],
        [*LOOKS, Step(10, edit(policy_body("p", 2, **FORCED, resourceLimits=[{"resource": "cpu", "percent": 75}]))), Step(32, use("3"))],
    ),
}


async def played(scene: str, *, restart_after: int | None = None, keeps_nodes: bool = False) -> Sequence[Mapping[str, datetime]]:
    """After each step, all pods that were ordered to end so far, with their deadlines; those whose deadline is over are deleted."""
    policies, steps = SCENES[scene]
    world = World(policies={body["metadata"]["name"]: body for body in policies})
    began, found, so_far = world.clock.now(), [], {}
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(process(world))
        for number, step in enumerate(sorted(steps, key=lambda step: step.minute)):
            await world.clock.advance(step.minute * 60 - (world.clock.now() - began).total_seconds())
            step.happens(world, made)
            await world.clock.advance(2)
            world.write_nodes()
            so_far = {**so_far, **made.orders()}
            found.append(so_far)
            for pod in list(world.host.store):
                if so_far.get(pod.metadata.name, datetime.max.replace(tzinfo=began.tzinfo)) <= world.clock.now():
                    world.host.store.remove(pod.key)
            if number == restart_after:
                await stack.aclose()
                made = await stack.enter_async_context(process(world, virtual=made.virtual if keeps_nodes else None))
    return found


@pytest.mark.parametrize("keeps_nodes", [False, True], ids=["process", "session"])
@pytest.mark.parametrize("scene", SCENES)
async def test_a_restart_at_any_step_ends_no_pod_that_would_have_stayed(scene: str, keeps_nodes: bool) -> None:
    plain = await played(scene)
    for number in range(len(plain)):
        restarted = await played(scene, restart_after=number, keeps_nodes=keeps_nodes)
        for step, (with_it, without) in enumerate(zip(restarted, plain, strict=True)):
            assert with_it.keys() <= without.keys(), f"restarted after step {number}, ended at step {step}"
            assert all(with_it[name] >= without[name] for name in with_it), f"restarted after step {number}, earlier at step {step}"


@pytest.mark.parametrize(
    ("scene", "ended"),
    [
        ("the window ends", 2),
        ("another policy follows that offers less", 1),
        ("another policy follows, and local use grows later", 0),
        ("the policy shrinks", 1),
        ("local use grows", 0),
        ("the policy is edited and everything fits, then local use grows", 0),
    ],
)
async def test_what_the_scenes_end_without_a_restart(scene: str, ended: int) -> None:
    assert len((await played(scene))[-1]) == ended
