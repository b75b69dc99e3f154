"""A node with its own identity that resolves its pods and starts nothing, beside an administrator who makes what they refer to."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from tests.integration.patient import patient_connection
from tests.integration.pods.conftest import World
from tests.support.program import eventually
from vkubelet.api.objects import Node, Pod, PodRef
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.pods import Pods
from vkubelet.provider import NodeDescription, PodReport, ResolvedPod, all_running

POD_IPS = ["10.1.2.3", "fd00::3"]
ALLOCATABLE = {"cpu": "3500m", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "110"}


@define
class Resolver:
    """A provider that resolves its pods and starts nothing."""

    node: str
    files: Path
    resolved: dict[str, ResolvedPod] = field(factory=dict)
    held: dict[str, PodReport] = field(factory=dict)
    host: Any = None

    async def run(self, host: Any) -> None:
        self.host = host
        host.set_node(NodeDescription(self.node, {"cpu": "4"}))
        await host.until_stopped()

    async def sync_pod(self, pod: Pod) -> None:
        self.resolved[pod.ref.name] = await self.host.resolve(pod, files=self.files / pod.ref.uid, pod_ips=POD_IPS)
        self.held[pod.ref.uid] = all_running(pod, ips=POD_IPS)
        self.host.report(self.held[pod.ref.uid])

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        self.held.pop(pod.uid, None)
        self.host.pod_gone(pod)

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return list(self.held.values())


class AheadClock(SystemClock):
    """The machine's clock, but for the hour that it shows."""

    def __init__(self, ahead: float) -> None:
        self._ahead = timedelta(seconds=ahead)

    def now(self) -> datetime:
        return super().now() + self._ahead


@define
class Scene:
    """One node with its own identity, and an administrator."""

    admin: World
    pods: Pods
    provider: Resolver
    client: Client
    identity: Path

    async def make(self, kind: str, name: str, **body: Any) -> Any:
        """`kind` is `config_map`, `secret` or `service`."""
        whole = {"metadata": {"name": name}, **body}
        return await asyncio.to_thread(getattr(self.admin.witness, f"create_namespaced_{kind}"), self.admin.namespace, whole)

    async def change(self, kind: str, name: str, **body: Any) -> None:
        await asyncio.to_thread(getattr(self.admin.witness, f"patch_namespaced_{kind}"), name, self.admin.namespace, body)

    async def remove(self, kind: str, name: str) -> None:
        await asyncio.to_thread(getattr(self.admin.witness, f"delete_namespaced_{kind}"), name, self.admin.namespace)

    async def start(self, name: str, **body: Any) -> Pod:
        return await self.admin.create(name, self.provider.node, **body)

    async def running(self, name: str, **body: Any) -> ResolvedPod:
        """Make a pod and wait until it runs; what it was resolved to."""
        await self.start(name, **body)
        await self.admin.running(name)
        return self.provider.resolved[name]

    async def event(self, name: str, reason: str, text: str = "") -> str:
        """The message of an event about a pod that holds `text`, waited for; there may be others for the same reason."""
        fields = f"involvedObject.name={name},reason={reason}"

        def look() -> str | None:
            found = self.admin.witness.list_namespaced_event(self.admin.namespace, field_selector=fields).items
            return next((str(each.message) for each in found if text in each.message), None)

        return await eventually(lambda: asyncio.to_thread(look), f"event {reason} about {name}: {text}")

    async def events(self, name: str) -> list[Any]:
        """All there are about a pod now."""
        fields = f"involvedObject.name={name}"
        found = await asyncio.to_thread(self.admin.witness.list_namespaced_event, self.admin.namespace, field_selector=fields)
        return list(found.items)

    async def waiting(self, name: str, reason: str, message: str) -> None:
        """Wait until a container waits for `reason` and says so."""

        def waits(pod: Mapping[str, Any]) -> bool:
            statuses = pod["status"].get("containerStatuses") or [{}]
            found = statuses[0].get("state", {}).get("waiting") or {}
            return (found.get("reason"), found.get("message")) == (reason, message)

        await self.admin.until(name, waits, f"waits for {reason}: {message}")


@asynccontextmanager
async def acting(world: World, node: str, files: Path, *, clock: SystemClock, shown: Node) -> AsyncIterator[Scene]:
    identity = world.hub.client_config(f"system:node:{node}", ["system:nodes"])
    async with Client(await patient_connection(identity), field_manager="vkubelet-tests") as client:
        ours = evolve(world, client=client, clock=clock, node=lambda name: shown)
        provider = Resolver(node, files)
        async with ours.side(provider, watching=world.client) as pods:
            yield Scene(world, pods, provider, client, identity)


def from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def from_key(name: str, kind: str, source: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "valueFrom": {f"{kind}KeyRef": {"name": source, "key": key, **more}}}


def container(**more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "image", **more}


def encoded(**texts: str) -> dict[str, str]:
    return {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}


def volume_of(resolved: ResolvedPod, path: str, name: str = "main") -> Path:
    source = next(mount.source for mount in resolved.containers[name].mounts if mount.path == path)
    assert source is not None
    return source


def text_of(path: Path) -> str | None:
    """Files are replaced as a whole, also between two looks at them."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
