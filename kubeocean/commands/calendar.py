"""`kubeocean plan [POLICY]`: shows what the time windows of the next days change, and which pods they evict.

Invariant: everything shown is computed by `explain.calendar` from one reading of the clusters.
"""

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from attrs import frozen

from kubeocean.commands import reading
from kubeocean.commands.output import Block, Columns, Format, amounts_text, data, in_progress, write
from kubeocean.commands.reading import Snapshot
from kubeocean.explain.calendar import Calendar, Change, Edge, Eviction, calendar
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters
from vkubelet.commands.reading import Reader
from vkubelet.commands.terminal import Terminal
from vkubelet.errors import SettingsError

MOST_DAYS = 31
HEAD = ("LOCAL TIME", "UTC", "POLICY", "CHANGE", "NODES", "EVICTS")
EVICTED = ("EVICTED", "DELETED AT THE LATEST", "POD", "NODE", "BLOCKED BY", "WHY")


@frozen(kw_only=True)
class Question:
    """What is to be shown: of one policy or, if it is empty, of all; of one binding or of all."""

    policy: str = ""
    binding: str = ""
    days: int = 3

    def check(self) -> None:
        """Raises SettingsError for a number of days that is not useful."""
        if not 0 < self.days <= MOST_DAYS:
            raise SettingsError("--days", f"must be from 1 to {MOST_DAYS}")


async def show(question: Question, terminal: Terminal, *, hub: clusters.Choice, worker: clusters.Choice | None, output: Format) -> None:
    """Prints the calendar of each binding. Raises CommandFailed, after the others are printed, for those that cannot be read."""
    question.check()
    clock = SystemClock()
    with in_progress("reading bindings, policies, nodes and pods of both clusters"):
        snapshots, failures = await _read(question, hub=hub, worker=worker)
    try:
        plans = plans_of(snapshots, question, clock)
    except clusters.CommandFailed as error:
        raise clusters.CommandFailed("; ".join([str(error), *failures])) from error
    if output.is_data:
        terminal.write_line(data(plans, output))
    else:
        for plan in plans:
            write(terminal, blocks(plan, wide=output is Format.WIDE))
    if failures:
        raise clusters.CommandFailed("; ".join(failures))


async def _read(question: Question, *, hub: clusters.Choice, worker: clusters.Choice | None) -> tuple[list[Snapshot], list[str]]:
    failures: list[str] = []
    async with clusters.opened(hub) as client:
        reader = Reader(client, hub)
        found = await reading.bindings(reader, question.binding)
        return [each async for each in reading.snapshots(reader, found, chosen=worker, failures=failures)], failures


@frozen(kw_only=True)
class Plan:
    """The calendar of one binding; `zones` are the time zones in force, by policy."""

    binding: str
    calendar: Calendar
    zones: dict[str, str]
    notes: Sequence[str]


def plans_of(snapshots: Sequence[Snapshot], question: Question, clock: Clock) -> list[Plan]:
    """Computes the calendars. Raises CommandFailed when no binding has the policy."""
    start = clock.now()
    until = start + timedelta(days=question.days)
    plans = []
    for each in snapshots:
        if question.policy and each.lease.named(question.policy) is None:
            continue
        made = calendar(each.lease, start=start, until=until)
        zones = {policy.name: str(each.lease.zone_of(policy)) for policy in each.lease.policies}
        notes = [*each.notes, *_without_windows(each, question.policy)]
        plans.append(
            Plan(binding=each.binding.name, calendar=made.of(question.policy) if question.policy else made, zones=zones, notes=notes)
        )
    if not plans:
        known = sorted({policy.name for each in snapshots for policy in each.lease.policies})
        raise clusters.CommandFailed(
            f"no ResourceLeasingPolicy {question.policy} names a ClusterBinding here; those that do: {', '.join(known) or 'none'}"
        )
    return plans


def _without_windows(seen: Snapshot, only: str) -> Iterator[str]:
    for policy in seen.lease.policies:
        if only not in ("", policy.name):
            continue
        if not policy.is_valid:
            yield f"ResourceLeasingPolicy {policy.name} leases nothing: {'; '.join(map(str, policy.validate()))}"
        elif not policy.windows and not policy.deleting:
            yield f"ResourceLeasingPolicy {policy.name} has no time windows: it is always open"


# --- Rendering (pure) ---------------------------------------------------------------------------------------------------------------------


