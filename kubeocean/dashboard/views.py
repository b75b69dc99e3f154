"""Computes what the pages about the hub show: tiles, bars, charts, problems (pure).

Invariant: a view contains text and numbers as they were read; escaping is the templates' task alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import frozen

from kubeocean.commands.output import amount_text
from kubeocean.commands.status import Summary
from kubeocean.dashboard.fleet import Fleet, NodeState, PodState
from kubeocean.dashboard.history import Sample
from kubeocean.model.node_state import NOT_READY, OPEN, STATES, UNREACHABLE
from vkubelet.api.quantity import ZERO, Quantity, Resources, sum_resources

CRITICAL, WARNING, NOTE = "critical", "warning", "note"
SLOW_START: Final = timedelta(minutes=2)
"""Age from which a pod that does not run is a problem, unless its status names a failure."""
_FAILING: Final = ("BackOff", "Err", "Invalid", "Failed", "CreateContainer", "RunContainer")
_NAMED: Final = 3
_CHART: Final = (300.0, 60.0)
"""Width and height of a chart, in units of its coordinates."""


# --- Bars ---------------------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Bar:
    """A share as text and as a length: `width` is percent, at most 100."""

    resource: str
    used: str
    size: str
    share: int | None
    """Percent; None without a size, or where it is unknown."""

    @property
    def width(self) -> int:
        return min(100, self.share or 0)

    @property
    def level(self) -> str:
        return "full" if (self.share or 0) > 100 else "high" if (self.share or 0) >= 90 else "normal"


def figure(resource: str, amount: Quantity) -> str:
    """Formats CPU in cores, and other amounts as the commands do."""
    if resource != "cpu":
        return amount_text(amount)
    cores = amount.nanos / 1e9
    return f"{cores:,.0f}" if cores >= 100 or cores == int(cores) else f"{cores:,.2f}".rstrip("0").rstrip(".")


def bar(resource: str, offered: Resources, requested: Resources | None) -> Bar:
    """Computes how much of a resource is requested; `requested` is None where pods may not be listed."""
    size, used = offered.get(resource, ZERO), (requested or {}).get(resource, ZERO)
    known = requested is not None and bool(size)
    return Bar(
        resource=resource,
        used=figure(resource, used) if requested is not None else "?",
        size=figure(resource, size),
        share=round(100 * used.nanos / size.nanos) if known else None,
    )


def bars(nodes: Iterable[NodeState], *, known: bool) -> list[Bar]:
    """Computes the bars of CPU and memory over nodes."""
    found = list(nodes)
    offered = sum_resources(node.offered for node in found)
    requested = sum_resources(node.requested for node in found) if known else None
    return [bar(resource, offered, requested) for resource in ("cpu", "memory")]


# --- Problems -----------------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Problem:
    """Something that requires action; `link` is the path of a page, empty when there is none."""

    severity: str
    subject: str
    text: str
    link: str = ""
    since: datetime | None = None


def problems(fleet: Fleet) -> list[Problem]:
    """Returns all problems, the severest first."""
    found = [*_of_bindings(fleet.bindings), *_of_nodes(fleet.nodes), *_of_pods(fleet)]
    found += [Problem(severity=NOTE, subject="Rights", text=note) for note in fleet.notes]
    order = (CRITICAL, WARNING, NOTE)
    return sorted(found, key=lambda each: order.index(each.severity))


def _of_bindings(bindings: Iterable[Summary]) -> Iterator[Problem]:
    for binding in bindings:
        severity = WARNING if binding.ready else CRITICAL
        for text in binding.problems or ([] if binding.ready else [f"its phase is {binding.phase}"]):
            yield Problem(severity=severity, subject=f"ClusterBinding {binding.name}", text=text, link=f"nodes?binding={binding.name}")


def _of_nodes(nodes: Iterable[NodeState]) -> Iterator[Problem]:
    """Yields one problem for all nodes of a binding that have the same reason."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for node in nodes:
        if node.state in (NOT_READY, UNREACHABLE):
            groups[node.binding, node.state, node.why].append(node.name)
    for (binding, state, why), names in groups.items():
        one = len(names) == 1
        subject = f"Node {names[0]}" if one else f"{len(names)} nodes of {binding}"
        more = "" if one else f" ({', '.join(names[:_NAMED])}{' …' if len(names) > _NAMED else ''})"
        link = f"nodes/{names[0]}" if one else f"nodes?binding={binding}&state={state}"
        yield Problem(severity=CRITICAL, subject=subject, text=f"{state}: {why}{more}", link=link)


def _of_pods(fleet: Fleet) -> Iterator[Problem]:
    for pod in fleet.pods or ():
        text = stuck(pod, fleet.at)
        if text:
            subject, link = f"Pod {pod.namespace}/{pod.name}", f"pods/{pod.namespace}/{pod.name}"
            yield Problem(severity=WARNING, subject=subject, text=text, link=link, since=pod.created)


