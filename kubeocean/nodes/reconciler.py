"""Creates virtual nodes from physical nodes: one reconcile per physical node, whatever changed.

Invariant: no node is declared or withdrawn before nodes, pods, policies and the binding have each been listed completely.
"""

import logging
from collections.abc import Sequence
from datetime import datetime

from attrs import evolve, frozen

from kubeocean.binding.virtual_nodes import VirtualNode, description_of
from kubeocean.leasing.capacity import Usage
from kubeocean.leasing.policy import Decision, NodeFacts, Terms, decide
from kubeocean.leasing.reclaim_plan import ReclaimPlan
from kubeocean.leasing.record import LeaseRecord
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.nodes.describe import closed_since, describe, eligible, lease_event, lease_record, stamped
from kubeocean.nodes.legacy_nodes import adopt
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.nodes.reclaim_orders import ReclaimPlanner
from kubeocean.nodes.withdrawal import Cause, Withdrawal
from kubeocean.policies.reconciler import PolicyLabel, ResourceLeasingPolicyReconciler
from kubeocean.policies.status import Amounts, PolicyAmounts
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import holds_lease
from vkubelet.api.objects import NODES, Key, Node, Pod
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.control.recorder import ObjectReference
from vkubelet.control.workqueue import Priority
from vkubelet.errors import Unavailable
from vkubelet.logformat import bind
from vkubelet.provider import NodeDescription

log = logging.getLogger(__name__)

_LONGEST_WAIT = 300.0
_AFTER_THE_EDGE = 0.01
_WHILE_DRAINING = 5.0
_LEASED_COUNTED_AFTER = 1.0


@frozen(kw_only=True)
class _Observed:
    """A physical node and its virtual node, as observed at the start of a reconcile."""

    name: str
    virtual: str
    node: Node | None
    live: Node | None
    """The virtual node in the hub."""
    declared: VirtualNode | None
    last: NodeDescription | None
    """The description as this process declared it, else as an earlier process wrote it to the Node."""
    record: LeaseRecord | None

    @property
    def declared_uid(self) -> str:
        """UID of the physical node for which the virtual node was declared; empty if it was not."""
        if self.declared is not None:
            return self.declared.physical_uid
        return self.live.metadata.labels.get(keys.PHYSICAL_NODE_UID, "") if self.live is not None else ""

    def is_another(self, node: Node) -> bool:
        """Checks whether the virtual node was declared for an earlier physical node of this name."""
        return bool(self.declared_uid) and self.declared_uid != node.metadata.uid

    @property
    def closed_since(self) -> datetime | None:
        return closed_since(self.last, self.record)


