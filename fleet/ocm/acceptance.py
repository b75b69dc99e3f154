"""What the hub creates for a cluster that it accepts, and what remains of it after a denial (pure).

Invariant: an accepted cluster gets the rights listed here in its own namespace and on its own record, and no others; a namespace that
exists without the label of the cluster is never used. Every right has its reason, and the roles are built from this one list.
"""

import enum
from collections.abc import Sequence
from typing import Final

from attrs import field, frozen

from fleet.api import keys
from fleet.api.clusters import HUB_ACCEPTED, ManagedCluster, MemberCluster, condition_of
from fleet.api.resources import ADDON_GROUP, CLUSTER_GROUP, REGISTER_GROUP, WORK_GROUP
from vkubelet.api.objects import Json, ObjectMeta
from vkubelet.api.rbac import RBAC, READ, Rule, granted, labelled, namespace_body, role_binding

ACCEPTED: Final = "HubClusterAdminAccepted"
DENIED: Final = "HubClusterAdminDenied"
ERROR: Final = "Error"
REGISTRATION_ROLE: Final = "open-cluster-management:managedcluster:registration"
WORK_ROLE: Final = "open-cluster-management:managedcluster:work"
BOOTSTRAP_ROLE: Final = "open-cluster-management:bootstrap"

_CERTIFICATES: Final = "certificates.k8s.io"
_LEASES: Final = "coordination.k8s.io"
_NEW_EVENTS: Final = "events.k8s.io"


# --- Rights -------------------------------------------------------------------------------------------------------------------------------


def denied_rules(cluster: str) -> tuple[Rule, ...]:
    """Returns the cluster-wide rights of a cluster that is not accepted: it may learn when it is."""
    return (Rule("managedclusters", READ, group=CLUSTER_GROUP, names=(cluster,), why="Reads its own record."),)


def cluster_rules(cluster: str) -> tuple[Rule, ...]:
    """Returns the cluster-wide rights of an accepted cluster."""
    own = (cluster,)
    tunnel = "Opens the tunnel of its own cluster; no API serves this resource."
    renews = "Has its own certificate renewed without a person; no API serves this resource."
    return (
        Rule("certificatesigningrequests", f"create {READ}", group=_CERTIFICATES, why="Requests the next certificate."),
        Rule("managedclusters/clientcertificates", "renew", group=REGISTER_GROUP, why=renews),
        Rule("managedclusters", f"{READ} update", group=CLUSTER_GROUP, names=own, why="Reads and updates its own record."),
        Rule("managedclusters/status", "patch update", group=CLUSTER_GROUP, names=own, why="Reports its own state."),
        Rule("managedclusters/tunnel", "create", group=REGISTER_GROUP, names=own, why=tunnel),
    )


def registration_rules() -> tuple[Rule, ...]:
    """Returns the rights in the namespace of an accepted cluster that keep it joined."""
    return (
        Rule("leases", f"{READ} update", group=_LEASES, why="Renews the Lease of the cluster."),
        Rule("managedclusteraddons", READ, group=ADDON_GROUP, why="Reads the addons of the cluster."),
        Rule("managedclusteraddons/status", "patch update", group=ADDON_GROUP, why="Reports the state of addons."),
        Rule("events", "create", group=_NEW_EVENTS, why="Records Events about the cluster."),
    )


def work_rules() -> tuple[Rule, ...]:
    """Returns the rights in the namespace of an accepted cluster by which its agent carries out works."""
    written = "create patch update"
    return (
        Rule("manifestworks", f"{READ} update patch", group=WORK_GROUP, why="Reads works, and holds them until they are removed."),
        Rule("manifestworks/status", "patch update", group=WORK_GROUP, why="Reports the state of works."),
        Rule("events", written, why="Records Events about works."),
        Rule("events", written, group=_NEW_EVENTS, why="Records Events about works."),
    )


def bootstrap_rules() -> tuple[Rule, ...]:
    """Returns the rights of an identity that may ask to join."""
    joins = "Creates its record as a member of a set."
    return (
        Rule("configmaps", "get", why="Reads how the hub is reached."),
        Rule("certificatesigningrequests", f"create {READ}", group=_CERTIFICATES, why="Requests the first certificate."),
        Rule("managedclusters", f"create {READ}", group=CLUSTER_GROUP, why="Creates its record; policies keep it from others."),
        Rule("managedclustersets/join", "create", group=CLUSTER_GROUP, why=joins),
    )


def gateway_rules(namespace: str = keys.NAMESPACE) -> tuple[Rule, ...]:
    """Returns the rights by which an accepted cluster finds the gateway and reaches it through the hub's API server."""
    opens, port = "Opens the tunnel through the API server.", f"{keys.GATEWAY}:tunnel"
    return (
        Rule("configmaps", "get", names=keys.GATEWAY, namespace=namespace, why="Reads the address of the gateway."),
        Rule("services/proxy", "get create", names=port, namespace=namespace, why=opens),
    )


# --- Objects of the hub -------------------------------------------------------------------------------------------------------------------


def hub_objects(namespace: str = keys.NAMESPACE) -> list[Json]:
    """Builds the roles that all clusters share, and the identity that may ask to join."""
    roles = {REGISTRATION_ROLE: registration_rules(), WORK_ROLE: work_rules()}
    made = [granted(rules, name, cluster_name=name, subject={})[0] for name, rules in roles.items()]
    made.append(granted(gateway_rules(namespace), keys.GATEWAY_CLIENTS, cluster_name="", subject={})[0])
    account = {"name": keys.BOOTSTRAP_ACCOUNT, "namespace": keys.BOOTSTRAP_NAMESPACE}
    bootstrap, binding = granted(bootstrap_rules(), BOOTSTRAP_ROLE, cluster_name=BOOTSTRAP_ROLE, subject={})
    subjects = [_group(keys.BOOTSTRAPPERS), {"kind": "ServiceAccount", **account}]
    identity = [namespace_body(keys.BOOTSTRAP_NAMESPACE), {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}]
    return [*made, *identity, bootstrap, {**binding, "subjects": subjects}]


