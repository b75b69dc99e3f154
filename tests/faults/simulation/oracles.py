"""Oracles: what must be true of every run, whatever faults it had. Pure functions of a recorded history and its schedule.

Invariant: an oracle reads what was accepted by the API servers and what ran in the backends, never the memory of the product.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from kubeocean.model import keys
from tests.faults.simulation.history import Body, Entry, History
from tests.faults.simulation.schedule import Kind, Schedule
from vkubelet.clock import parse_rfc3339

_HEARTBEAT = {"lastHeartbeatTime", "renewTime"}
_LEDGER = "kubeocean-ledger"
_TERMINAL = ("Succeeded", "Failed")
_OUTAGES = (Kind.CUT, Kind.CLOSED, Kind.BROKEN)
_LATE = (Kind.LAG, Kind.DELAYED)
"""What delays the lists with which a process starts."""
_WITHDRAWN = ("vkubelet.io/retiring", "kubeocean.io/vnode-deleting")
_ROUNDING = 2.0
"""Seconds by which times of the API may be off: they have no fractions, and periods are rounded to whole seconds."""
_IN_FLIGHT = 5.0
"""Seconds for which a write may be on its way."""
_PATIENT = 21.0
"""Seconds of outages that must never show in a node: a Lease lasts 40 s and is at most 10 s old when they begin."""


@frozen
class Violation:
    """What an oracle found: its letter in the documentation, and the facts."""

    oracle: str
    text: str

    def __str__(self) -> str:
        return f"({self.oracle}) {self.text}"


def judge(history: History, schedule: Schedule) -> list[Violation]:
    """Returns what all oracles find."""
    return [Violation(name, text) for name, oracle in ORACLES.items() for text in oracle(history, schedule)]


# --- (a) eventually stable ---------------------------------------------------------------------------------------------------------------


def stable(history: History, schedule: Schedule) -> Iterator[str]:
    """The desired state is reached, and then nothing is written but renewals."""
    yield from history.unmet
    yield from () if schedule.faults else history.unexpected
    # A heartbeat that a fault has met may have been answered without its writer knowing it, who repeats it.
    met = Counter(sent.target for sent in history.sent if sent.outcome and sent.time >= history.judged_from)
    beaten: Counter[str] = Counter()
    for entry in history.entries:
        if entry.user not in history.ours or entry.seconds < history.judged_from:
            continue
        beaten[entry.name] += entry.resource == "nodes"
        again = beaten[entry.name] > 1 + met[f"/api/v1/nodes/{entry.name}/status"]
        if again or not is_renewal(entry):
            yield f"written although nothing changes: {entry.line()}: {', '.join(sorted(entry.changed))[:200]}"


def is_renewal(entry: Entry) -> bool:
    """Whether a write only states that its writer lives, or that time has passed: a Lease, the heartbeat of a node, an Event, a token
    before its expiry, what was lent until now.
    """
    if entry.resource in ("leases", "events"):
        return True
    paths = entry.changed
    if entry.resource == "configmaps":
        return entry.name == _LEDGER
    if entry.resource == "resourceleasingpolicies":
        return all(path.startswith("/status/ledger") or path == "/status/lastAppliedTime" for path in paths)
    if entry.resource == "nodes":
        return all(path.rpartition("/")[2] in _HEARTBEAT for path in paths)
    return entry.resource == "secrets" and entry.old is not None and entry.new is not None and is_token(entry.new)


def is_token(secret: Body) -> bool:
    """Whether a Secret contains the tokens of a pod, which are renewed before they expire."""
    return keys.TOKEN_EXPIRY in (secret["metadata"].get("annotations") or {})


# --- (b) at most one ---------------------------------------------------------------------------------------------------------------------


def at_most_one(history: History, schedule: Schedule) -> Iterator[str]:
    """At most one live workload for each pod UID and for each name at any time.

    By a forced deletion a person gives up the second half, also on a real node. In one case the runtime makes use of that: a pod that is
    deleted while no process runs becomes an orphan of the backend, which is terminated after two listings (rule `orphans-are-proven`), and
    does not delay a pod that has its name. Where workloads are known by name, as those of Kubeocean, there is no exception.
    """
    live: dict[str, tuple[str, str]] = {}
    given_up = history.forced() if schedule.world == "mock" and any(fault.kind is Kind.CRASH for fault in schedule.faults) else set()
    for event in history.workloads:
        if event.what == "end":
            live.pop(event.id, None)
            continue
        for other, (name, uid) in live.items():
            if (name == event.name and uid not in given_up) or uid == event.uid:
                yield f"{event.seconds:.3f} s: {event.name} ({event.uid}) starts as {event.id} while {other} runs for {name} ({uid})"
        live[event.id] = (event.name, event.uid)


def removed_while_live(history: History, schedule: Schedule) -> Iterator[str]:
    """We never remove the object of a pod whose workload still runs: another one of its name may be created then."""
    starts = [event for event in history.workloads if event.what == "start"]
    ends = {event.id: event.seconds for event in history.workloads if event.what == "end"}
    for entry in history.entries:
        if entry.cluster != "hub" or entry.resource != "pods" or entry.new is not None or entry.old is None:
            continue
        if entry.user not in history.ours:
            continue
        for start in starts:
            if start.uid == entry.uid and start.seconds <= entry.seconds < ends.get(start.id, history.ended):
                yield f"{entry.line()}: removed while its workload {start.id} runs"


# --- (c) healthy pods stay ---------------------------------------------------------------------------------------------------------------


def healthy_pods_stay(history: History, schedule: Schedule) -> Iterator[str]:
    """No pod that nobody asked to end is deleted, failed or restarted by us."""
    for entry in history.entries:
        if entry.user not in history.ours or entry.resource != "pods" or entry.old is None:
            continue
        if entry.cluster == "hub":
            yield from _ended_in_hub(entry, history)
        elif entry.verb == "delete" and not entry.old["metadata"].get("deletionTimestamp"):
            yield from _ended_in_worker(entry, history)
    for event in history.workloads:
        if event.what == "end" and not event.by_itself and not history.was_asked_to_end(event.uid, event.seconds):
            yield f"{event.seconds:.3f} s: workload of {event.name} ({event.uid}) was stopped and nobody had asked for it"


def grace_is_kept(history: History, schedule: Schedule) -> Iterator[str]:
    """No workload is killed before the grace period of its pod is over, as far as clocks are right."""
    if any(fault.kind is Kind.CLOCK for fault in schedule.faults):
        return
    for event in history.workloads:
        until = history.may_stop_until(event.uid) if event.killed else 0.0
        if event.seconds < until - _ROUNDING and not any(event.name.endswith(f"/{name}") for name in history.may_end):
            yield f"{event.seconds:.3f} s: {event.name} ({event.uid}) was killed, although it may take until {until:.3f} s"


def grace_is_passed_on(history: History, schedule: Schedule) -> Iterator[str]:
    """A repeated deletion of a physical pod does not end it earlier than its user has allowed, as far as clocks are right."""
    if any(fault.kind is Kind.CLOCK for fault in schedule.faults):
        return
    asked: dict[str, float] = {}
    for entry in history.entries:
        if entry.resource != "pods":
            continue
        if entry.cluster == "hub":
            asked[entry.uid] = _ends_at(entry.new) if entry.new is not None else -math.inf
        elif entry.user in history.ours and entry.new is not None and _ends_at(entry.old) < math.inf:
            until = asked.get(history.virtual_uid(entry.new), -math.inf)
            if _ends_at(entry.new) < min(until, _ends_at(entry.old)) - _ROUNDING and until < math.inf:
                yield f"{entry.line()}: ends {until - _ends_at(entry.new):.0f} s before the time that the pod was granted"


def _ends_at(pod: Body | None) -> float:
    """Returns when the grace period of a pod is over; never for one that is not deleted."""
    text = ((pod or {}).get("metadata") or {}).get("deletionTimestamp")
    return parse_rfc3339(text).timestamp() if text else math.inf


def _ended_in_hub(entry: Entry, history: History) -> Iterator[str]:
    assert entry.old is not None
    meta, before = entry.old["metadata"], entry.old.get("status") or {}
    name, asked = meta["name"], bool(meta.get("deletionTimestamp")) or meta["name"] in history.may_end
    if entry.verb in ("delete", "evict") and not asked and before.get("phase") not in _TERMINAL:
        yield f"{entry.line()}: deleted by us although nobody had asked for it"
    after = (entry.new or {}).get("status") or {}
    if after.get("phase") in _TERMINAL and before.get("phase") not in _TERMINAL and not asked and name not in history.finite:
        yield f"{entry.line()}: marked {after['phase']} ({after.get('reason', '')})"
    if before.get("phase") in _TERMINAL and entry.new is not None and after.get("phase") != before["phase"]:
        yield f"{entry.line()}: phase {before['phase']} became {after.get('phase')}"
    if name not in history.finite and not asked and _restarts(after) > _restarts(before):
        yield f"{entry.line()}: a container was restarted"


def _ended_in_worker(entry: Entry, history: History) -> Iterator[str]:
    assert entry.old is not None
    uid = history.virtual_uid(entry.old)
    if uid and (entry.old.get("status") or {}).get("phase") not in _TERMINAL and not history.was_asked_to_end(uid, entry.seconds):
        yield f"{entry.line()}: physical pod deleted although nobody had asked to end {uid}"


def _restarts(status: Mapping[str, Any]) -> int:
    return sum(each.get("restartCount") or 0 for each in status.get("containerStatuses") or ())


# --- (d) nothing of others changes -------------------------------------------------------------------------------------------------------

_SERVERS = ("/metadata/resourceVersion", "/metadata/generation", "/metadata/managedFields", "/metadata/deletion", "/metadata/selfLink")
_SHARED = {
    "pods": ("/status",),
    "nodes": ("/status",),
    "leases": ("/spec", "/metadata/annotations"),
    "clusterbindings": ("/status",),
    "resourceleasingpolicies": ("/status",),
}
"""Fields that the product and others write by the rules of Kubernetes; other oracles judge what is written there."""


def foreign_fields_stay(history: History, schedule: Schedule) -> Iterator[str]:
    """We change no field and remove no object whose last writer was another user."""
    writers: dict[tuple[str, str], dict[str, str]] = {}
    for entry in history.entries:
        known = writers.setdefault((entry.cluster, entry.object), {})
        paths = entry.changed
        if entry.user in history.ours and entry.old is not None:
            for path in sorted(paths):
                writer = known.get(path)
                if writer and writer not in history.ours and not _is_shared(entry, path):
                    yield f"{entry.line()}: changes {path}, which {writer} wrote"
        for path in paths:
            known[path] = entry.user
        if entry.new is None:
            terminating = bool((entry.old or {}).get("metadata", {}).get("deletionTimestamp"))
            if entry.user in history.ours and entry.creator not in history.ours and not terminating and entry.resource != "leases":
                yield f"{entry.line()}: removes an object that {entry.creator} created"
            del writers[(entry.cluster, entry.object)]


def _is_shared(entry: Entry, path: str) -> bool:
    return entry.new is None or path.startswith(_SERVERS) or path.startswith(_SHARED.get(entry.resource, ()))


# --- (e) nothing is left -----------------------------------------------------------------------------------------------------------------


def nothing_left(history: History, schedule: Schedule) -> Iterator[str]:
    """A process that stopped in order has left no task, no port and no client, which has the connections."""
    yield from history.left


def owners_exist(history: History, schedule: Schedule) -> Iterator[str]:
    """What we write for an owner has one that exists, at the end: a garbage collector would delete it again and again.

    An object that was written last before its owner was removed is left to the garbage collector, which is not simulated.
    """
    live: dict[tuple[str, str], Entry] = {}
    removed: dict[tuple[str, str], float] = {}
    for entry in history.entries:
        live.pop((entry.cluster, entry.object), None)
        if entry.new is None:
            removed[entry.cluster, entry.uid] = entry.seconds
        else:
            live[entry.cluster, entry.object] = entry
    for entry in live.values():
        owners = [each["uid"] for each in (entry.new or {})["metadata"].get("ownerReferences") or ()]
        until = max((removed.get((entry.cluster, uid), math.inf) for uid in owners), default=math.inf)
        if entry.user in history.ours and entry.seconds > until + _IN_FLIGHT:
            yield f"{entry.line()}: its owner was removed at {until:.3f} s"


# --- (f) nodes ---------------------------------------------------------------------------------------------------------------------------


def nodes_ready(history: History, schedule: Schedule) -> Iterator[str]:
    """No node that was Ready becomes anything else, unless an outage explains it; at the end it is Ready."""
    ready: dict[str, bool] = {}
    for entry in history.entries:
        if entry.cluster != "hub" or entry.resource != "nodes" or entry.name in history.may_be_unready:
            continue
        if entry.new is None:
            ready.pop(entry.name, None)
            if entry.user in history.ours:
                yield f"{entry.line()}: removed by us"
            continue
        status = _ready_status(entry.new)
        if status == "True":
            ready[entry.name] = True
        elif ready.get(entry.name):
            ready[entry.name] = False
            if not is_excused(schedule):
                yield f"{entry.line()}: Ready became {status}"
    for name, now in ready.items():
        if not now:
            yield f"node {name} is not Ready at the end"


def nodes_stay_open(history: History, schedule: Schedule) -> Iterator[str]:
    """No node is marked as withdrawn that the scenario does not withdraw: new pods could not use it."""
    for entry in history.entries:
        if entry.resource != "nodes" or entry.user not in history.ours or entry.old is None or entry.name in history.may_be_unready:
            continue
        for key in sorted(_taints(entry.new) - _taints(entry.old)):
            if key in _WITHDRAWN:
                yield f"{entry.line()}: gets the taint {key}"


def _taints(node: Body | None) -> set[str]:
    return {taint["key"] for taint in ((node or {}).get("spec") or {}).get("taints") or ()}


def _ready_status(node: Body) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((str(each["status"]) for each in conditions if each["type"] == "Ready"), "Unknown")


def is_excused(schedule: Schedule) -> bool:
    """Whether the process may have been unable to renew a Lease for longer than it lasts, all its outages together."""
    outage = _OUTAGES + (_LATE if schedule.restarts else ())
    outages = [
        fault.value for fault in schedule.faults if (fault.kind in outage and fault.side == "hub") or fault.kind in (Kind.STALL, Kind.CRASH)
    ]
    return sum(outages) > _PATIENT


# --- (g) no process dies -----------------------------------------------------------------------------------------------------------------


def no_problems(history: History, schedule: Schedule) -> Iterator[str]:
    """No process exits, and no exception arrives where none is expected."""
    yield from history.problems


# --- (h) one leader ----------------------------------------------------------------------------------------------------------------------


def one_leader(history: History, schedule: Schedule) -> Iterator[str]:
    """No write of a process arrives after the first one of its successor, also none that is refused; a killed one may have had a write on
    its way."""
    killed = {about: second for second, what, about in history.marks if what == "killed"}
    since: dict[str, float] = {}
    for entry in history.entries:
        if entry.user in history.ours and entry.is_election and (leader := _holder(entry)):
            since.setdefault(leader, entry.seconds)
    order = list(since)
    first: dict[str, float] = {}
    for seconds, process, what in _writes(history):
        if seconds < since.get(process, math.inf):
            continue
        first.setdefault(process, seconds)
        later = [other for other in order[order.index(process) + 1 :] if other in first]
        if later and seconds > killed.get(process, -math.inf) + _IN_FLIGHT:
            yield f"{what}: written after the first write of {later[0]} at {first[later[0]]:.3f} s"


def _writes(history: History) -> list[tuple[float, str, str]]:
    """Returns the writes of our processes in the order of their arrival: those that were accepted, and those that were only sent."""
    accepted = [(each.seconds, each.user, each.line()) for each in history.entries if each.user in history.ours and not each.is_election]
    sent = [(each.time, each.process, f"{each.time:.3f} s {each.process} sent {each.site}") for each in history.sent]
    return sorted([*accepted, *(each for each in sent if not each[2].endswith(" leases"))], key=lambda each: each[0])


def _holder(entry: Entry) -> str:
    """Returns the process that a leader's Lease names; identities start with the host name, which is that of the process."""
    holder = ((entry.new or {}).get("spec") or {}).get("holderIdentity") or ""
    return str(holder).partition("_")[0]


Oracle = Callable[[History, Schedule], Iterable[str]]
ORACLES: Mapping[str, Oracle] = {
    "a: eventually stable": stable,
    "b: at most one": at_most_one,
    "b: not removed while live": removed_while_live,
    "c: healthy pods stay": healthy_pods_stay,
    "c: grace is kept": grace_is_kept,
    "c: grace is passed on": grace_is_passed_on,
    "d: foreign fields stay": foreign_fields_stay,
    "e: nothing left": nothing_left,
    "e: owners exist": owners_exist,
    "f: nodes ready": nodes_ready,
    "f: nodes stay open": nodes_stay_open,
    "g: no process dies": no_problems,
    "h: one leader": one_leader,
}
