"""Admits pods to the leased part of a physical node, as the kubelet of the virtual node would.

Invariant: a pod is admitted or rejected before its physical pod is first created, and never evaluated again: a pod that has a physical pod
counts and stays, whatever shrinks or restarts.

The worker's scheduler and kubelet know the physical node and not the lease, and `spec.nodeName` bypasses the hub's scheduler.
"""

from collections.abc import Callable, Sequence

from attrs import define, field

from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.model.keys import TAINT_CLOSED, deciding_policy
from kubeocean.model.shares import why_refused
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import has_entered, holds_lease
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import JsonView, Key, Node, Pod
from vkubelet.api.quantity import Resources, add_resources, parse_resources
from vkubelet.api.scheduling import effective_requests, tolerates
from vkubelet.control.informer import Change
from vkubelet.errors import NotAdmitted, Unavailable
from vkubelet.provider import Admission, NodeDescription

_REGISTERED_SOON = 1.0


@define(kw_only=True, eq=False)
class LeaseAdmission:
    """Admits or rejects the pods of all virtual nodes, in the order of their creation; `policy` returns a policy by its name."""

    scope: WorkerScope
    policy: Callable[[str], ResourceLeasingPolicy | None]
    _observed: dict[str, frozenset[str]] = field(factory=dict, init=False)
    _shared: set[str] = field(factory=set, init=False)
    """UIDs of the pods that were found within the shares of their namespaces here; their physical pods may not exist yet."""
    _leased: dict[str, tuple[Node, NodeDescription, Node]] = field(factory=dict, init=False)
    """By node, what `leased_node` returned, and for what."""
    _admission: Admission = field(init=False)

    def __attrs_post_init__(self) -> None:
        pods, worker = self.scope.host.pods, self.scope.worker
        self._admission = Admission(node=self._leased_node, pod=pods.by_uid, admitted=lambda pod: has_entered(pod, worker))

    def admit(self, pod: Pod) -> None:
        """Returns when the pod is admitted. Raises NotAdmitted, and Unavailable while its Node is not registered."""
        declared = self.scope.virtual.get(pod.node)
        if declared is None or self._live(pod.node) is None:
            raise Unavailable(f"Node {pod.node} is not registered yet", retry_after=_REGISTERED_SOON, event="", waiting="ContainerCreating")
        policy = self.policy(deciding_policy(declared.description.annotations))
        refusal = outside_windows(pod, declared.description, policy=policy)
        if refusal is not None:
            raise refusal
        self._observe(pod.node)
        if policy is not None and policy.shares and pod.metadata.uid not in self._shared and not has_entered(pod, self.scope.worker):
            self._admit_shares(pod, policy)
        self._admission.admit(pod)
        if policy is not None and policy.shares:
            self._shared.add(pod.metadata.uid)

    def remove(self, uid: str) -> None:
        """Drops the decision about a pod: it is deleted, or has a physical pod after all."""
        self._admission.forget(uid)
        self._shared.discard(uid)

    def _admit_shares(self, pod: Pod, policy: ResourceLeasingPolicy) -> None:
        """Raises NotAdmitted for a pod beyond the share of its namespace in all nodes of the policy."""
        used: dict[str, Resources] = {}
        leased: Resources = {}
        for node in self.scope.virtual:
            description = node.description
            if deciding_policy(description.annotations) != policy.name:
                continue
            leased = add_resources(leased, parse_resources(description.allocatable or description.capacity))
            for other in self.scope.host.pods.on_node(description.name):
                if not other.terminal and (other.metadata.uid in self._shared or has_entered(other, self.scope.worker)):
                    space = other.metadata.namespace
                    used[space] = add_resources(used.get(space, {}), effective_requests(other.spec))
        refusal = why_refused(policy.shares, pod.metadata.namespace, effective_requests(pod.spec), used=used, leased=leased)
        if refusal:
            raise NotAdmitted("OutOfNamespaceShare", f"ResourceLeasingPolicy {policy.name}: {refusal}")

    def hub_node_changed(self, change: Change[Node]) -> None:
        """Drops a node that is deleted in the hub and no longer declared; one that another client deleted is registered again."""
        if change.new is None and self.scope.virtual.get(change.key.name) is None:
            self._leased.pop(change.key.name, None)
            for uid in self._observed.pop(change.key.name, frozenset()):
                self.remove(uid)

    def _observe(self, node: str) -> None:
        """Passes the current pods of a node to the admission; the pod store reports no changes."""
        worker, binding = self.scope.worker, self.scope.binding.current
        pods = [pod for pod in self.scope.host.pods.on_node(node) if holds_lease(pod, worker, binding)]
        uids = frozenset(pod.metadata.uid for pod in pods)
        for uid in self._observed.get(node, frozenset()) - uids:
            self._admission.forget(uid)
        for pod in pods:
            self._admission.observe(pod)
        self._observed[node] = uids

    def _live(self, node: str) -> Node | None:
        return self.scope.hub_nodes.store.get(Key("", node))

    def _leased_node(self, name: str) -> Node | None:
        live, declared = self._live(name), self.scope.virtual.get(name)
        if live is None or declared is None:
            self._leased.pop(name, None)
            return None
        known = self._leased.get(name)
        if known is None or known[0] is not live or known[1] is not declared.description:
            known = self._leased[name] = live, declared.description, leased_node(live, declared.description)
        return known[2]


def outside_windows(pod: Pod, node: NodeDescription, *, policy: ResourceLeasingPolicy | None) -> NotAdmitted | None:
    """Returns why a node whose windows are closed rejects a pod; a toleration counts only where the policy allows it."""
    closed = next((taint for taint in node.taints if taint.key == TAINT_CLOSED), None)
    if closed is None:
        return None
    tolerated = tolerates(pod.spec.get("tolerations") or (), {"key": closed.key, "effect": closed.effect, "value": closed.value})
    if tolerated and policy is not None and policy.allow_out_of_window_pods:
        return None
    of = f" of policy {policy.name}" if policy is not None else ""
    text = f"Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate: {TAINT_CLOSED}, no time window{of} is open"
    hint = "; the toleration has no effect unless the policy sets spec.allowOutOfWindowPods" if tolerated else ""
    return NotAdmitted("TaintToleration", text + hint)


def leased_node(live: Node, declared: NodeDescription) -> Node:
    """Returns the Node with the amounts that are leased now, which the hub may not have received yet.

    The taint of closed windows is removed; `outside_windows` evaluates it.
    """
    taints: Sequence[JsonView] = [taint for taint in live.spec.get("taints") or () if taint["key"] != TAINT_CLOSED]
    status = {"allocatable": dict(declared.allocatable or declared.capacity), "features": live.status.get("features") or {}}
    return Node(live.metadata, encode_json({"taints": taints}), encode_json(status))
