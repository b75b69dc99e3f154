"""Reconciles the ResourceLeasingPolicies of the worker that are meant for us: caches them for the nodes, and reports if they apply.

Each hub that leases by a policy claims it with its own finalizer. Policies refer to a ClusterBinding by name, and the bindings of two hubs
may share a name: both lease, but the status has one writer, the hub whose claim is first in the list. When that claim is removed the next
hub writes.

Invariant: a policy's status is written only when it would change; only its owner adds or removes a claim, so a deleted policy stays until
the last hub has terminated the pods that it leased.

PolicyLabel labels each physical node with the policy that leases it, for the worker's owner, where the optional permission was granted. The
label of a policy for another binding stays; after a refusal nothing is written before the permission is confirmed.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

from kubeocean.leasing.policy import Terms
from kubeocean.model import keys
from kubeocean.model.crds import POLICIES, ResourceLeasingPolicy
from kubeocean.model.ownership import Ownership, classify_finalizer
from kubeocean.model.windows import is_open, next_edge
from kubeocean.policies.status import Amounts, Pace, Verdict, status_change
from kubeocean.scope import WorkerScope
from vkubelet.api.objects import NODES, Json, Key, Node, Unknown
from vkubelet.client.rest import PatchKind
from vkubelet.clock import parse_rfc3339
from vkubelet.control.backoff import Backoff
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.control.rights import may
from vkubelet.control.workqueue import Priority
from vkubelet.errors import Forbidden, NotFound, Unavailable
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_LONGEST_WAIT = 300.0
_NODES_COUNTED_AFTER = 1.0
_AMOUNTS_COUNTED_AFTER = 2.0
_SHARED_AFTER = 30.0
"""Seconds until the other hub that serves a policy is reported."""

_LABELLING = {"verb": "patch", "resource": NODES.plural}
_FIRST_REFUSED, _LONGEST_REFUSED = 1.0, 300.0
"""Seconds until the permission is checked again after a refusal, at first and at most."""


class LeasedNodes(Protocol):
    """The nodes as needed here, about one policy."""

    def decided_by(self, policy: str) -> Sequence[str]:
        """Returns the physical nodes that it decides about. Raises Unavailable."""

    def amounts_of(self, policy: str) -> Amounts | None:
        """Returns what those nodes offer and lease; None while that is unknown."""


class LentAmounts(Protocol):
    """The ledger as needed here."""

    def summary(self, policy: str) -> Json | None:
        """Returns what was lent by this policy, as its status shows it; None while that is unknown."""


class ResourceLeasingPolicyReconciler:
    """Maintains finalizer and status of our policies; decisions about nodes follow `current`."""

    def __init__(self, scope: WorkerScope) -> None:
        host, worker = scope.host, scope.worker
        self._host = host
        self._worker = worker
        self._binding = scope.binding
        self._process_zone = scope.process_zone
        self._parsed: dict[str, ResourceLeasingPolicy] = {}
        self._last_sent: dict[str, Json] = {}
        self._nodes: LeasedNodes | None = None
        self._ledger: LentAmounts | None = None
        self._pace = Pace(host.clock)
        self._others: dict[str, tuple[float, str]] = {}
        """Since when another hub writes the status of a policy, and the mark of that hub; by policy."""
        self._listeners: list[Callable[[], None]] = []
        self.controller: Controller[str] = Controller("policies", self.reconcile, workers=2, clock=host.clock, metrics=host.metrics)
        worker.policies.on_change(self._changed)

    @property
    def current(self) -> Sequence[ResourceLeasingPolicy]:
        """Policies for this binding, those that are being deleted included."""
        return [policy for policy in self._parsed.values() if policy.cluster == self._binding.name]

    def get(self, name: str) -> ResourceLeasingPolicy | None:
        return self._parsed.get(name)

    def is_foreign(self, name: str) -> bool:
        """Checks that the policy exists and is meant for another binding."""
        policy = self._parsed.get(name)
        return policy is not None and policy.cluster != self._binding.name

    def deleted_at(self, name: str) -> datetime | None:
        """Returns when its deletion was requested; None when it was not."""
        obj = self._worker.policies.store.get(Key("", name))
        stamp = obj.metadata.deletion_timestamp if obj is not None else None
        return parse_rfc3339(stamp) if stamp else None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Registers a listener that is called after every change of a policy."""
        self._listeners.append(listener)

    def set_nodes(self, nodes: LeasedNodes) -> None:
        """Sets the source for which nodes a policy decides about; while it lists any, a deleted policy keeps its finalizer."""
        self._nodes = nodes

    def set_ledger(self, ledger: LentAmounts) -> None:
        """Sets the source for what was lent."""
        self._ledger = ledger

    def recount(self, name: str) -> None:
        """Enqueues a policy that decides about more or fewer nodes than before."""
        self.controller.add(name, after=_NODES_COUNTED_AFTER)

    def amounts_changed(self, name: str) -> None:
        """Enqueues a policy whose nodes offer or lease different amounts than before."""
        if name in self._parsed:
            self.controller.add(name, after=_AMOUNTS_COUNTED_AFTER, priority=Priority.LOW)

    def recheck(self) -> None:
        """Enqueues all policies."""
        for name in self._parsed:
            self.controller.add(name)

    async def reconcile(self, name: str) -> float | None:
        """Reconciles finalizer and status of one policy; returns the seconds until its window opens or closes."""
        policy, obj = self._parsed.get(name), self._worker.policies.store.get(Key("", name))
        if policy is None or obj is None:
            return None
        with bind(policy=name):
            if policy.cluster != self._binding.name or policy.deleting:
                return await self._release(obj, meant=policy.cluster == self._binding.name)
            if self._binding.ending:
                # Our claims are removed when the binding is unbound.
                return None
            finalizers = claimed(policy.finalizers, self._owner)
            if finalizers != policy.finalizers:
                await self._patch(obj, {"metadata": {"finalizers": finalizers}})
                return 0.0
            if other := other_writer(policy.finalizers, self._owner):
                return self._note_other(name, other)
            self._note_other(name, "")
            return await self._report(policy, obj)

    async def _report(self, policy: ResourceLeasingPolicy, obj: Unknown) -> float:
        now = self._host.clock.now()
        verdict = self._verdict(policy, now)
        edge = max(0.0, (verdict.edge - now).total_seconds()) + 0.01 if verdict.edge is not None else _LONGEST_WAIT
        report = status_change(policy, verdict, now=now, last_sent=self._last_sent.get(policy.uid))
        if report is None:
            self._pace.settled(policy.name)
            return min(_LONGEST_WAIT, edge)
        if report.only_amounts and (wait := self._pace.wait(policy.name, report.status)) > 0:
            return min(_LONGEST_WAIT, edge, wait)
        if report.repeated and (wait := self._pace.wait_to_repeat(policy.name)) > 0:
            return min(_LONGEST_WAIT, edge, wait)
        if verdict.problems:
            text = f"ResourceLeasingPolicy {policy.name} leases no resources: {verdict.problems}"
            self._binding.event("InvalidPolicy", text, warning=True)
        await self._patch(obj, report.patch, subresource="status")
        self._last_sent[policy.uid] = report.status
        if report.only_amounts:
            self._pace.wrote(policy.name)
        else:
            self._pace.settled(policy.name)
        return min(_LONGEST_WAIT, edge)

    def _verdict(self, policy: ResourceLeasingPolicy, now: datetime) -> Verdict:
        if self._binding.current is None:
            raise Unavailable("the ClusterBinding has not been read yet", retry_after=1.0)
        if problems := "; ".join(str(problem) for problem in policy.validate()):
            return Verdict(problems, amounts=Amounts())
        try:
            zone = Terms.of(self._binding.current, process_zone=self._process_zone).zone_for(policy)
        except ValueError as error:
            return Verdict(f"spec.timeZone: {error}", amounts=Amounts())
        return Verdict(
            "",
            open=is_open(policy.windows, zone, now),
            zone=str(zone),
            edge=next_edge(policy.windows, zone, now),
            nodes=self._decided_by(policy.name),
            amounts=self._nodes.amounts_of(policy.name) if self._nodes is not None else None,
            lent=partial(self._ledger.summary, policy.name) if self._ledger is not None else None,
        )

    def _decided_by(self, name: str) -> Sequence[str]:
        return self._nodes.decided_by(name) if self._nodes is not None else ()

    def _note_other(self, policy: str, writer: str) -> float:
        """Reports on the binding which policies another hub serves; a policy that changes its binding has two servers for a moment."""
        now = self._host.clock.monotonic()
        if writer:
            since, _ = self._others.get(policy, (now, ""))
            self._others[policy] = (since, writer)
        else:
            self._others.pop(policy, None)
        self._binding.set_shared({name: mark for name, (since, mark) in self._others.items() if now - since >= _SHARED_AFTER})
        return _SHARED_AFTER

    @property
    def _owner(self) -> keys.Owner:
        return self._worker.mount.owner

    async def _release(self, obj: Unknown, *, meant: bool) -> float | None:
        """Removes our claim once the policy decides about no node: it is deleted, or names another binding by now."""
        self._note_other(obj.metadata.name, "")
        finalizers = obj.metadata.finalizers
        left = released(finalizers, self._owner, meant=meant)
        if list(left) == list(finalizers):
            return None
        if self._decided_by(obj.metadata.name):
            return 2.0
        try:
            await self._patch(obj, {"metadata": {"finalizers": left}})
        except NotFound:
            log.debug("policy is deleted already")
        return None

    async def _patch(self, obj: Unknown, change: Json, *, subresource: str = "") -> None:
        metadata = {"uid": obj.metadata.uid, "resourceVersion": obj.metadata.resource_version, **change.get("metadata", {})}
        body = {**change, "metadata": metadata}
        await self._worker.client.patch(POLICIES, obj.metadata.name, body, subresource=subresource, kind=PatchKind.MERGE)

    def _changed(self, change: Change[Unknown]) -> None:
        if change.new is None:
            self._note_other(change.key.name, "")
            deleted = self._parsed.pop(change.key.name, None)
            self._last_sent.pop(deleted.uid if deleted is not None else "", None)
            self._pace.remove(change.key.name)
        else:
            self._parsed[change.key.name] = ResourceLeasingPolicy.parse(change.new)
            self.controller.add(change.key.name)
        if change.more_than_status:
            for listener in self._listeners:
                listener()


