"""Creates virtual nodes from physical nodes: one reconcile per physical node, whatever changed.

Invariant: no node is declared or withdrawn before nodes, pods, policies and the binding have each been listed completely.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from attrs import evolve, frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.leasing.policy import Decision, NodeFacts, Terms, decide
from kubeocean.leasing.record import LeaseRecord
from kubeocean.leasing.usage import Usage
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.nodes.describe import describe, eligible, stamped
from kubeocean.nodes.legacy_nodes import inherited
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.nodes.reclaim_orders import Outcome, Pressure
from kubeocean.nodes.virtual_nodes import VirtualNode, VirtualNodes, description_of
from kubeocean.nodes.withdrawal import Cause, Withdrawal
from kubeocean.policies.amounts import PolicyAmounts
from kubeocean.policies.label import PolicyLabel, PolicyLabelParts
from kubeocean.policies.reconciler import ResourceLeasingPolicyReconciler
from kubeocean.policies.status import Amounts
from kubeocean.worker.cluster import WorkerCluster, holds_lease
from vkubelet.api.objects import Key, Node, Pod
from vkubelet.client.resources import NODES
from vkubelet.client.rest import PatchKind
from vkubelet.clock import parse_rfc3339
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.workqueue import Priority
from vkubelet.errors import NotFound, Unavailable
from vkubelet.logformat import bind
from vkubelet.provider import Host, NodeDescription

log = logging.getLogger(__name__)

_LONGEST_WAIT = 300.0
_AFTER_THE_EDGE = 0.01
_WHILE_DRAINING = 5.0
_LEASED_COUNTED_AFTER = 1.0


@frozen(kw_only=True)
class NodeParts:
    """Dependencies of the reconciler; `hub_nodes` are the observed Nodes of this binding in the hub."""

    host: Host
    worker: WorkerCluster
    binding: BindingReconciler
    virtual: VirtualNodes
    hub_nodes: Informer[Node]
    policies: ResourceLeasingPolicyReconciler
    withdrawal: Withdrawal
    reclaimer: Reclaimer
    process_zone: str


class PhysicalNodeReconciler:
    """Reconciles the virtual node of each physical node. Keys are names of physical nodes."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._usage = Usage()
        self._amounts = PolicyAmounts()
        self._pressure = Pressure(parts.host, parts.policies, counts=self._holds_lease)
        self._unsettled: set[str] | None = None
        self._label = PolicyLabel(
            PolicyLabelParts(
                worker=parts.worker, binding=parts.binding, policies=parts.policies, clock=parts.host.clock, granted=self.recheck
            )
        )
        self.controller: Controller[str] = Controller(
            "physical nodes", self.reconcile, workers=8, clock=parts.host.clock, metrics=parts.host.metrics
        )
        parts.policies.on_change(self.recheck)
        parts.policies.lends(self)

    async def run(self) -> None:
        """Waits for the first complete lists, enqueues every node known to one of the clusters, and runs the controller until cancelled."""
        parts = self._parts
        parts.worker.nodes.on_change(self._node_changed)
        parts.worker.pods.on_change(self._pod_changed)
        await parts.worker.wait_complete()
        await parts.hub_nodes.wait_synced()
        await parts.binding.informer.wait_synced()
        parts.withdrawal.begin()
        self._unsettled = self._known()
        self._settle("")
        self.recheck()
        await self.controller.run()

    @property
    def usage(self) -> Usage:
        """Requests of the pods on each physical node."""
        return self._usage

    def confirm(self) -> None:
        """Enqueues the nodes whose withdrawal the mass guard refused, after an administrator confirmed it."""
        for name in self._parts.withdrawal.confirm():
            self.controller.add(name)

    def recheck(self) -> None:
        """Enqueues every node: the binding, the policies or the reach of the worker changed."""
        for name in self._known():
            self.controller.add(name)

    async def reconcile(self, name: str) -> float | None:
        """Declares the desired virtual node, or withdraws it; returns the seconds until a window edge.

        Raises Unavailable while the desired state is unknown from the binding or the policies.
        """
        binding = self._parts.binding.current
        if self._unsettled is None or binding is None or not self._parts.worker.complete:
            raise Unavailable("the worker cluster has not been listed yet", retry_after=2.0)
        virtual = keys.vnode_name(binding.cluster_id, name)
        live = self._parts.hub_nodes.store.get(Key("", virtual))
        with bind(node=virtual, physical_node=name, uid=live.metadata.uid if live is not None else ""):
            await self._take_over(virtual)
            node = self._parts.worker.nodes.store.get(Key("", name))
            wait = await self._step(name, virtual, node=node, binding=binding)
        self._settle(name)
        return wait

    async def _take_over(self, virtual: str) -> None:
        """Removes the finalizer that Kubeocean (Go) left on its Nodes, which would block their deletion (layout.md section 16, rule 8)."""
        live = self._parts.hub_nodes.store.get(Key("", virtual))
        change = inherited(live) if live is not None else None
        if change is None:
            return
        try:
            await self._parts.host.client.patch(NODES, virtual, change, kind=PatchKind.MERGE)
            log.info("node of an earlier Kubeocean is taken over")
        except NotFound:
            log.debug("virtual node is gone")

    async def _step(self, name: str, virtual: str, *, node: Node | None, binding: ClusterBinding) -> float | None:
        offered = node is not None and not node.metadata.deletion_timestamp and eligible(node.metadata.labels)
        if not self._parts.binding.ending and binding.validate():
            raise Unavailable("the binding is not valid; nothing is changed", retry_after=_LONGEST_WAIT)
        if node is None or not offered or self._parts.binding.ending:
            return await self._withdraw(name, virtual, node=node)
        facts, terms = NodeFacts.of(node), Terms.of(binding, process_zone=self._parts.process_zone)
        decision = self._decide(facts, terms, virtual)
        if not decision.exists or self._is_another(virtual, node):
            return await self._withdraw(name, virtual, node=node)
        return await self._offer(node, decision, facts=facts, terms=terms, binding=binding)

    def _decide(self, facts: NodeFacts, terms: Terms, virtual: str) -> Decision:
        live = self._parts.hub_nodes.store.get(Key("", virtual))
        return decide(
            facts,
            self._parts.policies.current,
            terms=terms,
            used=self._usage.local(facts.name),
            instant=self._parts.host.clock.now(),
            closed_since=_closed_since(_last_description(self._parts.virtual.get(virtual), live)),
        )

    def _holds_lease(self, pod: Pod) -> bool:
        return holds_lease(pod, self._parts.worker, self._parts.binding.current)

    def _is_another(self, virtual: str, node: Node) -> bool:
        """Checks whether the virtual node was declared for an earlier physical node of this name."""
        known = self._declared_uid(virtual)
        return bool(known) and known != node.metadata.uid

    def _declared_uid(self, virtual: str) -> str:
        declared, live = self._parts.virtual.get(virtual), self._parts.hub_nodes.store.get(Key("", virtual))
        if declared is not None:
            return declared.physical_uid
        return live.metadata.labels.get(keys.PHYSICAL_NODE_UID, "") if live is not None else ""

    async def _offer(self, node: Node, decision: Decision, *, facts: NodeFacts, terms: Terms, binding: ClusterBinding) -> float | None:
        parts, name = self._parts, node.metadata.name
        live = parts.hub_nodes.store.get(Key("", keys.vnode_name(binding.cluster_id, name)))
        description = describe(node, decision, binding=binding, prometheus_url=_prometheus_url(live), port=_port(live))
        before = parts.virtual.get(description.name)
        said = _last_description(before, live)
        outcome = self._pressure.of_declared(description.name, decision, facts=facts, terms=terms, record=_record(said))
        description = stamped(_with_record(description, outcome), said, now=parts.host.clock.now())
        parts.virtual.declare(description, physical_name=name, physical_uid=node.metadata.uid)
        self._count_amounts(name, decision)
        parts.withdrawal.settled(name)
        parts.reclaimer.order(description.name, outcome.orders if outcome is not None else ())
        again = await self._label.show(node, decision.deciding.name if decision.deciding else "")
        if decision.next_edge is None:
            return again
        left = (decision.next_edge - parts.host.clock.now()).total_seconds()
        return min(again or _LONGEST_WAIT, _LONGEST_WAIT, max(0.0, left) + _AFTER_THE_EDGE)

    def _count_amounts(self, name: str, decision: Decision) -> None:
        policy = decision.deciding.name if decision.deciding else ""
        if self._amounts.put(name, policy=policy, offered=decision.amounts, leased=self._usage.leased(name)):
            self._parts.policies.amounts_changed(policy)

    async def _withdraw(self, name: str, virtual: str, *, node: Node | None) -> float | None:
        parts = self._parts
        live, declared = parts.hub_nodes.store.get(Key("", virtual)), parts.virtual.get(virtual)
        if live is None and declared is None:
            parts.withdrawal.settled(name)
            self._pressure.forget(virtual)
            parts.reclaimer.order(virtual, ())
            if node is not None and parts.policies.get(node.metadata.labels.get(keys.POLICY_APPLIED, "")) is not None:
                return await self._label.show(node, "")
            return None
        gone = node is None or node.metadata.uid != self._declared_uid(virtual)
        if not parts.virtual.is_retired(virtual):
            cause = await parts.withdrawal.cause(name, live, declared_uid=self._declared_uid(virtual))
            if cause is Cause.NONE:
                raise Unavailable("what was read live differs from what was watched", retry_after=2.0)
            total = max(len(parts.hub_nodes.store), len(parts.virtual))
            if not parts.withdrawal.allowed(name, cause, total=total):
                if live is not None:
                    parts.virtual.keep(live)
                return None
            log.info("node is withdrawn")
            parts.virtual.retire(virtual)
            self._amounts.remove(name)
        record = _record(description_of(live)) if live is not None else None
        policy = parts.policies.get(record.decided_by.name if record is not None else _policy_name(live))
        parts.reclaimer.order(virtual, self._pressure.of_retired(virtual, policy, record=record, at_once=gone))
        await self._label.show(node, "")
        return _WHILE_DRAINING

    def decided_by(self, policy: str) -> Sequence[str]:
        """Returns the physical nodes whose virtual nodes name this policy as deciding. Raises Unavailable before they are listed."""
        if not self._parts.hub_nodes.ever_synced:
            raise Unavailable("the virtual nodes have not been listed yet", retry_after=1.0)
        return [physical_name(node) for node in self._parts.hub_nodes.store if _policy_name(node) == policy]

    def amounts_of(self, policy: str) -> Amounts | None:
        """Returns what the nodes of a policy offer, and what of it is leased; None before each node was decided once."""
        return self._amounts.of(policy) if self._parts.virtual.is_complete else None

    def _known(self) -> set[str]:
        physical = {node.metadata.name for node in self._parts.worker.nodes.store}
        return physical | {name for node in self._parts.hub_nodes.store if (name := physical_name(node))}

    def _settle(self, name: str) -> None:
        """Marks a node of the first round as decided; after the last one, whatever is not declared by then is retiring (rule 7)."""
        if self._unsettled is None:
            return
        self._unsettled.discard(name)
        if not self._unsettled:
            self._parts.withdrawal.first_round_over()
            self._parts.virtual.complete()

    def _node_changed(self, change: Change[Node]) -> None:
        self.controller.add(change.key.name, priority=Priority.LOW if change.initial else Priority.HIGH)

    def hub_node_changed(self, change: Change[Node]) -> None:
        """Enqueues the physical node of a changed virtual node; the caller watches, because its watch of hub Nodes outlives one worker."""
        node = change.new or change.old
        name = physical_name(node) if node is not None else ""
        matters = (
            change.new is None or change.old is None or _is_held(change.new) or _prometheus_url(change.old) != _prometheus_url(change.new)
        )
        if name and (matters or self._parts.virtual.is_retired(change.key.name)):
            if change.new is None:
                self._parts.virtual.forget(change.key.name)
            self.controller.add(name, priority=Priority.LOW if change.initial else Priority.HIGH)
        for policy in ({_policy_name(change.old)} ^ {_policy_name(change.new)}) - {""}:
            self._parts.policies.recount(policy)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.old is not None and change.new is not None and _costs_the_same(change.old, change.new):
            return
        changed: frozenset[str] = frozenset()
        pod = change.new or change.old
        leased = pod is not None and self._parts.worker.backed(pod) is not None
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            changed |= self._usage.remove(change.old.metadata.uid)
        if change.new is not None:
            changed |= self._usage.put(change.new, leased=leased)
        # Leased capacity does not change what is offered: a node with hundreds of new pods is reconciled once for many of them.
        after = _LEASED_COUNTED_AFTER if leased else 0.0
        for name in changed:
            self.controller.add(name, after=after, priority=Priority.LOW if change.initial else Priority.HIGH)
            self._tell_amounts(name)

    def _tell_amounts(self, name: str) -> None:
        self._parts.policies.amounts_changed(self._amounts.lease(name, self._usage.leased(name)))


