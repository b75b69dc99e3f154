"""Pod admission: decides once, when a pod is first seen, whether its node accepts it, as a kubelet does.

The runtime applies it to the pods of every provider; a provider that admits pods itself (`AdmitsPods`) may use it too.

Invariant: a pod is judged at most once, after all pods of its node that were created before it, and counts from then on until it is
terminal; a pod with a start time was admitted by an earlier process and is never judged again.

Source: pkg/kubelet/lifecycle/predicate.go and the scheduler's plugins that it uses. Not here: preemption for critical pods.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Final, Self

from attrs import define, field, frozen

from vkubelet.api import scheduling
from vkubelet.api.compact import shared
from vkubelet.api.objects import JsonView, Node, Pod
from vkubelet.api.quantity import Quantity, Resources, add_resources, parse_resources, shared_resources, subtract_resources
from vkubelet.errors import NotAdmitted

OS_LABEL: Final = "kubernetes.io/os"
_IN_THOUSANDTHS: Final = "cpu"
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")
_ZERO: Final = Quantity.of(0)
_ONE: Final = Quantity.of(1)


@frozen
class Demand:
    """Resources that an admitted pod takes from its node, as allocated where that is published; "pods" counts the pod itself."""

    requests: Resources
    ports: frozenset[scheduling.HostPort]
    made_of: int = 0
    """Hash of the spec that this demand was computed from; another hash means another spec."""

    @classmethod
    def of(cls, pod: Pod) -> Self:
        if scheduling.is_resized(pod.status_json):
            spec = scheduling.allocated_spec(pod.spec, pod.status)
            requests: Resources = scheduling.effective_requests(spec)
        else:
            spec, requests = pod.spec, scheduling.requests_of(pod.spec_json)
        return cls(shared_resources({**requests, "pods": _ONE}), shared(scheduling.host_ports(spec)), pod.spec_hash)


@define
class Load:
    """Resources that all admitted pods of one node take together."""

    demands: dict[str, Demand] = field(factory=dict)
    requests: Resources = field(factory=dict)

    def add(self, uid: str, demand: Demand) -> None:
        self.remove(uid)
        self.demands[uid] = demand
        self.requests = add_resources(self.requests, demand.requests)

    def remove(self, uid: str) -> None:
        demand = self.demands.pop(uid, None)
        if demand is not None:
            self.requests = subtract_resources(self.requests, demand.requests)

    @property
    def ports(self) -> Iterable[scheduling.HostPort]:
        return (port for demand in self.demands.values() for port in demand.ports)


def judge(pod: Pod, node: Node, load: Load) -> NotAdmitted | None:
    """Returns why the node does not admit the pod beside the pods it has, with the kubelet's reason and message, or None when it does."""
    demand, spec, status = Demand.of(pod), pod.spec, node.status
    return (
        _other_system(pod, spec, node)
        or _other_groups(spec, status)
        or _no_room(demand, parse_resources(status.get("allocatable") or {}), load.requests)
        or _failed_predicate(spec, node, demand, load)
    )


