"""The status of a ManagedCluster as far as it is the agent's: joined, available, version, resources and claims.

Invariant: fields of other clients survive. Nothing is written that the record contains already, none while the hub does not accept the
cluster or finds that the clocks differ, and what is unknown stays as it was reported last. A report that arrives late, after the hub has
written the record, is refused: a cluster may have become unreachable since it was sent.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from attrs import frozen

from fleet.agent.properties import WorkerFacts
from fleet.api.clusters import AVAILABLE, CLOCK_SYNCED, CLUSTER_JOINED, HUB_ACCEPTED, ManagedCluster, condition_of, holds
from fleet.api.resources import MANAGEDCLUSTERS
from fleet.core.properties import ReportedClaims, merged, reported_claims
from vkubelet.api.objects import Json, JsonView, Unknown, get_condition, set_condition
from vkubelet.client.rest import Client
from vkubelet.clock import Clock

ROTATED: Final = "ClusterCertificateRotated"
LOOKED_EVERY: Final = 60.0
_PARTS: Final = ("version", "capacity", "allocatable", "clusterClaims")


@frozen(kw_only=True)
class Report:
    """What the agent has to report; without `unhealthy` the worker is healthy, and without `not_renewed` the certificate is valid."""

    facts: WorkerFacts
    unhealthy: str = ""
    not_renewed: str = ""


def is_accepted(cluster: ManagedCluster) -> bool:
    """Checks that the hub accepts the cluster, and has created what that includes."""
    return cluster.accepted and holds(cluster.conditions, HUB_ACCEPTED)


def is_denied(cluster: ManagedCluster) -> bool:
    """Checks that the hub accepted the cluster once, and does not any more."""
    found = condition_of(cluster.conditions, HUB_ACCEPTED)
    return not cluster.accepted and found is not None and found.status == "False"


def may_report(cluster: ManagedCluster) -> bool:
    """Checks whether the agent writes a status."""
    clock = condition_of(cluster.conditions, CLOCK_SYNCED)
    return is_accepted(cluster) and (clock is None or clock.status != "False")


def conditions(live: Sequence[JsonView], report: Report, *, generation: int, now: datetime) -> list[Json]:
    """Returns the conditions that are the agent's, with the times of their transitions."""
    found = [_condition(CLUSTER_JOINED, "True", "ManagedClusterJoined", "the cluster joined")]
    if report.unhealthy:
        down = f"the API server of the cluster is not healthy: {report.unhealthy}"
        found.append(_condition(AVAILABLE, "False", "ManagedClusterKubeAPIServerUnavailable", down))
    else:
        lacking = "".join(f"; not reported: {each}" for each in report.facts.missing)
        found.append(_condition(AVAILABLE, "True", "ManagedClusterAvailable", f"the API server of the cluster is healthy{lacking}"))
    if report.not_renewed:
        found.append(_condition(ROTATED, "False", "ClientCertificateUpdateFailed", report.not_renewed))
    else:
        found.append(_condition(ROTATED, "True", "ClientCertificateUpdated", "the client certificate is valid"))
    out = []
    for each in found:
        before = get_condition(live, each["type"])
        out += set_condition([before] if before else [], {**each, "observedGeneration": generation}, now=now)
    return out


def _condition(type_: str, status: str, reason: str, message: str) -> Json:
    return {"type": type_, "status": status, "reason": reason, "message": message}


def claims_of(facts: WorkerFacts) -> ReportedClaims | None:
    """Returns the claims to report; None when they are unknown."""
    if facts.claims is None:
        return None
    return reported_claims(merged(computed={}, claims=facts.claims, cluster_properties=facts.cluster_properties))


def omission(facts: WorkerFacts) -> str:
    """Returns which claims are not reported, because there are too many, with the remedy; "" for none."""
    claims = claims_of(facts)
    if claims is None or not claims.omitted:
        return ""
    return f"{len(claims.omitted)} claims exceed the limit and are not reported: {', '.join(claims.omitted)}; delete others"


def desired_status(live: JsonView, report: Report, *, generation: int, now: datetime) -> Json:
    """Returns the status that the agent applies; what it does not know is taken from the live one."""
    status: Json = {name: live[name] for name in _PARTS if name in live}
    facts, claims = report.facts, claims_of(report.facts)
    if facts.version is not None:
        status["version"] = {"kubernetes": facts.version}
    if facts.inventory is not None:
        status |= facts.inventory.managed_status()
    if claims is not None:
        status["clusterClaims"] = list(claims.listed)
    status["conditions"] = conditions(live.get("conditions") or (), report, generation=generation, now=now)
    return status


def contains(live: JsonView, desired: JsonView) -> bool:
    """Checks that the live status has everything that is desired; it may have more."""
    types = {each["type"]: each for each in live.get("conditions") or ()}
    if any(types.get(each["type"]) != each for each in desired.get("conditions") or ()):
        return False
    for name, value in desired.items():
        if name == "conditions":
            continue
        if isinstance(value, dict):
            if any((live.get(name) or {}).get(key) != inner for key, inner in value.items()):
                return False
        elif live.get(name) != value:
            return False
    return True


class StatusWriter:
    """Writes the status of one record."""

    def __init__(self, hub: Client, *, clock: Clock) -> None:
        self._hub = hub
        self._clock = clock
        self._applied: Json | None = None

    async def write(self, obj: Unknown, report: Report) -> bool:
        """Applies the status when it differs from the record, or may lack something that an earlier one contained; returns whether it was
        written. Raises ApiError, Conflict when the record has changed since it was read."""
        live = obj.body.get("status") or {}
        desired = desired_status(live, report, generation=obj.metadata.generation, now=self._clock.now())
        parts: Json = {name: desired[name] for name in _PARTS if name in desired}
        if self._applied is not None and contains(live, desired) and _keys(parts) == _keys(self._applied):
            return False
        metadata = {"name": obj.metadata.name, "uid": obj.metadata.uid, "resourceVersion": obj.metadata.resource_version}
        await self._hub.apply(MANAGEDCLUSTERS, {"metadata": metadata, "status": desired}, subresource="status")
        self._applied = parts
        return True


def _keys(parts: JsonView) -> set[tuple[str, str]]:
    return {(name, str(key)) for name, value in parts.items() if isinstance(value, dict) for key in value}
