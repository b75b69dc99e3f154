"""The time during which a physical pod holds the resources of its node, read from its own times in the API; and the pods that do now. Pure.

Invariant: a pod that is put again in the same state changes no sum. What was counted of it before a later observation shows another time of
termination is corrected by the difference.
"""

from collections.abc import Iterator
from datetime import datetime

from attrs import define, evolve, field, frozen

from kubeocean.leasing.capacity import requested
from kubeocean.ledger.account import Deciders, Ledger, Place, Span, between
from vkubelet.api.compact import shared
from vkubelet.api.objects import JsonView, Pod, get_condition
from vkubelet.api.quantity import Resources, add_resources, subtract_resources
from vkubelet.clock import parse_rfc3339

_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


@frozen
class Held:
    """What a pod holds, where, from when, and until when; None while it does."""

    place: Place
    amounts: Resources
    start: datetime
    end: datetime | None = None


def held(pod: Pod, namespace: str) -> Held | None:
    """Returns what a physical pod holds, of a virtual one in this namespace; None before it is bound to a node.

    It holds its requests from its binding to a node (the condition PodScheduled) until its last container terminated, in a phase that is
    terminal. Source: the scheduler's NodeInfo, which counts assigned pods that are not terminal.
    """
    if not pod.node:
        return None
    start = bound_at(pod)
    if start is None:
        return None
    end = max(start, terminated_at(pod) or start) if pod.terminal else None
    return Held(shared(Place(pod.node, namespace)), requested(pod), shared(start), end)


def bound_at(pod: Pod) -> datetime | None:
    """Returns when a pod was bound to its node; the time of its creation where no condition states it."""
    status = pod.status
    scheduled = get_condition(status.get("conditions") or (), "PodScheduled") or {}
    times = [scheduled.get("lastTransitionTime") if scheduled.get("status") == "True" else None, status.get("startTime")]
    return next((time for text in (*times, pod.metadata.creation_timestamp) if (time := _time(text)) is not None), None)


def terminated_at(pod: Pod) -> datetime | None:
    """Returns when the last container of a terminal pod terminated; without any, as for a pod that its node refused, when its conditions
    changed last.
    """
    found = [time for each in _statuses(pod.status) if (time := _time(_terminated(each).get("finishedAt"))) is not None]
    if not found:
        conditions = pod.status.get("conditions") or ()
        found = [time for each in conditions if (time := _time(each.get("lastTransitionTime"))) is not None]
    return max(found, default=None)


def _statuses(status: JsonView) -> Iterator[JsonView]:
    return (each for name in _STATUSES for each in status.get(name) or ())


def _terminated(container: JsonView) -> JsonView:
    return (container.get("state") or {}).get("terminated") or {}


def _time(text: object) -> datetime | None:
    try:
        return parse_rfc3339(text) if isinstance(text, str) and text else None
    except ValueError:
        return None


@define
class _Rate:
    """What the running pods of a place hold together since `at`, and in `spans` what the ledger does not contain yet."""

    amounts: Resources
    at: datetime
    spans: list[Span] = field(factory=list)

    def advance(self, at: datetime) -> None:
        self.spans += between(self.amounts, self.at, at)
        self.at = at