def _other_system(pod: Pod, spec: JsonView, node: Node) -> NotAdmitted | None:
    here = node.metadata.labels.get(OS_LABEL)
    label = pod.metadata.labels.get(OS_LABEL)
    if here and label and label != here:
        text = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
        return NotAdmitted("PodOSSelectorNodeLabelDoesNotMatch", text)
    system = (spec.get("os") or {}).get("name")
    if here and system and system != here:
        return NotAdmitted("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    return None


def _other_groups(spec: JsonView, status: JsonView) -> NotAdmitted | None:
    """Rejects a pod with supplementalGroupsPolicy Strict on a node that does not report support for it (KEP-3619)."""
    policy = (spec.get("securityContext") or {}).get("supplementalGroupsPolicy")
    if policy != "Strict" or (status.get("features") or {}).get("supplementalGroupsPolicy"):
        return None
    return NotAdmitted("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node")


def _no_room(demand: Demand, allocatable: Resources, used: Resources) -> NotAdmitted | None:
    """Checks the pod count first, then the resources that every node has, then the others.

    Extended resources that the node does not list are ignored.
    """
    others = sorted(demand.requests.keys() - {"pods", *_NATIVE})
    for name in ("pods", *_NATIVE, *others):
        wanted = demand.requests.get(name, _ZERO)
        if not wanted or (scheduling.is_extended(name) and name not in allocatable):
            continue
        has, taken = allocatable.get(name, _ZERO), used.get(name, _ZERO)
        if has < wanted + taken:
            numbers = (str(each.milli() if name == _IN_THOUSANDTHS else each.value()) for each in (wanted, taken, has))
            text = "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}".format(name, *numbers)
            return NotAdmitted(f"OutOf{name}", text)
    return None


def _failed_predicate(spec: JsonView, node: Node, demand: Demand, load: Load) -> NotAdmitted | None:
    if not scheduling.matches_node(spec, labels=node.metadata.labels, name=node.metadata.name):
        return _predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if scheduling.ports_conflict(demand.ports, load.ports):
        return _predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    taints = [taint for taint in node.spec.get("taints") or () if taint.get("effect") == "NoExecute"]
    if not all(scheduling.tolerates(spec.get("tolerations") or (), taint) for taint in taints):
        return _predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
    return None


def _predicate(name: str, text: str) -> NotAdmitted:
    return NotAdmitted(name, f"Predicate {name} failed: {text}")


@define
class _Queue:
    """Pods of one node that are not judged yet, oldest first, and the load of the pods that it admitted."""

    load: Load = field(factory=Load)
    waiting: list[tuple[str, str, str]] = field(factory=list)
    refused: dict[str, NotAdmitted] = field(factory=dict)
    resized: set[str] = field(factory=set)
    """UIDs of pods whose spec has changed since they were judged."""

    def stop_waiting(self, uid: str) -> None:
        """Removes a pod that was deleted before it was judged."""
        left = [entry for entry in self.waiting if entry[2] != uid]
        if len(left) < len(self.waiting):
            heapq.heapify(left)
            self.waiting = left


def has_started(pod: Pod) -> bool:
    """Checks for a start time, which a kubelet reports as soon as it has admitted a pod."""
    return bool(pod.status.get("startTime"))


class Admission:
    """Admission of the pods of all nodes; `node` returns the current Node, `pod` the current pod by UID.

    `admitted` is called with each pod that an earlier process admitted.
    """

    def __init__(
        self,
        *,
        node: Callable[[str], Node | None],
        pod: Callable[[str], Pod | None],
        admitted: Callable[[Pod], bool] = has_started,
    ) -> None:
        self._node = node
        self._pod = pod
        self._admitted = admitted
        self._queues: dict[str, _Queue] = {}
        self._known: dict[str, str] = {}

    def observe(self, pod: Pod) -> None:
        """Records the current state of a pod.

        A new pod waits for its turn, a pod that has a start time counts at once, a terminal pod does not count.
        """
        uid = pod.metadata.uid
        if pod.terminal:
            self._end(uid)
            return
        if uid in self._known:
            self._weigh(pod)
            return
        self._known[uid] = pod.node
        queue = self._queues.setdefault(pod.node, _Queue())
        if self._admitted(pod):
            queue.load.add(uid, Demand.of(pod))
        else:
            heapq.heappush(queue.waiting, (pod.metadata.creation_timestamp or "", str(pod.key), uid))

    def _weigh(self, pod: Pod) -> None:
        """Recomputes the demand of a pod whose spec has changed: it may have been allocated more or less, which its status shows."""
        queue, uid = self._queues.get(pod.node), pod.metadata.uid
        demand = queue.load.demands.get(uid) if queue is not None else None
        if queue is None or demand is None or (demand.made_of == pod.spec_hash and uid not in queue.resized):
            return
        queue.resized.add(uid)
        queue.load.add(uid, Demand.of(pod))

    def admit(self, pod: Pod) -> None:
        """Judges the pod, and the older pods of its node before it. Raises NotAdmitted, at each call for the same pod."""
        uid = pod.metadata.uid
        self.observe(pod)
        queue = self._queues.get(pod.node)
        node = self._node(pod.node)
        if queue is None:
            return
        if node is None:
            # Without a Node there is nothing to reject the pod by: it runs, and counts.
            queue.load.add(uid, Demand.of(pod))
            return
        while queue.waiting and uid not in queue.load.demands and uid not in queue.refused:
            self._judge_next(queue, node)
        refusal = queue.refused.get(uid)
        if refusal is not None:
            raise refusal

    def _judge_next(self, queue: _Queue, node: Node) -> None:
        uid = heapq.heappop(queue.waiting)[2]
        pod = self._pod(uid)
        if uid in queue.load.demands or pod is None or pod.terminal or pod.terminating or self._known.get(uid) != pod.node:
            return
        refusal = judge(pod, node, queue.load)
        if refusal is None:
            queue.load.add(uid, Demand.of(pod))
        else:
            queue.refused[uid] = refusal

    def _end(self, uid: str) -> None:
        queue = self._queues.get(self._known.get(uid, ""))
        if queue is not None:
            queue.load.remove(uid)
            queue.resized.discard(uid)

    def forget(self, uid: str) -> None:
        """Drops a pod that was deleted."""
        self._end(uid)
        node = self._known.pop(uid, "")
        queue = self._queues.get(node)
        if queue is not None:
            queue.refused.pop(uid, None)
            queue.stop_waiting(uid)
            if not queue.load.demands and not queue.waiting and not queue.refused:
                del self._queues[node]
