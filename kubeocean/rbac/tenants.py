"""Rights and namespaces of a worker for `namespaceMapping: PerNamespace`: one namespace for each hub namespace, the tenant (pure).

The worker's owner prepares the namespace of a tenant with the objects of `tenant_objects`. Kubeocean may create it only with
`creates=True`, and the guards then limit it to names with the prefix of the mount namespace and to this one role.

Invariant: the label TENANT_OF on a namespace is the consent of the worker's owner, and no right granted here can add it to one that exists.
"""

from collections.abc import Sequence
from typing import Final

from kubeocean.model import keys
from kubeocean.rbac.guards import Guard, Trial, guard_objects
from kubeocean.rbac.guards import Rule as Validation
from kubeocean.rbac.permissions import SYNCER, cluster_role_name, mounted_rules
from vkubelet.api.objects import NAMESPACES, NETWORKPOLICIES, ROLEBINDINGS, Json, Resource, Unknown
from vkubelet.api.rbac import RBAC, READ, Rule, granted, labelled, role_binding

RESOURCEQUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota", True, Unknown)
POD_SECURITY: Final = "pod-security.kubernetes.io/enforce"
LEVELS: Final = ("baseline", "restricted")
NAME: Final = "kubeocean-tenant"
_QUOTA: Final = {"pods": "100", "persistentvolumeclaims": "20", "services.nodeports": "0", "services.loadbalancers": "0"}


def tenant_role(mount_namespace: str) -> str:
    """Returns the name of the ClusterRole that is bound in each tenant's namespace."""
    return f"{cluster_role_name(mount_namespace)}-tenant"


def tenant_rules(mount_namespace: str) -> tuple[Rule, ...]:
    """Returns the rights within one tenant's namespace."""
    isolation = "Mirrors NetworkPolicies of the hub, and isolates the namespaces that Kubeocean creates."
    verbs = f"{READ} create update delete"
    network = Rule("networkpolicies", verbs, group=NETWORKPOLICIES.group, why=isolation, bound="guard networkpolicies")
    return (*mounted_rules(mount_namespace), network)


def wide_rules(mount_namespace: str, *, creates: bool = False) -> tuple[Rule, ...]:
    """Returns the cluster-wide rights; `creates` adds those to create and delete namespaces of tenants."""
    names = "Finds the namespaces of tenants by their label. The names of all namespaces are known from their pods already."
    found = Rule("namespaces", READ, why=names)
    if not creates:
        return (found,)
    make = "Creates the namespace of each tenant, and deletes it with the binding."
    bind = "Binds the role of tenants, and no other, in the namespaces that it creates."
    return (
        found,
        Rule("namespaces", "create delete", why=make, bound="guard tenants"),
        Rule("rolebindings", "create", group=RBAC, why=bind, bound="guard tenant-roles"),
        Rule("clusterroles", "bind", group=RBAC, names=tenant_role(mount_namespace), why=bind, bound="guard tenant-roles"),
    )


def wide_objects(mount_namespace: str, *, creates: bool = False, labels: Json | None = None) -> list[Json]:
    """Builds the cluster-wide objects: the role of tenants, and the rights to find or create their namespaces."""
    role = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": tenant_role(mount_namespace)},
        "rules": [rule.body for rule in tenant_rules(mount_namespace)],
    }
    name = f"{cluster_role_name(mount_namespace)}-namespaces"
    rights = granted(wide_rules(mount_namespace, creates=creates), name, cluster_name=name, subject=_subject(mount_namespace))
    return [labelled(each, labels) for each in (role, *rights)]


def tenant_objects(mount_namespace: str, tenant: str, *, level: str = "baseline", labels: Json | None = None) -> list[Json]:
    """Builds what the worker's owner applies for one hub namespace, to be edited by them: namespace, role binding, quota, isolation."""
    space = keys.Identity("", mount_namespace, keys.PER_NAMESPACE).namespace_of(tenant)
    quota: Json = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": NAME, "namespace": space},
        "spec": {"hard": dict(_QUOTA)},
    }
    made = [namespace_of_tenant(mount_namespace, tenant, level=level), binding_of_tenant(mount_namespace, space), quota, isolation(space)]
    return [labelled(each, labels) for each in made]


def namespace_of_tenant(mount_namespace: str, tenant: str, *, level: str = "baseline") -> Json:
    """Builds the namespace of one hub namespace."""
    metadata = {
        "name": keys.Identity("", mount_namespace, keys.PER_NAMESPACE).namespace_of(tenant),
        "labels": {keys.TENANT_OF: mount_namespace, POD_SECURITY: level if level in LEVELS else LEVELS[0]},
        "annotations": {keys.VIRTUAL_NAMESPACE: tenant},
    }
    return {"apiVersion": "v1", "kind": NAMESPACES.kind, "metadata": metadata}


def binding_of_tenant(mount_namespace: str, space: str) -> Json:
    """Builds the RoleBinding of the identity in a tenant's namespace."""
    body = role_binding(NAME, space, role=tenant_role(mount_namespace), subject=_subject(mount_namespace))
    body["roleRef"]["kind"] = "ClusterRole"
    return body


def isolation(space: str) -> Json:
    """Builds the NetworkPolicy that lets nothing into the namespace, where the network of the worker enforces it.

    It has no rules, because policies only add to one another: others of the same namespace allow what policies of the hub allow.
    """
    return {
        "apiVersion": NETWORKPOLICIES.api_version,
        "kind": NETWORKPOLICIES.kind,
        "metadata": {"name": NAME, "namespace": space},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }


# --- What limits these rights -------------------------------------------------------------------------------------------------------------


