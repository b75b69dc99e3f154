"""Labels, annotations, finalizers, names and identities of a fleet.

Invariant: names of Open Cluster Management and KubeFleet are theirs, exactly; those of this project start with `fleet.vkubelet.io/`.
"""

import re
from collections.abc import Sequence
from typing import Final

from vkubelet.api.names import is_dns_label

# --- Open Cluster Management --------------------------------------------------------------------------------------------------------------

CLUSTER_NAME: Final = "open-cluster-management.io/cluster-name"
"""Label of everything that belongs to one cluster: its namespace, its requests for certificates, its roles."""
CLUSTER_SET: Final = "cluster.open-cluster-management.io/clusterset"
MANAGED_NAMESPACE: Final = "clusterset.open-cluster-management.io/"
"""Prefix of the label of a worker's namespaces that sets prescribe; a hash of the hub follows."""
DEFAULT_SET: Final = "default"
GLOBAL_SET: Final = "global"
SPOKE_ONLY: Final = "open-cluster-management.io/spoke-only"
"""Label of a ClusterClaim that is not reported to the hub."""
ADDON_FEATURE: Final = "feature.open-cluster-management.io/addon-"
"""Prefix of labels of a ManagedCluster with the state of its addons."""

ACCEPTED_ON: Final = "open-cluster-management.io/automatically-accepted-on"
CLEANUP_PRIORITY: Final = "open-cluster-management.io/cleanup-priority"
SKIP_CLOCK_CHECK: Final = "registration.open-cluster-management.io/skip-clock-sync-check"
AUTO_UPDATE: Final = "cluster.open-cluster-management.io/autoupdate"
AGENT_PREFIX: Final = "agent.open-cluster-management.io"
"""Prefix of the annotations and, by default, labels that an agent may change on its own record."""

RBAC_CLEANUP: Final = "cluster.open-cluster-management.io/api-resource-cleanup"
RESOURCE_CLEANUP: Final = "cluster.open-cluster-management.io/resource-cleanup"
WORK_CLEANUP: Final = "cluster.open-cluster-management.io/manifest-work-cleanup"

UNAVAILABLE: Final = "cluster.open-cluster-management.io/unavailable"
UNREACHABLE: Final = "cluster.open-cluster-management.io/unreachable"
"""Keys of the two taints that the hub sets by the health of a cluster."""

CLUSTER_ID_CLAIM: Final = "id.k8s.io"
VERSION_CLAIM: Final = "kubeversion.open-cluster-management.io"
PLATFORM_CLAIM: Final = "platform.open-cluster-management.io"
PRODUCT_CLAIM: Final = "product.open-cluster-management.io"
RESERVED_CLAIMS: Final = (CLUSTER_ID_CLAIM, VERSION_CLAIM, PLATFORM_CLAIM, PRODUCT_CLAIM)

LEASE: Final = "managed-cluster-lease"
BOOTSTRAPPERS: Final = "system:bootstrappers:managedcluster"
BOOTSTRAP_ACCOUNT: Final = "agent-registration-bootstrap"
BOOTSTRAP_NAMESPACE: Final = "open-cluster-management"
MANAGED_CLUSTERS_GROUP: Final = "system:open-cluster-management:managed-clusters"
CLIENT_SIGNER: Final = "kubernetes.io/kube-apiserver-client"
CLIENT_USAGES: Final = ("digital signature", "key encipherment", "client auth")

_USER_PREFIX: Final = "system:open-cluster-management:"

# --- KubeFleet ----------------------------------------------------------------------------------------------------------------------------

FLEET_RESOURCE: Final = "kubernetes-fleet.io/is-fleet-resource"
MEMBER_NAME: Final = "kubernetes-fleet.io/member-name"
"""Label of the objects of one member."""
MEMBER_FINALIZER: Final = "kubernetes-fleet.io/membercluster-finalizer"
PROFILE_FINALIZER: Final = "kubernetes-fleet.io/cluster-profile-cleanup"
MEMBER_AGENT: Final = "MemberAgent"
"""Type of the agent that joins a cluster."""

