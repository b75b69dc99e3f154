"""Caches the ClusterBinding that this process serves, and reports its health in its status.

Invariant: the status is written only when it would change; a binding that cannot be read is unknown, not deleted.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from attrs import evolve

from kubeocean.binding.conditions import RETIREMENT_HELD, SYNCER_FAILED, Failure, Health, Observation, may_have_mirrors, status_patch
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from kubeocean.model.kinds import ExtraKind
from vkubelet.api.objects import Json, Key, ObjectMeta, Unknown, get_condition
from vkubelet.api.rbac import Check
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.recorder import ObjectReference
from vkubelet.control.shards import ONLY, Shard
from vkubelet.errors import Conflict, NotFound
from vkubelet.provider import Host

log = logging.getLogger(__name__)

_ATTEMPTS = 3
_SHARED_NAMED = 5
_SHARED_REMEDY = "both hubs lease by them, and the other one writes their status; give the bindings different names and separate policies"


class BindingReconciler:
    """Reads one ClusterBinding and writes its status. The `set_*` calls never wait; the latest value wins.

    With several shards the first one writes; of the others only which retirements wait is recorded, in an annotation.
    """

    def __init__(self, host: Host, name: str, *, shard: Shard = ONLY) -> None:
        self.name = name
        self._shard = shard
        self.informer: Informer[Unknown] = Informer(
            host.client, CLUSTERBINDINGS, where=Selection(fields=f"metadata.name={name}"), clock=host.clock, metrics=host.metrics
        )
        self.current: ClusterBinding | None = None
        """The last observed binding; it stays when the binding is deleted, because what was created for it has to be cleaned up."""
        self.gone = False
        self._host = host
        self._health = Health()
        self._announced: Failure | None = None
        self._listeners: list[Callable[[], None]] = []
        self._confirm_listeners: list[Callable[[], None]] = []
        self._recording = asyncio.Lock()
        self.controller: Controller[str] = Controller("binding", self.reconcile, workers=1, clock=host.clock, metrics=host.metrics)
        self.informer.on_change(self._changed)

    @property
    def ending(self) -> bool:
        """Whether the binding was deleted, or is being deleted."""
        return self.gone or (self.current is not None and self.current.deleting)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Registers a listener that is called after every change of the binding."""
        self._listeners.append(listener)

    def on_confirm(self, listener: Callable[[], None]) -> None:
        """Registers a listener that is called when an administrator confirmed the waiting retirements."""
        self._confirm_listeners.append(listener)

    def set_problem(self, problem: Failure | None) -> None:
        """Sets why the worker cannot be used; None clears it."""
        self._set(evolve(self._health, problem=problem))
        if problem != self._announced:
            self._announced = problem
            if problem is not None:
                self.event(problem.reason, problem.message, warning=True)

    def set_reachable(self) -> None:
        """Reports that the worker can be used."""
        if self._health.reachable is False:
            self.event("WorkerReachable", "the worker cluster responds again")
        self._set(evolve(self._health, reachable=True))

    def set_unreachable(self, why: str) -> None:
        """Reports that the worker cannot be used, and why."""
        if self._health.reachable is True:
            text = f"{why}; its virtual nodes are kept but take no new pods, and existing pods stay, until it responds"
            self.event("WorkerUnreachable", text, warning=True)
        self._set(evolve(self._health, reachable=False, unreachable=why))

    def set_unreadable(self, what: str) -> None:
        """Sets which lists of the worker cannot be read; empty clears it."""
        text = (
            f"spec.secretRef: the kubeconfig's user cannot list what it needs in the worker ({what}); grant the rights, or install the CRD"
        )
        if what and self._health.syncer is None:
            self.event(SYNCER_FAILED, text, warning=True)
        self._set(evolve(self._health, syncer=Failure(SYNCER_FAILED, text) if what else None))

    def set_refused(self, cluster: str, rights: Sequence[Check]) -> None:
        """Sets which rights the API server of a cluster refuses to this process."""
        named = {**self._health.refused, cluster: tuple(map(str, rights))}
        self._set(evolve(self._health, refused=named))

    @property
    def held(self) -> str:
        """Why retirements wait for confirmation, also where an earlier process refused them; empty without any."""
        return self._health.held

    def set_held(self, why: str) -> None:
        """Sets why retirements wait for confirmation; empty without any."""
        if why and not self._health.held:
            self._emit("RetirementHeld", why, warning=True)
        self._set(evolve(self._health, held=why))

    def set_shared(self, writers: Mapping[str, str]) -> None:
        """Sets which policies another hub serves too, with the mark of that hub; empty without any."""
        named = ", ".join(f"{policy} (by {mark})" for policy, mark in sorted(writers.items())[:_SHARED_NAMED])
        text = f"{len(writers)} ResourceLeasingPolicies are served by another hub whose binding has this name: {named}; {_SHARED_REMEDY}"
        if writers and not self._health.shared:
            self.event("PoliciesShared", text, warning=True)
        self._set(evolve(self._health, shared=text if writers else ""))

    def set_services(self, state: Observation | None) -> None:
        """Sets the state of the mirrors of Services; None when there are none."""
        if state != self._health.services:
            self._set(evolve(self._health, services=state))

    def set_network_policies(self, state: Observation | None) -> None:
        """Sets the state of the mirrors of NetworkPolicies; None when there are none."""
        if state != self._health.network_policies:
            self._set(evolve(self._health, network_policies=state))

    def set_kinds(self, state: Observation | None) -> None:
        """Sets the state of the mirrors of extra kinds; None when there are none."""
        before = self._health.kinds
        if state is not None and not state.holds and (before is None or before.holds):
            self.event("ExtraKindsNotMirrored", state.message, warning=True)
        self._set(evolve(self._health, kinds=state))

    def set_network(self, state: Observation) -> None:
        """Sets whether pods of the worker are reached from the hub."""
        self._set(evolve(self._health, network=state))

    def set_ending(self, what: str) -> None:
        """Sets what remains of a binding that is being deleted; empty when it is not."""
        self._set(evolve(self._health, ending=what))

    def event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Emits an Event about the binding; of several shards the first one does."""
        if self._shard.is_first:
            self._emit(reason, message, warning=warning)

    def _emit(self, reason: str, message: str, *, warning: bool = False) -> None:
        obj = self.informer.store.get(Key("", self.name))
        if obj is not None:
            self._host.events.event(ObjectReference.of(CLUSTERBINDINGS, obj), reason, message, warning=warning)

    async def live(self) -> ClusterBinding | None:
        """Reads the binding from the API server; None when it does not exist. Raises ApiError."""
        try:
            return ClusterBinding.parse(await self._host.client.get(CLUSTERBINDINGS, self.name))
        except NotFound:
            # A missing CRD responds with 404 too; the list distinguishes the two.
            await self._host.client.list(CLUSTERBINDINGS, Selection(fields=f"metadata.name={self.name}"))
            return None

    async def hold(self) -> None:
        """Adds our finalizer to the binding, and the identity by which everything created for it is found later. Raises ApiError."""
        current = self.current
        if current is None or keys.FINALIZER_SYNCER not in current.finalizers or not _is_noted(current):
            await self._write_finalizers(lambda there: there if keys.FINALIZER_SYNCER in there else [*there, keys.FINALIZER_SYNCER])

    async def accept_mapping(self, binding: ClusterBinding) -> None:
        """Records that the binding is served with the mapping of namespaces that it requests now. Raises ApiError."""
        note = evolve(binding.identity, mapping=binding.requested_mapping).note(binding.uid)
        metadata = {"uid": binding.uid, "annotations": {keys.ACCEPTED_AS: note}}
        changed = await self._host.client.patch(CLUSTERBINDINGS, self.name, {"metadata": metadata}, kind=PatchKind.MERGE)
        self.informer.adopt(changed)

    @property
    def mirrored_kinds(self) -> tuple[ExtraKind, ...]:
        """Extra kinds of which the worker may have mirrors."""
        noted = self.current.annotations.get(keys.MIRRORED_KINDS, "") if self.current is not None else ""
        return tuple(ExtraKind.noted(each) for each in noted.split(",") if each)

    async def record_kind(self, kind: ExtraKind) -> None:
        """Records an extra kind before its first mirror is created. Raises ApiError."""
        await self._write_kinds(lambda notes: notes | {kind.note})

    async def drop_kind(self, kind: ExtraKind) -> None:
        """Removes the record of a kind without mirrors. Raises ApiError."""
        await self._write_kinds(lambda notes: notes - {kind.note})

    async def _write_kinds(self, wanted: Callable[[frozenset[str]], frozenset[str]]) -> None:
        async with self._recording:
            noted = frozenset(each.note for each in self.mirrored_kinds)
            notes = wanted(noted)
            if notes == noted or self.current is None:
                return
            metadata = {"uid": self.current.uid, "annotations": {keys.MIRRORED_KINDS: ",".join(sorted(notes)) or None}}
            self.informer.adopt(await self._host.client.patch(CLUSTERBINDINGS, self.name, {"metadata": metadata}, kind=PatchKind.MERGE))

    async def let_go(self) -> None:
        """Removes our finalizer after everything was cleaned up: the deletion need not wait for us. Raises ApiError."""
        await self._write_finalizers(lambda there: [each for each in there if each != keys.FINALIZER_SYNCER])

    @property
    def unbinds(self) -> bool:
        """Whether the binding is being deleted, and waits for us."""
        return self.current is not None and not self.gone and self.current.deleting and keys.FINALIZER_SYNCER in self.current.finalizers

    def has_mirrors(self, condition: str) -> bool:
        """Checks by its condition whether a kind may have mirrors in the worker: not if lists have been refused from the start."""
        return self.current is not None and may_have_mirrors(self.current.status.get("conditions") or (), condition)

    async def _write_finalizers(self, wanted: Callable[[Sequence[str]], Sequence[str]]) -> None:
        """Writes the finalizers after a live read, because the manager writes them too."""
        for attempt in range(_ATTEMPTS):
            meta = (await self._host.client.get(CLUSTERBINDINGS, self.name)).metadata
            finalizers = list(wanted(meta.finalizers))
            note = self._note(meta) if keys.FINALIZER_SYNCER in finalizers else {}
            if finalizers == list(meta.finalizers) and note.items() <= meta.annotations.items():
                return
            metadata = {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers, "annotations": note}
            try:
                await self._host.client.patch(CLUSTERBINDINGS, self.name, {"metadata": metadata}, kind=PatchKind.MERGE)
                return
            except Conflict:
                if attempt + 1 == _ATTEMPTS:
                    raise

    def _note(self, meta: ObjectMeta) -> dict[str, str]:
        current = self.current
        return {keys.ACCEPTED_AS: current.identity.note(meta.uid)} if current is not None and current.uid == meta.uid else {}

    async def reconcile(self, name: str) -> float | None:
        """Writes the status if it differs from the desired one."""
        obj = self.informer.store.get(Key("", name))
        if obj is None:
            return None
        if not self._shard.is_first:
            await self._record_held(obj)
            return None
        await self._take_confirmation(obj)
        health = evolve(self._health, held=held_by_all(obj.metadata, self._health.held, self._shard))
        change = status_patch(obj.body.get("status") or {}, health, generation=obj.metadata.generation, now=self._host.clock.now())
        if change is not None:
            change["metadata"] = {"uid": obj.metadata.uid, "resourceVersion": obj.metadata.resource_version}
            await self._write_status(change)
        return None

    async def _write_status(self, change: Json) -> None:
        """Writes a change of the status. Raises ApiError; after a Conflict the binding is read, as a watch that is refused or late does not
        deliver it."""
        client = self._host.client
        try:
            self.informer.adopt(await client.patch(CLUSTERBINDINGS, self.name, change, subresource="status", kind=PatchKind.MERGE))
        except Conflict:
            self.informer.adopt(await client.get(CLUSTERBINDINGS, self.name))
            raise

    async def _record_held(self, obj: Unknown) -> None:
        """Records which retirements wait, for the first shard and for a later process of this one. Raises ApiError."""
        key, held = keys.retirement_held(self._shard.index), self._health.held
        if obj.metadata.annotations.get(key, "") != held:
            change = {"metadata": {"uid": obj.metadata.uid, "annotations": {key: held or None}}}
            await self._host.client.patch(CLUSTERBINDINGS, self.name, change, kind=PatchKind.MERGE)

    async def _take_confirmation(self, obj: Unknown) -> None:
        """Notifies the listeners once and removes the annotation: it must not confirm later retirements."""
        if keys.CONFIRM_RETIRE not in obj.metadata.annotations:
            return
        for listener in self._confirm_listeners:
            listener()
        change = {"metadata": {"annotations": {keys.CONFIRM_RETIRE: None}}}
        await self._host.client.patch(CLUSTERBINDINGS, self.name, change, kind=PatchKind.MERGE)

    def _set(self, health: Health) -> None:
        if health != self._health:
            self._health = health
            self.controller.add(self.name)

    def _changed(self, change: Change[Unknown]) -> None:
        self.gone = change.new is None
        if change.new is not None:
            if self.current is None:
                self._health = evolve(self._health, held=_held(change.new, self._shard))
            self.current = _as_served(ClusterBinding.parse(change.new), self.current)
        self.controller.add(self.name)
        if not self._shard.is_first and _is_confirmed(change.new) and not _is_confirmed(change.old):
            # The first shard removes the annotation.
            for listener in self._confirm_listeners:
                listener()
        if change.more_than_status:
            for listener in self._listeners:
                listener()


def _is_confirmed(obj: Unknown | None) -> bool:
    return obj is not None and keys.CONFIRM_RETIRE in obj.metadata.annotations


def held_by_all(meta: ObjectMeta, own: str, shard: Shard) -> str:
    """Returns why retirements of any shard wait, as the first one reports it; empty without any."""
    others = (meta.annotations.get(keys.retirement_held(index), "") for index in range(1, shard.count))
    return "; ".join(each for each in (own, *others) if each)


def _held(obj: Unknown, shard: Shard) -> str:
    """Returns why retirements of a shard waited in an earlier process: the condition RetirementHeld, or the annotation of the shard."""
    if not shard.is_first:
        return obj.metadata.annotations.get(keys.retirement_held(shard.index), "")
    condition = get_condition((obj.body.get("status") or {}).get("conditions") or (), RETIREMENT_HELD)
    if condition is None or condition["status"] != "True":
        return ""
    return str(condition.get("message") or "virtual nodes wait for a confirmation to be withdrawn")


def _is_noted(binding: ClusterBinding) -> bool:
    return binding.annotations.get(keys.ACCEPTED_AS) == binding.identity.note(binding.uid)


def _as_served(binding: ClusterBinding, before: ClusterBinding | None) -> ClusterBinding:
    """Keeps the identity under which the binding is served, also when its annotation was removed together with a change of the identity."""
    if before is None or before.uid != binding.uid or keys.FINALIZER_SYNCER not in before.finalizers:
        return binding
    mapping = binding.mapping if _is_noted(binding) else before.mapping
    return evolve(binding, cluster_id=before.cluster_id, mount_namespace=before.mount_namespace, mapping=mapping)
