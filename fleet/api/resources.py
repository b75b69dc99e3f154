"""The custom resources of a fleet: their paths in the API server, and their definitions.

Invariant: the YAML in `fleet/manifests` is the only copy of the definitions.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from fleet.api import keys
from vkubelet.api.objects import Resource, Unknown

CLUSTER_GROUP: Final = "cluster.open-cluster-management.io"
REGISTER_GROUP: Final = "register.open-cluster-management.io"
"""Group of rights that no API serves: acceptance of clusters, renewal of certificates."""
WORK_GROUP: Final = "work.open-cluster-management.io"
ADDON_GROUP: Final = "addon.open-cluster-management.io"
FLEET_GROUP: Final = "cluster.kubernetes-fleet.io"
PLACEMENT_GROUP: Final = "placement.kubernetes-fleet.io"
INVENTORY_GROUP: Final = "multicluster.x-k8s.io"
NETWORKING_GROUP: Final = "networking.fleet.azure.com"
"""Group of the networking of KubeFleet, which a hub need not serve."""

MANAGEDCLUSTERS: Final = Resource(CLUSTER_GROUP, "v1", "managedclusters", "ManagedCluster", False, Unknown)
MANAGEDCLUSTERSETS: Final = Resource(CLUSTER_GROUP, "v1beta2", "managedclustersets", "ManagedClusterSet", False, Unknown)
MANAGEDCLUSTERSETBINDINGS: Final = Resource(
    CLUSTER_GROUP, "v1beta2", "managedclustersetbindings", "ManagedClusterSetBinding", True, Unknown
)
CLUSTERCLAIMS: Final = Resource(CLUSTER_GROUP, "v1alpha1", "clusterclaims", "ClusterClaim", False, Unknown)
"""In each worker."""
MANIFESTWORKS: Final = Resource(WORK_GROUP, "v1", "manifestworks", "ManifestWork", True, Unknown)
MANAGEDCLUSTERADDONS: Final = Resource(ADDON_GROUP, "v1alpha1", "managedclusteraddons", "ManagedClusterAddOn", True, Unknown)
MEMBERCLUSTERS: Final = Resource(FLEET_GROUP, "v1beta1", "memberclusters", "MemberCluster", False, Unknown)
INTERNALMEMBERCLUSTERS: Final = Resource(FLEET_GROUP, "v1beta1", "internalmemberclusters", "InternalMemberCluster", True, Unknown)
MEMBERWORKS: Final = Resource(PLACEMENT_GROUP, "v1beta1", "works", "Work", True, Unknown)
SERVICEEXPORTS: Final = Resource(NETWORKING_GROUP, "v1alpha1", "internalserviceexports", "InternalServiceExport", True, Unknown)
CLUSTERPROFILES: Final = Resource(INVENTORY_GROUP, "v1alpha1", "clusterprofiles", "ClusterProfile", True, Unknown)

CLUSTER_LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, Unknown)
"""The Leases of clusters; one is renewed so often that its times are read only when they count."""

DEFINED: Final = (
    MANAGEDCLUSTERS,
    MANAGEDCLUSTERSETS,
    MANAGEDCLUSTERSETBINDINGS,
    CLUSTERCLAIMS,
    MANIFESTWORKS,
    MANAGEDCLUSTERADDONS,
    MEMBERCLUSTERS,
    INTERNALMEMBERCLUSTERS,
    CLUSTERPROFILES,
)


def admission_policies(label_prefixes: Sequence[str] = (keys.AGENT_PREFIX,), *, executor_required: bool = False) -> str:
    """Returns the YAML of the admission policies; a worker may change those labels of its record that have these prefixes.

    `executor_required`: a work without an executor takes a right too, that to execute as the agent.
    """
    text = _manifest("admissionpolicies").replace(f"['{keys.AGENT_PREFIX}']", _listed(label_prefixes))
    return text.replace("expression: 'false'", "expression: 'true'") if executor_required else text


def guard_rails(administrators: Sequence[str]) -> str:
    """Returns the YAML of the policy by which only these users and groups write namespaces and definitions of the fleet."""
    return _manifest("guardrails").replace("['administrators']", _listed(administrators))


def definition(resource: Resource[Unknown]) -> str:
    """Returns the YAML of its CustomResourceDefinition, ready to be applied."""
    return _manifest(resource.plural)


def _manifest(name: str) -> str:
    return files("fleet").joinpath("manifests", f"{name}.yaml").read_text(encoding="utf-8")


def _listed(texts: Sequence[str]) -> str:
    """Formats a list of CEL inside of a YAML text with quotes."""
    return f"[{', '.join(repr(each) for each in texts)}]"