def guards_of_tenants(mount_namespace: str, *, creates: bool = True) -> tuple[Guard, ...]:
    """Returns the guards of the rights in namespaces of tenants, and with `creates` of those that only it grants."""
    return (_policies(), *(_creation(mount_namespace) if creates else ()))


def _policies() -> Guard:
    marked = (f"(has({each}.metadata.labels) && '{keys.MANAGED_BY}' in {each}.metadata.labels)" for each in ("object", "oldObject"))
    after, before = marked
    rules = "has(object.spec.ingress) || has(object.spec.egress)"
    isolates = f"oldObject == null && object.metadata.name == '{NAME}' && !({rules})"
    labels = "namespaceObject.metadata.labels"
    limited = f"has({labels}) && '{keys.OWNER_LIMITS_EGRESS}' in {labels} && {labels}['{keys.OWNER_LIMITS_EGRESS}'] == 'true'"
    sends = "has(object.spec.egress) || (has(object.spec.policyTypes) && 'Egress' in object.spec.policyTypes)"
    return Guard(
        name="networkpolicies",
        why="The right to mirror NetworkPolicies would include those of the worker's owner, and opening what these close.",
        group=NETWORKPOLICIES.group,
        resources=(NETWORKPOLICIES.plural,),
        operations=("CREATE", "UPDATE", "DELETE"),
        rules=(
            Validation(
                f"((object == null || {after}) && (oldObject == null || {before})) || ({isolates})",
                f"a hub may write only NetworkPolicies with the label {keys.MANAGED_BY}, and create {NAME} without rules",
            ),
            Validation(
                f"object == null || !({limited}) || !({sends})",
                f"a hub must not open the egress of a namespace with the label {keys.OWNER_LIMITS_EGRESS}: true",
            ),
        ),
    )


def _creation(mount_namespace: str) -> tuple[Guard, ...]:
    made = "(object != null ? object : oldObject)"
    named = f"{made}.metadata.name.startsWith('{mount_namespace}-')"
    marked = f"has({made}.metadata.labels) && '{keys.TENANT_OF}' in {made}.metadata.labels"
    ours = f"{marked} && {made}.metadata.labels['{keys.TENANT_OF}'] == '{mount_namespace}'"
    created = f"oldObject == null || ('{keys.OWNER}' in oldObject.metadata.labels)"
    levels = ", ".join(f"'{level}'" for level in LEVELS)
    level = (
        f"object == null || ('{POD_SECURITY}' in object.metadata.labels && object.metadata.labels['{POD_SECURITY}'] in [{levels}]"
        " && object.metadata.labels.all(k, !k.startsWith('pod-security.kubernetes.io/enforce-version')))"
    )
    role, space = tenant_role(mount_namespace), "namespaceObject.metadata"
    inside = f"has({space}.labels) && '{keys.TENANT_OF}' in {space}.labels && {space}.labels['{keys.TENANT_OF}'] == '{mount_namespace}'"
    subject = (
        "has(object.subjects) && object.subjects.size() == 1 && object.subjects[0].kind == 'ServiceAccount'"
        f" && object.subjects[0].name == '{SYNCER}' && object.subjects[0].namespace == '{mount_namespace}'"
    )
    return (
        Guard(
            name="tenants",
            why="The right to create namespaces of tenants would include namespaces of any name, and without a Pod Security level.",
            resources=(NAMESPACES.plural,),
            operations=("CREATE", "DELETE"),
            rules=(
                Validation(
                    f"{named} && {ours} && ({created})",
                    f"a hub may create, and delete again, only namespaces {mount_namespace}-* with the label {keys.TENANT_OF}",
                ),
                Validation(level, f"namespaces of a hub must have the label {POD_SECURITY}: {' or '.join(LEVELS)}"),
            ),
        ),
        Guard(
            name="tenant-roles",
            why="The right to bind the role of tenants would include binding it in namespaces of others.",
            group=RBAC,
            resources=(ROLEBINDINGS.plural,),
            operations=("CREATE",),
            rules=(
                Validation(inside, f"a hub may bind its role only in namespaces with the label {keys.TENANT_OF}: {mount_namespace}"),
                Validation(
                    f"object.roleRef.kind == 'ClusterRole' && object.roleRef.name == '{role}' && {subject}",
                    f"a hub may bind only ClusterRole {role}, to its own identity",
                ),
            ),
        ),
    )


def tenant_guards(mount_namespace: str, *, creates: bool = True, labels: Json | None = None) -> list[Json]:
    """Builds the admission policies that limit the rights of `tenant_rules`, and with `creates` that to create namespaces."""
    user, prefix = f"system:serviceaccount:{mount_namespace}:{SYNCER}", cluster_role_name(mount_namespace)
    limits = guards_of_tenants(mount_namespace, creates=creates)
    return guard_objects(mount_namespace, limits, user=user, prefix=prefix, labels=labels)


def trials_of_tenants(mount_namespace: str) -> Sequence[Trial]:
    """Returns the writes that the guards must refuse before a namespace of a tenant is created."""
    outside = {"metadata": {"generateName": "kubeocean-trial-", "labels": {keys.TENANT_OF: mount_namespace, POD_SECURITY: LEVELS[0]}}}
    return (
        Trial(gains="create namespaces of any name", resource=NAMESPACES, body=outside),
        Trial(
            gains="bind its role in namespaces of others",
            resource=ROLEBINDINGS,
            body=binding_of_tenant(mount_namespace, "default"),
        ),
    )


def _subject(mount_namespace: str) -> Json:
    return {"kind": "ServiceAccount", "name": SYNCER, "namespace": mount_namespace}
