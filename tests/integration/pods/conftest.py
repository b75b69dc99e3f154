"""The pods' side of the runtime against a real API server, without Nodes: who is on a node is told by `spec.nodeName` alone.

Invariant: every test has a namespace and node names of its own; what the API holds is read by a client that is not ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from kubernetes import client as k8s

from tests.integration.patient import patient_connection
from tests.support.program import PATIENCE, eventually
from tests.support.witness import Record, api_client, watching
from vkubelet.api.objects import PODS, Key, Node, Pod, PodRef
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, SystemClock
from vkubelet.control.recorder import Recorder
from vkubelet.pods import Pods
from vkubelet.pods.listing import PodSettings
from vkubelet.provider import NodeDescription, PodFailure, PodReport, Provider, ResolvedPod, all_running
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.host import RecordingHost

HOST_IP = "192.0.2.1"


class WiredHost(RecordingHost):
    """What the runtime's host does for pods: declared nodes are enabled, reports are published."""

    def __init__(self, pods: Pods, client: Client) -> None:
        super().__init__(clock=SystemClock(), client=client)
        self.wired = pods

    def set_node(self, node: NodeDescription) -> None:
        super().set_node(node)
        self.wired.enable(node.name)

    def report(self, report: PodReport) -> None:
        super().report(report)
        self.wired.report(report)

    def set_pod_status(self, pod: PodRef, status: Mapping[str, Any], *, annotations: Mapping[str, str] | None = None) -> None:
        super().set_pod_status(pod, status, annotations=annotations)
        self.wired.set_pod_status(pod, status, annotations=annotations)

    def fail_pod(self, pod: PodRef, failure: PodFailure) -> None:
        super().fail_pod(pod, failure)
        self.wired.fail_pod(pod, failure)

    def pod_gone(self, pod: PodRef) -> None:
        super().pod_gone(pod)
        self.wired.pod_gone(pod)

    async def resolve(
        self, pod: Pod, *, files: Path | None = None, pod_ips: Sequence[str] = (), containers: Collection[str] | None = None
    ) -> ResolvedPod:
        return await self.wired.resolve(pod, files=files, pod_ips=pod_ips, containers=containers)


@define
class Scripted:
    """A provider that notes every call and does what the test told it to."""

    node: str
    calls: list[tuple[str, str, float]] = field(factory=list)
    """(verb, pod name, grace)"""
    held: dict[str, PodReport] = field(factory=dict)
    active: dict[str, int] = field(factory=dict)
    overlaps: int = 0
    gate: asyncio.Event | None = None
    """A sync waits for it, if set."""
    raises: Exception | None = None
    gone_after_delete: bool = True
    reports: bool = True
    listed: Callable[[], Iterable[PodReport]] | None = None
    host: WiredHost | None = None

    async def run(self, host: Any) -> None:
        self.host = host
        host.set_node(NodeDescription(self.node, {"cpu": "1"}))
        await host.until_stopped()

    @asynccontextmanager
    async def alone(self, uid: str) -> AsyncIterator[None]:
        self.overlaps += self.active.get(uid, 0)
        self.active[uid] = self.active.get(uid, 0) + 1
        try:
            yield
        finally:
            self.active[uid] -= 1

    async def sync_pod(self, pod: Pod) -> None:
        async with self.alone(pod.ref.uid):
            self.calls.append(("sync", pod.ref.name, 0.0))
            if self.gate is not None:
                await self.gate.wait()
            if self.raises is not None:
                raise self.raises
            self.held[pod.ref.uid] = all_running(pod, ips=["10.9.9.9"])
            if self.reports and self.host is not None:
                self.host.report(self.held[pod.ref.uid])

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        async with self.alone(pod.uid):
            self.calls.append(("delete", pod.name, grace))
            if self.gone_after_delete and self.host is not None:
                self.held.pop(pod.uid, None)
                self.host.pod_gone(pod)

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return list(self.listed() if self.listed is not None else self.held.values())

    def verbs(self, name: str) -> list[str]:
        return [verb for verb, pod, _ in self.calls if pod == name]

    def graces(self, name: str) -> list[float]:
        return [grace for verb, pod, grace in self.calls if verb == "delete" and pod == name]


