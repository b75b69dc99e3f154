"""Rights for the kinds of `provider.extra_kinds` in both clusters, and the admission policy that limits those in the worker (pure).

Invariant: a kind without namespaces has objects of the worker's owner beside the mirrors; the guard is what keeps a hub from writing those.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kubeocean.model import keys
from kubeocean.model.kinds import ExtraKind
from kubeocean.rbac.guards import Guard, guard_objects
from kubeocean.rbac.guards import Rule as Validation
from kubeocean.rbac.permissions import SYNCER, cluster_role_name
from vkubelet.api.objects import Json
from vkubelet.api.rbac import READ, Rule, granted, labelled

NAME: Final = f"{SYNCER}-kinds"
SHOWN: Final = (
    ExtraKind(api_version="GROUP/v1", resource="RESOURCE", namespaced=False),
    ExtraKind(api_version="GROUP/v1", resource="NAMESPACED-RESOURCE"),
)
"""Stand for all kinds where none are known: in the reference, and to find what an earlier command created."""
_GUARD: Final = "kinds"


def worker_rules(mount_namespace: str, kinds: Iterable[ExtraKind]) -> tuple[Rule, ...]:
    """Returns the rights on mirrors: in the mount namespace, or in the cluster for kinds without namespaces."""
    return tuple(_mirrored(kind, mount_namespace if kind.namespaced else "") for kind in kinds)


def tenant_rules(kinds: Iterable[ExtraKind]) -> tuple[Rule, ...]:
    """Returns the rights on mirrors within one tenant's namespace, for a role that is bound there."""
    return tuple(_mirrored(kind, "") for kind in kinds if kind.namespaced)


def _mirrored(kind: ExtraKind, namespace: str) -> Rule:
    bound = f"The mirrors are in namespace {namespace}." if kind.namespaced and namespace else "The namespace of the tenant."
    return Rule(
        kind.resource,
        f"{READ} create update delete",
        group=kind.group,
        namespace=namespace,
        essential=False,
        why=f"Mirrors {kind.title} of the hub (provider.extra_kinds).",
        bound=bound if kind.namespaced else f"guard {_GUARD}",
    )


def worker_objects(mount_namespace: str, kinds: Sequence[ExtraKind], *, labels: Json | None = None) -> list[Json]:
    """Builds the roles with these rights, apart from those of the identity, so that they can be removed alone."""
    subject = {"kind": "ServiceAccount", "name": SYNCER, "namespace": mount_namespace}
    cluster_name = f"{cluster_role_name(mount_namespace)}-kinds"
    made = granted(worker_rules(mount_namespace, kinds), NAME, cluster_name=cluster_name, subject=subject)
    return [labelled(each, labels) for each in made]


def worker_guards(mount_namespace: str, kinds: Sequence[ExtraKind], *, labels: Json | None = None) -> list[Json]:
    """Builds the admission policy for the kinds without namespaces; none where there is no such kind."""
    wide = [kind for kind in kinds if not kind.namespaced]
    if not wide:
        return []
    user, prefix = f"system:serviceaccount:{mount_namespace}:{SYNCER}", cluster_role_name(mount_namespace)
    policy, binding = guard_objects(mount_namespace, (guard(wide[0]),), user=user, prefix=prefix, labels=labels)
    rules = [{**policy["spec"]["matchConstraints"]["resourceRules"][0], **_resources(kind)} for kind in wide]
    policy["spec"]["matchConstraints"]["resourceRules"] = rules
    return [policy, binding]


def guard(kind: ExtraKind) -> Guard:
    """Returns the guard for a kind without namespaces."""
    marked = " && ".join(
        f"({each} == null || (has({each}.metadata.labels) && '{keys.MANAGED_BY}' in {each}.metadata.labels))"
        for each in ("object", "oldObject")
    )
    return Guard(
        name=_GUARD,
        why="Extra kinds without namespaces have objects of the worker's owner beside the mirrors, which the rights include.",
        group=kind.group,
        version=kind.version,
        resources=(kind.resource,),
        operations=("CREATE", "UPDATE", "DELETE"),
        rules=(Validation(marked, f"a hub may write only objects with the label {keys.MANAGED_BY}"),),
    )


def _resources(kind: ExtraKind) -> Json:
    return {"apiGroups": [kind.group], "apiVersions": [kind.version], "resources": [kind.resource]}
