"""The pods of the runtime as one object: connects dispatch, lifecycle, status writer and the search for orphans.

Invariant: the parts know each other only through what is connected here.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from attrs import define, field

from vkubelet.api.objects import JsonView, Node, Pod, PodRef
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.informer import Change, Informer
from vkubelet.control.recorder import Recorder
from vkubelet.metrics import Metrics
from vkubelet.pods.dispatch import Dispatch, DispatchMode, PodCache
from vkubelet.pods.lifecycle import Lifecycle
from vkubelet.pods.listing import Lister, Orphans, PodSettings, Polling
from vkubelet.pods.status import End
from vkubelet.pods.status_writer import MERGE, StatusWriter
from vkubelet.provider import AdmitsPods, PodFailure, PodReport, Provider, ResolvedPod, SupportsPolling
from vkubelet.provider.admission import Admission
from vkubelet.resolve.names import Names
from vkubelet.resolve.resolver import Resolver


@define(kw_only=True, eq=False)
class Pods:
    """All pods of all nodes of this process.

    `informer.run()` may run long before `run()`: a replica that is not the leader keeps its pod cache warm that way.
    """

    _provider: Provider
    _client: Client
    _node_client: Callable[[str], Client]
    _recorder: Recorder
    _clock: Clock
    _node: Callable[[str], Node | None]
    """Returns the current Node."""
    _node_ips: Callable[[str], Sequence[str]]
    """Returns the addresses that a node publishes, for the `hostIPs` of its pods."""
    _metrics: Metrics | None = None
    _settings: PodSettings = PodSettings()
    _on_empty: list[Callable[[str], None]] = field(factory=list, init=False)
    _enabled: DispatchMode = field(default=DispatchMode.SYNC, init=False)
    """Mode of declared nodes."""
    _dispatch: Dispatch = field(init=False)
    _status_writer: StatusWriter = field(init=False)
    _lifecycle: Lifecycle = field(init=False)
    _orphans: Orphans = field(init=False)
    _resolver: Resolver = field(init=False)
    _lister: Lister = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._dispatch = Dispatch(self._client, clock=self._clock, metrics=self._metrics)
        self._status_writer = self._new_status_writer()
        self._lifecycle = self._new_lifecycle()
        self._orphans = self._new_orphans()
        self._resolver = self._new_resolver()
        self._lister = Lister(self._provider, self._dispatch, clock=self._clock, metrics=self._metrics, settings=self._settings)
        self._dispatch.on_pod(self._lifecycle.observe)
        self._dispatch.on_pod(self._status_writer.observe)
        self._dispatch.on_pod(self._resolver.observe)
        self._dispatch.on_pod(self._observe_deletion)
        self._lister.on_list(self._orphans.observe)
        if isinstance(self._provider, SupportsPolling):
            self._lister.on_list(Polling(self._lifecycle, report=self.report, on_missing=self.pod_gone).observe)

    def _new_status_writer(self) -> StatusWriter:
        return StatusWriter(
            pods=self._dispatch.store,
            node_client=self._node_client,
            node_ips=self._node_ips,
            clock=self._clock,
            metrics=self._metrics,
            record_version=self.informer.record_version,
            redact=self.redacted,
        )

    def _new_lifecycle(self) -> Lifecycle:
        return Lifecycle(
            provider=self._provider,
            dispatch=self._dispatch,
            status_writer=self._status_writer,
            node_client=self._node_client,
            recorder=self._recorder,
            clock=self._clock,
            metrics=self._metrics,
            admission=None if isinstance(self._provider, AdmitsPods) else Admission(node=self._node, pod=self._dispatch.store.by_uid),
            on_drop=self._notify_if_empty,
        )

    def _new_orphans(self) -> Orphans:
        return Orphans(
            dispatch=self._dispatch,
            lifecycle=self._lifecycle,
            node_client=self._node_client,
            recorder=self._recorder,
            clock=self._clock,
            metrics=self._metrics,
            interval=self._settings.list_interval,
            on_clean=self._notify_if_empty,
        )

    def _new_resolver(self) -> Resolver:
        return Resolver(
            client=self._client,
            node_client=self._node_client,
            recorder=self._recorder,
            clock=self._clock,
            metrics=self._metrics,
            node=self._node,
            node_ips=self._node_ips,
            pod=self._dispatch.store.by_uid,
            names=self._names,
            wake=self._lifecycle.requeue,
        )

    def _names(self) -> Names:
        settings = self._settings
        return Names(
            cluster_dns=settings.cluster_dns,
            cluster_domain=settings.cluster_domain,
            hosts=_text("/etc/hosts"),
            resolv_conf=_text(settings.resolv_conf),
        )

    @property
    def store(self) -> PodCache:
        """The pods of the nodes that this process serves."""
        return self._dispatch.store

    @property
    def informer(self) -> Informer[Pod]:
        """The only pod watch; its `synced` is part of the readiness."""
        return self._dispatch.informer

    async def run(self) -> None:
        """Runs all controllers until cancelled. `informer.run()` runs beside it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lifecycle.run(), name="pods")
            group.create_task(self._resolver.run(), name="pods")
            for controller in (
                self._dispatch.controller,
                self._status_writer.controller,
                self._lister.controller,
                self._orphans.controller,
            ):
                group.create_task(controller.run(), name="pods")

    # --- nodes ---

    def hold(self, node: str) -> None:
        """Holds a node that existed before this process and is not declared yet.

        Statuses are published, nothing is started, deletions wait (rule `declared-before`).
        """
        self._set_mode(node, DispatchMode.HOLD)

    def enable(self, node: str) -> None:
        """Enables a declared node: its pods are handed to the provider, unless the process drains its nodes."""
        self._set_mode(node, self._enabled)

    def retire(self, node: str) -> None:
        """Retires a node: its pods are still terminated; none is started."""
        self._set_mode(node, DispatchMode.RETIRE)

    def disable(self, node: str) -> None:
        """Disables a node that this process no longer serves: drops its pods."""
        self._dispatch.remove_node(node)
        self._lifecycle.remove_node(node)
        self._resolver.forget(node)
        self._orphans.remove_node(node)

    async def published(self) -> None:
        """Waits until no status write is pending; one that failed and waits for its retry does not count."""
        while not self._status_writer.controller.queue.is_idle(within=MERGE):
            await self._clock.sleep(MERGE / 2)

    def refuse(self) -> None:
        """Rejects new pods of all nodes, as a kubelet does before it reports that its node shuts down."""
        self._change_enabled(DispatchMode.REFUSE)

    def drain(self, grace: float) -> None:
        """Terminates the pods of all nodes and rejects new ones; see `drained`."""
        self._change_enabled(DispatchMode.DRAIN)
        self._lifecycle.drain(grace)

    def _change_enabled(self, mode: DispatchMode) -> None:
        before, self._enabled = self._enabled, mode
        for node in self._dispatch.nodes(before):
            self._set_mode(node, mode)

    def drained(self) -> bool:
        """Checks that no pod of any node runs any more."""
        return self._lifecycle.drained

    def resync(self) -> None:
        """Hands every pod to the provider again after it was restarted within this process."""
        self._lifecycle.resync()

    def empty(self, node: str) -> bool:
        """Checks that no pod is bound to the node or terminating, and that the backend, asked since the start, has no unknown workload.

        A DaemonSet's pod that was never handed to the provider does not count: its controller recreates it as long as the Node exists.
        """
        return (
            self._dispatch.informer.ever_synced
            and all(_is_of_daemon_set(pod) for pod in self._dispatch.bound_to(node))
            and not self._lifecycle.may_have_workloads(node)
            and self._orphans.clean(node)
        )

    def due(self, node: str) -> Mapping[str, int]:
        """Returns, by queue, how many pods of the node wait for a worker."""
        uids = [record.ref.uid for record in self._lifecycle.records(node)]
        due = {c.name: sum(map(c.queue.is_due, uids)) for c in (self._lifecycle.controller, self._status_writer.controller)}
        due[self._lifecycle.controller.name] += sum(uid in self._lifecycle.slots for uid in uids)
        return due

    def on_empty(self, callback: Callable[[str], None]) -> None:
        """Registers `callback(node)`, called when a retiring node has become empty."""
        self._on_empty.append(callback)

    def _set_mode(self, node: str, mode: DispatchMode) -> None:
        if self._dispatch.mode(node) is mode:
            return
        self._dispatch.set_mode(node, mode)
        self._lifecycle.requeue_node(node)
        if mode is not DispatchMode.HOLD:
            self._lister.controller.add(node)

    def _observe_deletion(self, change: Change[Pod]) -> None:
        if change.new is None and change.old is not None:
            self._notify_if_empty(change.old.node)

    def _notify_if_empty(self, node: str) -> None:
        if self._dispatch.mode(node) is DispatchMode.RETIRE and self.empty(node):
            for callback in self._on_empty:
                callback(node)

    # --- reports of the provider; nothing here waits or fails ---

    def report(self, report: PodReport) -> None:
        """Records container states, from which phase, conditions, times and restart counts are computed."""
        self._status_writer.report(report)

    def set_pod_status(self, ref: PodRef, status: JsonView, *, annotations: Mapping[str, str] | None = None) -> None:
        """Records a complete PodStatus; `annotations` are set by the same write."""
        self._status_writer.set_pod_status(ref, status, annotations)

    def fail_pod(self, ref: PodRef, failure: PodFailure) -> None:
        """Records that a pod which the backend no longer has is Failed; no later status reverts that."""
        if self.store.by_uid(ref.uid) is not None:
            self._status_writer.end(ref.uid, End(failure.reason, failure.message, failed=True))

    def pod_gone(self, ref: PodRef) -> None:
        """Records that the backend has nothing left of this pod."""
        self._lifecycle.on_missing(ref)
        self._resolver.release(ref.uid)

    def resync_pod(self, ref: PodRef) -> None:
        """Hands this pod to the provider again; one that was deleted, and that the backend has again, is terminated again."""
        self._lifecycle.resync_pod(ref.uid)
        self._orphans.check_deleted(ref)

    async def resolve(
        self, pod: Pod, *, files: Path | None = None, pod_ips: Sequence[str] = (), containers: Collection[str] | None = None
    ) -> ResolvedPod:
        """Resolves everything that the pod refers to; see `vkubelet.provider.Host.resolve`."""
        return await self._resolver.resolve(pod, files=files, pod_ips=pod_ips, containers=containers)

    def redacted(self, uid: str, text: str) -> str:
        """Returns a text about a pod without the values of its Secrets."""
        return self._resolver.redacted(uid, text)


def _is_of_daemon_set(pod: Pod) -> bool:
    return any(owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owner_references)


def _text(path: str) -> str:
    """Reads a file of this host; an empty string when that fails."""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
