"""ValidatingAdmissionPolicies that limit the worker identity to the purpose of its rights, and trials that verify them (pure).

RBAC grants verbs on entire objects: `patch resourceleasingpolicies` includes the leased amounts, `patch namespaces` the Pod Security level.
Each guard closes one such gap for the ServiceAccount in the mount namespace, and for no other user.

Invariant: a guard never refuses what `kubeocean` writes; a trial is a request of that ServiceAccount that some guard must refuse.
"""

from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen

from kubeocean.model import keys
from kubeocean.model.crds import GROUP, POLICIES
from kubeocean.model.references import MACHINES, SECRETS_OF
from vkubelet.api.names import SLICE_MANAGED_BY
from vkubelet.api.objects import ENDPOINTSLICES, NAMESPACES, PODS, PRIORITYCLASSES, PVS, SECRETS, SERVICES, Json, Resource

API: Final = "admissionregistration.k8s.io"
MOUNT_NAMESPACE: Final = "mount namespace"
_OBJECT: Final = "(object != null ? object : oldObject)"
_TOKEN_SECRETS: Final = ("kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token")


@frozen
class Rule:
    """One validation: a CEL expression, and the message of the refusal."""

    expression: str
    message: str


@frozen(kw_only=True)
class Guard:
    """One policy with its binding. `resources` are `plural` or `plural/subresource` of `group`."""

    name: str
    why: str
    """What the identity could do without it, as a sentence."""
    group: str = ""
    version: str = "v1"
    resources: Sequence[str]
    operations: Sequence[str]
    rules: Sequence[Rule]
    variables: Sequence[tuple[str, str]] = ()
    sees_namespace: bool = False
    """Whether the expressions read the mount namespace as `params`."""


def _same(path: str, *, empty: str, before: str = "oldObject", after: str = "object") -> str:
    """Builds the expression that an optional field has one value before and after."""
    return f"(has({after}.{path}) ? {after}.{path} : {empty}) == (has({before}.{path}) ? {before}.{path} : {empty})"


def _metadata_but_annotations() -> str:
    finalizers = _same("metadata.finalizers", empty="[]")
    return " && ".join((_same("metadata.labels", empty="{}"), _same("metadata.ownerReferences", empty="[]"), finalizers))


def _only(kept: str) -> str:
    """Builds the expression that the maps `variables.before` and `variables.after` differ in nothing but the key `kept`."""
    return (
        f"variables.after.all(k, k == '{kept}' || (k in variables.before && variables.before[k] == variables.after[k]))"
        f" && variables.before.all(k, k == '{kept}' || k in variables.after)"
    )


def _maps(field: str) -> Sequence[tuple[str, str]]:
    return tuple((name, f"has({where}.{field}) ? {where}.{field} : {{}}") for name, where in (("before", "oldObject"), ("after", "object")))


def guards(mount_namespace: str, *, policy_label: bool = True, max_priority: str = "0", tenants: bool = False) -> tuple[Guard, ...]:
    """Returns all guards for the identity in this namespace. `max_priority` is the highest priority of a pod that it may create.

    `tenants`: claims may also be in namespaces whose names have it and "-" as prefix.
    """
    label = (_node_label(),) if policy_label else ()
    volumes, mirrors = _volumes(mount_namespace, tenants=tenants), (_services(), _slices())
    return (_leases(), _mount(), _pods(max_priority), _secrets(), _classes(), volumes, *mirrors, *label)


def _leases() -> Guard:
    finalizers = " == ".join(
        f"(has({where}.metadata.finalizers) ? {where}.metadata.finalizers : []).filter(f, !f.startsWith('{keys.POLICY_CLAIM}'))"
        for where in ("object", "oldObject")
    )
    unchanged = " && ".join(
        (
            _same("spec", empty="{}"),
            _same("metadata.labels", empty="{}"),
            _same("metadata.annotations", empty="{}"),
            _same("metadata.ownerReferences", empty="[]"),
            finalizers,
        )
    )
    return Guard(
        name="policies",
        why="The right to set finalizers of a ResourceLeasingPolicy would include raising the leased amounts.",
        group=GROUP,
        version=POLICIES.version,
        resources=(POLICIES.plural, f"{POLICIES.plural}/status"),
        operations=("UPDATE",),
        rules=(
            Rule(
                unchanged,
                f"the identity of a hub may change only finalizers {keys.POLICY_CLAIM}* and the status of a ResourceLeasingPolicy",
            ),
        ),
    )