def _costs_the_same(old: Pod, new: Pod) -> bool:
    """Checks that nothing changed that determines how a pod is counted: most changes are those of its status."""
    before, after = old.metadata, new.metadata
    return (old.node, old.phase, before.uid, before.labels, before.annotations, old.spec_json) == (
        new.node,
        new.phase,
        after.uid,
        after.labels,
        after.annotations,
        new.spec_json,
    )


def physical_name(virtual: Node) -> str:
    """Returns the physical node that a Node of ours names; a label may contain it truncated."""
    name = virtual.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "")
    return name or virtual.metadata.labels.get(keys.PHYSICAL_NODE_NAME, "")


def _is_held(virtual: Node) -> bool:
    return keys.FINALIZER_VNODE in virtual.metadata.finalizers


def _policy_name(virtual: Node | None) -> str:
    return virtual.metadata.annotations.get(keys.POLICIES_APPLIED, "").partition(",")[0] if virtual is not None else ""


def _last_description(declared: VirtualNode | None, live: Node | None) -> NodeDescription | None:
    """Returns the description as this process declared it, else as an earlier process wrote it to the Node."""
    if declared is not None:
        return declared.description
    return description_of(live) if live is not None else None


def _record(description: NodeDescription | None) -> LeaseRecord | None:
    return LeaseRecord.decode(description.annotations.get(keys.LEASE_RECORD, "")) if description is not None else None