@define
class World:
    """A namespace of the hub, our client, and another one."""

    hub: ControlPlane
    client: Client
    namespace: str
    witness: k8s.CoreV1Api
    watch: asyncio.Task[None] | None = None
    """The running pod watch."""
    group: asyncio.TaskGroup | None = None
    list_interval: float = 60.0
    clock: Clock = field(factory=SystemClock)
    node: Callable[[str], Node | None] = lambda name: None

    @asynccontextmanager
    async def side(self, provider: Provider, *, watching: Client | None = None) -> AsyncIterator[Pods]:
        """The pods' side with its provider, until the block ends; `watching` watches the pods if our client may not."""
        clock = self.clock
        pods = Pods(
            provider=provider,
            client=watching or self.client,
            node_client=lambda node: self.client,
            recorder=(recorder := Recorder(self.client, "vkubelet", host="tests", clock=clock)),
            clock=clock,
            node=self.node,
            node_ips=lambda node: [HOST_IP],
            settings=PodSettings(list_interval=self.list_interval),
        )
        async with asyncio.TaskGroup() as group:
            host = WiredHost(pods, self.client)
            self.group, self.watch = group, group.create_task(pods.informer.run())
            tasks = [group.create_task(run) for run in (pods.run(), recorder.run(), provider.run(host))]
            yield pods
            for task in (*tasks, self.watch):
                task.cancel()

    async def create(self, name: str, node: str, **body: Any) -> Pod:
        """A pod that is bound from the beginning; `metadata` is merged, everything else is spec."""
        metadata = {"name": name, **body.pop("metadata", {})}
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "image"}], **body}
        return await self.client.create(PODS, {"metadata": metadata, "spec": spec}, namespace=self.namespace)

    async def read(self, name: str) -> dict[str, Any] | None:
        """The pod as the other client sees it."""
        found: dict[str, Any] | None = await asyncio.to_thread(self._read, name)
        return found

    def _read(self, name: str) -> Any:
        try:
            return self.witness.api_client.sanitize_for_serialization(self.witness.read_namespaced_pod(name, self.namespace))
        except k8s.ApiException as error:
            if error.status == 404:
                return None
            raise

    async def until(self, name: str, wanted: Callable[[dict[str, Any]], bool], what: str, *, seconds: float = PATIENCE) -> dict[str, Any]:
        async def check() -> dict[str, Any] | None:
            found = await self.read(name)
            return found if found is not None and wanted(found) else None

        try:
            found: dict[str, Any] = await eventually(check, f"{name}: {what}", seconds=seconds)
        except AssertionError as error:
            error.add_note(f"it was: {(await self.read(name) or {}).get('status')}")
            raise
        return found

    async def running(self, name: str) -> dict[str, Any]:
        return await self.until(name, lambda pod: pod["status"].get("phase") == "Running", "Running")

    async def absent(self, name: str, *, seconds: float = PATIENCE) -> None:
        async def check() -> bool:
            return await self.read(name) is None

        await eventually(check, f"{name} gone", seconds=seconds)

    async def delete(self, name: str, *, grace: int | None = None) -> None:
        await self.client.delete(PODS, Key(self.namespace, name), grace=grace)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Record]:
        """Every event of the namespace, by the other client."""
        kubeconfig: Path = self.hub.kubeconfig
        manager = watching(kubeconfig, namespace=self.namespace)
        record = await asyncio.to_thread(manager.__enter__)
        try:
            yield record
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)


@pytest.fixture
async def world(hub: ControlPlane) -> AsyncIterator[World]:
    async with Client(await patient_connection(hub.kubeconfig), field_manager="vkubelet-tests") as client:
        namespace = await hub.namespace("pods")
        yield World(hub, client, namespace, k8s.CoreV1Api(api_client(hub.kubeconfig)))


def condition(pod: Mapping[str, Any], kind: str) -> str:
    return next((c["status"] for c in pod["status"].get("conditions", ()) if c["type"] == kind), "")
