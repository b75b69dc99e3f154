"""`kubeocean explain node|pod|policy NAME`: shows why a node offers what it offers, where a pod is, and what a policy does.

Invariant: the explanations are computed by `kubeocean.explain` from one reading of the clusters.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from attrs import evolve, frozen

from kubeocean.commands import reading
from kubeocean.commands.output import Block, Columns, Format, amount_text, amounts_text, data, fields_of, in_progress, write
from kubeocean.commands.reading import Snapshot
from kubeocean.explain.budgets import Budgets
from kubeocean.explain.lease import LeasedNode
from kubeocean.explain.node import NodeExplanation, explain_node
from kubeocean.explain.pod import PodExplanation, Surroundings, explain_pod
from kubeocean.explain.policy import PolicyExplanation, explain_policy
from kubeocean.explain.translation import summary
from kubeocean.model import keys
from kubeocean.model.crds import POLICIES, ClusterBinding, ResourceLeasingPolicy
from kubeocean.model.identity import Target, workload
from kubeocean.policies.reconciler import other_writer
from kubeocean.worker.cluster import holds_lease
from vkubelet.api.objects import EVENTS, NODES, PDBS, PODS, Key, Node, Pod
from vkubelet.api.quantity import Resources, parse_resources
from vkubelet.client.rest import Selection
from vkubelet.clock import Clock, SystemClock, rfc3339
from vkubelet.commands import clusters
from vkubelet.commands.reading import Reader
from vkubelet.commands.terminal import Terminal

_READING = "reading policies, nodes and pods of both clusters"


@frozen(kw_only=True)
class Explainer:
    """One run of the command; `worker` is the worker cluster as named by flags, None to use the Secret of the binding."""

    hub: clusters.Choice
    worker: clusters.Choice | None
    binding: str
    terminal: Terminal
    output: Format
    clock: Clock = SystemClock()

    def _print(self, value: object, shown: Sequence[Block]) -> None:
        if self.output.is_data:
            self.terminal.write_line(data(value, self.output))
        else:
            write(self.terminal, shown)

    # --- Nodes ----------------------------------------------------------------------------------------------------------------------

    async def node(self, name: str) -> None:
        """Explains a node, named as in the hub or as in the worker. Raises CommandFailed."""
        with in_progress(_READING):
            seen, leased = await self._leased(name)
        shown = seen.virtual.get(leased.virtual)
        made = explain_node(seen.lease, leased, instant=self.clock.now(), shown=_allocatable(shown))
        self._print({**fields_of(made), "notes": seen.notes}, [*_notes(seen), *node_blocks(made)])

    async def _leased(self, name: str) -> tuple[Snapshot, LeasedNode]:
        """Reads the bindings until one has the node. Raises CommandFailed."""
        async with clusters.opened(self.hub) as client:
            reader = Reader(client, self.hub)
            live = await reader.get(NODES, name)
            found = await reading.bindings(reader, self.binding)
            own = reading.binding_of(live, found) if live is not None else None
            if live is not None and own is None and not self.binding:
                raise clusters.CommandFailed(
                    f"Node {name} of the {self.hub.title} is no virtual node; to explain a worker's node of that name, add --binding"
                )
            if live is not None and own is not None:
                seen = await reading.snapshot(reader, own, chosen=self.worker, pods_of=live.metadata.name)
                if (leased := seen.node(name)) is not None:
                    return seen, leased
            failures: list[str] = []
            async for seen in reading.snapshots(reader, found if own is None else [], chosen=self.worker, failures=failures):
                if (leased := seen.node(name)) is not None:
                    return seen, leased
        text = f"no worker cluster has a node {name}; `kubectl get nodes -l {keys.CLUSTER_BINDING}` lists virtual nodes"
        raise clusters.CommandFailed("; ".join([text, *failures]))

    # --- Policies -------------------------------------------------------------------------------------------------------------------

    async def policy(self, name: str) -> None:
        """Explains a policy. Raises CommandFailed."""
        with in_progress(_READING):
            seen, policy, exists = await self._selected(name)
        other = other_writer(policy.finalizers, seen.worker.mount.owner)
        made = explain_policy(seen.lease, policy, instant=self.clock.now(), binding_exists=exists, other_hub=other)
        self._print({**fields_of(made), "notes": seen.notes}, [*_notes(seen), *policy_blocks(made)])

    async def _selected(self, name: str) -> tuple[Snapshot, ResourceLeasingPolicy, bool]:
        """Reads the bindings until a worker has the policy; also whether the binding that it names exists. Raises CommandFailed."""
        async with clusters.opened(self.hub) as client:
            reader = Reader(client, self.hub)
            found = await reading.bindings(reader, self.binding)
            known, failures = set[str](), list[str]()
            async for seen in reading.snapshots(reader, found, chosen=self.worker, failures=failures):
                policy = _meant(seen, name, found)
                known |= {each.name for each in seen.policies}
                if policy is not None:
                    return seen, policy, any(each.name == policy.cluster for each in found)
        text = f"no worker cluster has a ResourceLeasingPolicy {name}; those that exist: {', '.join(sorted(known)) or 'none'}"
        raise clusters.CommandFailed("; ".join([text, *failures]))

    # --- Pods -----------------------------------------------------------------------------------------------------------------------

    async def pod(self, key: Key) -> None:
        """Explains a pod of the hub. Raises CommandFailed."""
        with in_progress(_READING):
            made, missing = await self._explained(key)
        found = {**fields_of(made), "translation": summary(made.translation), "notes": missing}
        self._print(found, [*(f"! {each}" for each in missing), *pod_blocks(made, wide=self.output is Format.WIDE)])

    async def _explained(self, key: Key) -> tuple[PodExplanation, Sequence[str]]:
        """Reads a pod and what decides about it; also what may not be read. Raises CommandFailed."""
        async with clusters.opened(self.hub) as client:
            reader = Reader(client, self.hub)
            pod = await reader.get(PODS, key)
            if pod is None:
                raise clusters.CommandFailed(f"the {self.hub.title} has no pod {key.name} in namespace {key.namespace}; set --namespace")
            return explain_pod(pod, await surroundings(reader, pod, worker=self.worker)), reader.missing


async def surroundings(hub: Reader, pod: Pod, *, worker: clusters.Choice | None) -> Surroundings:
    """Reads what decides about a pod; what may not be read is in `hub.missing`. Raises CommandFailed."""
    where = Selection(namespace=pod.metadata.namespace, fields=f"involvedObject.uid={pod.metadata.uid}")
    listed = await hub.list_if_allowed(EVENTS, where, otherwise="events are not shown")
    events = warnings([each.body for each in listed or ()])
    if not pod.node:
        nodes = await hub.list_if_allowed(NODES, Selection(labels=keys.CLUSTER_BINDING), otherwise="virtual nodes are not compared")
        return Surroundings(nodes=nodes or (), events=events)
    node = await hub.get_if_allowed(NODES, pod.node, otherwise="its node is not known")
    binding = reading.binding_of(node, await reading.bindings(hub)) if node is not None else None
    if node is None or binding is None:
        return Surroundings(node=node, events=events)
    return evolve(await _in_worker(hub, pod, node=node, binding=binding, chosen=worker), events=events)


async def _in_worker(hub: Reader, pod: Pod, *, node: Node, binding: ClusterBinding, chosen: clusters.Choice | None) -> Surroundings:
    owner = await reading.owner_of(hub, binding)
    cache = reading.empty_worker(hub.client, binding, owner)
    physical, policy, read = None, None, False
    try:
        async with reading.worker_reader(hub, binding, owner, chosen=chosen) as worker:
            found = await worker.get(PODS, cache.mount.copy_key(pod.key))
            if found is not None:
                cache.pods.adopt(found)
            physical, read = cache.physical_pod(pod.ref), True
            name = keys.deciding_policy(node.metadata.annotations)
            stored = await worker.get_if_allowed(POLICIES, name, otherwise="the policy is not known") if name else None
            policy = ResourceLeasingPolicy.parse(stored) if stored is not None else None
            hub.missing.extend(worker.missing)
    except clusters.CommandFailed as error:
        hub.missing.append(f"the worker cluster is not read: {error}")
    on_node = Selection(fields=f"spec.nodeName={pod.node}")
    listed = await hub.list_if_allowed(PODS, on_node, otherwise="other pods of the node are not counted")
    others = [each for each in listed or () if each.metadata.uid != pod.metadata.uid and holds_lease(each, cache, binding)]
    name = node.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "")
    space = binding.identity.namespace_of(pod.metadata.namespace)
    where = Selection(namespace=pod.metadata.namespace)
    budgets = await hub.list_if_allowed(PDBS, where, otherwise="whether a PodDisruptionBudget blocks its eviction is not known")
    return Surroundings(
        node=node,
        others=[each for each in others if not each.terminal],
        binding=binding,
        policy=policy,
        target=evolve(Target.of(binding, owner=owner, node=name, workload=workload(pod.metadata)), namespace=space),
        physical=physical,
        worker_read=read,
        blocked_by=Budgets.of(budgets or (), [pod]).forbidding(pod.metadata.uid),
    )


def _allocatable(node: Node | None) -> Resources | None:
    return parse_resources(node.status.get("allocatable") or {}) if node is not None else None


def _meant(seen: Snapshot, name: str, found: Sequence[ClusterBinding]) -> ResourceLeasingPolicy | None:
    """Returns the policy of this name, unless it names another binding that exists, in whose worker it is explained."""
    policy = next((each for each in seen.policies if each.name == name), None)
    others = {each.name for each in found} - {seen.binding.name}
    return policy if policy is not None and policy.cluster not in others else None


def _notes(seen: Snapshot) -> list[Block]:
    return [f"! {note}" for note in seen.notes]


def warnings(events: Sequence[dict[str, object]]) -> list[str]:
    """Returns the warnings about an object, the latest first: `2026-01-05T08:00:00Z FailedCreatePod: message (5 times)` (pure)."""
    found = []
    for event in events:
        if event.get("type") == "Warning":
            at = str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")
            count = event.get("count")
            times = f" ({count} times)" if isinstance(count, int) and count > 1 else ""
            found.append(f"{at} {event.get('reason')}: {event.get('message')}{times}")
    return sorted(found, reverse=True)


# --- Rendering (pure) ---------------------------------------------------------------------------------------------------------------------


def node_blocks(made: NodeExplanation) -> list[Block]:
    """Renders the explanation of a node: state, arithmetic, policies."""
    head = f"Node {made.virtual}, which is node {made.node} of ClusterBinding {made.binding}: {made.state}, {made.why}"
    out: list[Block] = [head]
    if made.next_edge is not None:
        out.append(f"Next change: {both(made.next_edge, made.zone)}; see `kubeocean plan {made.policy}`")
    if made.outdated:
        out.append(f"! {made.outdated}; the process of the binding corrects that within seconds while it runs")
    if made.amounts:
        rows = [
            (
                each.resource,
                amount_text(each.allocatable),
                f"- {amount_text(each.local)}",
                f"= {amount_text(each.left)}",
                f"-> {amount_text(each.offered)}",
                amount_text(each.leased),
                amount_text(each.free),
                ", then ".join(f"{one.limit} -> {amount_text(one.amount)}" for one in each.limits) or "none",
            )
            for each in made.amounts
        ]
        out += [
            "",
            Columns(("RESOURCE", "ALLOCATABLE", "LOCAL PODS", "LEFT", "OFFERED", "LEASED", "FREE", f"LIMITS OF {made.policy}"), rows),
        ]
    if made.blocked:
        out.append(f"Pods whose eviction a PodDisruptionBudget blocks until a grace period ends: {', '.join(made.blocked)}")
    if made.policies:
        verdicts = [(each.policy, "decides" if each.decides else "no", each.why) for each in made.policies]
        out += ["", Columns(("POLICY", "DECIDES", "WHY"), verdicts)]
    return out


def policy_blocks(made: PolicyExplanation) -> list[Block]:
    """Renders the explanation of a policy."""
    windows = "; ".join(made.windows) or "always open"
    out: list[Block] = [
        f"ResourceLeasingPolicy {made.policy} for ClusterBinding {made.binding}: {made.state}",
        f"Windows: {windows} (time zone {made.zone})",
        f"Next edge: {both(made.next_edge, made.zone) if made.next_edge else 'none'}",
        f"Limits: {', '.join(made.limits) or 'none: all that local pods leave free'}",
        *(f"Share of namespace {each}" for each in made.shares),
        f"Reclaim: {made.reclaim}",
        f"Offered: {amounts_text(made.offered, wide=True) or 'nothing'}",
        f"Leased: {amounts_text(made.leased, wide=True) or 'nothing'}",
        *(f"! {problem}" for problem in made.problems),
    ]
    if made.nodes:
        rows = [(each.node, "decides" if each.decides else "no", each.why) for each in made.nodes]
        out += ["", Columns(("NODE", "DECIDES", "WHY"), rows)]
    return out


def pod_blocks(made: PodExplanation, *, wide: bool) -> list[Block]:
    """Renders the explanation of a pod; `wide` lists every added field."""
    where = f" on node {made.node}" if made.node else ", not scheduled"
    out: list[Block] = [f"Pod {made.pod}: {made.phase}{where}"]
    if made.binding:
        place = f"pod {made.physical_pod}" if made.physical_pod else "no pod yet"
        out.append(f"Worker of ClusterBinding {made.binding}: {place}, node {made.physical_node or 'unknown'}")
    out += [f"- {reason}" for reason in made.why] or ["Nothing keeps it from running."]
    if made.blocked_by:
        until = "when its lease ends, it stays until the grace period ends"
        out.append(f"PodDisruptionBudget {made.blocked_by} allows no eviction of it now: {until}.")
    out += _translation(made, wide=wide)
    if made.events:
        out += ["", "Warnings, the latest first:", *(f"  {event}" for event in made.events[:10])]
    return out


def _translation(made: PodExplanation, *, wide: bool) -> Iterator[Block]:
    dropped = [each.path for each in made.translation if not each.physical]
    added = [each.path for each in made.translation if not each.virtual]
    changed = [(each.path, each.virtual, each.physical) for each in made.translation if each.virtual and each.physical]
    if dropped:
        yield from ("", f"Not passed to the worker: {', '.join(dropped)}")
    if changed:
        yield from ("", Columns(("FIELD", "IN THE HUB", "IN THE WORKER"), changed))
    if added and wide:
        yield from ("", f"Added for the worker: {', '.join(added)}")
    elif added:
        yield from ("", f"Added for the worker: {len(added)} fields (-o wide lists them)")


def both(instant: datetime, zone: str) -> str:
    """Formats an instant by the clock of a zone, and in UTC."""
    return f"{instant.astimezone(ZoneInfo(zone or 'UTC')):%a %d %b %H:%M %Z} ({rfc3339(instant)})"
