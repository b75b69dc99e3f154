"""The ResourceLeasingPolicies of the worker that are meant for us: read for the nodes, and told whether they hold.

Invariant: a policy's status is written only when it would say something else; a policy that is deleted stays until its nodes are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from attrs import frozen

from kubeocean import keys
from kubeocean.bottomup.binding import BindingReconciler
from kubeocean.crds import ResourceLeasingPolicy
from kubeocean.leasing.policy import Terms
from kubeocean.leasing.windows import is_open, next_edge
from kubeocean.resources import POLICIES
from kubeocean.worker import WorkerCluster
from vkubelet.api.conditions import set_condition
from vkubelet.api.objects import Key, Unknown
from vkubelet.api.shapes import Json, JsonView
from vkubelet.client.rest import PatchKind
from vkubelet.clock import parse_rfc3339, rfc3339
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.errors import NotFound
from vkubelet.logformat import bind
from vkubelet.provider import Host

log = logging.getLogger(__name__)

_LONGEST_WAIT = 300.0
_NODES_COUNTED_AFTER = 1.0

_ADDED = frozenset({"observedGeneration", "timeZone", "nextEdge", "decidingNodes"})
"""Fields of the status that the definition of Kubeocean (Go) does not have; where that one is installed they vanish when written."""


@frozen
class Verdict:
    """What the status of a policy should say.

    `problems` is empty for a valid one, `zone` names the zone in force, `nodes` counts the virtual nodes it decides about now.
    """

    problems: str
    open: bool = False
    zone: str = ""
    edge: datetime | None = None
    nodes: int = 0


def status_change(policy: ResourceLeasingPolicy, verdict: Verdict, *, now: datetime, told: JsonView | None = None) -> Json | None:
    """The new status, or None when the present one says all of this already (spec/kubeocean.md 3.9); `told` was written last."""
    before: Sequence[JsonView] = policy.status.get("conditions") or ()
    after: list[Json] = [dict(condition) for condition in before]
    for condition in _conditions(verdict):
        after = set_condition(after, {**condition, "observedGeneration": policy.generation}, now=now)
    said: Json = {
        "phase": "Failed" if verdict.problems else "Active" if verdict.open else "Inactive",
        "activeTimeWindow": verdict.open,
        "observedGeneration": policy.generation,
        "decidingNodes": verdict.nodes,
        "conditions": after,
        "timeZone": verdict.zone or None,
        "nextEdge": rfc3339(verdict.edge) if verdict.edge else None,
    }
    dropped = {name: value for name, value in (told or {}).items() if name in _ADDED and name not in policy.status}
    if all({**policy.status, **dropped}.get(name) == value for name, value in said.items()):
        return None
    return {"status": {**said, "lastAppliedTime": rfc3339(now)}}


def _conditions(verdict: Verdict) -> list[Json]:
    if verdict.problems:
        invalid = {"type": "Valid", "status": "False", "reason": "ValidationError", "message": verdict.problems}
        return [invalid, {"type": "Active", "status": "False", "reason": "ValidationError", "message": "an invalid policy leases nothing"}]
    valid = {"type": "Valid", "status": "True", "reason": "ValidationPassed", "message": "the policy is valid"}
    if verdict.open:
        return [valid, {"type": "Active", "status": "True", "reason": "ActiveTimeWindow", "message": "a time window is open"}]
    return [valid, {"type": "Active", "status": "False", "reason": "InactiveTimeWindow", "message": "no time window is open"}]


class ResourceLeasingPolicyReconciler:
    """Keeps finalizer and status of our policies; `current` is what the nodes are decided by."""

    def __init__(self, host: Host, worker: WorkerCluster, *, binding: BindingReconciler, process_zone: str) -> None:
        self._host = host
        self._worker = worker
        self._binding = binding
        self._process_zone = process_zone
        self._parsed: dict[str, ResourceLeasingPolicy] = {}
        self._told: dict[str, Json] = {}
        self._count: Callable[[str], int] = lambda name: 0
        self._listeners: list[Callable[[], None]] = []
        self.controller: Controller[str] = Controller("policies", self.reconcile, workers=2, clock=host.clock)
        worker.policies.on_change(self._changed)

    @property
    def current(self) -> Sequence[ResourceLeasingPolicy]:
        """The policies for this binding, also those that are being deleted."""
        return [policy for policy in self._parsed.values() if policy.cluster == self._binding.name]

    def get(self, name: str) -> ResourceLeasingPolicy | None:
        return self._parsed.get(name)

    def is_foreign(self, name: str) -> bool:
        """It exists and is meant for another binding."""
        policy = self._parsed.get(name)
        return policy is not None and policy.cluster != self._binding.name

    def deleted_at(self, name: str) -> datetime | None:
        """When its deletion was asked for."""
        obj = self._worker.policies.store.get(Key("", name))
        stamp = obj.metadata.deletion_timestamp if obj is not None else None
        return parse_rfc3339(stamp) if stamp else None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener()` after every change of a policy."""
        self._listeners.append(listener)

    def counted_by(self, count: Callable[[str], int]) -> None:
        """`count(name)`: how many virtual nodes a policy decides about; while there is one, a deleted policy keeps its finalizer."""
        self._count = count

    def recount(self, name: str) -> None:
        """The policy decides about more nodes than before, or about fewer."""
        self.controller.add(name, after=_NODES_COUNTED_AFTER)

    def recheck(self) -> None:
        """Look at all policies again."""
        for name in self._parsed:
            self.controller.add(name)

    async def reconcile(self, name: str) -> float | None:
        """Finalizer and status of one policy; seconds until its window opens or closes."""
        policy, obj = self._parsed.get(name), self._worker.policies.store.get(Key("", name))
        if policy is None or obj is None:
            return None
        with bind(policy=name):
            if policy.cluster != self._binding.name:
                return None
            if policy.deleting:
                return await self._release(obj)
            if keys.FINALIZER_POLICY not in policy.finalizers:
                await self._patch(obj, {"metadata": {"finalizers": [*policy.finalizers, keys.FINALIZER_POLICY]}})
                return 0.0
            return await self._report(policy, obj)

    async def _report(self, policy: ResourceLeasingPolicy, obj: Unknown) -> float:
        now = self._host.clock.now()
        verdict = self._verdict(policy, now)
        change = status_change(policy, verdict, now=now, told=self._told.get(policy.uid))
        if change is not None:
            if verdict.problems:
                self._binding.event(
                    "InvalidPolicy", f"ResourceLeasingPolicy {policy.name} leases nothing: {verdict.problems}", warning=True
                )
            await self._patch(obj, change, subresource="status")
            self._told[policy.uid] = change["status"]
        if verdict.edge is None:
            return _LONGEST_WAIT
        return min(_LONGEST_WAIT, max(0.0, (verdict.edge - now).total_seconds()) + 0.01)

    def _verdict(self, policy: ResourceLeasingPolicy, now: datetime) -> Verdict:
        problems = "; ".join(str(problem) for problem in policy.validate())
        if problems or self._binding.current is None:
            return Verdict(problems or "the binding is not known yet")
        try:
            zone = Terms.of(self._binding.current, process_zone=self._process_zone).zone_for(policy)
        except ValueError as error:
            return Verdict(f"spec.timeZone: {error}")
        edge = next_edge(policy.windows, zone, now)
        return Verdict("", open=is_open(policy.windows, zone, now), zone=str(zone), edge=edge, nodes=self._count(policy.name))

    async def _release(self, obj: Unknown) -> float | None:
        if self._count(obj.metadata.name):
            return 2.0
        if keys.FINALIZER_POLICY in obj.metadata.finalizers:
            left = [each for each in obj.metadata.finalizers if each != keys.FINALIZER_POLICY]
            try:
                await self._patch(obj, {"metadata": {"finalizers": left}})
            except NotFound:
                log.debug("policy is gone already")
        return None

    async def _patch(self, obj: Unknown, change: Json, *, subresource: str = "") -> None:
        metadata = {"uid": obj.metadata.uid, "resourceVersion": obj.metadata.resource_version, **change.get("metadata", {})}
        body = {**change, "metadata": metadata}
        await self._worker.client.patch(POLICIES, obj.metadata.name, body, subresource=subresource, kind=PatchKind.MERGE)

    def _changed(self, change: Change[Unknown]) -> None:
        if change.new is None:
            ended = self._parsed.pop(change.key.name, None)
            self._told.pop(ended.uid if ended is not None else "", None)
        else:
            self._parsed[change.key.name] = ResourceLeasingPolicy.parse(change.new)
            self.controller.add(change.key.name)
        if change.more_than_status:
            for listener in self._listeners:
                listener()
