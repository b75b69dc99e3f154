"""The manager: checks, accepts and deploys each ClusterBinding, reports its status, and removes its objects after deletion.

Invariant: the finalizer is on a binding before an object is created for it, and none is created for one that has not passed validation.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

from attrs import evolve, field, frozen

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, RIGHTS_MISSING, SYNCER_FAILED, Failure
from kubeocean.manager.binding_status import ObservedBinding, ProcessHealth, first_status, rights_text, status_patch
from kubeocean.manager.checks import Findings, check_worker
from kubeocean.manager.owned import BindingObjects
from kubeocean.manager.removal import Removal
from kubeocean.manager.workloads import MANAGER, deployment_name, desired_objects, old_proxier_name, unheeded_certificate
from kubeocean.metrics import ManagerMetrics
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from kubeocean.settings import MANAGER_LEASE, ManagerProcessSettings, ManagerSettings
from kubeocean.worker.connect import find_target, read_hub_uid
from vkubelet.api.objects import Json, Key, Unknown
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock, SystemClock
from vkubelet.control.backoff import Backoff
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.owned import ForeignObject
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.errors import ApiError, Conflict, NotFound
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.process import LeaderProcess, run_process
from vkubelet.settings import FollowedSettings

log = logging.getLogger(__name__)

STATES = ("Deleting", "Pending", "Ready", "Failed")
"""States by which bindings are counted."""


@frozen(kw_only=True)
class _Checked:
    """Findings about one binding, and until when they are valid."""

    uid: str
    generation: int
    until: float
    findings: Findings


@frozen(kw_only=True)
class _Reported:
    """What was reported for one binding, so that nothing is reported twice."""

    problem: Failure | None = None
    missing: str = ""
    unheeded: str = ""
    served: tuple[ObservedBinding, int] | None = None
    """The reported view and its generation."""
    available: bool | None = None
    uid: str = field(default="")


class ClusterBindingReconciler:
    """Reconciles all bindings of a computing cluster."""

    def __init__(
        self, *, client: Client, recorder: Recorder, clock: Clock, settings: ManagerSettings, metrics: Metrics, series: ManagerMetrics
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._series = series
        self.informer: Informer[Unknown] = Informer(client, CLUSTERBINDINGS, clock=clock, metrics=metrics)
        self.owned = BindingObjects(client, namespace=settings.namespace, clock=clock, metrics=metrics)
        self.controller: Controller[str] = Controller(
            "clusterbindings", self._timed, workers=settings.workers, clock=clock, metrics=metrics
        )
        self._removal = Removal(client, self.owned, self.event, clock=clock, settings=settings)
        self._backoff = Backoff(first=1.0, limit=settings.retry_limit)
        self._checked: dict[str, _Checked] = {}
        self._reported: dict[str, _Reported] = {}
        self._accepting = asyncio.Lock()
        self._hub_uid = ""
        self.informer.on_change(self._changed)
        self.owned.on_change(self.controller.add)
        for state in STATES:
            series.clusterbindings.labels(status=state).set_function(partial(self.count, state))

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.owned.run(), name="objects of bindings")
            group.create_task(self.informer.run(), name="bindings")
            await self.informer.wait_synced()
            await self.owned.wait_synced()
            self._hub_uid = await read_hub_uid(self._client, self._clock)
            await self.controller.run()

    @property
    def synced(self) -> bool:
        """Whether all lists are complete."""
        return self.informer.ever_synced and self.owned.ever_synced

    def count(self, state: str) -> int:
        """Counts the bindings in a state."""
        return sum(state_of(obj) == state for obj in self.informer.store)

    def event(self, obj: Unknown, reason: str, message: str, *, warning: bool = False) -> None:
        """Records an Event about a binding."""
        self._recorder.event(ObjectReference.of(CLUSTERBINDINGS, obj), reason, message, warning=warning)

    # --- One pass ------------------------------------------------------------------------------------------------------------------

    async def _timed(self, name: str) -> float | None:
        began = self._clock.monotonic()
        failed = True
        try:
            again = await self.reconcile(name)
            failed = False
            return again
        finally:
            self._series.sync_seconds.observe(self._clock.monotonic() - began)
            self._series.sync_total.labels(clusterbinding=name).inc()
            self._series.sync_errors.labels(clusterbinding=name).inc(failed)
            if Key("", name) not in self.informer.store:
                self._drop(name)

    async def reconcile(self, name: str) -> float | None:
        """Reconciles one binding by one step; returns the seconds until it is rechecked, None to wait for a change. Raises ApiError."""
        obj = self.informer.store.get(Key("", name))
        if obj is None:
            return None
        binding = ClusterBinding.parse(obj)
        with bind(binding=name, uid=binding.uid):
            if binding.deleting:
                return await self._removal.reconcile(obj, binding)
            if keys.FINALIZER_MANAGER not in binding.finalizers:
                await self._write(obj, {"metadata": {"finalizers": [*binding.finalizers, keys.FINALIZER_MANAGER]}})
                return None
            if not binding.status.get("phase"):
                await self._write(obj, first_status(generation=binding.generation, now=self._clock.now()), subresource="status")
                self.event(obj, "StatusUpdated", "the manager checks the spec and the worker cluster")
                return None
            return await self._serve(obj, binding)

    async def _serve(self, obj: Unknown, binding: ClusterBinding) -> float | None:
        findings = await self._find(binding)
        health = self.owned.process_health(binding)
        failure: Failure | None = None
        if not findings.rejected and (health.exists or (findings.problem or findings.lacking) is None):
            failure = await self._deploy(obj, binding)
            health = self.owned.process_health(binding)
        if health.available and await self.owned.retire_old_proxier(binding):
            self.event(
                obj,
                "ProxierRetired",
                f"deleted Deployment {old_proxier_name(binding.cluster_id)}: the process of the binding serves the kubelet port",
            )
        view = ObservedBinding(
            problem=findings.problem or findings.lacking,
            connected=findings.connected,
            missing=findings.missing,
            unguarded=findings.unguarded,
            syncer=None if health.reports else failure or health.failure,
        )
        latest = self.informer.store.get(obj.key)
        if latest is None or latest.metadata.uid != binding.uid:
            return None
        self._record_events(latest, evolve(view, syncer=failure or view.syncer), health)
        await self._write_status(latest, view, generation=binding.generation)
        return self._recheck_after(binding.name, soon=failure is not None)

    def _recheck_after(self, name: str, *, soon: bool) -> float:
        """Returns the seconds until the findings expire, or less when something is to be retried."""
        checked = self._checked.get(name)
        left = max(0.1, checked.until - self._clock.monotonic()) if checked is not None else 0.1
        return min(left, self._settings.retry_limit) if soon else left

    async def _find(self, binding: ClusterBinding) -> Findings:
        """Returns the findings about binding and worker, refreshed after they expire. Raises ApiError."""
        now = self._clock.monotonic()
        known = self._checked.get(binding.name)
        if known is not None and (known.uid, known.generation) == (binding.uid, binding.generation) and now < known.until:
            return known.findings
        findings = await check_worker(self._client, binding, self._hub_uid, clock=self._clock)
        if findings.problem is None and findings.lacking is None:
            findings = await self._accept(binding, findings)
        if (findings.problem or findings.lacking) is None:
            self._backoff.reset(binding.uid)
            wait = self._settings.recheck_interval
        else:
            wait = min(self._backoff.next(binding.uid), self._settings.recheck_interval)
        until = self._clock.monotonic() + wait
        self._checked[binding.name] = _Checked(uid=binding.uid, generation=binding.generation, until=until, findings=findings)
        return findings

    async def _accept(self, binding: ClusterBinding, findings: Findings) -> Findings:
        """Records that this clusterID belongs to this binding, also for later managers. Raises ApiError."""
        identity = binding.identity.note(binding.uid)
        if binding.annotations.get(keys.ACCEPTED_AS) == identity:
            return findings
        async with self._accepting:
            # When two bindings are checked concurrently, the second sees here that the first is served.
            target = await find_target(self._client, binding, self._hub_uid)
            if isinstance(target, Failure):
                return evolve(findings, problem=target)
            change = {"metadata": {"uid": binding.uid, "annotations": {keys.ACCEPTED_AS: identity}}}
            self.informer.adopt(await self._client.patch(CLUSTERBINDINGS, binding.name, change, kind=PatchKind.MERGE))
        log.info("accepted")
        return findings

    async def _deploy(self, obj: Unknown, binding: ClusterBinding) -> Failure | None:
        """Applies everything that runs the binding; returns why that is impossible, or None. Raises ApiError for transient failures."""
        wanted = desired_objects(binding, self._settings)
        try:
            if await self.owned.apply(wanted):
                log.info("deployed")
            await self.owned.prune(binding.uid, wanted)
        except ForeignObject as error:
            return Failure(SYNCER_FAILED, str(error))
        except ApiError as error:
            if error.retryable or isinstance(error, Conflict):
                raise
            return not_written(error)
        return None

    # --- Reports -------------------------------------------------------------------------------------------------------------------

    async def _write_status(self, obj: Unknown, view: ObservedBinding, *, generation: int) -> None:
        """Writes the status if it differs; `generation` is the one that was checked."""
        binding = ClusterBinding.parse(obj)
        serving = view.syncer is not None and self._reported_of(binding).served != (view, generation)
        change = status_patch(binding.status, view, generation=generation, now=self._clock.now(), serving=serving)
        if change is not None:
            await self._write(obj, change, subresource="status")
        self._reported[binding.name] = evolve(self._reported_of(binding), served=(view, generation) if view.syncer is not None else None)

    def _record_events(self, obj: Unknown, view: ObservedBinding, health: ProcessHealth) -> None:
        """Records Events about what differs from the last report."""
        binding = ClusterBinding.parse(obj)
        reported = self._reported_of(binding)
        problem = view.problem or (view.syncer if view.syncer is not None and view.syncer.reason == SYNCER_FAILED else None)
        if problem is not None and _is_news(problem, reported.problem):
            self.event(obj, problem.reason, problem.message, warning=True)
        missing = rights_text(view.missing) if view.missing else ""
        if missing and missing != reported.missing and (problem is None or problem.reason != RIGHTS_MISSING):
            self.event(obj, RIGHTS_MISSING, missing, warning=True)
        unheeded = unheeded_certificate(binding, self._settings)
        if unheeded and unheeded != reported.unheeded:
            self.event(obj, "CertificateUnheeded", unheeded, warning=True)
        if health.available and reported.available is False:
            self.event(obj, "Ready", f"Deployment {deployment_name(binding.cluster_id)} is available")
        reported = evolve(reported, problem=problem, missing=missing, unheeded=unheeded, available=health.available)
        self._reported[binding.name] = reported

    def _reported_of(self, binding: ClusterBinding) -> _Reported:
        reported = self._reported.get(binding.name)
        return reported if reported is not None and reported.uid == binding.uid else _Reported(uid=binding.uid)

    async def _write(self, obj: Unknown, change: Json, *, subresource: str = "") -> None:
        metadata = {**change.get("metadata", {}), "uid": obj.metadata.uid, "resourceVersion": obj.metadata.resource_version}
        body = {**change, "metadata": metadata}
        self.informer.adopt(
            await self._client.patch(CLUSTERBINDINGS, obj.metadata.name, body, subresource=subresource, kind=PatchKind.MERGE)
        )

    # --- Callbacks -----------------------------------------------------------------------------------------------------------------

    def _changed(self, change: Change[Unknown]) -> None:
        self.controller.add(change.key.name)
        if change.old is not None and change.more_than_status:
            # The obstacle of another binding may have been removed.
            for name, checked in list(self._checked.items()):
                if name != change.key.name and checked.findings.rejected:
                    del self._checked[name]
                    self.controller.add(name)

    def _drop(self, name: str) -> None:
        checked = self._checked.pop(name, None)
        if checked is not None:
            self._backoff.reset(checked.uid)
        self._reported.pop(name, None)
        self._series.remove(name)


class Beside(Protocol):
    """What every replica of a manager serves, whether it leads or not."""

    async def run(self) -> None:
        """Runs until cancelled."""
        ...

    def stop_listening(self) -> None:
        """Refuses new requests."""
        ...


MakeBeside = Callable[[Client, Clock, ManagerProcessSettings], Beside | None]


class ManagerProcess(LeaderProcess):
    """The manager; `connection` is the one to the computing cluster, `beside` makes what it serves."""

    def __init__(
        self,
        settings: ManagerProcessSettings,
        *,
        connection: Connection,
        clock: Clock | None = None,
        beside: MakeBeside | None = None,
    ) -> None:
        super().__init__(
            connection=connection,
            settings=settings,
            field_manager=MANAGER,
            component=MANAGER,
            host=socket.gethostname(),
            lease=settings.leader.name or MANAGER_LEASE,
            clock=clock or SystemClock(),
        )
        self.bindings = ClusterBindingReconciler(
            client=self.client,
            recorder=self.recorder,
            clock=self.clock,
            settings=settings.manager,
            metrics=self.metrics,
            series=ManagerMetrics(self.metrics.registry),
        )
        self._beside = beside(self.client, self.clock, settings) if beside is not None else None

    def watch(self, group: asyncio.TaskGroup) -> None:
        if self._beside is not None:
            group.create_task(self._beside.run(), name="beside")

    def stop_serving(self) -> None:
        if self._beside is not None:
            self._beside.stop_listening()

    async def serve(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self.bindings.run(), name="bindings")

    def unready(self) -> str | None:
        """Returns why the leader is not ready. A standby is ready."""
        return "watches are not synced" if self.leads and not self.bindings.synced else None


def run_manager(read: Callable[[], ManagerProcessSettings], beside: MakeBeside | None = None) -> None:
    """Runs in this process until SIGTERM or SIGINT, polling `read` for changed settings. Raises VKubeletError."""
    chosen = read()
    followed = FollowedSettings(chosen, read=lambda: (read(), None))
    run_process(lambda connection: ManagerProcess(chosen, connection=connection, beside=beside), followed)


def not_written(error: ApiError) -> Failure:
    """Returns why the objects that run a binding are missing, with the remedy (pure)."""
    remedy = "grant the manager the rights of the chart kubeocean"
    if isinstance(error, NotFound):
        remedy = "create the missing namespace, or run `helm upgrade` of the chart kubeocean: the manager may not create namespaces"
    return Failure(SYNCER_FAILED, f"cannot write the objects that run the binding: {error}; {remedy}")


def _is_news(problem: Failure, reported: Failure | None) -> bool:
    """Checks whether a problem is worth an Event: an unreachable cluster fails with a different message each time."""
    return problem != reported and (reported is None or problem.reason != CONNECTIVITY_FAILED or reported.reason != CONNECTIVITY_FAILED)


def state_of(obj: Unknown) -> str:
    """Returns one of STATES; a binding that is being deleted counts as Deleting alone."""
    if obj.metadata.deletion_timestamp is not None:
        return "Deleting"
    phase = (obj.body.get("status") or {}).get("phase") or "Pending"
    return phase if phase in STATES else "Pending"
