"""A backend whose logs the test writes, and a kubelet server in front of it with nodes of its own in the hub.

Invariant: pods are real objects of the hub, and the server knows of them only what was read from there.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any

import aiohttp
from attrs import define, field, frozen

from tests.integration.patient import patient_connection
from tests.support.program import eventually
from vkubelet.api.objects import NODES, PODS, SUBJECTACCESSREVIEWS, Key, Pod, PodRef
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.metrics import Metrics
from vkubelet.provider import ContainerReport, Host, LogOptions, PodReport, Running
from vkubelet.server import Endpoint, KubeletServer, ServerSettings
from vkubelet.testing.cluster import ControlPlane

RUNNING: Mapping[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


class Log:
    """One container's log; grows while it is followed."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)
        self.ended = False
        self._changed = asyncio.Event()

    def append(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        await self._changed.wait()


class Backend:
    """A provider of logs."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, str, bool], Log] = {}
        self.streams = 0
        self.given = 0
        self.failure: Exception | None = None
        self.reports: list[PodReport] = []

    async def run(self, host: Host) -> None:
        await host.until_stopped()

    async def sync_pod(self, pod: Pod) -> None:
        return None

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        return None

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return [report for report in self.reports if report.pod.node == node]

    def write(self, pod: Pod, *chunks: bytes, container: str = "app", previous: bool = False) -> Log:
        log = self.logs[pod.metadata.uid, container, previous] = Log(*chunks)
        return log

    async def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        log = self.logs[pod.uid, container, options.previous]
        self.streams += 1
        try:
            at = 0
            while True:
                for chunk in log.chunks[at:]:
                    self.given += 1
                    yield chunk
                    at += 1
                if self.failure is not None:
                    raise self.failure
                if not options.follow or log.ended:
                    return
                if at == len(log.chunks):
                    await log.changed()
        finally:
            self.streams -= 1


class ApplyingBackend(Backend):
    """Says that it applies all options, and records them instead."""

    logs_apply_options = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[LogOptions] = []

    async def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        self.asked.append(options)
        yield b"as the backend wants it"


class Silent(Backend):
    """Has no logs at all."""

    stream_logs = None  # type: ignore[assignment]


@define
class Pods:
    """The pods the server knows."""

    held: dict[Key, Pod] = field(factory=dict)

    def get(self, ref: PodRef) -> Pod | None:
        return self.by_uid(ref.uid)

    def by_uid(self, uid: str) -> Pod | None:
        return next((pod for pod in self.held.values() if pod.metadata.uid == uid), None)

    def by_name(self, namespace: str, name: str) -> Pod | None:
        return self.held.get(Key(namespace, name))

    def on_node(self, node: str) -> Sequence[Pod]:
        return [pod for pod in self.held.values() if pod.node == node]

    def in_namespace(self, namespace: str) -> Sequence[Pod]:
        return [pod for pod in self.held.values() if pod.metadata.namespace == namespace]

    def __iter__(self) -> Iterator[Pod]:
        return iter(self.held.values())


@frozen
class Stand:
    """A running kubelet server, and what a test does with it."""

    hub: ControlPlane
    client: Client
    server: KubeletServer
    backend: Backend
    pods: Pods
    metrics: Metrics = field(factory=Metrics)
    nodes: list[str] = field(factory=list)

    async def node(self, name: str) -> Endpoint:
        """Open a listener and publish it in a new Node; the Node is deleted with the stand."""
        endpoint = await self.server.open(name)
        self.nodes.append(name)
        await self.client.create(NODES, {"metadata": {"name": name}})
        status = {
            "addresses": [{"type": "InternalIP", "address": endpoint.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": endpoint.port}},
        }
        await self.client.patch(NODES, name, {"status": status}, subresource="status")
        return endpoint

    async def pod(
        self,
        namespace: str,
        node: str,
        *,
        name: str = "web",
        states: Mapping[str, Any] | None = None,
        containers: Sequence[Mapping[str, Any]] = ({"name": "app"}, {"name": "side"}),
    ) -> Pod:
        """A pod with these containers, and the statuses given by container name."""
        spec = {"nodeName": node, "containers": [{"image": "none", **container} for container in containers]}
        await self.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace=namespace)
        return await self.status(Key(namespace, name), states if states is not None else {"app": {"state": RUNNING}})

    async def status(self, key: Key, states: Mapping[str, Any]) -> Pod:
        defaults = {"image": "none", "imageID": "", "ready": False, "restartCount": 0}
        statuses = [{"name": name, **defaults, **state} for name, state in states.items()]
        pod = await self.client.patch(PODS, key, {"status": {"phase": "Running", "containerStatuses": statuses}}, subresource="status")
        self.pods.held[key] = pod
        return pod

    def report(self, pod: Pod) -> None:
        self.backend.reports.append(PodReport(pod.ref, [ContainerReport("app", Running(), image_id="sha256:1")]))


def _healthy() -> str | None:
    return None


@asynccontextmanager
async def serving(
    hub: ControlPlane, backend: Backend, *, health: Callable[[], str | None] = _healthy, **settings: Any
) -> AsyncIterator[Stand]:
    """A kubelet server with a certificate of the hub's CA, at the hub's host address, main port any."""
    async with AsyncExitStack() as stack:
        pods, metrics = Pods(), Metrics()
        client = await stack.enter_async_context(Client(await patient_connection(hub.kubeconfig), field_manager="tests", metrics=metrics))
        if "certificate" not in settings:
            pair = hub.serving_certificate("system:node:stand", [hub.host_address])
            settings |= {"certificate": "files", "certificate_file": str(pair.certificate), "key_file": str(pair.key)}
        values = {"node_address": hub.host_address, "main_port": 0, **settings}
        made = KubeletServer(
            provider=backend,
            pods=pods,
            client=client,
            clock=SystemClock(),
            metrics=metrics,
            settings=ServerSettings(**values),
            instance="stand",
            health=health,
        )
        server = await stack.enter_async_context(made)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        run = group.create_task(server.run())
        stack.callback(run.cancel)
        stand = Stand(hub, client, server, backend, pods, metrics)
        stack.push_async_callback(_delete_nodes, stand)
        yield stand


async def _delete_nodes(stand: Stand) -> None:
    for name in stand.nodes:
        await stand.client.delete(NODES, name)


async def granted(hub: ControlPlane, user: str, *resources: str, name: str = "") -> None:
    """Wait until the hub lets the user `get` these, such as `nodes/pods`: it learns of roles a little late, and refusals are remembered."""

    async def allowed() -> bool:
        answers = []
        for resource, _, subresource in (each.partition("/") for each in resources):
            asked = {"verb": "get", "resource": resource, "subresource": subresource, "name": name}
            answers.append(await client.create(SUBJECTACCESSREVIEWS, {"spec": {"user": user, "resourceAttributes": asked}}))
        return all(answer.body["status"]["allowed"] for answer in answers)

    async with Client(await patient_connection(hub.kubeconfig), field_manager="tests") as client:
        await eventually(allowed, f"{user} has got its rights")


def tls(hub: ControlPlane, *, certificate: bool) -> ssl.SSLContext:
    """As the API server calls a kubelet, or as somebody without a certificate."""
    context = ssl.create_default_context(cafile=str(hub.ca))
    if certificate:
        context.load_cert_chain(hub.kubelet_client.certificate, hub.kubelet_client.key)
    return context


@frozen
class Reply:
    """What a kubelet answered."""

    status: int
    text: str
    headers: Mapping[str, str]


async def call(
    hub: ControlPlane,
    endpoint: Endpoint,
    path: str,
    *,
    method: str = "GET",
    certificate: bool = True,
    token: str = "",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Reply:
    """One request of its own connection."""
    headers = {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}
    connector = aiohttp.TCPConnector(ssl=tls(hub, certificate=certificate))
    url = f"https://{endpoint.address}:{endpoint.port}{path}"
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.request(method, url, headers=headers, allow_redirects=False) as response:
            return Reply(response.status, await response.text(), response.headers)
