"""The view of a cluster: one value from the records of either API, which placement, roll-out, inventory and commands read.

Invariant: a field that does not parse is absent in the view and listed in `problems`; it never affects another cluster.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import field, frozen

from fleet.api import clusters, keys
from fleet.core.taints import Effect, effect_of
from vkubelet.api.fields import Problem
from vkubelet.api.quantity import Quantity

UNKNOWN: Final = "Unknown"
_STRENGTH: Final = tuple(Effect)


class Door(enum.Enum):
    """How a cluster came in; the value is the kind of its origin."""

    OCM = "ManagedCluster"
    """Its agent created the record, and the hub accepts it."""
    KUBEFLEET = "MemberCluster"
    """A person created the record for the identity of its agent."""


@frozen
class Health:
    """Health of the cluster's API server as last known; `since` is when that changed."""

    status: str = UNKNOWN
    since: datetime | None = None
    cause: str = ""
    heartbeat: datetime | None = None


@frozen
class ViewTaint:
    """A taint of either record."""

    key: str
    value: str
    effect: Effect
    since: datetime | None = None


@frozen(kw_only=True)
class View:
    """One cluster."""

    name: str
    door: Door
    accepted: bool = False
    joined: bool = False
    leaving: bool = False
    labels: Mapping[str, str] = field(factory=dict)
    health: Health = Health()
    taints: Sequence[ViewTaint] = ()
    version: str = ""
    usage: clusters.Usage = clusters.Usage()
    properties: Mapping[str, str] = field(factory=dict)
    namespaces: Sequence[str] = ()
    problems: Sequence[Problem] = ()

    def amount(self, name: str) -> Quantity | None:
        """Returns a property as a quantity; None when it is absent or none."""
        try:
            return Quantity.parse(self.properties[name])
        except (KeyError, ValueError):
            return None


@frozen
class Origin:
    """The record from which the other one is mirrored; `contested` when both exist without the annotation of a mirror."""

    door: Door
    contested: bool = False


def origin_of(managed: clusters.ManagedCluster | None, member: clusters.MemberCluster | None) -> Origin:
    """Returns the origin of a cluster's records: that of a mirror's annotation, else the older record. Raises ValueError without any."""
    if managed is None or member is None:
        if managed is None and member is None:
            raise ValueError("a cluster has at least one record")
        return Origin(Door.OCM if managed is not None else Door.KUBEFLEET)
    if member.meta.annotations.get(keys.ORIGIN) == Door.OCM.value:
        return Origin(Door.OCM)
    if managed.meta.annotations.get(keys.ORIGIN) == Door.KUBEFLEET.value:
        return Origin(Door.KUBEFLEET)
    older_is_member = member.meta.creation_timestamp < managed.meta.creation_timestamp
    return Origin(Door.KUBEFLEET if older_is_member else Door.OCM, contested=True)


def view_of(managed: clusters.ManagedCluster | None, member: clusters.MemberCluster | None, *, renewed: datetime | None = None) -> View:
    """Builds the view from the records that exist; `renewed` is the last renewal of the cluster's Lease. Raises ValueError without any."""
    door = origin_of(managed, member).door
    managed, member = managed or clusters.ManagedCluster(), member or clusters.MemberCluster()
    by_ocm = door is Door.OCM
    origin = managed if by_ocm else member
    joined = (
        clusters.holds(managed.conditions, clusters.CLUSTER_JOINED)
        if by_ocm
        else clusters.holds(member.state.conditions, clusters.MEMBER_JOINED)
    )
    reported = {name: each.value for name, each in member.state.properties.items()}
    usage = member.state.usage
    return View(
        name=origin.name,
        door=door,
        accepted=managed.accepted if by_ocm else not member.deleting,
        joined=joined,
        leaving=origin.deleting,
        labels=origin.meta.labels,
        health=_health(managed, member, door, renewed),
        taints=_taints((*managed.taints, *member.taints)),
        version=managed.version or reported.get(keys.K8S_VERSION, ""),
        usage=clusters.Usage(usage.capacity or managed.capacity, usage.allocatable or managed.allocatable, usage.available, usage.observed),
        properties={**reported, **managed.claims},
        namespaces=sorted(member.state.namespaces),
        problems=(*managed.problems, *member.problems),
    )


def _health(managed: clusters.ManagedCluster, member: clusters.MemberCluster, door: Door, renewed: datetime | None) -> Health:
    agent = member.state.agent()
    beats = [each for each in (renewed, agent.heartbeat if agent else None) if each is not None]
    own = clusters.condition_of(agent.conditions, clusters.AGENT_HEALTHY) if agent else None
    found = clusters.condition_of(managed.conditions, clusters.AVAILABLE) if door is Door.OCM else own
    found = found or clusters.Condition("")
    return Health(found.status or UNKNOWN, found.since, found.reason, max(beats, default=None))


def _taints(taints: Iterable[clusters.Taint]) -> Sequence[ViewTaint]:
    """Returns each key and value once, with its strongest effect: a mirrored taint is weaker than the one that it mirrors."""
    found: dict[tuple[str, str], ViewTaint] = {}
    for each in taints:
        made = ViewTaint(each.key, each.value, effect_of(each), each.added)
        known = found.get((each.key, each.value))
        if known is None or _STRENGTH.index(made.effect) < _STRENGTH.index(known.effect):
            found[each.key, each.value] = made
    return tuple(found.values())
