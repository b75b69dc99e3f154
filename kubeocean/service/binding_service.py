"""Serves one ClusterBinding: connects to the worker, reports its state on the binding, and unbinds it when the binding is deleted.

Invariant: whatever is wrong with binding, Secret or worker, the process keeps running and continues when it is fixed; what is done about a
binding that is being deleted follows from its BindingLifecycle alone.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

from attrs import evolve

from kubeocean.binding.conditions import NO_ANSWER, Failure
from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.binding.virtual_nodes import VirtualNodes
from kubeocean.metrics import Snapshot, SyncerMetrics
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.windows import zone_of
from kubeocean.nodes.fail_over import UNREACHABLE_MESSAGE, FailOver
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.pods.physical import not_ready
from kubeocean.scope import Scope
from kubeocean.service.connector import Connector
from kubeocean.service.lifecycle import Awaited, BindingLifecycle, Done, Observed, Remaining, Stage, after, message, observed
from kubeocean.service.metrics_snapshot import Load, Sources, capture
from kubeocean.service.session import Session
from kubeocean.service.unbinding import Unbinding
from kubeocean.settings import KubeoceanSettings
from kubeocean.worker.cluster import Mount
from kubeocean.worker.connect import read_hub_uid
from vkubelet.api.objects import NODES, Node, PodRef
from vkubelet.client.rest import Selection
from vkubelet.clock import in_batches
from vkubelet.control.guard import MassGuard
from vkubelet.control.informer import Change, Informer
from vkubelet.control.reach import Reach
from vkubelet.control.refusals import Refusals
from vkubelet.control.shards import ONLY, Shard
from vkubelet.errors import SettingsError, Unavailable
from vkubelet.provider import Host, PodReport

log = logging.getLogger(__name__)

_SYNC_WAITS = 300.0
"""Seconds a sync waits for the worker: thousands of pods whose syncs are to be retried would each emit an Event."""
_NEXT_STEP_AFTER = 1.0
"""Seconds between two steps of unbinding."""


class _Stopped(Exception):
    """Stops the task group from inside when the process stops."""


class BindingService:
    """Runs one binding; `current()` returns the session with its worker."""

    def __init__(self, host: Host, settings: KubeoceanSettings, *, metrics: SyncerMetrics, shard: Shard = ONLY) -> None:
        self._host = host
        self._settings = settings
        self._zone = _process_zone(settings)
        self._reach = Reach(host.clock, "worker cluster", lost_after=settings.unreachable_after, ask_every=_ask_every(settings))
        self._virtual = VirtualNodes(host)
        self._binding = BindingReconciler(host, settings.binding, shard=shard)
        ours = Selection(labels=f"{keys.CLUSTER_BINDING}={keys.label_value(settings.binding)}")
        self._hub_nodes: Informer[Node] = Informer(host.client, NODES, where=ours, clock=host.clock, metrics=host.metrics)
        self._scope = Scope(
            host=host,
            process_zone=self._zone,
            settings=settings,
            binding=self._binding,
            virtual=self._virtual,
            hub_nodes=self._hub_nodes,
            reach=self._reach,
            metrics=metrics,
            guard=MassGuard(share=settings.retire_share, clock=host.clock),
            shard=shard,
        )
        # Terminates pods in the hub while no worker is reachable.
        self._reclaimer = Reclaimer(host, per_second=settings.evictions_per_second)
        self._unbinding = Unbinding(self._scope, reclaimer=self._reclaimer)
        self._lifecycle = BindingLifecycle()
        self._fail_over = FailOver(self._scope, self._reclaimer)
        self._load = Load(host.clock)
        self._changed = asyncio.Event()
        self._answers = asyncio.Event()
        self._lost = asyncio.Event()
        self._refusals = Refusals(host.clock, partial(self._binding.set_refused, "the hub"))
        self._refusals_of_worker = Refusals(host.clock, partial(self._binding.set_refused, "the worker cluster"))
        self._connector = Connector(
            self._scope, refusals=self._refusals_of_worker, secret_changed=self._changed.set, connected=self._answers.set
        )
        self._reach.on_flip(self._reach_changed)
        self._reach.on_problem(self._report_unreachable)
        self._binding.on_change(self._binding_changed)
        self._binding.on_confirm(self._confirmed)
        self._hub_nodes.on_change(self._hub_node_changed)
        metrics.follow(self._metrics)

    async def run(self) -> None:
        """Serves the binding until the process starts to stop."""
        try:
            with self._refusals.noting(self._host.client):
                await self._run()
        except* _Stopped:
            self._scope.metrics.stop_exporting()
            log.debug("stopped")

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._binding.informer.run(), name="binding")
            group.create_task(self._binding.controller.run(), name="binding status")
            group.create_task(self._hub_nodes.run(), name="nodes of the binding")
            group.create_task(self._refusals.run(), name="rights in the hub")
            group.create_task(self._refusals_of_worker.run(), name="rights in the worker")
            group.create_task(self._reach.watch(), name="reach of the worker")
            group.create_task(self._fail_over.run(), name="failing over")
            group.create_task(self._virtual.run(), name="forms of the nodes")
            group.create_task(self._publish_unready(), name="pods of a lost worker")
            group.create_task(self._reclaimer.controller.run(), name="ends of pods without a worker")
            group.create_task(self._follow_binding(group), name="connection to the worker")
            await self._host.until_stopped()
            raise _Stopped

    def take_settings(self, settings: KubeoceanSettings) -> Sequence[str]:
        """Applies changed settings; returns the names of those that take effect now. The others take effect at the next start."""
        live = ("reconnect_interval", "unreachable_after", "probe_interval", "evictions_per_second")
        self._settings = evolve(self._settings, **{name: getattr(settings, name) for name in live})
        self._reach.lost_after = settings.unreachable_after
        self._reach.expect(_ask_every(settings))
        self._reclaimer.pace(settings.evictions_per_second)
        self._connector.take_settings(self._settings)
        return live

    async def available(self) -> Session:
        """Waits for a session whose worker responds, and returns it. Raises Unavailable after `_SYNC_WAITS` seconds without one."""
        try:
            async with asyncio.timeout(_SYNC_WAITS):
                while True:
                    await self._answers.wait()
                    if self._connector.session is not None and not self._reach.lost:
                        return self._connector.session
                    self._answers.clear()
        except TimeoutError:
            return self.current()

    def current(self) -> Session:
        """Returns the session; raises Unavailable while none exists, or its worker does not respond."""
        if self._connector.session is None:
            raise Unavailable(
                f"ClusterBinding {self._binding.name} is not connected to its worker cluster yet; see its condition Ready", retry_after=5.0
            )
        if self._reach.lost:
            raise Unavailable(
                f"the worker cluster of ClusterBinding {self._binding.name} does not respond; see its condition Connected", retry_after=5.0
            )
        return self._connector.session

    async def delete_pod(self, ref: PodRef, grace: float) -> None:
        """Implements the provider's method; an abandoned worker gets no more requests, its pods are reported as deleted."""
        if not self._lifecycle.has_pods:
            self._host.pod_gone(ref)
            return
        await self.current().pods.delete(ref, grace)

    def list_pods(self, node: str) -> Sequence[PodReport]:
        """Implements the provider's method; an abandoned worker has no pods."""
        return self.current().pods.listing(node) if self._lifecycle.has_pods else ()

    # --- connection and unbinding ---

    async def _follow_binding(self, group: asyncio.TaskGroup) -> None:
        """Connects to the worker, again after each failure and each change, or unbinds it; until cancelled."""
        hub_uid = await read_hub_uid(self._host.client, self._host.clock)
        await self._binding.informer.wait_synced()
        await self._hub_nodes.wait_synced()
        if self._binding.current is None:
            self._judge_absence()
        while True:
            self._changed.clear()
            failure = await self._connect(group, hub_uid)
            self._binding.set_problem(failure)
            wait = self._settings.reconnect_interval if failure else None
            self._observe()
            if self._lifecycle.unbinds:
                wait = await self._unbind(hub_uid, failure)
            if not self._changed.is_set():
                # The confirmation covers the state that was visible when it was given, not later changes.
                self._connector.may_change_cluster = False
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                log.debug("connecting again")

    def _judge_absence(self) -> None:
        """Raises SettingsError when the binding does not exist, as after a misspelt name; nodes that it left are not abandoned, however.

        A shard may move after the binding was deleted: it waits, as an exit would stop the other shards of its replica.
        """
        name = self._settings.binding
        if self._scope.shard.is_only and not list(self._hub_nodes.store):
            raise SettingsError("provider.binding", f"ClusterBinding {name} does not exist; create it, or name another with --binding")
        log.warning("ClusterBinding does not exist; waiting for it", extra={"binding": name})

    async def _connect(self, group: asyncio.TaskGroup, hub_uid: str) -> Failure | None:
        self._observe()
        binding = self._binding.current
        if binding is None or not self._lifecycle.connects:
            return None
        return await self._connector.connect(group, binding, hub_uid)

    async def _unbind(self, hub_uid: str, failure: Failure | None) -> float | None:
        """Performs one step of unbinding; returns the seconds until the next one, None after the last."""
        binding = self._binding.current
        assert binding is not None
        mount = Mount.of(binding, hub_uid)
        left = await self._undo(binding, mount, failure)
        if left.is_nothing:
            await self._connector.disconnect()
            left = await self._unbinding.release()
        self._binding.set_ending(message(left, namespace=mount.namespace))
        if not left.is_nothing:
            return _NEXT_STEP_AFTER
        self._lifecycle = after(self._lifecycle, Done.UNDID, uid=binding.uid)
        log.info("binding is undone")
        return None

    async def _undo(self, binding: ClusterBinding, mount: Mount, failure: Failure | None) -> Remaining:
        """Performs one step, with the worker if it answers and has not been given up; returns what is left."""
        if self._lifecycle.stage is Stage.GIVEN_UP:
            return await self._unbinding.abandon(binding, mount)
        session = self._connector.session if not self._reach.lost else None
        if session is not None:
            left = await self._unbinding.step(binding, session, mount)
        elif self._connector.is_connecting and not self._reach.lost:
            return Remaining(awaited=Awaited.CONNECTION)
        else:
            left = await self._unbinding.without_worker(failure.message if failure is not None else "it does not respond")
        if not (left.stuck or left.awaited is Awaited.WORKER):
            return left
        if not self._unbinding.forced(binding):
            self._unbinding.announce_blocked(binding, left)
            return left
        self._lifecycle = after(self._lifecycle, Done.GAVE_UP, uid=binding.uid)
        await self._connector.disconnect()
        return await self._unbinding.abandon(binding, mount)

    def _metrics(self) -> Callable[[], Snapshot]:
        lasting, session = Sources(scope=self._scope, reclaimers=[self._reclaimer]), self._connector.session
        sources = session.sources(lasting) if session is not None else lasting
        return capture(sources, credentials_end=self._connector.credentials_end, load=self._load.now())

    # --- callbacks ---

    def _binding_changed(self) -> None:
        self._changed.set()
        self._observe()
        if not self._binding.ending:
            self._binding.set_ending("")
        self._fail_over.hold()
        if self._connector.session is not None:
            self._connector.session.binding_changed()

    def _observe(self) -> None:
        """Updates the lifecycle; also between changes of the binding, because that of a finalizer alone is not reported."""
        binding = self._binding.current
        if binding is not None:
            seen = Observed(binding.uid, deleted=self._binding.ending, waits=self._binding.unbinds)
            self._lifecycle = observed(self._lifecycle, seen)

    def _hub_node_changed(self, change: Change[Node]) -> None:
        if self._connector.session is not None:
            self._connector.session.hub_node_changed(change)

    def _confirmed(self) -> None:
        self._connector.may_change_cluster = True
        self._changed.set()
        if self._connector.session is not None:
            self._connector.session.nodes.confirm()

    def _report_unreachable(self) -> None:
        if self._reach.lost:
            self._binding.set_unreachable(self._reach.problem or NO_ANSWER)

    def _reach_changed(self) -> None:
        if not self._reach.lost:
            self._binding.set_reachable()
            self._answers.set()
            self._virtual.release()
            if self._connector.session is not None:
                self._connector.session.worker_returned()
            return
        self._report_unreachable()
        self._fail_over.hold()
        self._lost.set()

    async def _publish_unready(self) -> None:
        """Publishes the pods of an unreachable worker as not ready, in batches: thousands at once would delay the Leases of their nodes."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            await self._keep_nodes()
            async for listed in in_batches(self._host.clock, iter(self._host.pods)):
                if not self._reach.lost:
                    break
                pod = self._host.pods.get(listed.ref)
                if pod is not None and not pod.terminal and self._virtual.get(pod.node) is not None:
                    self._host.set_pod_status(pod.ref, not_ready(pod, UNREACHABLE_MESSAGE))

    async def _keep_nodes(self) -> None:
        """Declares the nodes of the hub that an earlier process has declared, in batches as well."""
        async for live in in_batches(self._host.clock, self._hub_nodes.store):
            if not self._reach.lost:
                return
            if self._scope.owns(live.metadata.name) and not self._virtual.is_retired(live.metadata.name):
                self._virtual.keep(live)


def _ask_every(settings: KubeoceanSettings) -> float:
    """Returns the seconds between two attempts, with a session or without."""
    return max(settings.probe_interval, settings.reconnect_interval)


def _process_zone(settings: KubeoceanSettings) -> str:
    """Returns the zone for time windows of bindings and policies that name none. Raises SettingsError."""
    zone = settings.time_zone or os.environ.get("TZ", "").lstrip(":")
    try:
        zone_of(zone)
    except ValueError as error:
        raise SettingsError("provider.time_zone", str(error)) from error
    return zone