NODE_COUNT: Final = "kubernetes-fleet.io/node-count"
K8S_VERSION: Final = "k8s.io/k8s-version"
ENTRYPOINT: Final = "k8s.io/cluster-entrypoint"
ENTRYPOINT_CA: Final = "k8s.io/cluster-certificate-authority-data"

# --- SIG Multicluster ---------------------------------------------------------------------------------------------------------------------

CLUSTER_MANAGER: Final = "x-k8s.io/cluster-manager"
"""Label of a ClusterProfile with the name of its manager."""
PROFILE_SET: Final = "multicluster.x-k8s.io/clusterset"

# --- Ours ---------------------------------------------------------------------------------------------------------------------------------

NAMESPACE: Final = "fleet-system"
"""Default namespace of hub and agent processes."""
HUB: Final = "fleet-hub"
"""Field manager and event source of the hub's process."""
AGENT: Final = "fleet-agent"
"""Field manager, event source, Deployment and leader Lease of the agent's process."""
BOOTSTRAP_SECRET: Final = "bootstrap-hub-kubeconfig"
"""Secret in the worker with the kubeconfig by which it asks to join a hub."""
HUB_SECRET: Final = "hub-kubeconfig-secret"
"""Secret in the worker with the certificate that the hub issued."""
GUARD_RAILS: Final = "guardrails.fleet.vkubelet.io"
"""Admission policy, and its binding, by which only administrators write namespaces and definitions of the fleet."""
GATEWAY: Final = "fleet-gateway"
GATEWAY_CLIENTS: Final = "fleet-gateway-clients"

_OURS: Final = "fleet.vkubelet.io/"
ORIGIN: Final = f"{_OURS}origin"
CONFIRM: Final = f"{_OURS}confirm"
LEASE_GRACE: Final = f"{_OURS}lease-grace-multiple"
FORCE_CLEANUP: Final = f"{_OURS}force-cleanup-after"
EXPORTS: Final = f"{_OURS}exports-services"
"""Annotation of a MemberCluster whose namespace contains exports of services; an admission policy refuses its deletion then."""

_RESERVED: Final = re.compile(r"default|kube-.*|fleet-system|fleet-member-.*|open-cluster-management.*|kubeocean-system")


def is_reserved(cluster: str) -> bool:
    """Checks whether a cluster cannot have this name, because its namespace would be one of another purpose."""
    return _RESERVED.fullmatch(cluster) is not None


def name_problem(cluster: str) -> str:
    """Returns why a cluster cannot have this name, with the remedy; "" when it can."""
    if not is_dns_label(cluster):
        return "must be a DNS label, because it is the name of a namespace: at most 63 lower case letters, digits and '-'"
    return f"{cluster} is reserved for another namespace; choose another name" if is_reserved(cluster) else ""


def user_name(cluster: str, agent: str) -> str:
    """Returns the user name of an agent with a certificate: the common name."""
    return f"{_USER_PREFIX}{cluster}:{agent}"


def cluster_group(cluster: str) -> str:
    """Returns the group of all identities of a cluster: the organization of a certificate."""
    return f"{_USER_PREFIX}{cluster}"


def cluster_groups(cluster: str) -> Sequence[str]:
    """Returns the groups of a cluster's identities; the second is that of identities without a certificate."""
    return (cluster_group(cluster), f"open-cluster-management:{cluster}")


def agent_of(user: str, cluster: str) -> str:
    """Returns the agent in the user name of a cluster; "" for any other user name."""
    head, _, agent = user.rpartition(":")
    return agent if head == cluster_group(cluster) else ""


def member_namespace(cluster: str) -> str:
    return f"fleet-member-{cluster}"


def member_role(cluster: str) -> str:
    return f"fleet-role-{cluster}"


def member_binding(cluster: str) -> str:
    return f"fleet-rolebinding-{cluster}"