def _mount() -> Guard:
    unchanged = f"{_metadata_but_annotations()} && {_only(keys.MOUNT_OWNER)}"
    return Guard(
        name="namespace",
        why="The right to mark the mount namespace would include its Pod Security level and its allowed volume sources.",
        resources=("namespaces",),
        operations=("UPDATE",),
        variables=_maps("metadata.annotations"),
        rules=(Rule(unchanged, f"the identity of a hub may change only the annotation {keys.MOUNT_OWNER} of the {MOUNT_NAMESPACE}"),),
    )


def _node_label() -> Guard:
    others = ("metadata.annotations", "{}"), ("metadata.ownerReferences", "[]"), ("metadata.finalizers", "[]"), ("spec", "{}")
    unchanged = " && ".join((*(_same(path, empty=empty) for path, empty in others), _only(keys.POLICY_APPLIED)))
    return Guard(
        name="nodes",
        why="The optional right to label nodes would include their taints and all other labels.",
        resources=("nodes",),
        operations=("UPDATE",),
        variables=_maps("metadata.labels"),
        rules=(Rule(unchanged, f"the identity of a hub may change only the label {keys.POLICY_APPLIED} of a Node"),),
    )


def _pods(max_priority: str) -> Guard:
    token = "has(v.projected) && has(v.projected.sources) && v.projected.sources.exists(s, has(s.serviceAccountToken))"
    anonymous = (
        "has(object.spec.automountServiceAccountToken) && !object.spec.automountServiceAccountToken"
        f" && !(has(object.spec.volumes) && object.spec.volumes.exists(v, {token}))"
    )
    return Guard(
        name="pods",
        why="The right to create pods would include pods with the worker's ServiceAccount tokens, and pods that preempt local ones.",
        resources=("pods",),
        operations=("CREATE",),
        rules=(
            Rule(anonymous, "pods of a hub must not mount a ServiceAccount token of the worker; set automountServiceAccountToken: false"),
            Rule(
                f"!has(object.spec.priority) || object.spec.priority <= {max_priority}",
                f"pods of a hub may have a priority of at most {max_priority}; set another spec.podPriorityClassName in the ClusterBinding",
            ),
        ),
    )


def _secrets() -> Guard:
    kinds = ", ".join(f"'{each}'" for each in _TOKEN_SECRETS)
    return Guard(
        name="secrets",
        why="The right to create Secrets would include tokens of every ServiceAccount of the mount namespace.",
        resources=("secrets",),
        operations=("CREATE", "UPDATE"),
        rules=(
            Rule(
                f"!has(object.type) || !(object.type in [{kinds}])",
                "Secrets of a hub must not have a type that contains tokens; use type Opaque",
            ),
        ),
    )


def _classes() -> Guard:
    ours = (
        f"object.metadata.name == '{keys.DEFAULT_PRIORITY_CLASS}' && object.value == {keys.DEFAULT_PRIORITY}"
        " && !(has(object.globalDefault) && object.globalDefault)"
    )
    text = (
        f"a hub may create only PriorityClass {keys.DEFAULT_PRIORITY_CLASS}, with value {keys.DEFAULT_PRIORITY} and without globalDefault"
    )
    return Guard(
        name="priorityclasses",
        why="The right to create the class of leased pods would include one that is the default of the cluster's own pods.",
        group=PRIORITYCLASSES.group,
        resources=(PRIORITYCLASSES.plural,),
        operations=("CREATE",),
        rules=(Rule(ours, text),),
    )


def _within(path: str, space: str, *, tenants: bool) -> str:
    """Builds the expression that a field names a namespace of the binding."""
    return f"({path} == '{space}' || {path}.startsWith('{space}-'))" if tenants else f"{path} == '{space}'"


def _outside(path: str, space: str, *, tenants: bool) -> str:
    return f"!{_within(path, space, tenants=True)}" if tenants else f"{path} != '{space}'"


