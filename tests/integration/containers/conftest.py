"""Pods of a provider that only starts and stops containers, in the real runtime, against a real API server.

Invariant: what the API holds is read by a client that is not ours; times are the real ones; Node and Lease go with the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attrs import define
from kubernetes import client as k8s

from tests.support.program import PATIENCE, eventually
from tests.support.starter import Executor
from tests.support.witness import api_client
from vkubelet.client.connection import load_connection
from vkubelet.provider import Running
from vkubelet.runtime import Runtime
from vkubelet.settings import Settings, convert
from vkubelet.testing.cluster import ControlPlane

Body = dict[str, Any]


@define
class Scene:
    """A namespace, a node, and a provider that holds the containers of its pods in memory."""

    hub: ControlPlane
    namespace: str
    witness: k8s.CoreV1Api
    provider: Executor

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Runtime]:
        """One life of the process; what the backend holds goes on."""
        settings = {
            "instance": self.provider.node,
            "server": {"certificate": "self-signed", "main_port": 0, "node_address": "127.0.0.1"},
            "health": {"health_address": "", "metrics_address": ""},
            "leader": {"enabled": False},
        }
        runtime = Runtime(self.provider, convert(settings, Settings), connection=await load_connection(kubeconfig=self.hub.kubeconfig))
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.run())
            try:
                yield runtime
            finally:
                runtime.stop()

    async def create(self, name: str, **spec: Any) -> str:
        """The uid."""
        containers = [{"image": "image", **c} for c in spec.pop("containers", [{"name": "main"}])]
        body = {"metadata": {"name": name}, "spec": {"nodeName": self.provider.node, "containers": containers, **spec}}
        made = await asyncio.to_thread(self.witness.create_namespaced_pod, self.namespace, body)
        uid: str = made.metadata.uid
        return uid

    async def read(self, name: str) -> Body | None:
        try:
            found = await asyncio.to_thread(self.witness.read_namespaced_pod, name, self.namespace)
        except k8s.ApiException as error:
            if error.status == 404:
                return None
            raise
        body: Body = self.witness.api_client.sanitize_for_serialization(found)
        return body

    async def until(self, name: str, wanted: Callable[[Body], Any], what: str, *, seconds: float = PATIENCE) -> Body:
        async def check() -> Body | None:
            found = await self.read(name)
            return found if found is not None and wanted(found) else None

        pod: Body = await eventually(check, f"{name}: {what}", seconds=seconds)
        return pod

    async def started(self, uid: str, container: str = "main") -> None:
        await eventually(lambda: self.runs(uid, container), f"the backend runs {container}", every=0.02)

    def runs(self, uid: str, container: str = "main") -> bool:
        box = self.provider.backend.boxes.get(uid, {}).get(container)
        return box is not None and isinstance(box.state, Running)

    def end(self, uid: str, container: str = "main", *, code: int) -> None:
        self.provider.backend.end(uid, container, code)

    async def told(self, pod: str, reason: str, text: str = "") -> None:
        """Wait for an event about a pod whose message holds `text`; there may be others for the same reason."""
        fields = f"reason={reason},involvedObject.name={pod}"

        async def check() -> bool:
            found = await asyncio.to_thread(self.witness.list_namespaced_event, self.namespace, field_selector=fields)
            return any(text in each.message for each in found.items)

        await eventually(check, f"event {reason} of {pod}: {text}")

    async def change(self, name: str, subresource: str, body: Body) -> None:
        patch = getattr(self.witness, f"patch_namespaced_pod_{subresource}")
        await asyncio.to_thread(patch, name, self.namespace, body)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self.witness.delete_namespaced_pod, name, self.namespace)

    async def absent(self, name: str) -> None:
        async def check() -> bool:
            return await self.read(name) is None

        await eventually(check, f"{name} is gone")


@pytest.fixture
async def scene(hub: ControlPlane) -> AsyncIterator[Scene]:
    namespace = await hub.namespace("containers")
    witness = k8s.CoreV1Api(api_client(hub.kubeconfig))
    made = Scene(hub, namespace, witness, Executor(node=f"node-{namespace}", address="127.0.0.1"))
    try:
        yield made
    finally:
        for remove in (
            lambda: witness.delete_collection_namespaced_pod(namespace, grace_period_seconds=0),
            lambda: witness.delete_collection_node(field_selector=f"metadata.name={made.provider.node}"),
        ):
            await asyncio.to_thread(remove)


def status_of(pod: Body, container: str = "main") -> Body:
    """Of a container of any kind."""
    lists = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    found: Body = next((s for name in lists for s in pod["status"].get(name) or () if s["name"] == container), {})
    return found


def condition(pod: Body, kind: str) -> Body:
    found: Body = next((c for c in pod["status"].get("conditions") or () if c["type"] == kind), {})
    return found
