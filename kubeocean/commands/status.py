"""`kubeocean status [NAME]`: shows how every binding is served and what of its lease is used, in a few columns.

Invariant: the exit code is 0 exactly when every requested binding is Ready.
"""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from attrs import frozen

from kubeocean.binding.conditions import CONNECTED, CONNECTIVITY_FAILED, READY, RETIREMENT_HELD, RIGHTS_MISSING, VALIDATION_FAILED
from kubeocean.commands import capacity
from kubeocean.commands.capacity import NodeCapacity
from kubeocean.commands.output import Columns, Format, data, rendered
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, ClusterBinding
from vkubelet.api.objects import NODES, PODS, Json, JsonView, Node, Pod, Unknown, get_condition
from vkubelet.api.quantity import Resources, sum_resources
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters
from vkubelet.commands.terminal import Terminal, table
from vkubelet.errors import Forbidden, NotFound, SettingsError
from vkubelet.logformat import printable

HEAD = ("NAME", "PHASE", "NODES", "PODS", "CPU", "MEMORY", "WORKER", "POLICIES")
UNREPORTED = "no process has reported on the ClusterBinding yet"
_REACHABLE = {"True": "reachable", "False": "unreachable"}


_EVERY = 2.0
_CLOCK = SystemClock()
_CLEAR = "\x1b[H\x1b[2J"


async def show(choice: clusters.Choice, name: str, terminal: Terminal, *, output: Format) -> None:
    """Prints the bindings, or one of them. Raises SystemExit with 1 unless all are Ready."""
    async with clusters.opened(choice) as hub:
        rows = await _read(hub, choice, name)
    if output.is_data:
        terminal.write_line(data(rows, output))
    else:
        for line in lines(rows, width=terminal.width, wide=output is Format.WIDE, nodes=bool(name)):
            terminal.write_line(line)
    if not all(row.ready for row in rows):
        raise SystemExit(1)


async def watch(choice: clusters.Choice, name: str, terminal: Terminal, *, output: Format, clock: Clock = _CLOCK) -> None:
    """Prints the bindings again whenever they differ, until it is interrupted. Raises SettingsError for output formats of programs."""
    if output.is_data:
        raise SettingsError("--watch", "prints tables; to watch from a program, use kubectl get clusterbindings --watch -o json")
    shown: list[str] = []
    async with clusters.opened(choice) as hub:
        while True:
            rows = await _read(hub, choice, name)
            drawn = lines(rows, width=terminal.width, wide=output is Format.WIDE, nodes=bool(name))
            if drawn != shown:
                head = _CLEAR if terminal.live else ""
                terminal.write_line(f"{head}{clock.now().astimezone():%H:%M:%S}")
                for line in drawn:
                    terminal.write_line(line)
                shown = drawn
            await clock.sleep(_EVERY)


async def _bindings(hub: Client, name: str, where: str) -> list[Unknown]:
    try:
        if name:
            with suppress(NotFound):
                return [await hub.get(CLUSTERBINDINGS, name)]
        found = [each for each in (await hub.list(CLUSTERBINDINGS)).items if name in ("", each.metadata.name)]
    except NotFound as error:
        raise clusters.CommandFailed(
            f"the {where} has no CustomResourceDefinition of ClusterBindings; install the chart kubeocean there, or name another --context"
        ) from error
    if name and not found:
        raise clusters.CommandFailed(f"the {where} has no ClusterBinding {name}; `kubeocean status` without a name lists those that exist")
    return found


# --- Data ---------------------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Summary:
    """Summary of one binding; `pods` is None where they may not be listed."""

    name: str
    cluster_id: str
    phase: str
    ready: bool
    worker: str
    nodes: int
    nodes_ready: int
    pods: int | None
    policies: Mapping[str, int]
    """Number of nodes that each policy decides on."""
    problems: Sequence[str]
    leased: Resources
    used: Resources | None
    """Requests of the pods; None where they may not be listed."""
    free: Resources | None
    capacity: Sequence[NodeCapacity] = ()
    """The same for each node."""


async def _read(hub: Client, choice: clusters.Choice, name: str) -> list[Summary]:
    with clusters.explained(choice):
        return await summaries(hub, await _bindings(hub, name, choice.title))


async def summaries(hub: Client, bindings: Sequence[Unknown]) -> list[Summary]:
    """Computes the summaries of the bindings, in two further reads. Raises ApiError."""
    nodes = (await hub.list(NODES, Selection(labels=keys.CLUSTER_BINDING))).items
    try:
        pods: Sequence[Pod] | None = (await hub.list(PODS)).items if nodes else ()
    except Forbidden:
        pods = None
    return [summary(each, nodes, pods) for each in sorted(bindings, key=lambda each: each.metadata.name)]


