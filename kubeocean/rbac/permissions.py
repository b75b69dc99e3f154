"""Rights of our identities in either cluster, each with its reason, and the objects that grant them (pure).

Invariant: this is the only list. The samples, the charts and `kubeocean bind` are generated from it or compared with it, and the rights
that are checked in a worker before it is used are exactly those that its roles grant.
"""

from collections.abc import Sequence
from typing import Final

from attrs import evolve

from kubeocean.model import keys
from kubeocean.model.crds import GROUP
from kubeocean.rbac.guards import guard_objects, guards
from vkubelet.api.objects import Json
from vkubelet.api.rbac import RBAC, READ, Check, Rule, checks_of, granted, labelled, namespace_body, role_binding

SYNCER: Final = "kubeocean-syncer"
"""ServiceAccount of `kubeocean run`, and name of its roles."""
MANAGER: Final = "kubeocean-manager"
"""ServiceAccount of `kubeocean manager`, and name of its roles."""

_LEASES: Final = "coordination.k8s.io"
_CERTIFICATES: Final = "certificates.k8s.io"
_DISCOVERY: Final = "discovery.k8s.io"
_NETWORKING: Final = "networking.k8s.io"
_STORAGE: Final = "storage.k8s.io"
_LEASE_NAMESPACE: Final = "kube-node-lease"
_AUTHENTICATION_READER: Final = "extension-apiserver-authentication-reader"


# --- The computing cluster ----------------------------------------------------------------------------------------------------------------


def syncer_name(cluster_id: str) -> str:
    """Returns the name of ServiceAccount, roles and Deployment of one binding in the computing cluster."""
    return f"{SYNCER}-{cluster_id}"


def hub_rules(*, binding: str = "", namespace: str = keys.NAMESPACE) -> tuple[Rule, ...]:
    """Returns the rights of `kubeocean run` in the computing cluster; with `binding` it may write that ClusterBinding alone."""
    return (*_hub_objects_of_ours(binding), *_hub_pods(), *_hub_port(), *_hub_namespaced(namespace))


def _hub_objects_of_ours(binding: str) -> tuple[Rule, ...]:
    own = (binding,) if binding else ()
    drivers = "Lists the storage drivers of virtual nodes."
    alone = "Its own ClusterBinding, by name; the manager may write all of them."
    nodes = "policy nodes: names that start with vnode-<clusterID>-."
    return (
        Rule("clusterbindings", READ, group=GROUP, why="Reads its ClusterBinding, and compares its clusterID with those of older ones."),
        Rule("clusterbindings", "patch", group=GROUP, names=own, why="Adds and removes the finalizer of the ClusterBinding.", bound=alone),
        Rule("clusterbindings/status", "patch", group=GROUP, names=own, why="Reports the status of the ClusterBinding.", bound=alone),
        Rule(
            "nodes",
            f"{READ} create patch delete",
            why="Creates, updates and deletes virtual nodes; their Leases are in a Role below.",
            bound=nodes,
        ),
        Rule("nodes/status", "patch", why="Reports the status of virtual nodes.", bound=nodes),
        Rule("csinodes", f"{READ} create patch delete", group=_STORAGE, essential=False, why=drivers, bound=nodes),
    )