@define
class Account:
    """The running pods of a ledger by UID. What they hold is summed by place, so that counting does not iterate over the pods, and a change
    of a pod is added to the ledger when its place is counted next.

    What was reserved before the time until which the ledger was counted when it was loaded was counted by an earlier process.
    """

    ledger: Ledger
    deciders: Deciders
    counted: datetime
    """Until when an earlier process has counted."""
    _pods: dict[str, Held] = field(factory=dict)
    _rates: dict[Place, _Rate] = field(factory=dict)
    _later: dict[str, Held] = field(factory=dict)
    """Pods that are bound at a time which our clock has not reached, because the clocks of the clusters differ."""

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods or uid in self._later

    def put(self, uid: str, now: Held, *, at: datetime) -> bool:
        """Counts a pod as observed at this time; returns whether it starts, terminates or holds something else than before."""
        before = self._pods.get(uid)
        if before is None:
            return self._start(uid, now, at)
        if before.end is not None:
            end = max(now.end or before.end, before.start)
            self._add(before, before.end, end, at)
            self._pods[uid] = evolve(before, end=end)
            return end != before.end
        if now.end is not None:
            self._stop(uid, before, max(now.end, before.start), at)
            return True
        if now.amounts == before.amounts:
            return False
        self._change(before.place, at, less=before.amounts, more=now.amounts)
        self._pods[uid] = evolve(before, amounts=now.amounts)
        return True

    def remove(self, uid: str, *, end: datetime, at: datetime) -> bool:
        """Removes a pod that is deleted since `end`, as observed at this time; returns whether it had not terminated before."""
        self._later.pop(uid, None)
        before = self._pods.get(uid)
        running = before is not None and before.end is None
        if before is not None and running:
            self._stop(uid, before, max(end, before.start), at)
        self._pods.pop(uid, None)
        return running

    def advance(self, now: datetime) -> None:
        """Counts everything until now."""
        for place in self.places:
            self.count(place, now)
        self.complete(now)

    @property
    def places(self) -> list[Place]:
        """Where pods hold something now, or have since the last count."""
        return list(self._rates)

    def count(self, place: Place, now: datetime) -> None:
        """Counts what one place reserves until now."""
        rate = self._rates.get(place)
        if rate is None:
            return
        rate.advance(now)
        spans, rate.spans = rate.spans, []
        if not rate.amounts:
            del self._rates[place]
        self.ledger.add(place, spans, deciders=self.deciders, now=now)

    def complete(self, now: datetime) -> None:
        """Notes that every place was counted until now, also what was observed while the places were counted."""
        for uid in [uid for uid, pod in self._later.items() if pod.start <= now]:
            self._start(uid, self._later.pop(uid), now)
        for place in [place for place, rate in self._rates.items() if rate.spans]:
            self.count(place, now)
        self.ledger.prune(now)
        self.ledger.through = now

    @property
    def is_lending(self) -> bool:
        """Whether any pod holds something now."""
        return any(rate.amounts for rate in self._rates.values())

    @property
    def is_pending(self) -> bool:
        """Whether a change was observed since the last count."""
        return any(rate.spans for rate in self._rates.values())

    def _start(self, uid: str, pod: Held, at: datetime) -> bool:
        if pod.end is None and pod.start > at:
            self._later[uid] = pod
            return False
        self._later.pop(uid, None)
        start = max(pod.start, self.counted)
        if pod.end is not None:
            self._pods[uid] = evolve(pod, start=start, end=max(start, pod.end))
            self._add(pod, start, max(start, pod.end), at)
            return pod.end > start
        self._pods[uid] = evolve(pod, start=start)
        self._add(pod, start, at, at)
        self._change(pod.place, at, more=pod.amounts)
        return True

    def _stop(self, uid: str, pod: Held, end: datetime, at: datetime) -> None:
        self._change(pod.place, at, less=pod.amounts)
        self._add(pod, at, end, at)
        self._pods[uid] = evolve(pod, end=end)

    def _change(self, place: Place, at: datetime, *, less: Resources | None = None, more: Resources | None = None) -> None:
        rate = self._rate(place, at)
        rate.advance(at)
        amounts = subtract_resources(add_resources(rate.amounts, more or {}), less or {})
        rate.amounts = {name: amount for name, amount in amounts.items() if amount}

    def _add(self, pod: Held, start: datetime, end: datetime, at: datetime) -> None:
        self._rate(pod.place, at).spans += between(pod.amounts, start, end)

    def _rate(self, place: Place, at: datetime) -> _Rate:
        return self._rates.setdefault(place, _Rate({}, at))