def summary(obj: Unknown, nodes: Sequence[Node], pods: Sequence[Pod] | None) -> Summary:
    """Computes a summary from all virtual nodes, and all pods (pure)."""
    binding, seen = ClusterBinding.parse(obj), readiness(obj.body)
    own = [node for node in nodes if node.metadata.labels.get(keys.CLUSTER_BINDING) == keys.label_value(binding.name)]
    connected = get_condition(current(obj.body), CONNECTED) or {}
    names = {node.metadata.name for node in own}
    parts = capacity.capacities(own, pods, binding)
    decided = Counter(part.policy for part in parts if part.policy)
    return Summary(
        name=binding.name,
        cluster_id=binding.cluster_id,
        phase="Deleting" if binding.deleting else str(binding.status.get("phase") or "Pending"),
        ready=seen.ready and not binding.deleting,
        worker=_REACHABLE.get(connected.get("status", ""), "unknown"),
        nodes=len(own),
        nodes_ready=sum(map(_is_ready, own)),
        pods=None if pods is None else sum(pod.node in names for pod in pods),
        policies=dict(sorted(decided.items())),
        problems=[*problems_of(obj), *capacity.problems(parts)],
        leased=sum_resources(part.leased for part in parts),
        used=capacity.total(part.used for part in parts),
        free=capacity.total(part.free for part in parts),
        capacity=parts,
    )


def problems_of(obj: Unknown) -> list[str]:
    """Returns the problems that the binding itself reports, without those of its nodes (pure)."""
    binding, seen = ClusterBinding.parse(obj), readiness(obj.body)
    shown: dict[str, str] = {}
    for condition in unmet(current(obj.body)):
        # Ready repeats the message of the condition that is the cause.
        shown.setdefault(condition.get("message") or formatted(condition), formatted(condition))
    return [
        *([] if seen.seen else [seen.text]),
        *shown.values(),
        *(f"waits for finalizer {each}" for each in binding.finalizers if binding.deleting),
    ]


def _is_ready(node: Node) -> bool:
    condition: Json | None = get_condition(node.status.get("conditions") or (), "Ready")
    return condition is not None and condition["status"] == "True"


# --- Rendering ----------------------------------------------------------------------------------------------------------------------------


def lines(rows: Sequence[Summary], *, width: int, wide: bool = False, nodes: bool = False) -> list[str]:
    """Renders the table, and below each row its problems (pure).

    `wide` adds the clusterID and the number of nodes of each policy; with it, or with `nodes`, the nodes follow.
    """
    if not rows:
        return ["There is no ClusterBinding. Create one: kubeocean bind NAME --worker-context CTX"]
    drawn = table([(*HEAD, *(("CLUSTER-ID",) if wide else ())), *(_cells(row, wide=wide) for row in rows)])
    out = [drawn[0]]
    for row, line in zip(rows, drawn[1:], strict=True):
        out.append(line)
        for problem in row.problems:
            out += textwrap.wrap(problem, max(width, 40), initial_indent="  ! ", subsequent_indent="    ", break_long_words=False)
    out = list(map(printable, out))
    listed = [node for row in rows for node in row.capacity] if wide or nodes else []
    return [*out, "", *rendered([Columns(capacity.NODE_HEAD, capacity.rows(listed))], width=max(width, 200))] if listed else out


def _cells(row: Summary, *, wide: bool) -> tuple[str, ...]:
    named = [f"{name} ({nodes})" for name, nodes in row.policies.items()] if wide else row.policies
    policies = ", ".join(named) or ("none" if row.ready else "-")
    pods = "?" if row.pods is None else str(row.pods)
    amounts = (capacity.used_of(row.used, row.leased, name) for name in ("cpu", "memory"))
    cells = (row.name, row.phase, f"{row.nodes_ready}/{row.nodes}", pods, *amounts, row.worker, policies)
    return (*cells, *((row.cluster_id,) if wide else ()))


_WANTED_FALSE = frozenset({RETIREMENT_HELD, "Stalled", "Reconciling"})
_LASTING = frozenset({VALIDATION_FAILED, CONNECTIVITY_FAILED, RIGHTS_MISSING})
"""Reasons that require action; others may be transient."""


@frozen
class Readiness:
    """Readiness and its reason; `lasting` when waiting alone will hardly fix the problem."""

    ready: bool
    text: str
    seen: bool = True
    lasting: bool = False


def readiness(body: JsonView) -> Readiness:
    """Computes the summary of a binding as returned by the API server."""
    conditions = current(body)
    ready = next((each for each in conditions if each.get("type") == READY), None)
    if ready is None:
        return Readiness(ready=False, seen=False, text=UNREPORTED)
    if ready.get("status") == "True":
        return Readiness(ready=True, text="Ready")
    others = [each for each in unmet(conditions) if each.get("message") != ready.get("message")]
    text = "; ".join(formatted(each) for each in (ready, *(each for each in others if each.get("type") != READY)))
    return Readiness(ready=False, text=text, lasting=ready.get("reason") in _LASTING)


def current(body: JsonView) -> list[Json]:
    """Returns the conditions of the current generation."""
    generation = (body.get("metadata") or {}).get("generation") or 0
    conditions: Sequence[JsonView] = (body.get("status") or {}).get("conditions") or ()
    return [dict(each) for each in conditions if each.get("observedGeneration", generation) >= generation]


def unmet(conditions: Sequence[JsonView]) -> list[Json]:
    """Returns the conditions that differ from the desired status."""
    return [dict(each) for each in conditions if each.get("status") != ("False" if each.get("type") in _WANTED_FALSE else "True")]


def formatted(condition: JsonView) -> str:
    """Formats a condition: `Connected=False, ConnectivityFailed: the worker cluster does not respond; check …`."""
    reason = f", {condition['reason']}" if condition.get("reason") else ""
    message = f": {condition['message']}" if condition.get("message") else ""
    return f"{condition.get('type')}={condition.get('status')}{reason}{message}"
