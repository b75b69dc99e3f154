"""Explains a pod of the hub: why it is pending, or where it runs, and what was changed for the worker.

Invariant: whether a pod is started, admitted and translated is decided by the functions of `kubeocean.pods` that decide it in the process.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import frozen

from kubeocean.binding.virtual_nodes import description_of
from kubeocean.explain.translation import Difference, translation
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding, ResourceLeasingPolicy
from kubeocean.model.identity import Target, leaves_home, where, why_pending
from kubeocean.model.references import untranslatable
from kubeocean.pods.admission import leased_node, outside_windows
from kubeocean.pods.changes import Excluded, Pending, Unconfirmed, decide
from vkubelet.api.objects import JsonView, Node, Pod, get_condition
from vkubelet.api.podspec import waiting_containers
from vkubelet.api.scheduling import matches_node, tolerates
from vkubelet.errors import PodRejected
from vkubelet.provider.admission import Demand, Load, judge

_REPELLING = ("NoSchedule", "NoExecute")


@frozen(kw_only=True)
class Surroundings:
    """What decides about a pod beside itself, as read at one moment; None and empty values were not found, or may not be read."""

    nodes: Sequence[Node] = ()
    """Virtual nodes of the hub."""
    node: Node | None = None
    """The Node of the pod."""
    others: Sequence[Pod] = ()
    """The other pods of that node that use leased capacity."""
    binding: ClusterBinding | None = None
    policy: ResourceLeasingPolicy | None = None
    """The policy that decides about the node."""
    target: Target | None = None
    physical: Pod | None = None
    worker_read: bool = False
    """Whether the worker could be read: else a missing physical pod means nothing."""
    blocked_by: str = ""
    """The PodDisruptionBudget that allows no eviction of the pod now."""
    events: Sequence[str] = ()


@frozen(kw_only=True)
class PodExplanation:
    """Where a pod is, why it does not run, and how it was translated; `events` are the warnings of the hub, the latest first."""

    pod: str
    phase: str
    node: str
    binding: str = ""
    physical_node: str = ""
    physical_pod: str = ""
    why: Sequence[str] = ()
    blocked_by: str = ""
    """The PodDisruptionBudget that allows no eviction of the pod now: it stays on its node until a grace period is over."""
    translation: Sequence[Difference] = ()
    events: Sequence[str] = ()


def explain_pod(pod: Pod, around: Surroundings) -> PodExplanation:
    """Explains one pod."""
    physical, node = around.physical, around.node
    return PodExplanation(
        pod=str(pod.key),
        phase="Terminating" if pod.terminating else pod.phase or "Pending",
        node=pod.node,
        binding=around.binding.name if around.binding else "",
        physical_node=(physical.node if physical else "") or (node.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "") if node else ""),
        physical_pod=str(physical.key) if physical else str(where(pod)).strip("/"),
        why=list(dict.fromkeys(_why(pod, around))),
        blocked_by=around.blocked_by,
        translation=_translated(pod, around),
        events=around.events,
    )


def _translated(pod: Pod, around: Surroundings) -> Sequence[Difference]:
    try:
        return translation(pod, around.target) if around.target is not None and leaves_home(pod.metadata) else ()
    except PodRejected:
        return ()


def _why(pod: Pod, around: Surroundings) -> Iterator[str]:
    """Yields the reasons, the cause first."""
    if pod.terminal:
        status = pod.status
        detail = ": ".join(str(status[name]) for name in ("reason", "message") if status.get(name))
        yield f"it is {pod.phase}{f', {detail}' if detail else ''}"
    elif not pod.node:
        yield from _unscheduled(pod, around)
    elif around.binding is None or around.node is None:
        yield f"node {pod.node} is no virtual node of Kubeocean, so its kubelet explains the pod: kubectl describe pod"
    else:
        yield from _on_virtual_node(pod, around, around.binding, around.node)


# --- Without a node -----------------------------------------------------------------------------------------------------------------------


def _unscheduled(pod: Pod, around: Surroundings) -> Iterator[str]:
    spec = pod.spec
    if gates := [gate.get("name", "") for gate in spec.get("schedulingGates") or ()]:
        yield f"spec.schedulingGates: it waits until a controller removes {', '.join(gates)}"
    scheduled = get_condition(pod.status.get("conditions") or (), "PodScheduled") or {}
    if scheduled.get("message"):
        yield f"the scheduler of the hub reports: {scheduled['message']}"
    if not around.nodes:
        yield "no virtual node exists; `kubeocean status` shows the bindings"
    counted = Counter(unfit(pod, node) for node in around.nodes)
    for reason, count in counted.most_common():
        yield f"{count} of {len(around.nodes)} virtual nodes: {reason or 'fit by taints, selectors and size, unless other pods fill them'}"


def unfit(pod: Pod, node: Node) -> str:
    """Returns why an empty virtual node does not fit a pod; empty when it fits."""
    spec = pod.spec
    if not matches_node(spec, labels=node.metadata.labels, name=node.metadata.name):
        return "spec.nodeSelector or spec.affinity of the pod excludes them"
    repelling: Sequence[JsonView] = [taint for taint in node.spec.get("taints") or () if taint.get("effect") in _REPELLING]
    if missing := [taint for taint in repelling if not tolerates(spec.get("tolerations") or (), taint)]:
        names = ", ".join(sorted({f"{taint['key']}:{taint['effect']}" for taint in missing}))
        return f"the pod does not tolerate {names}{_hint(missing)}"
    refusal = judge(pod, node, Load())
    return refusal.message if refusal is not None else ""


def _hint(taints: Sequence[JsonView]) -> str:
    found = {taint["key"] for taint in taints}
    if keys.TAINT_CLOSED in found:
        return "; no time window is open, see `kubeocean plan`"
    if keys.TAINT_WORKER_UNREACHABLE in found:
        return "; the worker cluster is unreachable, see `kubeocean status`"
    return "; add the toleration to the pod" if keys.TAINT_VNODE in found else ""


# --- On a virtual node --------------------------------------------------------------------------------------------------------------------


def _on_virtual_node(pod: Pod, around: Surroundings, binding: ClusterBinding, node: Node) -> Iterator[str]:
    owner = around.target.owner if around.target is not None else keys.Owner("", binding.cluster_id)
    target = around.target or Target(owner=owner, node="", namespace=binding.identity.namespace_of(pod.metadata.namespace))
    decision = decide(pod, around.physical, binding=binding, owner=owner, target=lambda _: target)
    if isinstance(decision, Excluded):
        yield why_pending(pod.metadata, binding) or f"pods of namespace {pod.metadata.namespace} are not started on virtual nodes"
        return
    if around.physical is not None:
        yield from _in_worker(pod, around.physical)
        return
    yield from _before_creation(pod, around, binding, node, target)
    if isinstance(decision, Unconfirmed) and around.worker_read:
        yield f"its physical pod {where(pod)} is recorded, and the worker does not have it"


def _before_creation(pod: Pod, around: Surroundings, binding: ClusterBinding, node: Node, target: Target) -> Iterator[str]:
    """Yields what keeps the physical pod from being created, in the order in which the process checks it."""
    yield from (f"ClusterBinding {binding.name} is not valid: {problem}" for problem in binding.validate())
    try:
        translation(pod, target)
    except PodRejected as rejected:
        yield f"{rejected.reason}: {rejected.message}"
    if where(pod).name:
        return
    declared = description_of(node)
    load = Load()
    for other in around.others:
        load.add(other.metadata.uid, Demand.of(other))
    refusal = outside_windows(pod, declared, policy=around.policy) or judge(pod, leased_node(node, declared), load)
    if refusal is not None:
        yield f"{refusal.reason}: {refusal.message}"
    yield from _waiting(pod)
    if around.worker_read and refusal is None and not pod.terminating:
        yield "the worker does not have its physical pod yet; the latest events name the reason"


def _in_worker(pod: Pod, physical: Pod) -> Iterator[str]:
    if physical.terminating:
        yield f"its physical pod is being deleted since {physical.metadata.deletion_timestamp}"
    scheduled = get_condition(physical.status.get("conditions") or (), "PodScheduled") or {}
    if not physical.node:
        yield f"the worker has not scheduled its physical pod: {scheduled.get('message') or 'its scheduler has not reported yet'}"
    yield from _waiting(pod)
    for name, problem in untranslatable(pod.spec).items():
        yield f"ephemeral container {name}: {problem}"
    if (pending := Pending.of(physical.metadata)) is not None:
        yield f"the resize is pending: {pending}"


def _waiting(pod: Pod) -> Iterator[str]:
    for each, waiting in waiting_containers(pod.status):
        message = f": {waiting['message']}" if waiting.get("message") else ""
        yield f"container {each['name']} waits: {waiting['reason']}{message}"
