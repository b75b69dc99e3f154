"""Rights of the process `fleet hub`, each with its reason (pure).

Invariant: this is the only list. The API server lets no client grant a right that it lacks, so the process has the rights of every accepted
cluster itself; it may bind the roles that all clusters share, by their names, without having what they grant.
"""

from collections.abc import Collection, Iterable
from typing import Final

from fleet.api import keys, resources
from vkubelet.api.objects import Json
from vkubelet.api.rbac import RBAC, READ, Rule, granted

INVENTORY: Final = "inventory"
KUBEFLEET: Final = "kubefleet"

_CLUSTERS, _REGISTER, _PROFILES = resources.CLUSTER_GROUP, resources.REGISTER_GROUP, resources.INVENTORY_GROUP
_WORKS, _ADDONS = resources.WORK_GROUP, resources.ADDON_GROUP
_FLEET, _PLACEMENT = resources.FLEET_GROUP, resources.PLACEMENT_GROUP
_CERTIFICATES: Final = "certificates.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"
_LEASES: Final = "coordination.k8s.io"
_WATCH: Final = "list watch"
_WRITE: Final = f"{_WATCH} create patch delete"


def hub_rules(modules: Collection[str] = (INVENTORY, KUBEFLEET), *, namespace: str = keys.NAMESPACE) -> tuple[Rule, ...]:
    """Returns the rights of the process with these modules; `namespace` is its own."""
    inventory = _inventory_rules() if INVENTORY in modules else ()
    kubefleet = _kubefleet_rules() if KUBEFLEET in modules else ()
    return (*_record_rules(), *_request_rules(), *_granting_rules(), *_removal_rules(), *inventory, *kubefleet, *_own_rules(namespace))


def hub_objects(account: str = keys.HUB, *, namespace: str = keys.NAMESPACE, modules: Iterable[str] = (INVENTORY, KUBEFLEET)) -> list[Json]:
    """Builds the ServiceAccount of the process, its roles and their bindings."""
    own = {"name": account, "namespace": namespace}
    roles = granted(
        hub_rules(tuple(modules), namespace=namespace), keys.HUB, cluster_name=keys.HUB, subject={"kind": "ServiceAccount", **own}
    )
    return [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own}, *roles]


def _record_rules() -> tuple[Rule, ...]:
    sets = "Creates the sets default and global, and corrects them."
    return (
        Rule("managedclusters", f"{READ} patch", group=_CLUSTERS, why="Reads the records of clusters; adds finalizers and taints."),
        Rule("managedclusters/status", "patch", group=_CLUSTERS, why="Reports acceptance, health and removal of clusters."),
        Rule("managedclusters/accept", "update", group=_REGISTER, why="Accepts clusters of trusted users, and mirrors of members."),
        Rule("managedclustersets", f"{_WATCH} create patch", group=_CLUSTERS, why=sets),
        Rule("managedclustersets/join", "create", group=_CLUSTERS, why="Adds clusters without a set to the set default."),
        Rule("managedclustersetbindings", _WATCH, group=_CLUSTERS, why="Reads which namespaces use which sets."),
        Rule("managedclustersets/status managedclustersetbindings/status", "patch", group=_CLUSTERS, why="Reports sets and bindings."),
    )


def _request_rules() -> tuple[Rule, ...]:
    approves = "Approves renewals of certificates, and first requests of trusted users."
    return (
        Rule("certificatesigningrequests", _WATCH, group=_CERTIFICATES, why="Reads the certificate requests of clusters."),
        Rule("certificatesigningrequests/approval", "update", group=_CERTIFICATES, why=approves),
        Rule("signers", "approve", group=_CERTIFICATES, names=keys.CLIENT_SIGNER, why=approves),
        Rule("subjectaccessreviews", "create", group="authorization.k8s.io", why="Checks that a cluster may renew its certificate."),
    )