def blocks(plan: Plan, *, wide: bool) -> list[Block]:
    """Renders one calendar: a table of edges, and the evictions below it."""
    made, zones = plan.calendar, plan.zones
    head = f"ClusterBinding {plan.binding}: {len(made.edges)} edges from {_utc(made.start)} to {_utc(made.until)}"
    out: list[Block] = [head, *(f"  ! {note}" for note in plan.notes)]
    rows = [_row(each, wide=wide) for edge in made.edges for each in entries(edge, zones)]
    out += ["", Columns(HEAD, rows)] if rows else ["No window opens or closes in this time."]
    if made.evictions:
        out += ["", "Pods that are evicted, if they still exist then:", ""]
        out.append(Columns(EVICTED, [_eviction(each, zones) for each in made.evictions]))
    return [*out, ""]


@frozen(kw_only=True)
class Entry:
    """What happens to some nodes at an edge; without a change, only a window opens or closes, which `text` names."""

    at: datetime
    zone: str
    policy: str
    change: Change | None = None
    text: str = ""
    evicted: int = 0

    def described(self, *, wide: bool = False) -> str:
        """Describes the change, with all resources if `wide`."""
        return changed(self.change, wide=wide) if self.change else f"{self.text}; no node changes"

    @property
    def nodes(self) -> Sequence[str]:
        return self.change.nodes if self.change else ()


def entries(edge: Edge, zones: dict[str, str]) -> Iterator[Entry]:
    """Yields one entry for each change, and one for each policy whose window changes without changing a node."""
    shown: set[str] = set()
    for change in edge.changes:
        policy = change.after.policy or change.before.policy
        shown |= {change.before.policy, change.after.policy}
        nodes = set(change.nodes)
        evicted = sum(each.node in nodes for each in edge.evictions)
        yield Entry(at=edge.at, zone=zones.get(policy, "UTC"), policy=policy, change=change, evicted=evicted)
    for word, policies in (("opens", edge.opens), ("closes", edge.closes)):
        for policy in policies:
            if policy not in shown:
                yield Entry(at=edge.at, zone=zones.get(policy, "UTC"), policy=policy, text=word)


def _row(entry: Entry, *, wide: bool) -> tuple[str, ...]:
    if entry.change is None:
        names = "0"
    else:
        names = f"{len(entry.nodes)}: {', '.join(entry.nodes)}" if wide else _some(entry.nodes)
    return (local(entry.at, entry.zone), _utc(entry.at), entry.policy, entry.described(wide=wide), names, _pods(entry.evicted))


def changed(change: Change, *, wide: bool = False) -> str:
    """Describes a change of nodes: `opens: cpu 12, memory 48Gi`, or `replaces night: cpu 12, memory 48Gi -> cpu 3, memory 12Gi`."""
    before, after = change.before, change.after
    old, new = amounts_text(before.amounts, wide=wide), amounts_text(after.amounts, wide=wide)
    amounts = new if old == new else f"{old} -> {new}"
    if not before.open and after.open:
        return f"opens: {new}"
    if before.open and not after.open:
        return f"closes to new pods: {old}"
    if before.open and before.policy != after.policy:
        return f"replaces {before.policy}: {amounts}"
    if before.effect != after.effect:
        return "grace period expires: taint NoExecute"
    return f"offers {amounts}"


def _eviction(eviction: Eviction, zones: dict[str, str]) -> tuple[str, ...]:
    zone = zone_of(eviction, zones)
    return (local(eviction.at, zone), latest(eviction, zone), str(eviction.pod.key), eviction.node, blocked_by(eviction), eviction.why)


def latest(eviction: Eviction, zone: str) -> str:
    """Returns the deadline; for a pod that a PodDisruptionBudget holds, also from when on it may stay, or is decided about again."""
    if eviction.stays is not None:
        return f"none; it may stay from {local(eviction.stays, zone)}"
    deadline, again = local(eviction.deadline, zone), eviction.decided_again
    return deadline if again is None else f"{deadline}; decided again {local(again, zone)}"


def blocked_by(eviction: Eviction) -> str:
    """Returns the PodDisruptionBudget that forbids the eviction at first, and how many it allows at a time."""
    if not eviction.blocked_by:
        return "no budget"
    return f"{eviction.blocked_by}, which allows {eviction.allows or 'none'}{' at a time' if eviction.allows else ''}"


def zone_of(eviction: Eviction, zones: dict[str, str]) -> str:
    """Returns the time zone of the policy that an eviction names."""
    policy = next((name for name in zones if f"ResourceLeasingPolicy {name} " in eviction.why), "")
    return zones.get(policy, "UTC")


def _some(names: Sequence[str]) -> str:
    return f"{len(names)}: {textwrap.shorten(', '.join(names), 40, placeholder=' …')}"


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}" if count else "none"


def local(instant: datetime, zone: str) -> str:
    """Formats an instant by the clock of a zone."""
    return f"{instant.astimezone(ZoneInfo(zone)):%a %d %b %H:%M %Z}"


def _utc(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%MZ}"
