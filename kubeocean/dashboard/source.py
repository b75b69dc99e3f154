"""Reads the clusters for the pages, with the credentials of their reader.

Invariant: every object that a page shows was read by the one client of this source, or by the kubeconfig that this client could read in
the Secret of a binding; nothing is written. The worker of a binding is read at most once in `WORKER_HELD` seconds.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import define, field, frozen

from kubeocean.commands import calendar, explain, reading
from kubeocean.dashboard.fleet import PodState, Reading, concerns, pod_state
from kubeocean.dashboard.timeline import Timeline, timeline
from kubeocean.explain.node import NodeExplanation, explain_node
from kubeocean.explain.pod import PodExplanation, explain_pod
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from kubeocean.model.windows import is_open
from vkubelet.api.objects import NODES, PODS, Key, Node, Pod, Unknown
from vkubelet.api.quantity import parse_resources
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock, in_batches
from vkubelet.commands import clusters
from vkubelet.commands.reading import Reader
from vkubelet.control.cache import Answer, SharedCache

WORKER_HELD: Final = 20.0
"""Seconds for which a reading of a worker cluster is shown again."""
_FEW: Final = 32
_BATCH: Final = 200
"""Pods that are processed in one turn of the event loop, which takes 10 ms where all of them are new."""


@frozen(kw_only=True)
class NodeReading:
    """A node as the worker explains it, or why it could not be explained."""

    explanation: NodeExplanation | None = None
    notes: Sequence[str] = ()


@define
class Source:
    """Reads of one reader; `worker` names the worker cluster by flags, None to use the Secret of each binding."""

    client: Client
    choice: clusters.Choice
    clock: Clock
    worker: clusters.Choice | None = None
    only: str = ""
    """The one ClusterBinding that is shown; empty for all."""
    _pods: dict[str, tuple[object, PodState]] = field(factory=dict)
    """The state of each pod by UID, with what it was computed from: most pods have not changed since the last reading."""
    _bindings: Mapping[str, Unknown] = field(factory=dict)
    _snapshots: SharedCache[str, reading.Snapshot] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._snapshots = SharedCache(self.clock, size=_FEW)

    def _reader(self) -> Reader:
        return Reader(self.client, self.choice)

    # --- The hub ----------------------------------------------------------------------------------------------------------------------

    async def read(self) -> Reading:
        """Reads bindings, virtual nodes and their pods. Raises CommandFailed when the hub does not respond."""
        hub = self._reader()
        listed = await hub.list_if_allowed(CLUSTERBINDINGS, otherwise="bindings are not shown")
        bindings = None if listed is None else [each for each in listed if self.only in ("", each.metadata.name)]
        selector = f"{keys.CLUSTER_BINDING}={keys.label_value(self.only)}" if self.only else keys.CLUSTER_BINDING
        nodes = await hub.list_if_allowed(NODES, Selection(labels=selector), otherwise="nodes are not shown")
        pods = await hub.list_if_allowed(PODS, otherwise="pods and their requests are not shown")
        self.show(bindings or ())
        names = {node.metadata.name: node for node in nodes or ()}
        waiting = None if pods is None else deque(pods)
        # Only what waits is referred to from here on, so that no turn of the loop frees all pods.
        del pods
        states = await self._states(waiting, names) if waiting is not None else None
        return Reading(at=self.clock.now(), bindings=bindings, nodes=nodes, pods=states, notes=hub.missing)

    def show(self, bindings: Sequence[Unknown]) -> None:
        """Sets the bindings whose workers are read."""
        self._bindings = {each.metadata.name: each for each in bindings}

    async def _states(self, pods: deque[Pod], nodes: Mapping[str, Node]) -> list[PodState]:
        """Returns the states of the pods that concern the nodes, and empties `pods`; other tasks of the loop run between batches."""
        parsed = [ClusterBinding.parse(each) for each in self._bindings.values()]
        owners = {name: reading.binding_of(node, parsed) for name, node in nodes.items()}
        known, self._pods = self._pods, {}
        async for pod in in_batches(self.clock, _drained(pods), size=_BATCH):
            if not concerns(pod, nodes):
                continue
            meta, owner = pod.metadata, owners.get(pod.node)
            basis = (meta.resource_version, owner is None or owner.run_daemonsets)
            before = known.get(meta.uid)
            unchanged = before is not None and before[0] == basis and meta.resource_version
            self._pods[meta.uid] = before if before is not None and unchanged else (basis, pod_state(pod, owner))
        return [state for _, state in self._pods.values()]

    async def pod(self, key: Key) -> tuple[PodExplanation, Sequence[str]] | None:
        """Explains a pod, and lists what could not be read; None when it does not exist. Raises CommandFailed."""
        hub = self._reader()
        pod = await hub.get(PODS, key)
        if pod is None:
            return None
        made = explain_pod(pod, await explain.surroundings(hub, pod, worker=self.worker))
        return made, list(hub.missing)

    # --- The worker -------------------------------------------------------------------------------------------------------------------

    async def node(self, name: str, binding: str) -> NodeReading:
        """Explains a virtual node."""
        try:
            seen = await self._snapshot(binding)
        except clusters.CommandFailed as error:
            return NodeReading(notes=[str(error)])
        leased = seen.node(name)
        if leased is None:
            return NodeReading(notes=[*seen.notes, f"the worker cluster has no node behind {name}"])
        live = seen.virtual.get(leased.virtual)
        shown = parse_resources(live.status.get("allocatable") or {}) if live is not None else None
        made = explain_node(seen.lease, leased, instant=self.clock.now(), shown=shown)
        return NodeReading(explanation=made, notes=seen.notes)

    async def timelines(self, days: int) -> tuple[list[Timeline], list[str]]:
        """Computes the calendar of each binding; the second value has what could not be read."""
        made, failures = list[Timeline](), list[str]()
        for name in sorted(self._bindings):
            try:
                seen = await self._snapshot(name)
                # A second for 1,000 nodes, in which other tasks of the loop run.
                made.append(await asyncio.to_thread(_timeline, seen, days, self.clock))
            except clusters.CommandFailed as error:
                # Most of these errors name the binding, but not those about rights.
                prefix = f"ClusterBinding {name}: "
                failures.append(prefix + str(error).removeprefix(prefix))
        return made, failures

    async def _snapshot(self, binding: str) -> reading.Snapshot:
        async def look_up() -> Answer[reading.Snapshot]:
            if binding not in self._bindings:
                raise clusters.CommandFailed(f"the {self.choice.title} has no ClusterBinding {binding}, or you may not list them")
            if self.worker is not None and len(self._bindings) > 1:
                raise clusters.CommandFailed("--worker-context names one worker of several ClusterBindings; add --binding, or omit it")
            parsed = ClusterBinding.parse(self._bindings[binding])
            return Answer(await reading.snapshot(self._reader(), parsed, chosen=self.worker), WORKER_HELD)

        return await self._snapshots.get(binding, look_up)


def _drained(pods: deque[Pod]) -> Iterator[Pod]:
    while pods:
        yield pods.popleft()


def _timeline(seen: reading.Snapshot, days: int, clock: Clock) -> Timeline:
    """Computes the page of one binding from values that do not change."""
    (plan,) = calendar.plans_of([seen], calendar.Question(days=days), clock)
    valid = [policy for policy in seen.lease.policies if policy.is_valid and policy.windows and not policy.deleting]
    start = plan.calendar.start
    opened = frozenset(policy.name for policy in valid if is_open(policy.windows, seen.lease.zone_of(policy), start))
    return timeline(plan, open_now=opened, windows=sorted(policy.name for policy in valid))
