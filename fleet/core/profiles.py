"""ClusterProfiles: what other tools read about a cluster, computed from its record in either API.

Invariant: no profile contains a credential; a heartbeat alone changes nothing in one, until its age does.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import field, frozen

from fleet.api import clusters, keys
from fleet.api.resources import CLUSTERPROFILES
from fleet.core.taints import written
from vkubelet.api.objects import Json, JsonView

KUBEFLEET: Final = "KubeFleet"
OCM: Final = "open-cluster-management"
MANAGERS: Final = (KUBEFLEET, OCM)
HEALTHY: Final = "ControlPlaneHealthy"
JOINED: Final = "Joined"
NO_STATUS: Final = "MemberAgentReportedNoStatus"
NO_HEALTH: Final = "MemberAgentReportedNoHealthInfo"
LOST: Final = "MemberAgentHeartbeatLost"
SERVER_UNHEALTHY: Final = "MemberClusterAPIServerUnhealthy"
SERVER_HEALTHY: Final = "MemberClusterAPIServerHealthy"
PROVIDER: Final = "fleet"
HEARTBEAT_JITTER: Final = 0.05
"""Share of its period by which an agent varies its heartbeat."""
_ON_ITS_WAY: Final = 5.0
_LONGEST_VALUE: Final = 1024


@frozen(kw_only=True)
class Profile:
    """One desired ClusterProfile; `conditions` are without times."""

    name: str
    namespace: str
    manager: str
    labels: Mapping[str, str] = field(factory=dict)
    version: str = ""
    properties: Mapping[str, clusters.Property] = field(factory=dict)
    access: Sequence[Json] = ()
    conditions: Sequence[Json] = ()

    @property
    def body(self) -> Json:
        """The object without its status."""
        return {
            "apiVersion": CLUSTERPROFILES.api_version,
            "kind": CLUSTERPROFILES.kind,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {keys.CLUSTER_MANAGER: self.manager, **self.labels},
            },
            "spec": {"clusterManager": {"name": self.manager}, "displayName": self.name},
        }

    def status(self, live: JsonView) -> Json:
        """Returns the fields of the status but its conditions; `live` is the status as it is, whose times stay with their values."""
        known = {each.get("name"): each for each in live.get("properties") or ()}
        listed = []
        for name, each in sorted(self.properties.items()):
            # The API has no properties that are empty or longer, such as bundles of certificates.
            if not 1 <= len(each.value) <= _LONGEST_VALUE:
                continue
            time = {"lastObservedTime": written(each.observed)} if each.observed is not None else {}
            same = known.get(name, {}).get("value") == each.value
            listed.append(known[name] if same else {"name": name, "value": each.value, **time})
        found: Json = {"properties": listed, "accessProviders": list(self.access), "credentialProviders": list(self.access)}
        if self.version:
            found["version"] = {"kubernetes": self.version}
        return {name: value for name, value in found.items() if value or name in live}


def member_profile(member: clusters.MemberCluster, namespace: str, *, health: Json) -> Profile:
    """Returns the profile of a joined MemberCluster."""
    properties = member.state.properties
    version = properties.get(keys.K8S_VERSION)
    return Profile(
        name=member.name,
        namespace=namespace,
        manager=KUBEFLEET,
        version=version.value if version is not None else "",
        properties=properties,
        access=access_providers({name: each.value for name, each in properties.items()}),
        conditions=(health,),
    )


def managed_profile(cluster: clusters.ManagedCluster, namespace: str, *, cluster_set: str) -> Profile:
    """Returns the profile of a ManagedCluster for a namespace that has a binding to its set."""
    found = (_renamed(cluster, clusters.AVAILABLE, HEALTHY), _renamed(cluster, clusters.CLUSTER_JOINED, JOINED))
    return Profile(
        name=cluster.name,
        namespace=namespace,
        manager=OCM,
        labels={keys.PROFILE_SET: cluster_set},
        version=cluster.version,
        properties={name: clusters.Property(value) for name, value in cluster.claims.items()},
        access=access_providers(cluster.claims),
        conditions=found,
    )


def access_providers(properties: Mapping[str, str]) -> list[Json]:
    """Returns how clients reach the API server of a cluster, by the properties that name it."""
    server, authority = properties.get(keys.ENTRYPOINT, ""), properties.get(keys.ENTRYPOINT_CA, "")
    if not server:
        return []
    return [{"name": PROVIDER, "cluster": {"server": server, **({"certificate-authority-data": authority} if authority else {})}}]


def member_health(member: clusters.MemberCluster, *, heartbeat: datetime | None, now: datetime, threshold: float) -> Json:
    """Returns the condition ControlPlaneHealthy of a member; `heartbeat` is the last one on the hub's clock."""
    agent = member.state.agent()
    health = clusters.condition_of(agent.conditions, clusters.AGENT_HEALTHY) if agent is not None else None
    if agent is None:
        return _healthy("Unknown", NO_STATUS, "the agent of the member has not reported a status; check the agent in the worker")
    if health is None:
        return _healthy("Unknown", NO_HEALTH, "the agent of the member has reported no condition Healthy; check its version")
    if heartbeat is None or now - heartbeat > timedelta(seconds=threshold):
        last = f"; the last one is of {written(heartbeat)}" if heartbeat is not None else ""
        return _healthy("False", LOST, f"the agent of the member has sent no heartbeat for {threshold:g} s{last}")
    if health.status not in ("True", "False"):
        return _healthy("Unknown", NO_HEALTH, "the agent of the member does not know whether the API server of the worker is healthy")
    if health.status == "False":
        return _healthy("False", SERVER_UNHEALTHY, health.message or "the API server of the worker is not healthy")
    return _healthy("True", SERVER_HEALTHY, "the API server of the worker is healthy")


def oldest_heartbeat(threshold: float, period: int) -> float:
    """Returns the age from which on a heartbeat counts as missed: the threshold, but not less than a heartbeat may take that is late by
    its jitter and on its way; otherwise healthy members would be unhealthy again and again."""
    return max(threshold, period * (1 + HEARTBEAT_JITTER) + _ON_ITS_WAY)


def is_published(member: clusters.MemberCluster) -> bool:
    """Checks whether a member has a profile: it has joined, and does not leave."""
    return clusters.holds(member.state.conditions, clusters.MEMBER_JOINED) and not member.deleting


def _renamed(cluster: clusters.ManagedCluster, type_: str, shown: str) -> Json:
    found = clusters.condition_of(cluster.conditions, type_)
    if found is None:
        return {"type": shown, "status": "Unknown", "reason": "NotReported", "message": "the agent has not reported it"}
    return {"type": shown, "status": found.status, "reason": found.reason, "message": found.message}


def _healthy(status: str, reason: str, message: str) -> Json:
    return {"type": HEALTHY, "status": status, "reason": reason, "message": message}