def _with_record(description: NodeDescription, outcome: Outcome | None) -> NodeDescription:
    """Sets or removes our record annotation: the value of another client on the physical node is never taken for it."""
    annotations = {key: value for key, value in description.annotations.items() if key != keys.LEASE_RECORD}
    if outcome is not None:
        annotations[keys.LEASE_RECORD] = outcome.record.encode()
    return evolve(description, annotations=annotations)


def _closed_since(description: NodeDescription | None) -> datetime | None:
    """Returns when the node was closed. A Node without a record is from an earlier version: its grace starts when this one decides."""
    if description is None or _record(description) is None:
        return None
    return next(
        (parse_rfc3339(taint.time_added) for taint in description.taints if taint.key == keys.TAINT_CLOSED and taint.time_added), None
    )


def _prometheus_url(virtual: Node | None) -> str:
    """Returns the URL of the metrics of the node's containers, once its address and port are known; the client needs a token."""
    port = _port(virtual)
    if virtual is None or port is None:
        return ""
    addresses = virtual.status.get("addresses") or ()
    address = next((each["address"] for each in addresses if each.get("type") == "InternalIP"), "")
    host = f"[{address}]" if ":" in address else address
    return f"https://{host}:{port}/metrics/cadvisor" if address else ""


def _port(virtual: Node | None) -> int | None:
    if virtual is None:
        return None
    port = virtual.status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
    return port if isinstance(port, int) and port > 0 else None
