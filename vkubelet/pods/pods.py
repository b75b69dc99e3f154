"""The pods of the runtime as one object: connects dispatch, lifecycle, status writer and the search for orphans.

Invariant: the parts know each other only through what is connected here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from vkubelet.api.objects import Node, Pod, PodRef
from vkubelet.api.shapes import JsonView
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.recorder import Recorder
from vkubelet.metrics import Metrics
from vkubelet.pods.admission import Admission
from vkubelet.pods.board import MERGE, BoardParts, StatusBoard
from vkubelet.pods.dispatch import Dispatch, PodCache, Standing
from vkubelet.pods.lifecycle import Lifecycle, LifecycleParts
from vkubelet.pods.listing import Lister, PodSettings
from vkubelet.pods.orphans import OrphanParts, Orphans
from vkubelet.pods.polling import Polling
from vkubelet.provider import AdmitsPods, PodReport, Provider, ResolvedPod, SupportsPolling
from vkubelet.resolve.names import Names
from vkubelet.resolve.resolver import Resolver, ResolverParts


@frozen(kw_only=True)
class PodParts:
    """Collaborators; `node` returns the current Node, `node_ips` the addresses it publishes, for the `hostIPs` of its pods."""

    provider: Provider
    client: Client
    node_client: Callable[[str], Client]
    recorder: Recorder
    clock: Clock
    node: Callable[[str], Node | None]
    node_ips: Callable[[str], Sequence[str]]
    metrics: Metrics | None = None
    settings: PodSettings = PodSettings()


class Pods:
    """All pods of all nodes of this process.

    `informer.run()` may run long before `run()`: a replica that is not the leader keeps its pod cache warm that way. `single_node`
    restricts the watch to that node, for a process that never has another.
    """

    def __init__(self, parts: PodParts, *, single_node: str = "") -> None:
        self._parts = parts
        self._on_empty: list[Callable[[str], None]] = []
        self._draining = False
        self._dispatch = Dispatch(parts.client, clock=parts.clock, metrics=parts.metrics, single_node=single_node)
        self._lifecycle = Lifecycle(self._lifecycle_parts(), on_drop=self._tell_if_empty)
        self._board = StatusBoard(self._board_parts(), on_terminal=self._lifecycle.touch)
        self._lifecycle.board = self._board
        self._orphans = Orphans(self._orphan_parts(), on_clean=self._tell_if_empty)
        self._resolver = Resolver(self._resolver_parts())
        self._lister = Lister(parts.provider, self._dispatch, clock=parts.clock, metrics=parts.metrics, settings=parts.settings)
        self._dispatch.on_pod(self._lifecycle.observe)
        self._dispatch.on_pod(self._board.observe)
        self._dispatch.on_pod(self._resolver.observe)
        self._dispatch.on_pod(self._observe_end)
        self._lister.on_list(self._orphans.observe)
        if isinstance(parts.provider, SupportsPolling):
            self._lister.on_list(Polling(self._lifecycle, report=self.report, gone=self.pod_gone).observe)

    def _lifecycle_parts(self) -> LifecycleParts:
        parts = self._parts
        return LifecycleParts(
            provider=parts.provider,
            dispatch=self._dispatch,
            node_client=parts.node_client,
            recorder=parts.recorder,
            clock=parts.clock,
            metrics=parts.metrics,
            admission=None if isinstance(parts.provider, AdmitsPods) else Admission(node=parts.node, pod=self._dispatch.store.by_uid),
        )

    def _board_parts(self) -> BoardParts:
        parts = self._parts
        return BoardParts(
            pods=self._dispatch.store,
            node_client=parts.node_client,
            node_ips=parts.node_ips,
            clock=parts.clock,
            metrics=parts.metrics,
            redact=self.redacted,
        )

    def _orphan_parts(self) -> OrphanParts:
        parts = self._parts
        return OrphanParts(
            dispatch=self._dispatch,
            lifecycle=self._lifecycle,
            node_client=parts.node_client,
            recorder=parts.recorder,
            clock=parts.clock,
            metrics=parts.metrics,
            interval=parts.settings.list_interval,
        )

    def _resolver_parts(self) -> ResolverParts:
        parts = self._parts
        return ResolverParts(
            client=parts.client,
            node_client=parts.node_client,
            recorder=parts.recorder,
            clock=parts.clock,
            metrics=parts.metrics,
            node=parts.node,
            node_ips=parts.node_ips,
            pod=self._dispatch.store.by_uid,
            names=self._names,
            wake=self._lifecycle.touch,
        )

    def _names(self) -> Names:
        settings = self._parts.settings
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

    @property
    def ready(self) -> bool:
        return self._dispatch.informer.synced

    async def run(self) -> None:
        """Runs all controllers until cancelled. `informer.run()` runs beside it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lifecycle.run(), name="pods")
            group.create_task(self._resolver.run(), name="pods")
            for controller in (self._dispatch.controller, self._board.controller, self._lister.controller, self._orphans.controller):
                group.create_task(controller.run(), name="pods")

    # --- nodes ---

    def hold(self, node: str) -> None:
        """Holds a node that existed before this process and is not declared yet.

        Statuses are published, nothing is started, deletions wait (rule 7).
        """
        self._set(node, Standing.HOLD)

    def enable(self, node: str) -> None:
        """Enables a declared node: its pods are handed to the provider, unless the process drains its nodes."""
        self._set(node, Standing.DRAIN if self._draining else Standing.SYNC)

    def retire(self, node: str) -> None:
        """Retires a node: its pods are still terminated; none is started."""
        self._set(node, Standing.RETIRE)

    def disable(self, node: str) -> None:
        """Disables a node that this process no longer serves: drops its pods."""
        self._dispatch.forget(node)
        self._lifecycle.forget(node)
        self._resolver.forget(node)
        self._orphans.forget(node)

    async def published(self) -> None:
        """Waits until no status write is pending; one that failed and waits for its retry does not count."""
        while not self._board.controller.queue.is_idle(within=MERGE):
            await self._parts.clock.sleep(MERGE / 2)

    def drain(self, grace: float) -> None:
        """Terminates the pods of all nodes and rejects new ones; see `drained`."""
        self._draining = True
        for node in self._dispatch.nodes(Standing.SYNC):
            self._set(node, Standing.DRAIN)
        self._lifecycle.drain(grace)

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
            and all(_returns_for_ever(pod) for pod in self._dispatch.bound_to(node))
            and not self._lifecycle.holds(node)
            and self._orphans.clean(node)
        )

    def due(self, node: str) -> Mapping[str, int]:
        """Returns, by queue, how many pods of the node wait for a worker."""
        uids = [life.ref.uid for life in self._lifecycle.lives(node)]
        due = {c.name: sum(map(c.queue.is_due, uids)) for c in (self._lifecycle.controller, self._board.controller)}
        due[self._lifecycle.controller.name] += sum(uid in self._lifecycle.slots for uid in uids)
        return due

    def on_empty(self, callback: Callable[[str], None]) -> None:
        """Registers `callback(node)`, called when a retiring node has become empty."""
        self._on_empty.append(callback)

    def _set(self, node: str, standing: Standing) -> None:
        if self._dispatch.standing(node) is standing:
            return
        self._dispatch.set(node, standing)
        self._lifecycle.revisit(node)
        if standing is not Standing.HOLD:
            self._lister.controller.add(node)

    def _observe_end(self, change: Change[Pod]) -> None:
        if change.new is None and change.old is not None:
            self._tell_if_empty(change.old.node)

    def _tell_if_empty(self, node: str) -> None:
        if self._dispatch.standing(node) is Standing.RETIRE and self.empty(node):
            for callback in self._on_empty:
                callback(node)

    # --- reports of the provider; nothing here waits or fails ---

    def report(self, report: PodReport) -> None:
        """Records container states, from which phase, conditions, times and restart counts are computed."""
        self._board.report(report)

    def set_pod_status(self, ref: PodRef, status: JsonView, *, annotations: Mapping[str, str] | None = None) -> None:
        """Records a complete PodStatus; `annotations` are set by the same write."""
        self._board.set_pod_status(ref, status, annotations)

    def pod_gone(self, ref: PodRef) -> None:
        """Records that the backend has nothing left of this pod."""
        self._lifecycle.gone(ref)
        self._resolver.release(ref.uid)

    def resync_pod(self, ref: PodRef) -> None:
        """Hands this pod to the provider again."""
        self._lifecycle.resync_pod(ref.uid)

    async def resolve(
        self, pod: Pod, *, files: Path | None = None, pod_ips: Sequence[str] = (), containers: Collection[str] | None = None
    ) -> ResolvedPod:
        """Resolves everything that the pod refers to; see `vkubelet.provider.Host.resolve`."""
        return await self._resolver.resolve(pod, files=files, pod_ips=pod_ips, containers=containers)

    def redacted(self, uid: str, text: str) -> str:
        """Returns a text about a pod without the values of its Secrets."""
        return self._resolver.redacted(uid, text)

    # --- tests ---

    @property
    def idle(self) -> bool:
        """Whether no pod waits for anything; a delayed check counts as waiting."""
        controllers: Sequence[Controller[str]] = (self._dispatch.controller, self._lifecycle.controller, self._board.controller)
        return not any(len(controller.queue) for controller in controllers) and not len(self._lifecycle.slots)


def _returns_for_ever(pod: Pod) -> bool:
    return any(owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owner_references)


def _text(path: str) -> str:
    """Reads a file of this host; an empty string when that fails."""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""
