"""Decides the next step for one pod. Pure.

Invariant: the API object of a pod is deleted only when its workload has terminated or never started, and nothing is started for a UID after
its deletion was observed.
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
"""Grace period of an orphan in seconds; its own was deleted with its Pod object. Thirty is the default of Kubernetes."""

REPEAT = 30.0
"""Seconds between two calls of `delete_pod` with grace 0, until the provider reports that it has nothing left of the pod."""

_SHORTER = 0.5
"""Seconds by which a deadline must move forward to be sent again."""


class Step(enum.Enum):
    """One step in the lifecycle of a pod."""

    REST = "rest"
    SYNC = "sync"
    LOSE = "lose"
    """The backend lists a pod as missing that no client deleted: it becomes Failed."""
    END = "end"
    """The provider is called to terminate it."""
    CLOSE = "close"
    """The workload has terminated: publish the final status, then delete the API object."""
    SHUT = "shut"
    """The node is shut down: the pod, which no longer runs or never ran, becomes Failed."""
    CONFIRM = "confirm"
    """A list did not contain it any more: get it by name before anything is terminated."""
    DROP = "drop"
    """Neither the API nor the backend has it: drop its record."""


@frozen
class Content:
    """Hashes of the parts of a pod whose change requires a new sync; the synced object itself is not kept."""

    spec: int
    labels: int
    annotations: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, pod: Pod) -> Content:
        meta = pod.metadata
        return cls(hash(pod.spec_json), hash(frozenset(meta.labels.items())), _hashed(meta.annotations))

    def same_as(self, other: Content, *, ours: Mapping[str, str]) -> bool:
        """Compares two contents, ignoring annotations that now have the value in `ours`: those that the runtime wrote itself."""
        if self.spec != other.spec or self.labels != other.labels:
            return False
        changed = {key for key, _ in self.annotations ^ other.annotations}
        return changed <= {key for key, _ in _hashed(ours) & self.annotations}


def _hashed(annotations: Mapping[str, str]) -> frozenset[tuple[str, int]]:
    return frozenset((key, hash(value)) for key, value in annotations.items())


@define
class Life:
    """Record of one incarnation of a pod in this process, beside its object. Times are monotonic seconds.

    `held`: the backend may have something of it, from this process or from an earlier one. `over`: the runtime made it terminal.
    `outdated`: the sync in progress has to be repeated. `handed_at`: when the provider last accepted a call for it. `told`: the deadline
    last sent to it.
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
        """Records the deletion state of the object.

        The grace period starts when the deletion is observed, so that clock skew cannot shorten it; only after a restart the
        deletionTimestamp has to be used. A second deletion can only shorten it (pod strategy, registry/core/pod).
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
        """Sets the deadline; it only ever moves forward."""
        self.deadline = moment if self.deadline is None else min(self.deadline, moment)


@frozen(kw_only=True)
class Situation:
    """State of a pod outside this record: its object, whether its status is terminal in the API, and the dispatch mode of its node."""

    pod: Pod | None
    terminal: bool
    standing: Standing | None
    current: bool
    """Whether the last successful sync used the current content."""


def next_step(life: Life, situation: Situation, *, now: float) -> tuple[Step, float | None]:
    """Returns the step, and a number: the grace period for `END`, else the seconds until the next check (None: when something changes)."""
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
