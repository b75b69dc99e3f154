"""Objects of a worker that no one expects: values of odd types, claims to be pods of others, and sound objects that only look wrong.

Invariant: whatever a worker stores, the process of the binding serves the rest of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from kubeocean.model import keys
from tests.faults.attack import scene as scenes
from tests.faults.attack.scene import MOUNT, VNODE, Scene, scene
from tests.faults.attack.worker import Asked, answer
from tests.support.memory_api import Body
from tests.support.program import eventually
from vkubelet.provider import ProviderError
from vkubelet.testing.host import make_pod
from vkubelet.testing.streams import MemoryIO

ODD: tuple[Any, ...] = (None, 0, -1, 2**62, 1.5, True, "", "²", "x" * 5000, [], [[]], [None], ["x"], {}, {"": {}}, {"name": 7}, "9" * 5000)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, part in inner for each in spots(part, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


async def test_no_field_of_an_odd_type_stops_the_process_or_reaches_the_hub() -> None:
    """One object after another of the worker has one odd value; then all are as before."""
    random = Random(20270101)
    async with scene() as served:
        await served.connected()
        await served.start("web")
        cluster = served.worker.cluster
        path = scenes.physical_path("web")
        container = {"name": "main", "image": "i", "imageID": "i", "ready": True, "restartCount": 0, "state": {"running": {}}}
        conditions = [{"type": "Ready", "status": "True"}]
        status = {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "containerStatuses": [container],
            "conditions": conditions,
        }
        cluster.put(path, {**cluster.objects[path], "spec": {**cluster.objects[path]["spec"], "nodeName": "node-1"}, "status": status})
        meta = {"name": "other", "namespace": "elsewhere", "uid": "u-other"}
        cluster.put("/api/v1/namespaces/elsewhere/pods/other", {**cluster.objects[path], "metadata": meta})
        labels = served.host.nodes[VNODE].labels
        sound = {name: deepcopy(body) for name, body in cluster.objects.items()}
        for body in sound.values():
            body["metadata"].pop("resourceVersion", None)
        for _ in range(ROUNDS):
            for _ in range(AT_ONCE):
                name = random.choice(sorted(sound))
                where = random.choice([each for each in spots(sound[name]) if each and each[:2] != ("metadata", "name")])
                odd = replaced(sound[name], where, random.choice(ODD))
                if isinstance(odd["metadata"], dict):
                    cluster.put(name, odd)
            await asyncio.sleep(0.05)
            assert served.alive()
        for name, body in sound.items():
            cluster.put(name, body)
        served.worker.cut()
        await eventually(
            lambda: served.alive() and VNODE in served.host.nodes and served.host.nodes[VNODE].labels == labels, "the node is as it was"
        )
        await served.start("after")
        await eventually(lambda: served.host.status("uid-web") is not None, "the pod's status is mirrored")
    assert {ref.node for ref, _ in served.host.statuses} <= {VNODE}


ROUNDS, AT_ONCE = 60, 5


async def test_a_worker_reaches_no_pod_that_is_not_its_own() -> None:
    """Physical pods claim to back pods of other nodes, other namespaces, and earlier pods of the same name."""
    async with scene() as served:
        await served.connected()
        await served.start("web")
        foreign = make_pod("victim", node="node-of-the-hub")
        other = make_pod("neighbour", node="vnode-other-node-1")
        cluster = served.worker.cluster
        template = cluster.objects[scenes.physical_path("web")]
        writes = len(served.hub.writes)
        for pod, node_name in ((foreign, foreign.node), (foreign, VNODE), (other, other.node), (other, VNODE)):
            for name in (keys.physical_name("default", pod.metadata.name), f"made-up-{node_name}"):
                claims = {
                    keys.VIRTUAL_POD_NAMESPACE: "default",
                    keys.VIRTUAL_POD_NAME: pod.metadata.name,
                    keys.VIRTUAL_POD_UID: pod.metadata.uid,
                    keys.VIRTUAL_NODE_NAME: node_name,
                }
                annotations = {**template["metadata"]["annotations"], **claims}
                meta = {**template["metadata"], "name": name, "annotations": annotations, "uid": f"uid-{name}-{node_name}"}
                meta.pop("resourceVersion", None)
                path = f"/api/v1/namespaces/{MOUNT}/pods/{name}"
                cluster.put(path, {**template, "metadata": meta, "status": {"phase": "Failed", "message": "gone"}})
                cluster.delete(path)
        await served.start("after")
        strangers = {foreign.metadata.uid, other.metadata.uid}
        assert not strangers & {ref.uid for ref, _ in served.host.statuses}
        assert not strangers & {ref.uid for ref in (*served.host.gone, *(ref for ref, _ in served.host.failed))}
        assert not [write for write in served.hub.writes[writes:] if "victim" in write.path or "neighbour" in write.path]
        for ref in (foreign.ref, other.ref):
            with pytest.raises(ProviderError):
                await served.provider.exec(ref, "main", ["id"], MemoryIO(b""))


EVENT: Body = {
    "metadata": {"name": "e", "namespace": MOUNT, "uid": "u-e", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "involvedObject": {"kind": "Pod", "name": "web", "namespace": MOUNT, "uid": "u"},
    "reason": "Started",
    "lastTimestamp": "2026-01-01T00:00:00Z",
}
LEGACY = {"labels": {keys.MANAGED_BY: keys.MANAGED}}
PLACES: Mapping[str, tuple[str, Body]] = {
    "an Event of the year 0": (f"/api/v1/namespaces/{MOUNT}/events/e", {**EVENT, "lastTimestamp": "0000-01-01T00:00:00Z"}),
    "an Event about no object": (f"/api/v1/namespaces/{MOUNT}/events/e", {**EVENT, "involvedObject": "pod"}),
    "an Event with a count that is a text": (f"/api/v1/namespaces/{MOUNT}/events/e", {**EVENT, "count": "many", "series": 5}),
    "a copy whose original has no namespace": (
        f"/api/v1/namespaces/{MOUNT}/configmaps/{keys.physical_name('', 'x')}",
        {
            "metadata": {
                "name": keys.physical_name("", "x"),
                "namespace": MOUNT,
                "uid": "u",
                **LEGACY,
                "annotations": {keys.VIRTUAL_NAME: "x"},
            }
        },
    ),
    "a token of a pod whose names lead upwards": (
        f"/api/v1/namespaces/{MOUNT}/secrets/s",
        {
            "metadata": {
                "name": "s",
                "namespace": MOUNT,
                "uid": "u",
                "labels": {**LEGACY["labels"], keys.TOKEN_SECRET: "true"},
                "annotations": {
                    keys.VIRTUAL_POD_NAMESPACE: "../..",
                    keys.VIRTUAL_POD_NAME: "..",
                    keys.VIRTUAL_POD_UID: "uid-of-another",
                },
            }
        },
    ),
}


@pytest.mark.parametrize("name", PLACES)
async def test_one_unexpected_object_stops_no_session(name: str) -> None:
    path, body = PLACES[name]
    async with scene() as served:
        served.worker.cluster.put(path, body)
        await served.connected()
        await still_served(served)


async def still_served(served: Scene) -> None:
    """A pod is started, and seconds later the same provider runs, although another object has come meanwhile."""
    await served.start("web")
    await asyncio.sleep(1.5)
    assert served.alive()
    await served.start("after")


async def test_a_review_of_an_odd_type_is_a_refusal() -> None:
    async with scene() as served:

        async def odd(asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if asked.path == f"/api/v1/namespaces/{MOUNT}":
                writer.write(answer(403, json.dumps({"kind": "Status", "code": 403, "message": "no"}).encode()))
            elif asked.path.endswith("reviews"):
                writer.write(answer(200, json.dumps({"metadata": {}, "status": "allowed"}).encode()))
            else:
                return False
            return True

        served.worker.misbehave = odd
        await eventually(lambda: served.alive() and any(asked.path.endswith("reviews") for asked in served.worker.asked), "it is asked for")
        await asyncio.sleep(0.5)
        assert served.alive() and VNODE not in served.host.nodes
        served.worker.misbehave = None
        await served.connected()