def claimed(finalizers: Sequence[str], owner: keys.Owner) -> Sequence[str]:
    """Returns the finalizers with the claim of this owner, which is appended."""
    own = keys.policy_finalizer(owner)
    return finalizers if own in finalizers else [*finalizers, own]


def released(finalizers: Sequence[str], owner: keys.Owner, *, meant: bool) -> Sequence[str]:
    """Returns the finalizers without the claim of this owner, and without the claim of earlier versions, which names no owner.

    The latter is removed with our claim, or when the policy is `meant` for our binding; but not while another hub has a claim.
    """
    own = keys.policy_finalizer(owner)
    left = [each for each in finalizers if each != own]
    if (meant or own in finalizers) and not any(classify_finalizer(each, owner) is Ownership.ANOTHERS for each in left):
        left = [each for each in left if each != keys.FINALIZER_POLICY]
    return left


def other_writer(finalizers: Sequence[str], owner: keys.Owner) -> str:
    """Returns the mark of the other hub whose claim precedes ours; empty when this hub writes the status."""
    for each in finalizers:
        match classify_finalizer(each, owner):
            case Ownership.OURS:
                return ""
            case Ownership.ANOTHERS:
                return each.removeprefix(keys.POLICY_CLAIM)
    return ""


class PolicyLabel:
    """The label `kubeocean.io/policy-applied`."""

    def __init__(self, scope: WorkerScope, *, policies: ResourceLeasingPolicyReconciler, granted: Callable[[], None]) -> None:
        self._scope = scope
        self._policies = policies
        self._granted = granted
        self._refusals = Backoff(first=_FIRST_REFUSED, limit=_LONGEST_REFUSED)
        self._not_before = 0.0
        self._retrying = ""

    async def show(self, node: Node | None, policy: str) -> float | None:
        """Sets the label of the node, or removes it with "". Returns the seconds until the next attempt after a refusal, for one node at
        a time.
        """
        current = node.metadata.labels.get(keys.POLICY_APPLIED, "") if node is not None else policy
        if node is None or current == policy or self._policies.is_foreign(current):
            return None
        left = self._not_before - self._scope.host.clock.monotonic()
        if left > 0:
            return left if node.metadata.name == self._retrying else None
        if self._refusals.failures() and not await may(self._scope.worker.client, _LABELLING):
            return self._postponed(node.metadata.name)
        change = {"metadata": {"uid": node.metadata.uid, "labels": {keys.POLICY_APPLIED: policy or None}}}
        try:
            labelled = await self._scope.worker.client.patch(NODES, node.metadata.name, change, kind=PatchKind.MERGE)
            # A withdrawal that follows at once must know of the label, or it would stay in the worker.
            self._scope.worker.nodes.adopt(labelled)
        except Forbidden:
            self._announce()
            return self._postponed(node.metadata.name)
        except NotFound:
            log.debug("physical node is deleted")
        if self._refusals.failures():
            self._refusals.reset()
            self._granted()
        return None

    def _postponed(self, node: str) -> float | None:
        now = self._scope.host.clock.monotonic()
        if now < self._not_before:
            # Another node was refused at the same time.
            return None
        self._retrying, self._not_before = node, now + self._refusals.next()
        return self._not_before - now

    def _announce(self) -> None:
        if not self._refusals.failures():
            text = f"cannot label physical nodes with {keys.POLICY_APPLIED}: the kubeconfig's user may not patch nodes; grant that right"
            self._scope.binding.event("PolicyLabelForbidden", text)
