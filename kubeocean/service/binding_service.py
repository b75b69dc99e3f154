"""Serves one ClusterBinding: finds the worker, maintains one session with it, and reports the status on the binding.

Invariant: a session stops only when another connection to the worker has been verified, or with the process; whatever is wrong with
binding, Secret or worker, the process keeps running and continues when it is fixed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from datetime import datetime

from attrs import evolve

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, NO_ANSWER, Failure
from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.metrics import Snapshot, SyncerMetrics
from kubeocean.model import keys
from kubeocean.model.contact import Outcome
from kubeocean.model.crds import ClusterBinding, SecretReference
from kubeocean.model.keys import Owner
from kubeocean.model.windows import zone_of
from kubeocean.nodes.fail_over import UNREACHABLE_MESSAGE, FailOver, FailOverParts
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.nodes.virtual_nodes import VirtualNodes
from kubeocean.pods.physical import not_ready
from kubeocean.service.metrics_snapshot import Sources, capture
from kubeocean.service.session import Lasting, Session
from kubeocean.service.unbinding import Unbinding, UnbindingParts
from kubeocean.settings import KubeoceanSettings
from kubeocean.worker.cluster import Mount, WorkerCluster, head_of
from kubeocean.worker.connect import Target, find_target, prove
from kubeocean.worker.reach import Reach
from vkubelet.api.names import SYSTEM_NAMESPACE
from vkubelet.api.objects import Node, PodRef, Unknown
from vkubelet.client.resources import NAMESPACES, NODES, SECRETS
from vkubelet.client.rest import Client, Selection
from vkubelet.control.backoff import Backoff
from vkubelet.control.guard import MassGuard
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import SettingsError, Unavailable, VKubeletError
from vkubelet.provider import Host, PodReport

log = logging.getLogger(__name__)

_PATIENCE = 300.0
"""Seconds a sync waits for the worker: thousands of pods whose syncs are to be retried would each emit an Event."""
_UNBINDING_LOOKS_EVERY = 1.0
_PODS_AT_ONCE = 200


class _Stopped(Exception):
    """Stops the task group from inside when the process stops."""


class BindingService:
    """Runs one binding. `current()` returns the session with its worker."""

    def __init__(self, host: Host, settings: KubeoceanSettings, *, metrics: SyncerMetrics) -> None:
        self._host = host
        self._settings = settings
        self._zone = _process_zone(settings)
        self._reach = Reach(host.clock, lost_after=settings.unreachable_after, ask_every=_ask_every(settings))
        self._virtual = VirtualNodes(host)
        self._binding = BindingReconciler(host, settings.binding)
        ours = Selection(labels=f"{keys.CLUSTER_BINDING}={keys.label_value(settings.binding)}")
        self._hub_nodes: Informer[Node] = Informer(host.client, NODES, where=ours, clock=host.clock, metrics=host.metrics)
        self._lasting = Lasting(
            host=host,
            process_zone=self._zone,
            settings=settings,
            binding=self._binding,
            virtual=self._virtual,
            hub_nodes=self._hub_nodes,
            reach=self._reach,
            metrics=metrics,
            guard=MassGuard(share=settings.retire_share, clock=host.clock),
        )
        # Terminates pods in the hub while no worker is reachable.
        self._reclaimer = Reclaimer(host, per_second=settings.evictions_per_second)
        self._unbinding = Unbinding(self._unbinding_parts())
        self._fail_over = FailOver(self._fail_over_parts())
        self._undone = ""
        self._given_up = False
        self._session: Session | None = None
        self._served: Target | None = None
        self._asked = ""
        self._may_change_cluster = False
        self._serving: asyncio.Task[None] | None = None
        self._secret: tuple[SecretReference, asyncio.Task[None]] | None = None
        self._credentials_end: datetime | None = None
        self._look_again = asyncio.Event()
        self._answers = asyncio.Event()
        self._lost = asyncio.Event()
        self._reach.on_flip(self._reach_changed)
        self._reach.on_problem(self._tell_reach)
        self._binding.on_change(self._binding_changed)
        self._binding.on_confirm(self._confirmed)
        self._hub_nodes.on_change(self._hub_node_changed)
        metrics.follow(self._figures)

    def _unbinding_parts(self) -> UnbindingParts:
        lasting = self._lasting
        return UnbindingParts(
            host=lasting.host, binding=lasting.binding, virtual=lasting.virtual, hub_nodes=lasting.hub_nodes, reclaimer=self._reclaimer
        )

    def _fail_over_parts(self) -> FailOverParts:
        lasting = self._lasting
        return FailOverParts(
            host=lasting.host, binding=lasting.binding, virtual=lasting.virtual, reach=lasting.reach, reclaimer=self._reclaimer
        )

    async def run(self) -> None:
        """Serves the binding until the process starts to stop."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._binding.informer.run(), name="binding")
                group.create_task(self._binding.controller.run(), name="binding status")
                group.create_task(self._hub_nodes.run(), name="nodes of the binding")
                group.create_task(self._reach.watch(), name="reach of the worker")
                group.create_task(self._fail_over.run(), name="failing over")
                group.create_task(self._publish_unready(), name="pods of a lost worker")
                group.create_task(self._reclaimer.controller.run(), name="ends of pods without a worker")
                group.create_task(self._connect(group), name="connection to the worker")
                await self._host.until_stopped()
                raise _Stopped
        except* _Stopped:
            self._lasting.metrics.fall_silent()
            log.debug("stopped")

    def take_settings(self, settings: KubeoceanSettings) -> Sequence[str]:
        """Applies changed settings; returns the names of those that take effect now. The others take effect at the next start."""
        live = ("reconnect_interval", "unreachable_after", "probe_interval", "evictions_per_second")
        self._settings = evolve(self._settings, **{name: getattr(settings, name) for name in live})
        self._lasting = evolve(self._lasting, settings=self._settings)
        self._reach.lost_after = settings.unreachable_after
        self._reach.expect(_ask_every(settings))
        self._reclaimer.pace(settings.evictions_per_second)
        if self._session is not None:
            self._session.take_settings(self._settings)
        return live

    async def available(self) -> Session:
        """Waits for a session whose worker responds, and returns it. Raises Unavailable after `_PATIENCE` seconds without one."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    await self._answers.wait()
                    if self._session is not None and not self._reach.lost:
                        return self._session
                    self._answers.clear()
        except TimeoutError:
            return self.current()

    def current(self) -> Session:
        """Returns the session; raises Unavailable while none exists, or its worker does not respond."""
        if self._session is None:
            raise Unavailable("there is no connection to the worker cluster yet", retry_after=5.0)
        if self._reach.lost:
            raise Unavailable("the worker cluster does not answer", retry_after=5.0)
        return self._session

    async def delete_pod(self, ref: PodRef, grace: float) -> None:
        """Implements the provider's method; an abandoned worker gets no more requests, its pods are reported as deleted."""
        if self._given_up:
            self._host.pod_gone(ref)
            return
        await self.current().pods.delete(ref, grace)

    def list_pods(self, node: str) -> Sequence[PodReport]:
        """Implements the provider's method; an abandoned worker has no pods."""
        return () if self._given_up else self.current().pods.listing(node)

    # --- discovery of the worker ---

    async def _connect(self, group: asyncio.TaskGroup) -> None:
        hub_uid = await self._hub_uid()
        await self._binding.informer.wait_synced()
        await self._hub_nodes.wait_synced()
        if self._binding.current is None:
            self._judge_absence()
        while True:
            self._look_again.clear()
            failure = await self._attempt(group, hub_uid)
            self._binding.set_problem(failure)
            wait = self._settings.reconnect_interval if failure else None
            if self._unbinds():
                wait = await self._unbind(hub_uid, failure)
            if not self._look_again.is_set():
                # The confirmation covers the state that was visible when it was given, not later changes.
                self._may_change_cluster = False
            try:
                async with asyncio.timeout(wait):
                    await self._look_again.wait()
            except TimeoutError:
                log.debug("connecting again")

    def _judge_absence(self) -> None:
        """Raises SettingsError when the binding does not exist, as after a misspelt name; nodes that it left are not abandoned, however."""
        name = self._settings.binding
        if not list(self._hub_nodes.store):
            raise SettingsError("provider.binding", f"ClusterBinding {name} does not exist; create it, or name another with --binding")
        log.warning("ClusterBinding %s does not exist, but has nodes; waiting for it", name)

    async def _attempt(self, group: asyncio.TaskGroup, hub_uid: str) -> Failure | None:
        """Reconciles the session with the current binding; returns what prevents that, or None."""
        binding = self._binding.current
        if binding is None or self._binding.ending and not self._unbinds() or self._given_up:
            return None
        self._watch_secret(group, binding)
        try:
            found = await find_target(self._host.client, binding, hub_uid)
            if isinstance(found, Target) and self._served is not None and found.fingerprint == self._served.fingerprint:
                await self._keep_hold()
                return None
            failure = found if isinstance(found, Failure) else await self._prove(found)
        except VKubeletError as error:
            return Failure(CONNECTIVITY_FAILED, f"this cluster can not be asked: {error}")
        if isinstance(found, Target) and failure is None:
            await self._switch(group, found)
        elif failure is not None and self._session is not None:
            return Failure(failure.reason, f"{failure.message}; until then the connection made before is used")
        return failure

    # --- unbinding ---

    def _unbinds(self) -> bool:
        binding = self._binding.current
        return self._binding.unbinds and binding is not None and binding.uid != self._undone

    async def _unbind(self, hub_uid: str, failure: Failure | None) -> float | None:
        """Performs one step of unbinding; returns the seconds until the next one, None after the last."""
        binding = self._binding.current
        assert binding is not None
        mount = Mount(Owner(hub_uid, binding.cluster_id), binding.mount_namespace)
        try:
            left = await self._undo(binding, mount, failure)
            if not left:
                await self._end_session()
                await self._binding.let_go()
        except VKubeletError as error:
            left = f"the last attempt failed, it is tried again: {error}"
        self._binding.set_ending(left or "everything of this binding is undone")
        if left:
            return _UNBINDING_LOOKS_EVERY
        self._undone = binding.uid
        log.info("binding is undone")
        return None

    async def _undo(self, binding: ClusterBinding, mount: Mount, failure: Failure | None) -> str:
        """Performs one step of unbinding; returns what is left. Raises ApiError."""
        if self._given_up:
            return await self._unbinding.abandon(binding, mount)
        session = self._session if not self._reach.lost else None
        if session is None and self._serving is not None and not self._reach.lost:
            return "the worker cluster is being connected to"
        left = await self._undo_with(session, binding, mount) if session is not None else "no worker cluster answers"
        if not left or session is not None and not self._unbinding.stuck(binding, left):
            return left
        if not self._unbinding.forced(binding):
            if session is not None:
                return f"{left}; if it does not end, give it up: annotate the binding {keys.FORCE_UNBIND}=true"
            return self._unbinding.blocked(binding, failure.message if failure is not None else "it does not answer")
        self._given_up = True
        await self._end_session()
        return await self._unbinding.abandon(binding, mount)

    async def _undo_with(self, session: Session, binding: ClusterBinding, mount: Mount) -> str:
        if not session.take_over.done:
            refused = session.worker.unreadable()
            return f"the worker cluster can not be looked through: {refused}" if refused else "the worker cluster is being looked through"
        try:
            return await self._unbinding.step(binding, session.worker.client, mount)
        except VKubeletError as error:
            return f"the last attempt failed, it is tried again: {error}"

    async def _end_session(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
        self._serving = self._served = None

    async def _keep_hold(self) -> None:
        """Restores our finalizer on a served binding, from which another client may have removed it."""
        if not self._binding.ending:
            await self._binding.hold()

    async def _prove(self, target: Target) -> Failure | None:
        if target.fingerprint != self._asked:
            self._asked = target.fingerprint
            self._reach.restart()
        began = self._reach.now()
        async with self._client(target) as client:
            nodes = () if self._may_change_cluster else self._physical_uids()
            failure = await prove(client, target.mount, hold=None if self._binding.ending else self._binding.hold, nodes=nodes)
        if failure is None or self._session is None:
            # A worker that refuses us is reachable, no node is retained. During a session, its probe records the state of the worker.
            outcome = failure.outcome if failure is not None else Outcome.SERVED
            self._reach.record(began, outcome, failure.message if failure is not None else "")
            if outcome is Outcome.SERVED:
                self._binding.set_reachable()
        return failure

    async def _switch(self, group: asyncio.TaskGroup, target: Target) -> None:
        await self._end_session()
        log.info("connected to the worker cluster")
        self._served = target
        self._serving = group.create_task(self._serve(target), name="session with the worker")

    async def _serve(self, target: Target) -> None:
        async with self._client(target) as client:
            worker = WorkerCluster(client, target.mount, clock=self._host.clock, probe_interval=self._settings.probe_interval)
            self._session = Session(worker, self._lasting)
            self._answers.set()
            try:
                await self._session.run()
            finally:
                self._session = None

    def _physical_uids(self) -> set[str]:
        """Returns the UIDs of the physical nodes behind the Nodes in the hub."""
        uids = {node.metadata.labels.get(keys.PHYSICAL_NODE_UID, "") for node in self._hub_nodes.store}
        return uids - {""}

    def _client(self, target: Target) -> Client:
        self._credentials_end = target.connection.expires
        hub = self._host.client
        return Client(target.connection, field_manager=hub.field_manager, clock=self._host.clock, fence=hub.fence)

    def _watch_secret(self, group: asyncio.TaskGroup, binding: ClusterBinding) -> None:
        """Watches the Secret, so that a changed kubeconfig takes effect at once; only its metadata is cached."""
        reference = binding.secret
        if self._secret is not None and self._secret[0] == reference or not (reference.name and reference.namespace):
            return
        if self._secret is not None:
            self._secret[1].cancel()
        where = Selection(namespace=reference.namespace, fields=f"metadata.name={reference.name}")
        store: Store[Unknown] = Store(keep=head_of)
        informer = Informer(self._host.client, SECRETS, where=where, store=store, clock=self._host.clock)
        informer.on_change(lambda change: self._look_again.set())
        self._secret = (reference, group.create_task(informer.run(), name="kubeconfig Secret"))

    async def _hub_uid(self) -> str:
        """Reads the identity of this cluster, with which everything created in the worker is marked; retries until that succeeds."""
        backoff = Backoff(limit=30.0)
        while True:
            try:
                return (await self._host.client.get(NAMESPACES, SYSTEM_NAMESPACE)).metadata.uid
            except VKubeletError as error:
                log.debug("the cluster's identity can not be read: %s", error)
                await self._host.clock.sleep(backoff.next())

    def _figures(self) -> Callable[[], Snapshot]:
        lasting = Sources(host=self._host, binding=self._binding, virtual=self._virtual, reclaimers=[self._reclaimer])
        sources = self._session.sources(lasting) if self._session is not None else lasting
        return capture(sources, credentials_end=self._credentials_end)

    # --- callbacks ---

    def _binding_changed(self) -> None:
        self._look_again.set()
        if not self._binding.ending:
            self._binding.set_ending("")
            self._given_up = False
        self._fail_over.hold()
        if self._session is not None:
            self._session.binding_changed()

    def _hub_node_changed(self, change: Change[Node]) -> None:
        if self._session is not None:
            self._session.hub_node_changed(change)

    def _confirmed(self) -> None:
        self._may_change_cluster = True
        self._look_again.set()
        if self._session is not None:
            self._session.nodes.confirm()

    def _tell_reach(self) -> None:
        if self._reach.lost:
            self._binding.set_unreachable(self._reach.problem or NO_ANSWER)

    def _reach_changed(self) -> None:
        if not self._reach.lost:
            self._binding.set_reachable()
            self._answers.set()
            self._virtual.release()
            if self._session is not None:
                self._session.worker_returned()
            return
        self._tell_reach()
        for live in self._hub_nodes.store:
            if not self._virtual.is_retired(live.metadata.name):
                self._virtual.keep(live)
        self._fail_over.hold()
        self._lost.set()

    async def _publish_unready(self) -> None:
        """Publishes the pods of an unreachable worker as not ready, in batches: thousands at once would delay the Leases of their nodes."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            for position, ref in enumerate([pod.ref for pod in self._host.pods]):
                if position % _PODS_AT_ONCE == 0:
                    await self._host.clock.sleep(0)
                if not self._reach.lost:
                    break
                pod = self._host.pods.get(ref)
                if pod is not None and not pod.terminal and self._virtual.get(pod.node) is not None:
                    self._host.set_pod_status(ref, not_ready(pod, UNREACHABLE_MESSAGE))


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