def _hub_pods() -> tuple[Rule, ...]:
    secrets = "Reads the objects that pods refer to, and marks them as copied. This identity can read the Secrets of all namespaces."
    claims = "Reads the claims of pods and their volumes, and marks them as copied."
    pods = "policy pods: pods on nodes whose names start with vnode-<clusterID>-."
    data = "policy data: metadata alone may change."
    size = "Not limited: it may write the status of every claim."
    tokens = "policy tokens: tokens bound to a pod, of any ServiceAccount in the cluster."
    return (
        Rule(
            "pods",
            f"{READ} patch delete",
            why="Records the physical pod of each virtual pod, and deletes pods of withdrawn nodes.",
            bound=pods,
        ),
        Rule("pods/status", "patch", why="Reports the status of virtual pods.", bound=pods),
        Rule("pods/eviction", "create", why="Evicts pods to reclaim leased capacity.", bound="PodDisruptionBudgets, on every node."),
        Rule("replicasets", "get", group="apps", essential=False, why="Finds the Deployment of a pod."),
        Rule("configmaps secrets", f"{READ} patch", why=secrets, bound="policy data: metadata alone may change. Reading is not limited."),
        Rule("persistentvolumeclaims persistentvolumes", f"{READ} patch", essential=False, why=claims, bound=data),
        Rule(
            "persistentvolumeclaims/status",
            "patch",
            essential=False,
            why="Reports a file system that was expanded in the worker.",
            bound=size,
        ),
        Rule("serviceaccounts/token", "create", why="Requests the ServiceAccount tokens of pods, bound to them.", bound=tokens),
        Rule("namespaces", "get", why="Identifies the cluster by the UID of namespace kube-system."),
        Rule("namespaces", "list watch", essential=False, why="Finds the namespaces that NetworkPolicies select by their labels."),
        Rule("networkpolicies", READ, group=_NETWORKING, essential=False, why="Mirrors NetworkPolicies to the namespaces of tenants."),
        Rule(
            "services", READ, why="Finds the addresses of the API server, the DNS and the Services of this cluster for pods in the worker."
        ),
        Rule("endpointslices", READ, group=_DISCOVERY, essential=False, why="Mirrors the endpoints of Services to the worker."),
        Rule("events", "create patch", why="Records Events.", bound="Not limited: an Event can be about any object."),
    )


def _hub_port() -> tuple[Rule, ...]:
    asked = "Requests the serving certificate of the kubelet port."
    approved = "Approves that request; without this rule and the next, an administrator runs: kubectl certificate approve."
    signer = "kubernetes.io/kubelet-serving"
    review = "Reviews are not stored."
    signed = "The signer kubelet-serving, for any node name. Without both rules an administrator approves."
    return (
        Rule("tokenreviews", "create", group="authentication.k8s.io", why="Authenticates requests to the kubelet port.", bound=review),
        Rule("subjectaccessreviews", "create", group="authorization.k8s.io", why="Authorizes requests to the kubelet port.", bound=review),
        Rule(
            "certificatesigningrequests",
            "create get",
            group=_CERTIFICATES,
            why=asked,
            bound="A request grants nothing until it is approved.",
        ),
        Rule("certificatesigningrequests/approval", "update", group=_CERTIFICATES, essential=False, why=approved, bound=signed),
        Rule("signers", "approve", group=_CERTIFICATES, names=signer, essential=False, why="Approves for this one signer.", bound=signed),
    )


def _hub_namespaced(namespace: str) -> tuple[Rule, ...]:
    leader = "Elects a leader among the replicas by a Lease."
    leases = "policy leases: Leases of its virtual nodes, and its own."
    ports = "Creates placeholder pods for host ports that are used in the worker."
    return (
        Rule(
            "leases",
            "get create update delete",
            group=_LEASES,
            namespace=_LEASE_NAMESPACE,
            why="Renews the Leases of virtual nodes.",
            bound=leases,
        ),
        Rule("leases", "get create update", group=_LEASES, namespace=namespace, why=leader, bound=leases),
        Rule("pods", "create", namespace=keys.FAKE_NAMESPACE, essential=False, why=ports, bound="policy pods: on its own virtual nodes."),
    )