# --- Objects of one cluster ---------------------------------------------------------------------------------------------------------------


def role_name(cluster: str) -> str:
    """Returns the name of the ClusterRole of a cluster, and the prefix of the names of its bindings."""
    return f"open-cluster-management:managedcluster:{cluster}"


def subjects_of(cluster: str, member: MemberCluster | None) -> list[Json]:
    """Returns the identities of a cluster: its groups, or for a mirror of a MemberCluster the identity of that."""
    return [_group(each) for each in keys.cluster_groups(cluster)] if member is None else [member.identity.subject]


def accepted_objects(cluster: ManagedCluster, namespace: str = keys.NAMESPACE, *, origin: MemberCluster | None = None) -> list[Json]:
    """Builds everything of an accepted cluster in the order of creation; `namespace` is that of the gateway, `origin` what it mirrors."""
    name, role, subjects = cluster.name, role_name(cluster.name), subjects_of(cluster.name, origin)
    work = _bound(f"{role}:work", name, to=WORK_ROLE, subjects=subjects)
    work["metadata"]["finalizers"] = [keys.WORK_CLEANUP]
    lease: Json = {
        "apiVersion": f"{_LEASES}/v1",
        "kind": "Lease",
        "metadata": {"name": keys.LEASE, "namespace": name},
        "spec": {"leaseDurationSeconds": cluster.lease_seconds},
    }
    gateway = _bound(f"{role}:gateway", namespace, to=keys.GATEWAY_CLIENTS, subjects=subjects, kind="Role")
    registration = _bound(f"{role}:registration", name, to=REGISTRATION_ROLE, subjects=subjects)
    made = [namespace_body(name), *_cluster_wide(name, cluster_rules(name), subjects), gateway, registration, work, lease]
    return [labelled(each, {keys.CLUSTER_NAME: name}) for each in made]


def denied_objects(cluster: str) -> list[Json]:
    """Builds what a cluster has that is not accepted, or not any more: the right to read its own record."""
    made = _cluster_wide(cluster, denied_rules(cluster), subjects_of(cluster, None))
    return [labelled(each, {keys.CLUSTER_NAME: cluster}) for each in made]


def revoked_bindings(cluster: str, namespace: str = keys.NAMESPACE) -> list[tuple[str, str]]:
    """Returns namespace and name of each RoleBinding that a denial deletes; the one of works stays until its finalizer is removed."""
    role = role_name(cluster)
    return [(namespace, f"{role}:gateway"), (cluster, f"{role}:registration"), (cluster, f"{role}:work")]


def _cluster_wide(cluster: str, rules: Sequence[Rule], subjects: Sequence[Json]) -> list[Json]:
    name = role_name(cluster)
    role, binding = granted(rules, name, cluster_name=name, subject={})
    return [role, {**binding, "subjects": list(subjects)}]


def _bound(name: str, namespace: str, *, to: str, subjects: Sequence[Json], kind: str = "ClusterRole") -> Json:
    made = role_binding(name, namespace, role=to, subject={})
    return {**made, "roleRef": {"apiGroup": RBAC, "kind": kind, "name": to}, "subjects": list(subjects)}


def _group(name: str) -> Json:
    return {"apiGroup": RBAC, "kind": "Group", "name": name}


# --- Decisions ----------------------------------------------------------------------------------------------------------------------------


class Step(enum.Enum):
    """What the hub does about a cluster."""

    NOTHING = "nothing"
    """It is being deleted, which the removal handles."""
    REFUSE = "refuse"
    """Its record can never be accepted."""
    ACCEPT = "accept"
    DENY = "deny"
    WAIT = "wait"
    """It is to be accepted, and its namespace is in the way."""


@frozen
class Decision:
    """What to do, and status, reason and message of the condition HubAcceptedManagedCluster; without status it is left as it is."""

    step: Step
    status: str = ""
    reason: str = ""
    message: str = field(default="")


def decide(cluster: ManagedCluster, namespace: ObjectMeta | None) -> Decision:
    """Decides about a cluster from its record and the namespace of its name, None when there is none."""
    if cluster.deleting:
        return Decision(Step.NOTHING)
    problem = keys.name_problem(cluster.name)
    if problem:
        return Decision(Step.REFUSE, "False", ERROR, f"metadata.name: {problem}")
    if not cluster.accepted:
        if condition_of(cluster.conditions, HUB_ACCEPTED) is None:
            return Decision(Step.DENY)
        return Decision(Step.DENY, "False", DENIED, "spec.hubAcceptsClient is false; set it to accept the cluster again")
    obstacle = namespace_obstacle(cluster.name, namespace)
    if obstacle:
        return Decision(Step.WAIT, "False", ERROR, obstacle)
    return Decision(Step.ACCEPT, "True", ACCEPTED, "the hub accepts the cluster")


def namespace_obstacle(cluster: str, namespace: ObjectMeta | None) -> str:
    """Returns why the namespace cannot be that of the cluster, with the remedy; "" when it can, or does not exist."""
    if namespace is None:
        return ""
    if namespace.deletion_timestamp is not None:
        return f"Namespace {cluster} is being deleted; the cluster is accepted once it is"
    if namespace.labels.get(keys.CLUSTER_NAME) != cluster:
        label = f"kubectl label namespace {cluster} {keys.CLUSTER_NAME}={cluster} --overwrite"
        return f"Namespace {cluster} exists and is not labelled as the cluster's; to use it for the cluster, run: {label}"
    return ""
