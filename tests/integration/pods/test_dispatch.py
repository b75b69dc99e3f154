"""Which pods are delivered, whichever is seen first: the pod or its node."""

from __future__ import annotations

import asyncio

from tests.integration.pods.conftest import Scripted, World
from tests.support.program import eventually
from vkubelet.api.names import MIRROR_POD
from vkubelet.api.objects import NODES, PODS, Pod
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.control.informer import Change
from vkubelet.metrics import Metrics
from vkubelet.pods.dispatch import Dispatch, DispatchMode

BEHIND = 30.0
"""Seconds after the last creation. A queue with the usual limit of client-go, a hundred at once and ten a second, would be 40 behind."""


class Following:
    """A dispatch that runs, and what it delivered."""

    def __init__(self, client: Client) -> None:
        self.metrics = Metrics()
        self.dispatch = Dispatch(client, clock=SystemClock(), metrics=self.metrics)
        self.changes: list[Change[Pod]] = []
        self.dispatch.on_pod(self.changes.append)
        self._tasks: list[asyncio.Task[None]] = []
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Following:
        await self._group.__aenter__()
        dispatch = self.dispatch
        self._tasks = [self._group.create_task(run) for run in (dispatch.informer.run(), dispatch.controller.run())]
        await eventually(lambda: dispatch.informer.ever_synced, "synced")
        return self

    async def __aexit__(self, *problem: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def appeared(self, namespace: str) -> list[tuple[str, bool]]:
        return [(c.key.name, c.initial) for c in self.changes if c.key.namespace == namespace and c.old is None]


async def test_pods_that_were_there_before_their_node_was_known_are_delivered_whole(world: World) -> None:
    node = "late"
    for number in range(3):
        await world.create(f"old-{number}", node)
    async with Following(world.client) as following:
        dispatch = following.dispatch
        assert following.appeared(world.namespace) == [] and list(dispatch.store.on_node(node)) == []
        assert dispatch.bound_to(node)
        dispatch.set_mode(node, DispatchMode.SYNC)
        await eventually(lambda: len(following.appeared(world.namespace)) == 3, "delivered")
        assert sorted(following.appeared(world.namespace)) == [("old-0", True), ("old-1", True), ("old-2", True)]
        pods = dispatch.store.on_node(node)
        assert all(pod.spec["containers"][0]["image"] == "image" for pod in pods)
        await world.create("new", node)
        await eventually(lambda: ("new", False) in following.appeared(world.namespace), "new one delivered")
        assert following.metrics.registry.get_sample_value("vkubelet_pods", {"phase": "Pending"}) == 4


async def test_mirror_pod_is_the_nodes_own_business(world: World) -> None:
    """It is not handed to anybody, and a node that goes does not wait for it."""
    node = await world.client.create(NODES, {"metadata": {"name": f"mirrored-{world.namespace}"}})
    name = node.metadata.name
    try:
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid, "controller": True}
        await world.create("picture", name, metadata={"annotations": {MIRROR_POD: "x"}, "ownerReferences": [owner]})
        async with Following(world.client) as following:
            following.dispatch.set_mode(name, DispatchMode.SYNC)
            await world.create("pod", name)
            await eventually(lambda: following.appeared(world.namespace), "the other one is delivered")
            assert following.appeared(world.namespace) == [("pod", False)]
            assert [pod.metadata.name for pod in following.dispatch.bound_to(name)] == ["pod"]
    finally:
        await world.client.delete(NODES, name)


async def test_node_that_is_forgotten_keeps_nothing_but_stubs_and_can_come_back(world: World) -> None:
    created = await world.create("web", "leaving")
    async with Following(world.client) as following:
        dispatch = following.dispatch
        dispatch.set_mode("leaving", DispatchMode.SYNC)
        await eventually(lambda: dispatch.store.get(created.ref), "delivered")
        dispatch.remove_node("leaving")
        assert dispatch.store.get(created.ref) is None and dispatch.knows(created.metadata.uid)
        await world.client.patch(PODS, created.ref, {"metadata": {"labels": {"a": "b"}}})
        dispatch.set_mode("leaving", DispatchMode.RETIRE)
        await eventually(lambda: (pod := dispatch.store.get(created.ref)) and pod.metadata.labels == {"a": "b"}, "delivered again")


async def test_pod_recreated_while_the_watch_was_away_is_a_deletion_and_a_creation(world: World) -> None:
    async with Following(world.client) as following:
        following.dispatch.set_mode("twice", DispatchMode.SYNC)
        first = await world.create("web", "twice")
        await eventually(lambda: following.appeared(world.namespace), "first")
        await world.delete("web", grace=0)
        second = await world.create("web", "twice")
        await eventually(lambda: following.dispatch.store.by_uid(second.metadata.uid), "second")
        ends = [c.old.metadata.uid for c in following.changes if c.new is None and c.old is not None]
        assert ends == [first.metadata.uid]
        assert len(following.appeared(world.namespace)) == 2


async def test_five_hundred_pods_at_once_are_handed_over_within_seconds(world: World) -> None:
    provider = Scripted("many", reports=False)
    async with world.side(provider):
        limit = asyncio.Semaphore(20)

        async def create(number: int) -> None:
            async with limit:
                await world.create(f"web-{number}", "many")

        async with asyncio.TaskGroup() as group:
            for number in range(500):
                group.create_task(create(number))
        # However long their creation took.
        await eventually(lambda: len(provider.calls) >= 500, "all handed over", seconds=BEHIND)
        assert len({name for _, name, _ in provider.calls}) == 500
