"""Tests of vkubelet.pods.dispatch; what it delivers is in tests/integration/pods/test_dispatch.py."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.memory_api import MemoryApi
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.names import MIRROR_POD
from vkubelet.api.objects import Json, Pod
from vkubelet.control.informer import Change
from vkubelet.pods.dispatch import Dispatch, DispatchMode, is_mirror
from vkubelet.testing.clock import ManualClock

OWNER: Json = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": True}


@pytest.mark.parametrize(
    ("metadata", "mirror"),
    [
        ({"annotations": {MIRROR_POD: "x"}, "ownerReferences": [OWNER]}, True),
        ({"ownerReferences": [OWNER]}, False),
        ({"annotations": {MIRROR_POD: "x"}}, False),
        ({"annotations": {MIRROR_POD: "x"}, "ownerReferences": [{**OWNER, "kind": "ReplicaSet"}]}, False),
    ],
)
def test_mirror_pod_says_so_and_is_its_nodes(metadata: Json, mirror: bool) -> None:
    assert is_mirror(decode_object(Pod, encode_json({"metadata": metadata}))) is mirror


def bound(name: str) -> Json:
    return {"metadata": {"name": name, "namespace": "d", "uid": f"uid-{name}"}, "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}}


async def test_pods_of_a_node_that_becomes_known_while_a_list_is_read_are_delivered() -> None:
    api, clock, seen = MemoryApi(), ManualClock(), list[str]()
    api.put("/api/v1/namespaces/d/pods/a", bound("a"))
    api.hold_end_marker = True
    dispatch = Dispatch(api.client(), clock=clock)
    dispatch.on_pod(lambda change: seen.append(change.key.name))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(dispatch.informer.run()), group.create_task(dispatch.controller.run())]
        await clock.advance(1.0)
        dispatch.set_mode("n", DispatchMode.SYNC)
        await clock.advance(1.0)
        assert not seen
        api.send_end_marker()
        await clock.advance(5.0)
        assert seen == ["a"]
        assert [pod.metadata.name for pod in dispatch.store.on_node("n")] == ["a"]
        for task in tasks:
            task.cancel()


async def test_a_listener_that_fails_for_one_pod_keeps_no_other_listener_from_it() -> None:
    def odd(change: Change[Pod]) -> None:
        raise ValueError("odd")

    api, clock, seen = MemoryApi(), ManualClock(), list[str]()
    dispatch = Dispatch(api.client(), clock=clock)
    dispatch.on_pod(odd)
    dispatch.on_pod(lambda change: seen.append(change.key.name))
    dispatch.set_mode("n", DispatchMode.SYNC)
    api.put("/api/v1/namespaces/d/pods/a", bound("a"))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(dispatch.informer.run())
        await clock.advance(1.0)
        api.put("/api/v1/namespaces/d/pods/b", bound("b"))
        await clock.advance(1.0)
        running.cancel()
    assert seen == ["a", "b"]
