"""What a worker that joins waits for, and who has to do what (pure).

Invariant: each text names the missing step, and the command of the side that has to take it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from attrs import field, frozen

from fleet.api import keys
from fleet.api.clusters import (
    AVAILABLE,
    CLOCK_SYNCED,
    CLUSTER_JOINED,
    HUB_ACCEPTED,
    ManagedCluster,
    condition_of,
    holds,
)
from vkubelet.api.fields import Fields
from vkubelet.api.objects import Unknown
from vkubelet.clock import parse_rfc3339

SLOW = timedelta(seconds=20)
"""Time in which an agent that was started usually has created its request."""


@frozen(kw_only=True)
class Observed:
    """What the command sees of both sides."""

    name: str
    hub: str
    """URL of the hub."""
    namespace: str = keys.NAMESPACE
    problem: str = ""
    """Why the hub cannot be read."""
    record: ManagedCluster | None = None
    requests: Sequence[Unknown] = ()
    issued: bool = False
    """Whether the worker has a certificate."""
    taken: bool = False
    """Whether a cluster of this name was joined before the start of the command."""
    complaint: str = ""
    """The last warning of the agent."""
    since: datetime
    """Start of the command."""
    now: datetime


@frozen
class Step:
    """A text for the person who waits; `joined` when nothing is missing."""

    text: str
    joined: bool = field(default=False)
    final: bool = field(default=True)
    """Whether the hub has compared the clocks too, after which an agent whose clock differs reports nothing more."""


def step_of(seen: Observed) -> Step:
    """Decides what is missing."""
    accept = f"on the hub run: fleet accept {seen.name}"
    if seen.problem:
        return Step(seen.problem)
    record = seen.record
    if record is None:
        return Step(_unstarted(seen, "the agent has not created its record"))
    denied = condition_of(record.conditions, HUB_ACCEPTED)
    if not seen.issued:
        return _request_step(seen, accept)
    if not record.accepted:
        was = "denies" if denied is not None and denied.status == "False" else "has issued the certificate, and has not accepted"
        return Step(f"the hub {was} cluster {seen.name}; {accept}")
    if not holds(record.conditions, HUB_ACCEPTED):
        return Step(_unprepared(record))
    clock = condition_of(record.conditions, CLOCK_SYNCED)
    if clock is not None and clock.status == "False":
        return Step("the clocks of hub and worker differ too much; on the nodes of the worker run: timedatectl set-ntp true")
    if not holds(record.conditions, CLUSTER_JOINED) or condition_of(record.conditions, AVAILABLE) is None:
        return Step(_unstarted(seen, "the hub accepts the cluster, and the agent has not reported yet"))
    return Step(f"cluster {seen.name} joined the hub {seen.hub}", joined=True, final=clock is not None)


def _request_step(seen: Observed, accept: str) -> Step:
    requests = sorted(seen.requests, key=lambda each: each.metadata.creation_timestamp)
    if not requests:
        return Step(_unstarted(seen, "the agent has not requested a certificate"))
    last = requests[-1]
    found = Fields(last.body.get("status"), "status", []).items("conditions")
    types = {each.text("type"): each.text("message") for each in found}
    name = last.metadata.name
    if "Denied" in types or "Failed" in types:
        message = types.get("Denied") or types.get("Failed") or "no reason given"
        return Step(f"the hub denied request {name}: {message}; the agent asks again, then {accept}")
    if "Approved" in types:
        return Step(f"request {name} is approved, and waits for the signer {keys.CLIENT_SIGNER}; on the hub check kube-controller-manager")
    if seen.taken:
        other = f"cluster {seen.name} is joined already; choose another --name"
        return Step(f"request {name} is not approved: {other}, or if this is the same cluster, {accept}")
    age = (seen.now - parse_rfc3339(last.metadata.creation_timestamp)).total_seconds()
    return Step(f"request {name} is not approved since {max(age, 0):.0f} s; {accept}")


def _unprepared(record: ManagedCluster) -> str:
    found = condition_of(record.conditions, HUB_ACCEPTED)
    if found is not None and found.message:
        return f"the hub cannot prepare the cluster: {found.message}"
    return "the hub accepts the cluster, and has not prepared its namespace; on the hub check that `fleet hub` runs"


def _unstarted(seen: Observed, what: str) -> str:
    if seen.complaint:
        return f"{what}: {seen.complaint}"
    if seen.now - seen.since < SLOW:
        return what
    return f"{what}; in the worker check: kubectl -n {seen.namespace} get pods,events"