def stuck(pod: PodState, now: datetime) -> str:
    """Returns why a pod is a problem; empty when it runs, has terminated, or may still start."""
    if pod.phase not in ("Pending", "Running", "Terminating"):
        return ""
    reason = pod.waits.partition(":")[0]
    failing = bool(reason) and any(word in reason for word in _FAILING)
    late = pod.phase == "Pending" and pod.created is not None and now - pod.created > SLOW_START
    if failing or late:
        place = "" if pod.node else ", not scheduled"
        return f"{pod.phase}{place}: {pod.waits or 'its status reports no reason'}"
    return ""


# --- Charts -------------------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Chart:
    """Two step lines over time as points of SVG polygons, and their labels."""

    title: str
    unit: str
    top: str
    offered: str
    requested: str
    now_offered: str
    now_requested: str


def charts(samples: Sequence[Sample]) -> list[Chart]:
    """Computes the charts of CPU and memory; empty without two samples."""
    if len(samples) < 2:
        return []
    cpu = _chart("CPU", "cores", [(each.at, each.cpu, each.requested_cpu) for each in samples])
    memory = _chart("Memory", "GiB", [(each.at, each.memory, each.requested_memory) for each in samples])
    return [cpu, memory]


def _chart(title: str, unit: str, points: Sequence[tuple[datetime, float, float | None]]) -> Chart:
    known = [(at, requested) for at, _, requested in points if requested is not None]
    top = max(1.0, *(offered for _, offered, _ in points), *(requested for _, requested in known)) * 1.08
    span = (points[0][0], points[-1][0])
    return Chart(
        title=title,
        unit=unit,
        top=f"{top:,.0f}",
        offered=_polygon([(at, offered) for at, offered, _ in points], span, top),
        requested=_polygon(known, span, top),
        now_offered=f"{points[-1][1]:,.1f}",
        now_requested=f"{known[-1][1]:,.1f}" if known else "?",
    )


def _polygon(points: Sequence[tuple[datetime, float]], span: tuple[datetime, datetime], top: float) -> str:
    """Returns the points of the area below a step line."""
    if not points:
        return ""
    width, height = _CHART
    seconds = max(1.0, (span[1] - span[0]).total_seconds())
    drawn: list[tuple[float, float]] = []
    for at, value in points:
        x, y = width * (at - span[0]).total_seconds() / seconds, height * (1 - value / top)
        if drawn:
            drawn.append((x, drawn[-1][1]))
        drawn.append((x, y))
    closed = [(drawn[0][0], height), *drawn, (drawn[-1][0], height)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in closed)


# --- Pages --------------------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class BindingRow:
    """One binding in the overview."""

    summary: Summary
    bars: Sequence[Bar]
    nodes: Sequence[NodeState]
    open: int
    states: Sequence[tuple[str, int]]


@frozen(kw_only=True)
class Overview:
    """The first page."""

    ready: int
    states: Sequence[tuple[str, int]]
    bars: Sequence[Bar]
    pods: Sequence[tuple[str, int]] | None
    bindings: Sequence[BindingRow]
    problems: Sequence[Problem]
    charts: Sequence[Chart]
    since: datetime | None


def overview(fleet: Fleet, samples: Sequence[Sample]) -> Overview:
    """Computes the first page; bars count nodes that are open."""
    known = fleet.complete
    phases = Counter(pod.phase for pod in fleet.pods or ())
    return Overview(
        ready=sum(each.ready for each in fleet.bindings),
        states=states(fleet.nodes),
        bars=bars((node for node in fleet.nodes if node.state == OPEN), known=known),
        pods=sorted(phases.items()) if fleet.pods is not None else None,
        bindings=[_binding_row(each, fleet.nodes_of(each.name), known=known) for each in fleet.bindings],
        problems=problems(fleet),
        charts=charts(samples),
        since=samples[0].at if samples else None,
    )


def _binding_row(binding: Summary, nodes: Sequence[NodeState], *, known: bool) -> BindingRow:
    opened = [node for node in nodes if node.state == OPEN]
    return BindingRow(summary=binding, bars=bars(opened, known=known), nodes=nodes, open=len(opened), states=states(nodes))


def states(nodes: Iterable[NodeState]) -> list[tuple[str, int]]:
    """Counts the nodes in each state, without those that no node is in."""
    counted = Counter(node.state for node in nodes)
    return [(state, counted[state]) for state in STATES if counted[state]]


@frozen(kw_only=True)
class NodeRow:
    """One node in the table of nodes."""

    node: NodeState
    bars: Sequence[Bar]


def node_rows(fleet: Fleet, *, binding: str = "", state: str = "") -> list[NodeRow]:
    """Returns the nodes of a binding and in a state; empty values mean all."""
    chosen = [node for node in fleet.nodes if binding in ("", node.binding) and state in ("", node.state)]
    return [NodeRow(node=node, bars=bars([node], known=fleet.complete)) for node in chosen]


def age(since: datetime, now: datetime) -> str:
    """Formats a duration by its two largest units at most: `3 d 4 h`, `12 min`, `8 s`."""
    seconds = max(0, int((now - since).total_seconds()))
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min" if minutes else f"{seconds} s"