def _granting_rules() -> tuple[Rule, ...]:
    shared = ("open-cluster-management:managedcluster:registration", "open-cluster-management:managedcluster:work")
    grants = "Granted to each accepted cluster for its own record."
    return (
        Rule("namespaces", f"{_WATCH} create", why="Creates the namespaces of clusters."),
        Rule("leases", f"{READ} create patch delete", group=_LEASES, why="Creates and reads the Leases of clusters."),
        Rule("clusterroles clusterrolebindings rolebindings", _WRITE, group=RBAC, why="Grants and revokes the rights of clusters."),
        Rule("clusterroles", "bind", group=RBAC, names=shared, why="Binds the two roles that all clusters share."),
        Rule("roles", "bind", group=RBAC, names=keys.GATEWAY_CLIENTS, why="Binds the role that lets clusters reach the gateway."),
        Rule("certificatesigningrequests", "create get", group=_CERTIFICATES, why=grants),
        Rule("managedclusters", "update", group=_CLUSTERS, why=grants),
        Rule("managedclusters/status", "update", group=_CLUSTERS, why=grants),
        Rule("managedclusters/clientcertificates", "renew", group=_REGISTER, why=grants),
        Rule("managedclusters/tunnel", "create", group=_REGISTER, why=grants),
    )


def _removal_rules() -> tuple[Rule, ...]:
    removes = "Removes the contents of the namespaces of deleted clusters."
    return (
        Rule("manifestworks", "list patch delete", group=_WORKS, why=removes),
        Rule("managedclusteraddons", f"{_WATCH} patch delete", group=_ADDONS, why=removes),
        Rule("managedclusteraddons/status", "patch", group=_ADDONS, why="Reports addons of unreachable clusters as unknown."),
    )


def _inventory_rules() -> tuple[Rule, ...]:
    return (
        Rule("clusterprofiles", _WRITE, group=_PROFILES, why="Publishes a ClusterProfile of each cluster."),
        Rule("clusterprofiles/status", "patch", group=_PROFILES, why="Reports the state of clusters to readers of ClusterProfiles."),
    )


def _kubefleet_rules() -> tuple[Rule, ...]:
    grants = "Granted to each member in its own namespace."
    mirrors = "Creates ManagedClusters that mirror members, and deletes them with these."
    return (
        Rule("*", "*", group=_FLEET, why=f"Reads and writes members. {grants}"),
        Rule("*", "*", group=_PLACEMENT, why=f"Releases the works of members that leave. {grants}"),
        Rule("internalserviceexports", _WATCH, group=resources.NETWORKING_GROUP, why="Marks members that export services."),
        Rule("events", f"{READ} create patch update", why=grants),
        Rule("events", f"{READ} create patch update", group="events.k8s.io", why=grants),
        Rule("roles", _WRITE, group=RBAC, why="Grants the rights of members in their namespaces."),
        Rule("namespaces", "patch delete", why="Labels the namespaces of members, and deletes them when members have left."),
        Rule("managedclusters", "create delete", group=_CLUSTERS, why=mirrors),
    )


def _own_rules(namespace: str) -> tuple[Rule, ...]:
    election = "Elects one leader among the replicas."
    guards = "Keeps the policy that limits who writes namespaces and definitions of the fleet, where a setting names administrators."
    return (
        Rule("events", "create patch", why="Records Events about clusters."),
        Rule(
            "validatingadmissionpolicies validatingadmissionpolicybindings",
            "get create patch delete",
            group=_ADMISSION,
            names=keys.GUARD_RAILS,
            why=guards,
        ),
        Rule(
            "deployments",
            "get",
            group="apps",
            namespace=namespace,
            names=keys.HUB,
            why="Finds the object that Events about modules are about.",
        ),
        Rule("leases", "create", group=_LEASES, namespace=namespace, why=election),
        Rule("leases", "get update", group=_LEASES, namespace=namespace, names=keys.HUB, why=election),
    )
