"""What is to be done next for one pod (pure).

Invariant: the API object of a pod is deleted only when its workload has ended or never began, and nothing is started for a uid after its
deletion was seen.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime

from attrs import define, frozen

from vkubelet.api.objects import Pod, PodRef
from vkubelet.clock import parse_rfc3339
from vkubelet.pods.dispatch import Standing

ORPHAN_GRACE = 30.0
"""Seconds an orphan gets; its own grace period went with its Pod object. Thirty is the default of Kubernetes."""

REPEAT = 30.0
"""Seconds between two calls of `delete_pod` with grace 0, until the provider says the pod is gone."""

_SHORTER = 0.5
"""Seconds by which a deadline must come forward to be told again."""


class Step(enum.Enum):
    """One step of a pod's life."""

    REST = "rest"
    SYNC = "sync"
    LOSE = "lose"
    """The backend lost a pod that nobody deleted: it becomes Failed."""
    END = "end"
    """Tell the provider to end it."""
    CLOSE = "close"
    """The workload has ended: publish the final status, then delete the API object."""
    SHUT = "shut"
    """The node is shut down: the pod, which runs no more or never did, becomes Failed."""
    CONFIRM = "confirm"
    """A list did not show it any more: ask for it by name before anything is ended."""
    DROP = "drop"
    """Neither the API nor the backend knows it: forget it."""


@frozen
class Content:
    """What of a pod makes a new sync necessary when it changes, as hashes: the synced object itself need not be kept."""

    spec: int
    labels: int
    annotations: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, pod: Pod) -> Content:
        meta = pod.metadata
        return cls(hash(pod.spec_json), hash(frozenset(meta.labels.items())), _hashed(meta.annotations))

    def same_as(self, other: Content, *, ours: Mapping[str, str]) -> bool:
        """Equal, but for annotations that now have the value in `ours`: those we wrote ourselves."""
        if self.spec != other.spec or self.labels != other.labels:
            return False
        changed = {key for key, _ in self.annotations ^ other.annotations}
        return changed <= {key for key, _ in _hashed(ours) & self.annotations}


def _hashed(annotations: Mapping[str, str]) -> frozenset[tuple[str, int]]:
    return frozenset((key, hash(value)) for key, value in annotations.items())


@define
class Life:
    """What this process knows of one incarnation of a pod beside its object. Times are monotonic seconds.

    `held`: the backend may hold something of it, from this process or from an earlier one. `over`: we made it terminal. `outdated`: the
    sync that is under way is to be repeated. `handed_at`: when
    the provider last took a call for it. `told`: the deadline it knows.
    """

    ref: PodRef
    held: bool
    gone: bool = False
    suspected: bool = False
    over: bool = False
    syncing: bool = False
    outdated: bool = False
    removed: bool = False
    synced: Content | None = None
    handed_at: float | None = None
    begun: float | None = None
    deadline: float | None = None
    told: float | None = None
    told_zero: float | None = None
    closing: float | None = None
    seen_alive: bool = False

    def note(self, pod: Pod, *, now: float, wall: datetime) -> None:
        """Take over what the object says of its deletion.

        The grace runs from the moment we see the deletion, so that no difference of clocks shortens it; only after a restart is the
        deletionTimestamp all there is. A second delete can only shorten it (pod strategy, registry/core/pod).
        """
        meta = pod.metadata
        if meta.deletion_timestamp is None:
            self.seen_alive = True
            return
        grace = float(meta.deletion_grace_period_seconds or 0)
        if self.begun is None:
            left = (parse_rfc3339(meta.deletion_timestamp) - wall).total_seconds()
            self.begun = now if self.seen_alive else now + min(max(left, 0.0), grace) - grace
        self.end_by(self.begun + grace)

    def end_by(self, moment: float) -> None:
        """The deadline; it only ever comes forward."""
        self.deadline = moment if self.deadline is None else min(self.deadline, moment)


@frozen(kw_only=True)
class Situation:
    """How a pod is seen from outside: its object, what the API has of its end, and how its node stands."""

    pod: Pod | None
    terminal: bool
    standing: Standing | None
    current: bool
    """The last successful sync was of the present content."""


def next_step(life: Life, situation: Situation, *, now: float) -> tuple[Step, float | None]:
    """The step, and a number: the grace for END, for all others the seconds after which to look again (None: when something changes)."""
    pod, standing = situation.pod, situation.standing
    if standing is None:
        return Step.DROP, None
    if pod is None:
        return _without_object(life, standing, now)
    if pod.terminating:
        return _terminating(life, situation, now)
    if situation.terminal or life.over:
        return Step.REST, None
    if standing is Standing.DRAIN:
        return (Step.SHUT, None) if life.gone or not life.held else _end(life, now)
    if life.gone:
        return Step.LOSE, None
    if standing is not Standing.SYNC or situation.current:
        return Step.REST, None
    return Step.SYNC, None


def _without_object(life: Life, standing: Standing, now: float) -> tuple[Step, float | None]:
    if life.suspected:
        return Step.CONFIRM, None
    if life.gone or not life.held:
        return Step.DROP, None
    if standing is Standing.HOLD:
        return Step.REST, None
    return _end(life, now)


def _terminating(life: Life, situation: Situation, now: float) -> tuple[Step, float | None]:
    if situation.standing is Standing.HOLD or life.removed:
        return Step.REST, None
    if life.gone or not life.held or (situation.terminal and life.told is not None):
        return Step.CLOSE, None
    return _end(life, now)


def _end(life: Life, now: float) -> tuple[Step, float | None]:
    deadline = now if life.deadline is None else life.deadline
    left = deadline - now
    if left <= 0:
        if life.told_zero is None or now - life.told_zero >= REPEAT:
            return Step.END, 0.0
        return Step.REST, life.told_zero + REPEAT - now
    if life.told is None or deadline < life.told - _SHORTER:
        return Step.END, left
    return Step.REST, left
