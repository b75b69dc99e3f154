"""A host for tests that only records what the provider publishes.

Invariant: it behaves as the runtime does towards a provider, but has no cluster; nothing leaves the process.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from attrs import evolve, frozen
from prometheus_client import CollectorRegistry

from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Json, JsonView, KubeObject, Pod, PodRef, Resource
from vkubelet.api.podspec import Kind, Reference, pull_secrets
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.informer import Informer
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.metrics import Metrics
from vkubelet.provider import NodeDescription, PodFailure, PodReport, ResolvedPod
from vkubelet.resolve import assembly
from vkubelet.resolve.downward import Facts
from vkubelet.resolve.references import Content, MissingReferenceError, all_references
from vkubelet.resolve.volumes import token_sources
from vkubelet.testing.clock import ManualClock

T = TypeVar("T", bound=KubeObject)


@frozen
class RecordedEvent:
    """One Event as it was requested."""

    subject: ObjectReference
    reason: str
    message: str
    warning: bool


class RecordedEvents(Recorder):
    """A recorder that stores its events in `events`."""

    def __init__(self) -> None:
        self.events: list[RecordedEvent] = []

    def event(self, subject: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append(RecordedEvent(subject, reason, message, warning))

    async def run(self) -> None:
        """Waits to be cancelled: there is nothing to write."""
        await asyncio.Event().wait()


class PodTable:
    """A PodStore that a test fills."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}

    def put(self, pod: Pod) -> None:
        self._pods[pod.metadata.uid] = pod

    def remove(self, pod: Pod) -> None:
        self._pods.pop(pod.metadata.uid, None)

    def get(self, ref: PodRef) -> Pod | None:
        return self._pods.get(ref.uid)

    def by_uid(self, uid: str) -> Pod | None:
        return self._pods.get(uid)

    def by_name(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self if pod.key == (namespace, name)), None)

    def on_node(self, node: str) -> Sequence[Pod]:
        return [pod for pod in self if pod.node == node]

    def in_namespace(self, namespace: str) -> Sequence[Pod]:
        return [pod for pod in self if pod.metadata.namespace == namespace]

    def __iter__(self) -> Iterator[Pod]:
        return iter(list(self._pods.values()))


