"""The record of one run: every accepted write of every cluster in one order, what ran in the backends, and what became of the processes.

Invariant: it is only appended to while the run lasts, and read afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from attrs import define, field, frozen

from tests.faults.simulation.differences import changed_paths
from tests.faults.simulation.network import Sent

Body = dict[str, Any]


@frozen
class Entry:
    """One accepted write. `cluster` is the side, `seconds` the virtual time, `object` the path without a subresource."""

    cluster: str
    seconds: float
    user: str
    verb: str
    path: str
    object: str
    resource: str
    old: Body | None = field(default=None, repr=False)
    new: Body | None = field(default=None, repr=False)
    creator: str = ""
    changed: frozenset[str] = field(init=False, repr=False, eq=False)
    """Paths of the fields that the write has changed."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "changed", changed_paths(self.old, self.new))

    @property
    def name(self) -> str:
        return self.object.rpartition("/")[2]

    @property
    def uid(self) -> str:
        return str((self.new or self.old or {}).get("metadata", {}).get("uid", ""))

    @property
    def is_election(self) -> bool:
        """Whether it concerns the Lease of a leader."""
        return self.resource == "leases" and not self.object.startswith("leases/kube-node-lease/")

    def line(self) -> str:
        subresource = "/status" if self.path.endswith("/status") else ""
        return f"{self.seconds:.3f} s {self.cluster} {self.user} {self.verb} {self.object}{subresource}"


@frozen
class Workload:
    """Start or end of what runs for a pod: `id` is its own, `name` and `uid` are those of the pod in the hub."""

    seconds: float
    what: str
    id: str
    name: str
    uid: str
    by_itself: bool = False
    killed: bool = False
    """Whether the workload was ended before it had the time that it needs to stop."""


@define
class History:
    """What happened in one run, in its order."""

    entries: list[Entry] = field(factory=list)
    ours: set[str] = field(factory=set)
    """Users that are processes of the product."""
    marks: list[tuple[float, str, str]] = field(factory=list)
    """Second, what, and about whom; such as `killed vkubelet-1`."""
    workloads: list[Workload] = field(factory=list)
    sent: list[Sent] = field(factory=list)
    injected: list[tuple[str, str]] = field(factory=list)
    """Kind and site of each fault that took effect."""
    problems: list[str] = field(factory=list)
    """Exceptions that nobody handled, exits, and log lines of errors."""
    unmet: list[str] = field(factory=list)
    """What the scenario wanted at its end, and is not so."""
    unexpected: list[str] = field(factory=list)
    """What the scenario expected meanwhile, and was not so; a fault may delay it."""
    left: list[str] = field(factory=list)
    """What processes that stopped in order have left: tasks, ports."""
    finite: set[str] = field(factory=set)
    """Names of pods whose containers terminate by themselves."""
    may_end: set[str] = field(factory=set)
    """Names of pods that the scenario lets the product end, such as by a reclaim."""
    may_be_unready: set[str] = field(factory=set)
    """Names of nodes that the scenario makes unready."""
    judged_from: float = math.inf
    """Second from which the desired state must hold and no write may happen but renewals; infinite when the run did not get there."""
    ended: float = 0.0
    events: Mapping[str, int] = field(factory=dict)
    """Number of events that watches of a side have sent."""
    callbacks: int = 0
    virtual_uid_key: str = ""
    """Annotation of a physical pod that names the UID of its virtual one."""

    def lines(self) -> list[str]:
        """The whole history as text."""
        workloads = [f"{each.seconds:.3f} s {each.what} {each.id} {each.name}" for each in self.workloads]
        marks = [f"{second:.3f} s {what} {about}" for second, what, about in self.marks]
        return [*(entry.line() for entry in self.entries), *workloads, *marks]

    def digest(self) -> str:
        """Returns a number that only the same history has."""
        return sha256("\n".join(self.lines()).encode()).hexdigest()[:12]

    def virtual_uid(self, physical: Body) -> str:
        """Returns the UID of the virtual pod that a physical one backs, "" for any other."""
        return str((physical["metadata"].get("annotations") or {}).get(self.virtual_uid_key, ""))

    def was_asked_to_end(self, uid: str, moment: float) -> bool:
        """Whether somebody had deleted the pod of this UID in the hub by then, or it has terminated as it should, or may end."""
        known = False
        for entry in self.entries:
            if entry.cluster != "hub" or entry.resource != "pods" or entry.uid != uid or entry.seconds > moment:
                continue
            known = True
            asked = entry.new is None or bool(entry.new["metadata"].get("deletionTimestamp"))
            if entry.name in self.may_end or (asked and entry.user not in self.ours):
                return True
            if entry.name in self.finite and entry.new is not None and entry.new["status"].get("phase") in ("Succeeded", "Failed"):
                return True
        return not known

    def forced(self) -> set[str]:
        """Returns the UIDs of the pods whose objects others have removed from the hub."""
        removed = (entry for entry in self.entries if entry.cluster == "hub" and entry.resource == "pods" and entry.new is None)
        return {entry.uid for entry in removed if entry.user not in self.ours}

    def may_stop_until(self, uid: str) -> float:
        """Returns the second until which a pod may take to stop, by the deletions that others requested in the hub.

        An API server counts the grace period of a repeated request from the first one.
        """
        until = first = math.inf
        for entry in self.entries:
            if entry.cluster == "hub" and entry.resource == "pods" and entry.uid == uid and entry.user not in self.ours:
                meta = entry.new["metadata"] if entry.new is not None else {"deletionTimestamp": "now"}
                if meta.get("deletionTimestamp"):
                    first = min(first, entry.seconds)
                    until = min(until, max(entry.seconds, first + float(meta.get("deletionGracePeriodSeconds") or 0)))
        return until