class PhysicalNodeReconciler:
    """Reconciles the virtual node of each physical node. Keys are names of physical nodes."""

    def __init__(
        self, scope: WorkerScope, *, policies: ResourceLeasingPolicyReconciler, withdrawal: Withdrawal, reclaimer: Reclaimer
    ) -> None:
        self._scope = scope
        self._policies = policies
        self._withdrawal = withdrawal
        self._reclaimer = reclaimer
        self._usage = Usage()
        self._amounts = PolicyAmounts()
        self._planner = ReclaimPlanner(scope.host, self._policies, counts=self._holds_lease)
        self._undecided: set[str] | None = None
        self._label = PolicyLabel(scope, policies=policies, granted=self.recheck)
        self.controller: Controller[str] = Controller(
            "physical nodes", self.reconcile, workers=8, clock=scope.host.clock, metrics=scope.host.metrics
        )
        self._policies.on_change(self.recheck)
        self._policies.set_nodes(self)

    async def run(self) -> None:
        """Waits for the first complete lists, enqueues every node known to one of the clusters, and runs the controller until cancelled."""
        scope = self._scope
        scope.worker.nodes.on_change(self._node_changed)
        scope.worker.pods.on_change(self._pod_changed)
        await scope.worker.wait_complete()
        await scope.hub_nodes.wait_synced()
        await scope.binding.informer.wait_synced()
        self._withdrawal.restore()
        self._undecided = self._known()
        self._decided("")
        self.recheck()
        await self.controller.run()

    @property
    def usage(self) -> Usage:
        """Requests of the pods on each physical node."""
        return self._usage

    def confirm(self) -> None:
        """Enqueues the nodes whose withdrawal the mass guard refused, after an administrator confirmed it."""
        for name in self._withdrawal.confirm():
            self.controller.add(name)

    def recheck(self) -> None:
        """Enqueues every node: the binding, the policies or the reach of the worker changed."""
        for name in sorted(self._known()):
            self.controller.add(name)

    async def reconcile(self, name: str) -> float | None:
        """Declares the desired virtual node, or withdraws it; returns the seconds until a window edge.

        Raises Unavailable while the desired state is unknown from the binding or the policies.
        """
        binding = self._scope.binding.current
        if self._undecided is None or binding is None or not self._scope.worker.complete:
            raise Unavailable("nodes, pods and policies of the worker cluster are not listed yet", retry_after=2.0)
        virtual = keys.vnode_name(binding.cluster_id, name)
        live = self._scope.hub_nodes.store.get(Key("", virtual))
        with bind(node=virtual, physical_node=name, uid=live.metadata.uid if live is not None else ""):
            if self._scope.owns(virtual):
                await adopt(self._scope.host.client, live)
                wait = await self._step(self._observe(name, virtual), binding)
            else:
                wait = self._count(self._observe(name, virtual), binding)
        self._decided(name)
        return wait

    def _observe(self, name: str, virtual: str) -> _Observed:
        scope = self._scope
        live, declared = scope.hub_nodes.store.get(Key("", virtual)), scope.virtual.get(virtual)
        last = declared.description if declared is not None else description_of(live) if live is not None else None
        node = scope.worker.nodes.store.get(Key("", name))
        return _Observed(name=name, virtual=virtual, node=node, live=live, declared=declared, last=last, record=lease_record(last))

    async def _step(self, seen: _Observed, binding: ClusterBinding) -> float | None:
        node = seen.node
        offered = node is not None and not node.metadata.deletion_timestamp and eligible(node.metadata.labels)
        if not self._scope.binding.ending and binding.validate():
            raise Unavailable(f"ClusterBinding {binding.name} is not valid; no node is changed until it is", retry_after=_LONGEST_WAIT)
        if node is None or not offered or self._scope.binding.ending:
            return await self._withdraw(seen)
        facts, terms, decision = self._decide(seen, node, binding)
        if not decision.exists or seen.is_another(node):
            return await self._withdraw(seen)
        plan = self._planner.plan_for_declared(seen.virtual, decision, facts=facts, terms=terms, record=seen.record)
        return await self._offer(seen, node, decision, plan=plan, binding=binding)

    def _decide(self, seen: _Observed, node: Node, binding: ClusterBinding) -> tuple[NodeFacts, Terms, Decision]:
        facts, terms = NodeFacts.of(node), Terms.of(binding, process_zone=self._scope.process_zone)
        decision = decide(
            facts,
            self._policies.current,
            terms=terms,
            used=self._usage.local(facts.name),
            instant=self._scope.host.clock.now(),
            closed_since=seen.closed_since,
        )
        return facts, terms, decision

    def _count(self, seen: _Observed, binding: ClusterBinding) -> float | None:
        """Counts what a node of another shard offers, for the policies, which the first shard reports; changes nothing."""
        if not self._scope.shard.is_first:
            return None
        if seen.node is None or seen.live is None or binding.validate():
            self._amounts.remove(seen.name)
            return None
        _, _, decision = self._decide(seen, seen.node, binding)
        if not decision.exists:
            self._amounts.remove(seen.name)
            return None
        self._count_amounts(seen.name, decision)
        return self._until_edge(decision)

    def _until_edge(self, decision: Decision) -> float | None:
        if decision.next_edge is None:
            return None
        left = (decision.next_edge - self._scope.host.clock.now()).total_seconds()
        return min(_LONGEST_WAIT, max(0.0, left) + _AFTER_THE_EDGE)

    def _holds_lease(self, pod: Pod) -> bool:
        return holds_lease(pod, self._scope.worker, self._scope.binding.current)

    async def _offer(
        self, seen: _Observed, node: Node, decision: Decision, *, plan: ReclaimPlan | None, binding: ClusterBinding
    ) -> float | None:
        now, live = self._scope.host.clock.now(), seen.live
        port = live.kubelet_port if live is not None else None
        description = describe(node, decision, binding=binding, prometheus_url=_prometheus_url(live), port=port)
        description = stamped(_with_record(description, plan), seen.last, now=now)
        self._scope.virtual.declare(description, physical_name=seen.name, physical_uid=node.metadata.uid)
        if live is not None and (event := lease_event(seen.last, decision)) is not None:
            self._scope.host.events.event(ObjectReference.of(NODES, live), *event)
        self._count_amounts(seen.name, decision)
        self._withdrawal.remove(seen.name)
        self._reclaimer.order(seen.virtual, plan.orders if plan is not None else ())
        again = await self._label.show(node, decision.deciding.name if decision.deciding else "")
        edge = self._until_edge(decision)
        return min(again or _LONGEST_WAIT, edge) if edge is not None else again

    def _count_amounts(self, name: str, decision: Decision) -> None:
        policy = decision.deciding.name if decision.deciding else ""
        if self._amounts.put(name, policy=policy, offered=decision.amounts, leased=self._usage.leased(name)):
            self._policies.amounts_changed(policy)

    async def _withdraw(self, seen: _Observed) -> float | None:
        node, live, virtual = seen.node, seen.live, seen.virtual
        if live is None and seen.declared is None:
            self._withdrawal.remove(seen.name)
            self._planner.remove(virtual)
            self._reclaimer.order(virtual, ())
            if node is not None and self._policies.get(node.metadata.labels.get(keys.POLICY_APPLIED, "")) is not None:
                return await self._label.show(node, "")
            return None
        if not self._scope.virtual.is_retired(virtual) and not await self._may_retire(seen):
            return None
        record = lease_record(description_of(live)) if live is not None else None
        policy = self._policies.get(record.decided_by.name if record is not None else _policy_name(live))
        gone = node is None or node.metadata.uid != seen.declared_uid
        self._reclaimer.order(virtual, self._planner.plan_for_retired(virtual, policy, record=record, at_once=gone))
        await self._label.show(node, "")
        return _WHILE_DRAINING

    async def _may_retire(self, seen: _Observed) -> bool:
        """Retires the node if its cause, read live, and the mass guard allow that; else keeps it. Raises Unavailable, ApiError."""
        virtual = self._scope.virtual
        cause = await self._withdrawal.cause(seen.name, seen.live, declared_uid=seen.declared_uid)
        if cause is Cause.NONE:
            raise Unavailable(f"physical node {seen.name}, read live, differs from the cache", retry_after=2.0)
        ours = sum(self._scope.owns(node.metadata.name) for node in self._scope.hub_nodes.store)
        total = max(ours, len(virtual))
        if not self._withdrawal.allowed(seen.name, cause, total=total):
            if seen.live is not None:
                virtual.keep(seen.live)
            return False
        log.info("node is withdrawn")
        virtual.retire(seen.virtual)
        self._amounts.remove(seen.name)
        return True

    def decided_by(self, policy: str) -> Sequence[str]:
        """Returns the physical nodes whose virtual nodes name this policy as deciding. Raises Unavailable before they are listed."""
        if not self._scope.hub_nodes.ever_synced:
            raise Unavailable("the virtual nodes are not listed yet", retry_after=1.0)
        return [physical_name(node) for node in self._scope.hub_nodes.store if _policy_name(node) == policy]

    def amounts_of(self, policy: str) -> Amounts | None:
        """Returns what the nodes of a policy offer, and what of it is leased; None before each node was decided once."""
        return self._amounts.of(policy) if self._scope.virtual.is_complete else None

    def _known(self) -> set[str]:
        physical = {node.metadata.name for node in self._scope.worker.nodes.store}
        known = physical | {name for node in self._scope.hub_nodes.store if (name := physical_name(node))}
        return known if self._scope.shard.is_first else {name for name in known if self._scope.owns_physical(name)}

    def _decided(self, name: str) -> None:
        """Marks a node of the first round as decided; after the last one, what is not declared is retiring (rule `declared-before`)."""
        if self._undecided is None:
            return
        self._undecided.discard(name)
        if not self._undecided:
            self._withdrawal.release()
            self._scope.virtual.complete()

    def _node_changed(self, change: Change[Node]) -> None:
        self.controller.add(change.key.name, priority=Priority.LOW if change.initial else Priority.HIGH)

    def hub_node_changed(self, change: Change[Node]) -> None:
        """Enqueues the physical node of a changed virtual node; the caller watches, because its watch of hub Nodes outlives one worker."""
        node = change.new or change.old
        name = physical_name(node) if node is not None else ""
        matters = (
            change.new is None
            or change.old is None
            or _has_legacy_finalizer(change.new)
            or _prometheus_url(change.old) != _prometheus_url(change.new)
        )
        if name and (matters or self._scope.virtual.is_retired(change.key.name)):
            if change.new is None:
                self._scope.virtual.remove(change.key.name)
            self.controller.add(name, priority=Priority.LOW if change.initial else Priority.HIGH)
        for policy in ({_policy_name(change.old)} ^ {_policy_name(change.new)}) - {""}:
            self._policies.recount(policy)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.old is not None and change.new is not None and _has_same_cost(change.old, change.new):
            return
        changed: frozenset[str] = frozenset()
        pod = change.new or change.old
        leased = pod is not None and self._scope.worker.backed(pod) is not None
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            changed |= self._usage.remove(change.old.metadata.uid)
        if change.new is not None:
            changed |= self._usage.put(change.new, leased=leased)
        # Leased capacity does not change what is offered: a node with hundreds of new pods is reconciled once for many of them.
        after = _LEASED_COUNTED_AFTER if leased else 0.0
        for name in changed:
            self.controller.add(name, after=after, priority=Priority.LOW if change.initial else Priority.HIGH)
            self._report_amounts(name)

    def _report_amounts(self, name: str) -> None:
        self._policies.amounts_changed(self._amounts.lease(name, self._usage.leased(name)))


