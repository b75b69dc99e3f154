"""Reconciles each ClusterBinding: checks, accepts and deploys it, reports its status, and removes its objects after deletion.

Invariant: the finalizer is on a binding before an object is created for it, and none is created for one that has not passed validation.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from attrs import evolve, field, frozen

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, SYNCER_FAILED, Failure
from kubeocean.manager.binding_status import RIGHTS_MISSING, View, first_status, rights_text, status_patch
from kubeocean.manager.checks import Findings, look
from kubeocean.manager.deployment_health import Outlook
from kubeocean.manager.owned import ForeignObject, Owned
from kubeocean.manager.removal import Removal
from kubeocean.manager.settings import ManagerSettings
from kubeocean.manager.workloads import unheeded_certificate, workloads
from kubeocean.metrics import ManagerMetrics
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.resources import CLUSTERBINDINGS
from kubeocean.worker.connect import find_target
from vkubelet.api.names import SYSTEM_NAMESPACE
from vkubelet.api.objects import Key, Unknown
from vkubelet.api.shapes import Json
from vkubelet.client.resources import NAMESPACES
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock
from vkubelet.control.backoff import Backoff
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.errors import ApiError, Conflict, NotFound
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics

log = logging.getLogger(__name__)

STATES = ("Deleting", "Pending", "Ready", "Failed")
"""States by which bindings are counted."""


@frozen(kw_only=True)
class ManagerParts:
    """Dependencies of the reconciler."""

    client: Client
    recorder: Recorder
    clock: Clock
    settings: ManagerSettings
    metrics: Metrics
    series: ManagerMetrics


@frozen(kw_only=True)
class _Looked:
    """Findings about one binding, and until when they are valid."""

    uid: str
    generation: int
    until: float
    findings: Findings


@frozen(kw_only=True)
class _Said:
    """What was reported for one binding, so that nothing is reported twice."""

    problem: Failure | None = None
    missing: str = ""
    unheeded: str = ""
    served: tuple[View, int] | None = None
    """The reported view and its generation."""
    available: bool | None = None
    uid: str = field(default="")


class ClusterBindingReconciler:
    """Reconciles all bindings of a computing cluster."""

    def __init__(self, parts: ManagerParts) -> None:
        self._parts = parts
        self._client = parts.client
        self.informer: Informer[Unknown] = Informer(parts.client, CLUSTERBINDINGS, clock=parts.clock, metrics=parts.metrics)
        self.owned = Owned(parts.client, namespace=parts.settings.namespace, clock=parts.clock, metrics=parts.metrics)
        self.controller: Controller[str] = Controller(
            "clusterbindings", self._timed, workers=parts.settings.workers, clock=parts.clock, metrics=parts.metrics
        )
        self._removal = Removal(parts.client, self.owned, self.event, clock=parts.clock, settings=parts.settings)
        self._backoff = Backoff(first=1.0, limit=parts.settings.retry_limit)
        self._looked: dict[str, _Looked] = {}
        self._said: dict[str, _Said] = {}
        self._accepting = asyncio.Lock()
        self._hub_uid = ""
        self.informer.on_change(self._changed)
        self.owned.on_change(self.controller.add)
        for state in STATES:
            parts.series.clusterbindings.labels(status=state).set_function(partial(self.count, state))

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.owned.run(), name="objects of bindings")
            group.create_task(self.informer.run(), name="bindings")
            await self.informer.wait_synced()
            await self.owned.wait_synced()
            self._hub_uid = await self._read_hub_uid()
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
        self._parts.recorder.event(ObjectReference.of(CLUSTERBINDINGS, obj), reason, message, warning=warning)

    # --- One pass ------------------------------------------------------------------------------------------------------------------

    async def _timed(self, name: str) -> float | None:
        series = self._parts.series
        began = self._parts.clock.monotonic()
        failed = True
        try:
            again = await self.reconcile(name)
            failed = False
            return again
        finally:
            series.sync_seconds.observe(self._parts.clock.monotonic() - began)
            series.sync_total.labels(clusterbinding=name).inc()
            series.sync_errors.labels(clusterbinding=name).inc(failed)
            if Key("", name) not in self.informer.store:
                self._forget(name)

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
                await self._write(obj, first_status(generation=binding.generation, now=self._parts.clock.now()), subresource="status")
                self.event(obj, "StatusUpdated", "the binding is being checked")
                return None
            return await self._serve(obj, binding)

    async def _serve(self, obj: Unknown, binding: ClusterBinding) -> float | None:
        findings = await self._find(binding)
        outlook = self.owned.outlook(binding)
        failure: Failure | None = None
        if not findings.rejected and (outlook.exists or (findings.problem or findings.lacking) is None):
            failure = await self._deploy(obj, binding)
            outlook = self.owned.outlook(binding)
        if outlook.available and await self.owned.retire_old_proxier(binding):
            self.event(obj, "ProxierRetired", "the process of the binding serves the kubelet port; the separate proxier is removed")
        view = View(
            problem=findings.problem or findings.lacking,
            connected=findings.connected,
            missing=findings.missing,
            unguarded=findings.unguarded,
            syncer=None if outlook.speaks else failure or outlook.failure,
        )
        latest = self.informer.store.get(obj.key)
        if latest is None or latest.metadata.uid != binding.uid:
            return None
        self._announce(latest, evolve(view, syncer=failure or view.syncer), outlook)
        await self._tell(latest, view, generation=binding.generation)
        return self._next_look(binding.name, soon=failure is not None)

    def _next_look(self, name: str, *, soon: bool) -> float:
        """Returns the seconds until the findings expire, or less when something is to be retried."""
        looked = self._looked.get(name)
        left = max(0.1, looked.until - self._parts.clock.monotonic()) if looked is not None else 0.1
        return min(left, self._parts.settings.retry_limit) if soon else left

    async def _find(self, binding: ClusterBinding) -> Findings:
        """Returns the findings about binding and worker, refreshed after they expire. Raises ApiError."""
        now = self._parts.clock.monotonic()
        known = self._looked.get(binding.name)
        if known is not None and (known.uid, known.generation) == (binding.uid, binding.generation) and now < known.until:
            return known.findings
        findings = await look(self._client, binding, self._hub_uid, clock=self._parts.clock)
        if findings.problem is None and findings.lacking is None:
            findings = await self._accept(binding, findings)
        if (findings.problem or findings.lacking) is None:
            self._backoff.forget(binding.uid)
            wait = self._parts.settings.recheck_interval
        else:
            wait = min(self._backoff.next(binding.uid), self._parts.settings.recheck_interval)
        until = self._parts.clock.monotonic() + wait
        self._looked[binding.name] = _Looked(uid=binding.uid, generation=binding.generation, until=until, findings=findings)
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
        wanted = workloads(binding, self._parts.settings)
        try:
            if await self.owned.apply(wanted):
                log.info("deployed")
            await self.owned.prune(binding, wanted)
        except ForeignObject as error:
            return Failure(SYNCER_FAILED, str(error))
        except ApiError as error:
            if error.retryable or isinstance(error, Conflict):
                raise
            return not_written(error)
        return None

    # --- Reports -------------------------------------------------------------------------------------------------------------------

    async def _tell(self, obj: Unknown, view: View, *, generation: int) -> None:
        """Writes the status if it differs; `generation` is the one that was checked."""
        binding = ClusterBinding.parse(obj)
        serving = view.syncer is not None and self._of(binding).served != (view, generation)
        change = status_patch(binding.status, view, generation=generation, now=self._parts.clock.now(), serving=serving)
        if change is not None:
            await self._write(obj, change, subresource="status")
        self._said[binding.name] = evolve(self._of(binding), served=(view, generation) if view.syncer is not None else None)

    def _announce(self, obj: Unknown, view: View, outlook: Outlook) -> None:
        """Records Events about what differs from the last report."""
        binding = ClusterBinding.parse(obj)
        said = self._of(binding)
        problem = view.problem or (view.syncer if view.syncer is not None and view.syncer.reason == SYNCER_FAILED else None)
        if problem is not None and _is_news(problem, said.problem):
            self.event(obj, problem.reason, problem.message, warning=True)
        missing = rights_text(view.missing) if view.missing else ""
        if missing and missing != said.missing and (problem is None or problem.reason != RIGHTS_MISSING):
            self.event(obj, RIGHTS_MISSING, missing, warning=True)
        unheeded = unheeded_certificate(binding, self._parts.settings)
        if unheeded and unheeded != said.unheeded:
            self.event(obj, "CertificateUnheeded", unheeded, warning=True)
        if outlook.available and said.available is False:
            self.event(obj, "Ready", "the process of the binding is available")
        told = evolve(said, problem=problem, missing=missing, unheeded=unheeded, available=outlook.available)
        self._said[binding.name] = told

    def _of(self, binding: ClusterBinding) -> _Said:
        said = self._said.get(binding.name)
        return said if said is not None and said.uid == binding.uid else _Said(uid=binding.uid)

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
            for name, looked in list(self._looked.items()):
                if name != change.key.name and looked.findings.rejected:
                    del self._looked[name]
                    self.controller.add(name)

    def _forget(self, name: str) -> None:
        looked = self._looked.pop(name, None)
        if looked is not None:
            self._backoff.forget(looked.uid)
        self._said.pop(name, None)
        self._parts.series.forget(name)

    async def _read_hub_uid(self) -> str:
        """Reads the identity of this cluster, which marks mount namespaces; retries until that succeeds."""
        backoff = Backoff(limit=30.0)
        while True:
            try:
                return (await self._client.get(NAMESPACES, SYSTEM_NAMESPACE)).metadata.uid
            except ApiError as error:
                log.debug("the cluster's identity can not be read: %s", error)
                await self._parts.clock.sleep(backoff.next())


def not_written(error: ApiError) -> Failure:
    """Returns why the objects that run a binding are missing, with the remedy (pure)."""
    remedy = "grant the manager the rights of the chart kubeocean"
    if isinstance(error, NotFound):
        remedy = "create the missing namespace, or run `helm upgrade` of the chart kubeocean: the manager may not create namespaces"
    return Failure(SYNCER_FAILED, f"cannot write what runs the binding: {error}; {remedy}")


def _is_news(problem: Failure, told: Failure | None) -> bool:
    """Checks whether a problem is worth an Event: an unreachable cluster fails with a different message each time."""
    return problem != told and (told is None or problem.reason != CONNECTIVITY_FAILED or told.reason != CONNECTIVITY_FAILED)


def state_of(obj: Unknown) -> str:
    """Returns one of STATES; a binding that is being deleted counts as Deleting alone."""
    if obj.metadata.deletion_timestamp is not None:
        return "Deleting"
    phase = (obj.body.get("status") or {}).get("phase") or "Pending"
    return phase if phase in STATES else "Pending"
