"""The checks of `fleet doctor` on what it has read of a hub or a worker (pure).

Invariant: a finding states the fact and the remedy; its commands can be copied as they are, or have names in upper case that the user
replaces.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from fleet.api import keys
from fleet.api.clusters import CLOCK_SYNCED, HUB_ACCEPTED, ManagedCluster, MemberCluster, condition_of
from fleet.core.requests import ClientRequest, content_flaw
from fleet.core.view import UNKNOWN, Door, View
from vkubelet.api.fields import Fields
from vkubelet.api.objects import Key, Resource, Unknown
from vkubelet.api.rbac import Check
from vkubelet.clock import rfc3339
from vkubelet.commands.findings import Finding, Level, error, warning
from vkubelet.control.certificates import belongs_together, common_name_of, pair_of
from vkubelet.logformat import few, printable

STALE: Final = timedelta(seconds=60)
"""Age of the renewal of a leader Lease from which on no process leads."""
LATE: Final = 0.1
"""Part of the validity of a certificate that is left when it should have been renewed."""
HERE: Final = "fleet doctor --here --context WORKER"
DELETING: Final = "Deleting"
ROTATED: Final = "ClusterCertificateRotated"
JOINED: Final = "Joined"
"""Reason of the Event after which nothing is missing any more."""
_NTP: Final = "timedatectl set-ntp true"


# --- Of both sides ------------------------------------------------------------------------------------------------------------------------


def process(key: Key, deployment: Unknown | None, lease: Unknown | None, *, now: datetime, kubectl: str) -> Iterator[Finding]:
    """Checks that a process leads, and that the replicas of its Deployment, if it has one, are available."""
    spec = Fields(lease.body.get("spec") if lease is not None else None, "spec", [])
    holder, renewed = spec.text("holderIdentity"), spec.time("renewTime")
    logs = (
        f"{kubectl} logs -n {key.namespace} deployment/{key.name}" if deployment is not None else f"{kubectl} get pods -n {key.namespace}"
    )
    if not holder or renewed is None:
        yield error(f"no process {key.name} runs: Lease {key} has no holder; start it", logs)
    elif now - renewed > STALE:
        yield error(f"no process {key.name} runs since {rfc3339(renewed)}, when Lease {key} was renewed last; start it", logs)
    if deployment is None:
        return
    wanted = Fields(deployment.body.get("spec"), "spec", []).number("replicas", 1)
    available = Fields(deployment.body.get("status"), "status", []).number("availableReplicas")
    if available < wanted:
        level = Level.WARNING if available else Level.ERROR
        describe = f"{kubectl} describe pods -n {key.namespace} -l app.kubernetes.io/name={key.name}"
        yield Finding(level, f"of {wanted} replicas of Deployment {key} are {available} available", [describe, logs])


def rights(account: Key, missing: Sequence[Check], *, remedy: str) -> Iterator[Finding]:
    """Returns the rights that a process lacks; the command `remedy` grants them."""
    if missing:
        yield error(f"ServiceAccount {account} may not {few(map(str, missing))}; grant it what it needs", remedy)


# --- The hub ------------------------------------------------------------------------------------------------------------------------------


def admission(wanted: Iterable[tuple[str, str]], found: Collection[tuple[str, str]]) -> Iterator[Finding]:
    """Checks that every admission policy, and every binding of one, exists; each is its kind and name."""
    missing = [f"{kind} {name}" for kind, name in wanted if (kind, name) not in found]
    if missing:
        yield error(f"the hub lacks {few(missing)}, so workers may change what belongs to its owner; create them", "fleet init")


def requests(listed: Iterable[ClientRequest], clusters: Collection[str], *, kubectl: str) -> Iterator[Finding]:
    """Returns the undecided requests that no agent of a known cluster has made."""
    for each in listed:
        flaw = content_flaw(each)
        if each.decided or (not flaw and each.cluster in clusters):
            continue
        why = flaw or "the hub has no ManagedCluster of this name"
        who, deny = printable(each.requester), f"{kubectl} certificate deny {each.name}"
        yield warning(f"request {each.name} of {who} names cluster {each.cluster}, and is not that of its agent: {why}; deny it", deny)


def orphans(owned: Iterable[tuple[Resource[Unknown], Unknown, str]], clusters: Collection[str], *, kubectl: str) -> Iterator[Finding]:
    """Returns the objects, each with the cluster that it belongs to, whose cluster has no record; not those that are being deleted."""
    for resource, obj, cluster in owned:
        if cluster not in clusters and obj.metadata.deletion_timestamp is None:
            where = f" -n {obj.metadata.namespace}" if obj.metadata.namespace else ""
            name = obj.metadata.name
            what = f"{resource.kind} {obj.key} is left of cluster {cluster}, which the hub does not have any more; delete it"
            yield warning(what, f"{kubectl} delete {resource.plural} {name}{where}")


def records(managed: ManagedCluster | None, member: MemberCluster | None, *, kubectl: str) -> Iterator[Finding]:
    """Returns the fields of both records that are invalid."""
    for kind, record in (("ManagedCluster", managed), ("MemberCluster", member)):
        for each in record.validate() if record is not None else ():
            yield warning(f"{kind} {each}", f"{kubectl} edit {kind.lower()} {record.name if record is not None else ''}")


def state(view: View, managed: ManagedCluster | None, *, pending: bool) -> Iterator[Finding]:
    """Returns what keeps a cluster from being joined and healthy; `pending` is whether a request of it waits for approval."""
    conditions = managed.conditions if managed is not None else ()
    accept, prepared = f"fleet accept {view.name}", condition_of(conditions, HUB_ACCEPTED)
    if view.leaving:
        left = condition_of(conditions, DELETING)
        yield warning(f"it is being removed{f': {left.message}' if left and left.message else ''}", f"fleet leave {view.name}")
    elif not view.accepted:
        yield warning(f"the hub does not accept it{'; a request waits for approval' if pending else ''}", accept)
    elif prepared is not None and prepared.status == "False":
        remedy = prepared.message.partition("run: ")[2]
        yield error(f"the hub cannot prepare it: {prepared.message}", *([remedy] if remedy else []))
    elif not view.joined:
        yield warning("a request waits for approval", accept) if pending else error("its agent has not joined; examine it", HERE)
    else:
        yield from _health(view, managed)
        if pending and view.door is Door.OCM:
            yield warning("the renewal of its certificate, or another cluster of its name, waits for approval", accept)


def _health(view: View, managed: ManagedCluster | None) -> Iterator[Finding]:
    conditions = managed.conditions if managed is not None else ()
    clock, rotated = condition_of(conditions, CLOCK_SYNCED), condition_of(conditions, ROTATED)
    if clock is not None and clock.status == "False":
        yield error("the clocks of hub and worker differ too much; on the nodes of the worker synchronize them", _NTP)
    elif view.health.status == UNKNOWN:
        since = f" since {rfc3339(view.health.since)}" if view.health.since else ""
        yield error(f"its agent does not report{since} ({view.health.cause or 'no heartbeat'}); examine it", HERE)
    elif view.health.status != "True":
        yield error(f"its API server is not healthy ({view.health.cause}); examine it", HERE)
    if rotated is not None and rotated.status == "False":
        yield warning(f"its certificate is not renewed: {rotated.message}", f"fleet accept {view.name}")


# --- The worker ---------------------------------------------------------------------------------------------------------------------------


def identity(secret: str, cluster: str, entries: Mapping[str, bytes], *, now: datetime) -> Iterator[Finding]:
    """Checks the certificate in the entries of the Secret of the agent."""
    pair, accept = pair_of(entries), f"on the hub run: fleet accept {cluster}"
    if pair is None or not belongs_together(pair):
        yield error(f"Secret {secret} has no certificate, because its request is not approved; {accept}")
        return
    found = x509.load_pem_x509_certificate(pair.certificate)
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    if not keys.agent_of(common_name_of(pair), cluster):
        yield error(f"Secret {secret} has the certificate of {printable(common_name_of(pair))}, not of an agent of cluster {cluster}")
    elif now >= end:
        yield error(f"the certificate in Secret {secret} expired at {rfc3339(end)}, and the agent requests another one; {accept}")
    elif end - now < LATE * (end - begin):
        yield warning(f"the certificate in Secret {secret} ends at {rfc3339(end)}, and was not renewed; {accept}")


def complaints(events: Iterable[Unknown], *, now: datetime) -> Iterator[Finding]:
    """Returns the warnings that the agent has recorded in the last minutes, and after it has joined."""
    found = [Fields(each.body, "", []) for each in events]
    joined = max((each.text("lastTimestamp") for each in found if each.text("reason") == JOINED), default="")
    for each in found:
        at = each.time("lastTimestamp")
        if each.text("type") == "Warning" and at is not None and now - at <= 10 * STALE and each.text("lastTimestamp") > joined:
            yield warning(f"the agent reports {each.text('reason')}: {each.text('message')}")


def consent(cluster: str, record: ManagedCluster) -> Iterator[Finding]:
    """Checks the record of this cluster on the hub, as its agent may read it."""
    accept, found = f"on the hub run: fleet accept {cluster}", condition_of(record.conditions, HUB_ACCEPTED)
    if not record.accepted:
        yield error(f"the hub does not accept cluster {cluster}; {accept}")
    elif found is not None and found.status == "False":
        yield error(f"the hub cannot prepare cluster {cluster}: {found.message}")
