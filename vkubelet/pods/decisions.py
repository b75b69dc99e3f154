"""Decides the next step for one pod. Pure.

Invariant: the API object of a pod is deleted only when its workload has terminated or never started, and nothing is started for a UID after
its deletion was observed.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from datetime import datetime

from attrs import define, frozen

from vkubelet.api.compact import shared
from vkubelet.api.objects import Pod, PodRef
from vkubelet.clock import parse_rfc3339
from vkubelet.pods.dispatch import DispatchMode

ORPHAN_GRACE = 30.0
"""Grace period of an orphan in seconds; its own was deleted with its Pod object. Thirty is the default of Kubernetes."""

REPEAT = 30.0
"""Seconds between two calls of `delete_pod` with grace 0, until the provider reports that it has nothing left of the pod."""

_SHORTER = 0.5
"""Seconds by which a deadline must move forward to be sent again."""


class Step(enum.Enum):
    """One step in the lifecycle of a pod."""

    WAIT = "wait"
    SYNC = "sync"
    FAIL_LOST = "fail-lost"
    """The backend lists a pod as missing that no client deleted: it becomes Failed."""
    TERMINATE = "terminate"
    """The provider is called to terminate it."""
    DELETE_OBJECT = "delete-object"
    """The workload has terminated: publish the final status, then delete the API object."""
    FAIL_SHUTDOWN = "fail-shutdown"
    """The node is shut down: the pod, which no longer runs or never ran, becomes Failed."""
    CONFIRM = "confirm"
    """A list did not contain it any more: get it by name before anything is terminated."""
    DROP_RECORD = "drop-record"
    """Neither the API nor the backend has it: drop its record."""


@frozen
class Content:
    """Hashes of the parts of a pod whose change requires a new sync; the synced object itself is not kept."""

    spec: int
    labels: int
    keys: tuple[str, ...]
    """Keys of the annotations, which most pods have in common."""
    values: bytes
    """Hashes of their values."""

    @classmethod
    def of(cls, pod: Pod) -> Content:
        meta = pod.metadata
        keys, values = tuple(meta.annotations), (hash(value) for value in meta.annotations.values())
        return cls(pod.spec_hash, shared(hash(frozenset(meta.labels.items()))), shared(keys), struct.pack(f"{len(keys)}q", *values))

    @property
    def annotations(self) -> frozenset[tuple[str, int]]:
        """Annotations with the hashes of their values."""
        return frozenset(zip(self.keys, struct.unpack(f"{len(self.keys)}q", self.values), strict=True))

    def same_as(self, other: Content, *, ours: Mapping[str, str]) -> bool:
        """Compares two contents, ignoring annotations that now have the value in `ours`: those that the runtime wrote itself."""
        if self.spec != other.spec or self.labels != other.labels:
            return False
        now = self.annotations
        changed = {key for key, _ in now ^ other.annotations}
        return changed <= {key for key, _ in now & {(key, hash(value)) for key, value in ours.items()}}


def concerns(old: Pod | None, new: Pod, *, ours: Mapping[str, str]) -> bool:
    """Checks whether anything changed but the running status, and annotations that now have the value in `ours`, which we wrote."""
    if old is None or old.metadata.uid != new.metadata.uid:
        return True
    before, after = old.metadata, new.metadata
    return (
        old.spec_text != new.spec_text
        or before.labels != after.labels
        or _differ(before.annotations, after.annotations, ours)
        or before.deletion_timestamp != after.deletion_timestamp
        or before.deletion_grace_period_seconds != after.deletion_grace_period_seconds
        or old.terminal != new.terminal
    )


def _differ(before: Mapping[str, str], after: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    if before == after:
        return False
    changed = {key for key, _ in before.items() ^ after.items()}
    return any(key not in ours or after.get(key) != ours[key] for key in changed)


@define
class PodRecord:
    """Record of one incarnation of a pod in this process, beside its object. Times are monotonic seconds.

    `may_exist`: the backend may have something of it, from this process or from an earlier one; `missing`: it was reported to have
    nothing. `suspected`: a list did not contain its object any more. `made_terminal`: the runtime made it terminal. `outdated`: the sync
    in progress has to be repeated. `accepted_at`: when the provider last accepted a call for it. `sent_deadline`: the deadline last sent
    to the provider; `forced_at`: when it was last called with grace 0. `object_deleted`: the runtime has deleted its object.
    """

    ref: PodRef
    may_exist: bool
    missing: bool = False
    suspected: bool = False
    made_terminal: bool = False
    syncing: bool = False
    outdated: bool = False
    object_deleted: bool = False
    synced: Content | None = None
    accepted_at: float | None = None
    deletion_started: float | None = None
    deadline: float | None = None
    sent_deadline: float | None = None
    forced_at: float | None = None
    final_status_since: float | None = None
    seen_undeleted: bool = False

    def observe_deletion(self, pod: Pod, *, now: float, wall: datetime) -> None:
        """Records the deletion state of the object.

        The grace period starts when the deletion is observed, so that clock skew cannot shorten it; only after a restart the
        deletionTimestamp has to be used. A second deletion can only shorten it (pod strategy, registry/core/pod).
        """
        meta = pod.metadata
        if meta.deletion_timestamp is None:
            self.seen_undeleted = True
            return
        grace = float(meta.deletion_grace_period_seconds or 0)
        if self.deletion_started is None:
            left = (parse_rfc3339(meta.deletion_timestamp) - wall).total_seconds()
            self.deletion_started = now if self.seen_undeleted else now + min(max(left, 0.0), grace) - grace
        self.shorten_deadline(self.deletion_started + grace)

    def shorten_deadline(self, moment: float) -> None:
        """Sets the deadline; it only ever moves forward."""
        self.deadline = moment if self.deadline is None else min(self.deadline, moment)


@frozen(kw_only=True)
class Situation:
    """State of a pod outside this record: its object, whether its status is terminal in the API, and the dispatch mode of its node."""

    pod: Pod | None
    terminal: bool
    mode: DispatchMode | None
    current: bool
    """Whether the last successful sync used the current content."""


def next_step(record: PodRecord, situation: Situation, *, now: float) -> tuple[Step, float | None]:
    """Returns the step, and a number: the grace period for `TERMINATE`, else the seconds until the next check.

    None instead of a number: the next check follows a change.
    """
    pod, mode = situation.pod, situation.mode
    if mode is None:
        return Step.DROP_RECORD, None
    if pod is None:
        return _without_object(record, mode, now)
    if pod.terminating:
        return _terminating(record, situation, now)
    if situation.terminal or record.made_terminal:
        return Step.WAIT, None
    if mode is DispatchMode.REFUSE and not record.may_exist:
        return Step.FAIL_SHUTDOWN, None
    if mode is DispatchMode.DRAIN:
        return (Step.FAIL_SHUTDOWN, None) if record.missing or not record.may_exist else _terminate(record, now)
    if record.missing:
        return Step.FAIL_LOST, None
    if mode is not DispatchMode.SYNC or situation.current:
        return Step.WAIT, None
    return Step.SYNC, None


def _without_object(record: PodRecord, mode: DispatchMode, now: float) -> tuple[Step, float | None]:
    if record.suspected:
        return Step.CONFIRM, None
    if record.missing or not record.may_exist:
        return Step.DROP_RECORD, None
    if mode is DispatchMode.HOLD:
        return Step.WAIT, None
    return _terminate(record, now)


def _terminating(record: PodRecord, situation: Situation, now: float) -> tuple[Step, float | None]:
    if situation.mode is DispatchMode.HOLD or record.object_deleted:
        return Step.WAIT, None
    if record.missing or not record.may_exist or (situation.terminal and record.sent_deadline is not None):
        return Step.DELETE_OBJECT, None
    return _terminate(record, now)


def _terminate(record: PodRecord, now: float) -> tuple[Step, float | None]:
    deadline = now if record.deadline is None else record.deadline
    left = deadline - now
    if left <= 0:
        wait = 0.0 if record.forced_at is None else record.forced_at + REPEAT - now
        return (Step.WAIT, wait) if wait > 0 else (Step.TERMINATE, 0.0)
    if record.sent_deadline is None or deadline < record.sent_deadline - _SHORTER:
        return Step.TERMINATE, left
    return Step.WAIT, left