def _volumes(space: str, *, tenants: bool) -> Guard:
    marked = (
        f"has({_OBJECT}.metadata.labels) && '{keys.MANAGED_BY}' in {_OBJECT}.metadata.labels"
        f" && (oldObject == null || (has(oldObject.metadata.labels) && '{keys.MANAGED_BY}' in oldObject.metadata.labels))"
    )
    before, after = (
        f"has({each}.spec.claimRef) && {_within(f'{each}.spec.claimRef.namespace', space, tenants=tenants)}"
        for each in ("oldObject", "object")
    )
    # Kubeocean (Go) left volumes without a claim, and with Secrets of other namespaces; they may be marked, grow and be deleted.
    unbound = "oldObject != null && !has(oldObject.spec.claimRef)"
    bound = f"(oldObject == null || {unbound} || ({before})) && (object == null || ({after}) || ({unbound} && !has(object.spec.claimRef)))"
    retained = f"{_OBJECT}.spec.persistentVolumeReclaimPolicy == 'Retain'"
    remote = " || ".join(f"has(object.spec.{source})" for source in SECRETS_OF)
    annotation = f"params.metadata.annotations['{keys.ALLOWED_VOLUMES}']"
    consent = f"has(params.metadata.annotations) && '{keys.ALLOWED_VOLUMES}' in params.metadata.annotations"
    local = " || ".join(
        f"(has(object.spec.{source}) && {consent} && {annotation}.replace(',', ' ').split(' ').exists(s, s == '{source}'))"
        for source in sorted(MACHINES)
    )
    secrets = " && ".join(
        f"!(has(object.spec.{source}) && has(object.spec.{source}.{field})"
        f" && !(oldObject != null && has(oldObject.spec.{source}) && oldObject.spec.{source} == object.spec.{source})"
        f" && (!has(object.spec.{source}.{field}.namespace)"
        f" || {_outside(f'object.spec.{source}.{field}.namespace', space, tenants=tenants)}))"
        for source, fields in SECRETS_OF.items()
        for field in fields
    )
    return Guard(
        name="volumes",
        why="PersistentVolumes have no namespace: the right to create them would include paths of machines and Secrets of any namespace.",
        resources=(PVS.plural,),
        operations=("CREATE", "UPDATE", "DELETE"),
        sees_namespace=True,
        rules=(
            Rule(
                f"{marked} && {bound}",
                f"a hub may write only PersistentVolumes with the label {keys.MANAGED_BY} for claims in namespace {space}",
            ),
            Rule(retained, "PersistentVolumes of a hub must have persistentVolumeReclaimPolicy: Retain"),
            Rule(
                f"object == null || oldObject != null || {remote} || {local}",
                f"this volume source is not allowed; its owner may annotate namespace {space} with {keys.ALLOWED_VOLUMES}",
            ),
            Rule(f"object == null || ({secrets})", f"PersistentVolumes of a hub may refer only to Secrets of namespace {space}"),
        ),
    )


def _services() -> Guard:
    types = "!has(object.spec.type) || object.spec.type in ['ClusterIP', 'ExternalName']"
    addresses = "!has(object.spec.externalIPs) || object.spec.externalIPs.size() == 0"
    selector = "!has(object.spec.selector) || object.spec.selector.size() == 0"
    return Guard(
        name="services",
        why="The right to create Services would include ports of every node, load balancers, and traffic of the worker to any address.",
        resources=("services",),
        operations=("CREATE", "UPDATE"),
        rules=(
            Rule(types, "Services of a hub must be of type ClusterIP or ExternalName"),
            Rule(addresses, "Services of a hub must not have externalIPs"),
            Rule(selector, "Services of a hub must not select pods of the worker"),
        ),
    )


def _slices() -> Guard:
    managed = f"has({_OBJECT}.metadata.labels) && '{SLICE_MANAGED_BY}' in {_OBJECT}.metadata.labels"
    ours = f"{managed} && {_OBJECT}.metadata.labels['{SLICE_MANAGED_BY}'] == '{keys.MANAGED}'"
    return Guard(
        name="endpointslices",
        why="The right to write EndpointSlices would include those of the worker's own Services.",
        group=ENDPOINTSLICES.group,
        resources=(ENDPOINTSLICES.plural,),
        operations=("CREATE", "UPDATE", "DELETE"),
        rules=(Rule(ours, f"a hub may write only EndpointSlices with the label {SLICE_MANAGED_BY}: {keys.MANAGED}"),),
    )


# --- Objects ------------------------------------------------------------------------------------------------------------------------------


def guard_objects(mount_namespace: str, limits: Sequence[Guard], *, user: str, prefix: str, labels: Json | None = None) -> list[Json]:
    """Builds a ValidatingAdmissionPolicy and its binding for each guard, for the username `user`; `prefix` starts their names."""
    return [body for guard in limits for body in _guard_of(guard, mount_namespace, user=user, prefix=prefix, labels=labels)]