def hub_objects(
    name: str = SYNCER, *, namespace: str = keys.NAMESPACE, binding: str = "", namespaces: bool = True, labels: Json | None = None
) -> list[Json]:
    """Builds namespaces, ServiceAccount, roles and their bindings of one `kubeocean run`; a binding has its own `name`: `syncer_name`."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    made: list[Json] = [namespace_body(namespace), namespace_body(keys.FAKE_NAMESPACE, "privileged")] if namespaces else []
    made.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})
    made += granted(hub_rules(binding=binding, namespace=namespace), name, cluster_name=name, subject=subject)
    reader = role_binding(f"{name}-authentication-reader", "kube-system", role=_AUTHENTICATION_READER, subject=subject)
    return [labelled(each, labels) for each in (*made, reader)]


# --- The manager --------------------------------------------------------------------------------------------------------------------------


def manager_rules(*, namespace: str = keys.NAMESPACE, dashboard: bool = False) -> tuple[Rule, ...]:
    """Returns the rights of `kubeocean manager`: it creates what runs a binding, and can only grant rights that it has itself.

    `dashboard` adds that which only the dashboard needs; the other rights that it reads with are among those that are granted.
    """
    shown = dashboard_rules() if dashboard else ()
    return (*hub_rules(namespace=namespace), *_manager_wide(), *shown, *_manager_roles(namespace), *_manager_namespaced(namespace))


def dashboard_rules() -> tuple[Rule, ...]:
    """Returns the optional rights to read Events and PodDisruptionBudgets."""
    warnings = "Shows the warnings about a pod on its page of the dashboard, to readers who may list them."
    held = "Shows which budget blocks an eviction in the calendar of the dashboard, to readers who may list budgets."
    return (
        Rule("events", "list", essential=False, why=warnings),
        Rule("poddisruptionbudgets", "list", group="policy", essential=False, why=held),
    )


def _manager_wide() -> tuple[Rule, ...]:
    wide = "Creates the roles of the process of each binding, with the rights above and no others."
    granted = "The API server refuses a role with rights that the manager lacks; it can change and delete every other role."
    return (
        Rule("clusterroles clusterrolebindings", f"{READ} create patch delete", group=RBAC, why=wide, bound=granted),
        Rule("roles rolebindings", READ, group=RBAC, why="Reads the same in namespaces; they are written in the namespaces below alone."),
    )


def _manager_roles(namespace: str) -> tuple[Rule, ...]:
    spaces = (_LEASE_NAMESPACE, namespace, keys.FAKE_NAMESPACE)
    granted = "The API server refuses to bind a role with rights that the manager lacks."
    reader = "Binds the process of each binding to this one role, by which it reads the CA of the API server's client certificate."
    return (
        *(
            Rule(
                "roles rolebindings",
                "create patch delete",
                group=RBAC,
                namespace=each,
                why="Creates the roles of the process of each binding.",
                bound="This namespace.",
            )
            for each in spaces
        ),
        Rule("rolebindings", "create patch delete", group=RBAC, namespace="kube-system", why=reader, bound=granted),
        Rule(
            "roles",
            "bind",
            group=RBAC,
            names=_AUTHENTICATION_READER,
            namespace="kube-system",
            why="Allows the binding to that role.",
            bound="This one role, by name.",
        ),
    )


def _manager_namespaced(namespace: str) -> tuple[Rule, ...]:
    every = f"{READ} create patch delete"
    parts = "Runs the process of each binding."
    space = "The namespace of Kubeocean: a Deployment there can run as any ServiceAccount of that namespace."
    budget = "Prevents that the drain of a node terminates all replicas at once."
    return (
        Rule("deployments", every, group="apps", namespace=namespace, why=parts, bound=space),
        Rule(
            "configmaps serviceaccounts services",
            every,
            namespace=namespace,
            why="Creates the settings, the identity and the kubelet port of each process.",
            bound=space,
        ),
        Rule("poddisruptionbudgets", every, group="policy", namespace=namespace, why=budget, bound=space),
        Rule(
            "secrets",
            "delete",
            namespace=namespace,
            essential=False,
            why="Deletes certificates that Kubeocean (Go) created for a binding.",
            bound=space,
        ),
    )


def manager_objects(*, namespace: str = keys.NAMESPACE, dashboard: bool = False) -> list[Json]:
    """Builds ServiceAccount, roles and their bindings of `kubeocean manager`."""
    subject = {"kind": "ServiceAccount", "name": MANAGER, "namespace": namespace}
    account: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": MANAGER, "namespace": namespace}}
    rules = manager_rules(namespace=namespace, dashboard=dashboard)
    return [account, *granted(rules, MANAGER, cluster_name=MANAGER, subject=subject)]


# --- The worker cluster -------------------------------------------------------------------------------------------------------------------


def worker_rules(mount_namespace: str, *, metrics: bool = False, policy_label: bool = False) -> tuple[Rule, ...]:
    """Returns the rights of `kubeocean run` in the worker; `metrics` adds `metrics_rule`, `policy_label` a write to its nodes."""
    shown = "Labels the nodes with the policy that leases them (kubeocean.io/policy-applied)."
    label = Rule("nodes", "patch", essential=False, why=shown, bound="guard nodes")
    extra = (*((label,) if policy_label else ()), *((metrics_rule(),) if metrics else ()))
    return (*_worker_wide(), *extra, *_mounted(mount_namespace), *_mounted_streams(mount_namespace))


def metrics_rule(nodes: Sequence[str] = ()) -> Rule:
    """Returns the optional right to query kubelets; with `nodes` of those alone."""
    why = "Reads usage for `kubectl top`, autoscalers and Prometheus of the computing cluster."
    return Rule("nodes/proxy", "get", names=nodes, essential=False, why=why)


def _worker_wide() -> tuple[Rule, ...]:
    policies = "Reads what is leased, and adds a finalizer to policies in use."
    volumes = "Creates the volumes of leased pods' claims, which have no namespace. Volumes of others are never written."
    below = "Creates the PriorityClass of leased pods, below that of the worker's own pods."
    return (
        Rule("nodes pods", READ, why="Computes the free resources of each node."),
        Rule("resourceleasingpolicies", f"{READ} patch", group=GROUP, why=policies, bound="guard policies"),
        Rule("resourceleasingpolicies/status", "patch", group=GROUP, why="Reports the status of policies.", bound="guard policies"),
        Rule("priorityclasses", "create", group="scheduling.k8s.io", why=below, bound="guard priorityclasses"),
        Rule("csinodes", READ, group=_STORAGE, essential=False, why="Lists the storage drivers of each node."),
        Rule("persistentvolumes", f"{READ} create patch delete", essential=False, why=volumes, bound="guard volumes"),
    )


def mounted_rules(space: str) -> tuple[Rule, ...]:
    """Returns the rights within a namespace in which pods run, as cluster-wide ones: for a ClusterRole that is bound in each of them."""
    within = (rule for rule in (*_mounted(space), *_mounted_streams(space)) if not rule.names)
    return tuple(evolve(rule, namespace="") for rule in within)


def _mounted(space: str) -> tuple[Rule, ...]:
    every = f"{READ} create patch delete"
    owner = "Annotates the mount namespace with the binding that owns it."
    space_ = "The mount namespace, which contains nothing but copies and the ledger."
    secrets = f"guard secrets. {space_}"
    mirrors = "Mirrors Services of the hub and their endpoints for leased pods."
    return (
        Rule(
            "pods",
            "create patch delete",
            namespace=space,
            why="Runs the pods of the computing cluster, in this namespace only.",
            bound="guard pods",
        ),
        Rule(
            "configmaps secrets",
            f"{every} update",
            namespace=space,
            why="Copies the objects that pods refer to, and keeps the ledger.",
            bound=secrets,
        ),
        Rule(
            "persistentvolumeclaims",
            every,
            namespace=space,
            essential=False,
            why="Copies the claims of pods.",
            bound=f"{space_} ResourceQuota limits their storage.",
        ),
        Rule("services", every, namespace=space, essential=False, why=mirrors, bound="guard services"),
        Rule(
            "endpointslices",
            f"{every} update",
            group=_DISCOVERY,
            namespace=space,
            essential=False,
            why=mirrors,
            bound=f"guard endpointslices. {space_}",
        ),
        Rule("events", "list watch", namespace=space, essential=False, why="Mirrors the Events of pods to the hub."),
        Rule("namespaces", "get patch", names=space, namespace=space, essential=False, why=owner, bound="guard namespace"),
    )


def _mounted_streams(space: str) -> tuple[Rule, ...]:
    streams = "Serves kubectl exec, attach, cp and port-forward. WebSocket requests are GET; newer API servers also require `create`."
    own = "Pods in the mount namespace."
    changes = "Resizes pods in place, and adds ephemeral containers for kubectl debug."
    return (
        Rule("pods/log", "get", namespace=space, essential=False, why="Serves kubectl logs."),
        Rule("pods/exec pods/attach pods/portforward", "get create", namespace=space, essential=False, why=streams, bound=own),
        Rule(
            "pods/resize pods/ephemeralcontainers",
            "patch",
            namespace=space,
            essential=False,
            why=changes,
            bound="Pod Security level and quota of the mount namespace.",
        ),
    )


def worker_objects(
    mount_namespace: str = keys.WORKER_NAMESPACE,
    *,
    name: str = SYNCER,
    metrics: bool = False,
    policy_label: bool = False,
    pod_security: str = "baseline",
    labels: Json | None = None,
) -> list[Json]:
    """Builds the mount namespace and its narrow identity: ServiceAccount, long-lived token, roles and their bindings."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": mount_namespace}
    account: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": mount_namespace}}
    token: Json = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": token_name(name),
            "namespace": mount_namespace,
            "annotations": {"kubernetes.io/service-account.name": name},
        },
        "type": "kubernetes.io/service-account-token",
    }
    made = [namespace_body(mount_namespace, pod_security), {**account, "automountServiceAccountToken": False}, token]
    rules = worker_rules(mount_namespace, policy_label=policy_label)
    wide = cluster_role_name(mount_namespace, name)
    made += granted(rules, name, cluster_name=wide, subject=subject)
    if metrics:
        made += metrics_objects(mount_namespace, name=name)
    return [labelled(each, labels) for each in made]


