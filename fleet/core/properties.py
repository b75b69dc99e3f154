"""Properties, claims and resources of a cluster, computed from its nodes and pods.

Invariant: names of KubeFleet are exact, and each amount that is published is the canonical text of a quantity.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from attrs import field, frozen

from fleet.api import keys
from fleet.api.clusters import Amounts, Usage
from vkubelet.api.names import BETA_INSTANCE_TYPE, INSTANCE_TYPE, REGION, ZONE
from vkubelet.api.objects import Json, Node, Pod
from vkubelet.api.quantity import ZERO, Quantity, format_resources, subtract_resources, sum_resources
from vkubelet.api.scheduling import requests_of

CLAIM_LIMIT: Final = 20
"""Number of claims that are reported beside the reserved ones."""
_ALWAYS: Final = ("cpu", "memory")
_RESOURCES: Final = "resources.kubernetes-fleet.io"
_INSTANCE_TYPES: Final = "node.kubernetes-fleet.io/instance-type"
_TOPOLOGY: Final = "topology.kubernetes-fleet.io"


@frozen(kw_only=True)
class NodeShare:
    """What one node contributes; nothing else of a Node is retained."""

    capacity: Amounts
    allocatable: Amounts
    schedulable: bool
    instance_type: str = ""
    region: str = ""
    zone: str = ""

    @classmethod
    def of(cls, node: Node) -> Self:
        """Extracts the share; an amount that does not parse counts as nothing."""
        labels = node.metadata.labels
        return cls(
            capacity=_amounts(node.status.get("capacity")),
            allocatable=_amounts(node.status.get("allocatable")),
            schedulable=not node.spec.get("unschedulable"),
            instance_type=labels.get(INSTANCE_TYPE) or labels.get(BETA_INSTANCE_TYPE, ""),
            region=labels.get(REGION, ""),
            zone=labels.get(ZONE, ""),
        )


def requests(pod: Pod) -> Amounts:
    """Returns what a pod takes of its node; nothing when it has terminated, or has no node yet."""
    return {} if pod.terminal or not pod.node else requests_of(pod.spec_json)


@frozen(kw_only=True)
class Inventory:
    """The nodes of a cluster, added up."""

    usage: Usage = Usage()
    """Over all nodes; `available` is what no pod has requested."""
    schedulable: Amounts = field(factory=dict)
    """Allocatable resources of the nodes that take pods."""
    nodes: int = 0
    instance_types: Mapping[str, int] = field(factory=dict)
    regions: Mapping[str, int] = field(factory=dict)
    zones: Mapping[str, int] = field(factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[NodeShare], taken: Iterable[Amounts]) -> Self:
        """Adds up nodes, and subtracts what pods have `taken`; cpu and memory are included without a node too."""
        shares = tuple(nodes)
        capacity = _with_usual(sum_resources(each.capacity for each in shares))
        allocatable = _with_usual(sum_resources(each.allocatable for each in shares))
        left = subtract_resources(allocatable, sum_resources(taken))
        return cls(
            usage=Usage(capacity, allocatable, {name: max(amount, ZERO) for name, amount in left.items()}),
            schedulable=_with_usual(sum_resources(each.allocatable for each in shares if each.schedulable)),
            nodes=len(shares),
            instance_types=_counted(each.instance_type for each in shares),
            regions=_counted(each.region for each in shares),
            zones=_counted(each.zone for each in shares),
        )

    def managed_status(self) -> Json:
        """Returns capacity and allocatable of a ManagedCluster, without the nodes that take no pods."""
        return {"capacity": format_resources(self.usage.capacity), "allocatable": format_resources(self.schedulable)}

    def member_usage(self) -> Json:
        """Returns `status.resourceUsage` of a MemberCluster, without its time."""
        parts = {"capacity": self.usage.capacity, "allocatable": self.usage.allocatable, "available": self.usage.available}
        return {name: format_resources(amounts) for name, amounts in parts.items()}

    def properties(self, *, version: str, entrypoint: str = "", authority: str = "") -> dict[str, str]:
        """Returns the computed properties; an empty argument gives none. `authority` is the base64 text of the CA."""
        found = {keys.NODE_COUNT: str(self.nodes), keys.K8S_VERSION: version, keys.ENTRYPOINT: entrypoint, keys.ENTRYPOINT_CA: authority}
        parts = {"total": self.usage.capacity, "allocatable": self.usage.allocatable, "available": self.usage.available}
        for part, amounts in parts.items():
            found |= {f"{_RESOURCES}/{part}-{name.replace('/', '.')}": str(amount) for name, amount in amounts.items()}
        found |= {f"{_INSTANCE_TYPES}/{name}/count": str(count) for name, count in self.instance_types.items()}
        for level, counts in (("region", self.regions), ("zone", self.zones)):
            found |= {f"{_TOPOLOGY}/{level}/{name}/count": str(count) for name, count in counts.items()}
        return {name: value for name, value in found.items() if value}


def merged(*, computed: Mapping[str, str], claims: Mapping[str, str], cluster_properties: Mapping[str, str]) -> dict[str, str]:
    """Returns one map; of two sources of a name, ClusterProperty objects win over ClusterClaims, and these over computed properties."""
    return {**computed, **claims, **cluster_properties}


@frozen
class ReportedClaims:
    """`status.clusterClaims`, and the names of the claims that exceed its limit."""

    listed: Sequence[Json]
    omitted: Sequence[str]


def reported_claims(claims: Mapping[str, str], *, limit: int = CLAIM_LIMIT) -> ReportedClaims:
    """Returns the reserved claims first, then at most `limit` others by name."""
    reserved = [name for name in keys.RESERVED_CLAIMS if name in claims]
    others = sorted(set(claims) - set(reserved))
    return ReportedClaims([{"name": name, "value": claims[name]} for name in (*reserved, *others[:limit])], others[limit:])


def _amounts(resources: object) -> dict[str, Quantity]:
    found = {}
    for name, text in resources.items() if isinstance(resources, dict) else ():
        try:
            found[name] = Quantity.parse(text)
        except ValueError:
            continue
    return found


def _with_usual(amounts: Amounts) -> Amounts:
    return {**dict.fromkeys(_ALWAYS, ZERO), **amounts}


def _counted(names: Iterable[str]) -> Mapping[str, int]:
    return dict(sorted(Counter(filter(None, names)).items()))