def _guard_of(guard: Guard, mount_namespace: str, *, user: str, prefix: str, labels: Json | None) -> tuple[Json, Json]:
    metadata: Json = {"name": f"{prefix}-{guard.name}", **({"labels": dict(labels)} if labels else {})}
    return _policy(guard, metadata, user), _binding(guard, metadata, mount_namespace)


def _policy(guard: Guard, metadata: Json, user: str) -> Json:
    spec: Json = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [guard.group],
                    "apiVersions": [guard.version],
                    "operations": list(guard.operations),
                    "resources": list(guard.resources),
                }
            ]
        },
        "matchConditions": [{"name": "is-the-identity-of-the-hub", "expression": f"request.userInfo.username == '{user}'"}],
    }
    if guard.sees_namespace:
        spec["paramKind"] = {"apiVersion": NAMESPACES.api_version, "kind": NAMESPACES.kind}
    if guard.variables:
        spec["variables"] = [{"name": name, "expression": expression} for name, expression in guard.variables]
    spec["validations"] = [{"expression": rule.expression, "message": rule.message, "reason": "Forbidden"} for rule in guard.rules]
    return {"apiVersion": f"{API}/v1", "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec}


def _binding(guard: Guard, metadata: Json, mount_namespace: str) -> Json:
    spec: Json = {"policyName": metadata["name"], "validationActions": ["Deny"]}
    if guard.sees_namespace:
        # Parameters are resolved before match conditions are evaluated: `Deny` would refuse volumes of all users after the namespace is
        # deleted. The identity is a ServiceAccount of that namespace, and deleted with it.
        spec["paramRef"] = {"name": mount_namespace, "parameterNotFoundAction": "Allow"}
    return {"apiVersion": f"{API}/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": spec}


# --- Trials -------------------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Trial:
    """A write that must be refused, tried as a dry run. With `name` it is a merge patch of that object, else a creation."""

    gains: str
    """What the hub could do if it is accepted."""
    resource: Resource[Any]
    body: Json
    name: str = ""


def trials(mount_namespace: str) -> tuple[Trial, ...]:
    """Returns a trial of Pod Security, and one of each guard of a right that the identity always has."""
    return (
        Trial(gains="run privileged pods", resource=PODS, body=_privileged_pod(mount_namespace)),
        Trial(
            gains="change the labels of the mount namespace, its Pod Security level included",
            resource=NAMESPACES,
            name=mount_namespace,
            body={"metadata": {"labels": {f"{keys.DOMAIN}trial": "true"}}},
        ),
        Trial(
            gains="create PriorityClasses that preempt local pods",
            resource=PRIORITYCLASSES,
            body={"metadata": {"generateName": "kubeocean-trial-"}, "value": 1, "globalDefault": False},
        ),
        Trial(gains="create PersistentVolumes on paths of the machines", resource=PVS, body=_path_volume(mount_namespace)),
        Trial(
            gains="create ServiceAccount tokens in the mount namespace",
            resource=SECRETS,
            body={
                "metadata": {
                    "generateName": "kubeocean-trial-",
                    "namespace": mount_namespace,
                    "annotations": {"kubernetes.io/service-account.name": "default"},
                },
                "type": _TOKEN_SECRETS[0],
            },
        ),
        Trial(
            gains="open ports of every node of the worker",
            resource=SERVICES,
            body={
                "metadata": {"generateName": "kubeocean-trial-", "namespace": mount_namespace},
                "spec": {"type": "NodePort", "ports": [{"port": 1}]},
            },
        ),
        Trial(
            gains="write EndpointSlices of the worker's own Services",
            resource=ENDPOINTSLICES,
            body={
                "metadata": {"generateName": "kubeocean-trial-", "namespace": mount_namespace},
                "addressType": "IPv4",
                "endpoints": [],
                "ports": [],
            },
        ),
    )


def _privileged_pod(space: str) -> Json:
    resources = {"cpu": "1m", "memory": "1Mi"}
    container = {
        "name": "trial",
        "image": "trial",
        "securityContext": {"privileged": True},
        "resources": {"requests": resources, "limits": resources},
    }
    return {
        "metadata": {"generateName": "kubeocean-trial-", "namespace": space},
        "spec": {"automountServiceAccountToken": False, "containers": [container]},
    }


def _path_volume(space: str) -> Json:
    return {
        "metadata": {"generateName": "kubeocean-trial-"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Mi"},
            "hostPath": {"path": "/"},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": space, "name": "trial"},
        },
    }