def metrics_objects(mount_namespace: str = keys.WORKER_NAMESPACE, *, name: str = SYNCER, nodes: Sequence[str] = ()) -> list[Json]:
    """Builds the optional right to read usage, as a separate role that can be removed alone."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": mount_namespace}
    wide = f"{cluster_role_name(mount_namespace, name)}-metrics"
    return granted((metrics_rule(nodes),), wide, cluster_name=wide, subject=subject)


def token_name(name: str = SYNCER) -> str:
    """Returns the name of the Secret with the long-lived token of a ServiceAccount."""
    return f"{name}-token"


def cluster_role_name(mount_namespace: str, name: str = SYNCER) -> str:
    """Returns the name of the ClusterRoles, which have no namespace: identities of several mount namespaces must not share them."""
    return name if mount_namespace == keys.WORKER_NAMESPACE else f"{name}-{mount_namespace}"


def worker_guards(
    mount_namespace: str = keys.WORKER_NAMESPACE,
    *,
    name: str = SYNCER,
    policy_label: bool = False,
    max_priority: str = "0",
    tenants: bool = False,
    labels: Json | None = None,
) -> list[Json]:
    """Builds the admission policies that limit this identity; `max_priority` is the highest priority of a pod that it may create.

    `tenants` admits volumes of namespaces whose names have the mount namespace as prefix.
    """
    limits = guards(mount_namespace, policy_label=policy_label, max_priority=max_priority, tenants=tenants)
    return guard_objects(
        mount_namespace,
        limits,
        user=f"system:serviceaccount:{mount_namespace}:{name}",
        prefix=cluster_role_name(mount_namespace, name),
        labels=labels,
    )


def worker_checks(
    mount_namespace: str, *, metrics: bool = False, policy_label: bool = False, essential_only: bool = False
) -> tuple[Check, ...]:
    """Returns every right of `worker_rules`, one by one."""
    rules = worker_rules(mount_namespace, metrics=metrics, policy_label=policy_label)
    return checks_of(rule for rule in rules if rule.essential or not essential_only)