def _has_same_cost(old: Pod, new: Pod) -> bool:
    """Checks that nothing changed that determines how a pod is counted: most changes are those of its status."""
    before, after = old.metadata, new.metadata
    return (old.node, old.phase, before.uid, before.labels, before.annotations, old.spec_text) == (
        new.node,
        new.phase,
        after.uid,
        after.labels,
        after.annotations,
        new.spec_text,
    )


def physical_name(virtual: Node) -> str:
    """Returns the physical node that a Node of ours names; a label may contain it truncated."""
    name = virtual.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "")
    return name or virtual.metadata.labels.get(keys.PHYSICAL_NODE_NAME, "")


def _has_legacy_finalizer(virtual: Node) -> bool:
    return keys.FINALIZER_VNODE in virtual.metadata.finalizers


def _policy_name(virtual: Node | None) -> str:
    return keys.deciding_policy(virtual.metadata.annotations) if virtual is not None else ""


def _with_record(description: NodeDescription, plan: ReclaimPlan | None) -> NodeDescription:
    """Sets or removes our record annotation: the value of another client on the physical node is never taken for it."""
    annotations = {key: value for key, value in description.annotations.items() if key != keys.LEASE_RECORD}
    if plan is not None:
        annotations[keys.LEASE_RECORD] = plan.record.encode()
    return evolve(description, annotations=annotations)


def _prometheus_url(virtual: Node | None) -> str:
    """Returns the URL of the metrics of the node's containers, once its address and port are known; the client needs a token."""
    if virtual is None or virtual.kubelet_port is None:
        return ""
    addresses = virtual.status.get("addresses") or ()
    address = next((each["address"] for each in addresses if each.get("type") == "InternalIP"), "")
    host = f"[{address}]" if ":" in address else address
    return f"https://{host}:{virtual.kubelet_port}/metrics/cadvisor" if address else ""