class RecordingHost:
    """The `Host` of a provider under test. Its clock stands still unless configured otherwise; `client` exists only if given."""

    def __init__(self, *, clock: Clock | None = None, client: Client | None = None) -> None:
        self.manual_clock = clock if isinstance(clock, ManualClock) else ManualClock()
        self._clock = clock or self.manual_clock
        self._client = client
        self._stopped = asyncio.Event()
        self.nodes: dict[str, NodeDescription] = {}
        self.complete = False
        self.removed: list[str] = []
        self.reports: list[PodReport] = []
        self.statuses: list[tuple[PodRef, JsonView]] = []
        self.annotations: dict[str, dict[str, str]] = {}
        """All annotations that were ever set, by UID."""
        self.failed: list[tuple[PodRef, PodFailure]] = []
        self.gone: list[PodRef] = []
        self.resynced: list[PodRef] = []
        self.objects: dict[Reference, Content] = {}
        """ConfigMaps and Secrets that pods can reference, in all namespaces; `put_secret` and `put_config_map` fill it."""
        self.services: dict[str, str] = {}
        """The variables of Services."""
        self.pods = PodTable()
        self.events = RecordedEvents()
        self.metrics = Metrics(CollectorRegistry())

    def put_secret(self, name: str, data: Mapping[str, str | bytes]) -> None:
        """Creates or replaces a Secret that pods of all namespaces can reference; its values are not encoded."""
        values = {key: value.encode() if isinstance(value, str) else value for key, value in data.items()}
        self.objects[Reference(Kind.SECRET, name)] = Content(binary=values, secret=True)

    def put_config_map(self, name: str, data: Mapping[str, str | bytes]) -> None:
        """Creates or replaces a ConfigMap likewise; bytes are its binaryData."""
        text = {key: value for key, value in data.items() if isinstance(value, str)}
        binary = {key: value for key, value in data.items() if isinstance(value, bytes)}
        self.objects[Reference(Kind.CONFIGMAP, name)] = Content(text, binary)

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def client(self) -> Client:
        """Client given by the test. Raises LookupError without one."""
        if self._client is None:
            raise LookupError("this test has no cluster: give RecordingHost a client")
        return self._client

    def node_client(self, node: str) -> Client:
        return self.client

    def informer(self, resource: Resource[T], where: Selection = Selection()) -> Informer[T]:
        """Returns a new informer, which is not running."""
        return Informer(self.client, resource, where=where, clock=self.clock)

    def set_node(self, node: NodeDescription) -> None:
        self.nodes[node.name] = node

    def nodes_complete(self) -> None:
        self.complete = True

    def remove_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.removed.append(name)

    def report(self, report: PodReport) -> None:
        self.reports.append(report)

    def set_pod_status(self, pod: PodRef, status: JsonView, *, annotations: Mapping[str, str] | None = None) -> None:
        self.statuses.append((pod, status))
        self.annotations.setdefault(pod.uid, {}).update(annotations or {})

    def fail_pod(self, pod: PodRef, failure: PodFailure) -> None:
        self.failed.append((pod, failure))

    def pod_gone(self, pod: PodRef) -> None:
        self.gone.append(pod)

    def resync(self, pod: PodRef) -> None:
        self.resynced.append(pod)

    async def resolve(
        self, pod: Pod, *, files: Path | None = None, pod_ips: Sequence[str] = (), containers: Collection[str] | None = None
    ) -> ResolvedPod:
        """Resolves as the runtime does, with `objects` and `services` of the test; volumes are written once, every token is `token`."""
        node = self.nodes.get(pod.node)
        capacity = (node.allocatable or node.capacity) if node is not None else {}
        facts = Facts.of(pod, pod_ips=pod_ips, host_ips=(), allocatable=capacity)
        references = all_references(facts.spec, volumes=files is not None)
        read = assembly.Read(objects={reference: self.objects.get(reference) for reference in references}, services=self.services)
        if files is not None:
            for volume in assembly.make_volumes(facts.spec, files):
                tokens = dict.fromkeys(token_sources(volume), "token")
                assembly.fill_volume(volume, facts, files, objects=read.objects, tokens=tokens)
        try:
            chosen = {each["name"]: assembly.variables(each, facts, read) for each in assembly.select(facts.spec, containers)}
        except MissingReferenceError as error:
            raise assembly.config_error(str(error)) from error
        secrets = [assembly.pull_secret(name, self.objects.get(Reference(Kind.SECRET, name))) for name in pull_secrets(facts.spec)]
        resolved = assembly.assemble(pod, facts, read=read, chosen=chosen, files=files)
        return evolve(resolved, pull_secrets=tuple(secret for secret in secrets if secret is not None))

    async def until_stopped(self) -> None:
        await self._stopped.wait()

    def stop(self) -> None:
        """Makes `until_stopped` return."""
        self._stopped.set()

    def latest(self, uid: str) -> PodReport | None:
        """Returns the last report of a pod."""
        return next((report for report in reversed(self.reports) if report.pod.uid == uid), None)

    def status(self, uid: str) -> JsonView | None:
        """Returns the last complete status of a pod."""
        return next((status for ref, status in reversed(self.statuses) if ref.uid == uid), None)


def make_pod(name: str = "web", *, node: str = "node", metadata: JsonView | None = None, spec: JsonView | None = None) -> Pod:
    """Returns a pod as the API would show it: bound, pending, with one container unless `spec` has others; its UID is derived from its
    name."""
    meta: Json = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1", "generation": 1, **(metadata or {})}
    body: Json = {"nodeName": node, "restartPolicy": "Always", "containers": [{"name": "main", "image": "image"}], **(spec or {})}
    return Pod.decode(encode_json({"metadata": meta, "spec": body, "status": {"phase": "Pending", "qosClass": "BestEffort"}}))


def with_status(pod: Pod, status: JsonView) -> Pod:
    """Returns the same pod with another status, as after a write."""
    meta = pod.metadata
    text: Json = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "generation": meta.generation}
    text.update(labels=dict(meta.labels), annotations=dict(meta.annotations), resourceVersion=str(int(meta.resource_version) + 1))
    if meta.deletion_timestamp is not None:
        text.update(deletionTimestamp=meta.deletion_timestamp, deletionGracePeriodSeconds=meta.deletion_grace_period_seconds)
    return Pod.decode(encode_json({"metadata": text, "spec": pod.spec, "status": dict(status)}))
