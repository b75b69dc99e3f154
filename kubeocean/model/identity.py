"""Identity of a physical pod: the marks and annotations that lead from it to its virtual pod and back. Pure.

Invariant: everything in the domain kubeocean.io on a physical pod is ours; no such key of a user in the hub is copied.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, Self

from attrs import frozen

from kubeocean.model import keys
from kubeocean.model.crds import ApiServerAccess, ClusterBinding, DnsAccess
from kubeocean.model.overrides import Overrides
from vkubelet.api.codec import encode_json
from vkubelet.api.compact import shared_string
from vkubelet.api.names import LAST_APPLIED, MIRROR_POD
from vkubelet.api.objects import Key, ObjectMeta, Pod, PodRef
from vkubelet.api.podspec import CONTAINERS

# Big and of no use in the worker, or read by the kubelet as a mark that it created the pod itself.
_LEFT_AT_HOME: Final = frozenset(
    {LAST_APPLIED, MIRROR_POD, "kubernetes.io/config.source", "kubernetes.io/config.hash", "kubernetes.io/config.seen"}
)
_OURS: Final = (keys.DOMAIN,)
# Settings of users for Kubeocean, not marks.
_FOR_USERS: Final = frozenset({keys.RUNNING_DAEMONSET})


@frozen
class Workload:
    """The owner that created a virtual pod; `name` is empty for a standalone pod."""

    type: str
    name: str = ""


@frozen(kw_only=True)
class Target:
    """Destination of a pod in the worker cluster, and its environment; `node` is the physical node."""

    owner: keys.Owner
    node: str
    namespace: str
    workload: Workload = Workload("pod")
    priority_class: str = keys.DEFAULT_PRIORITY_CLASS
    direct: bool = False
    api_server: ApiServerAccess | None = None
    dns: DnsAccess | None = None
    domain: str = "cluster.local"
    overrides: Overrides = Overrides()
    services: Mapping[str, str] = {}
    """Environment variables by which containers find the Services of the pod's namespace."""
    services_zone: str = ""
    """DNS zone in which the worker's DNS finds mirrors of Services, by namespace; empty where none are mirrored."""

    @classmethod
    def of(
        cls,
        binding: ClusterBinding,
        *,
        owner: keys.Owner,
        node: str,
        workload: Workload,
        api_server: ApiServerAccess | None = None,
        dns: DnsAccess | None = None,
    ) -> Self:
        """Returns the target that the binding sets; `api_server` and `dns` are detected values for fields that it omits."""
        dns = binding.dns or dns
        return cls(
            owner=owner,
            node=node,
            namespace=binding.mount_namespace,
            workload=workload,
            priority_class=binding.priority_class or keys.DEFAULT_PRIORITY_CLASS,
            direct=binding.direct_scheduling,
            api_server=binding.api_server or api_server,
            dns=dns,
            domain=dns.domain if dns else "cluster.local",
            overrides=binding.overrides,
        )


def replicaset_name(meta: ObjectMeta) -> str:
    """Returns the ReplicaSet to be read for `workload`, "" when the first owner is none."""
    owner = meta.owner_references[0] if meta.owner_references else None
    return owner.name if owner and owner.kind == "ReplicaSet" else ""


def workload(meta: ObjectMeta, *, replicaset: ObjectMeta | None = None) -> Workload:
    """Returns the workload by the first owner; a ReplicaSet counts as the Deployment that created it."""
    if not meta.owner_references:
        return Workload("pod")
    owner = meta.owner_references[0]
    if owner.kind == "ReplicaSet" and replicaset is not None:
        deployment = next((each for each in replicaset.owner_references if each.kind == "Deployment"), None)
        owner = deployment or owner
    return Workload(owner.kind.lower(), owner.name)


def workload_of(physical: Pod, pod: Pod) -> Workload:
    """Returns the workload that is recorded on a physical pod, or that of its virtual pod where none is."""
    labels = physical.metadata.labels
    if keys.WORKLOAD_TYPE not in labels:
        return workload(pod.metadata)
    return Workload(labels[keys.WORKLOAD_TYPE], labels.get(keys.WORKLOAD_NAME, ""))


def is_daemonsets(meta: ObjectMeta) -> bool:
    """Checks that a DaemonSet owns the pod."""
    return bool(meta.owner_references) and any(owner.kind == "DaemonSet" for owner in meta.owner_references)


def daemonset_allowed(meta: ObjectMeta, binding: ClusterBinding) -> bool:
    """Returns False for a pod of a DaemonSet unless the binding or the pod allows it to run on virtual nodes."""
    return not is_daemonsets(meta) or binding.run_daemonsets or meta.annotations.get(keys.RUNNING_DAEMONSET) == "true"


def enters(meta: ObjectMeta, binding: ClusterBinding | None) -> bool:
    """Checks that a pod on a virtual node is started in the worker; None as the binding where it is not known."""
    return leaves_home(meta) and (binding is None or daemonset_allowed(meta, binding))


def why_pending(meta: ObjectMeta, binding: ClusterBinding) -> str:
    """Returns why a pod of a DaemonSet stays Pending on a virtual node, and the remedy; "" for other pods, placed on the node by name."""
    keep_away = "keep the DaemonSet off virtual nodes by a node affinity: type NotIn [virtual-kubelet]"
    if not is_daemonsets(meta):
        return ""
    if not leaves_home(meta):
        return f"pods of namespace {meta.namespace} are not started on virtual nodes; {keep_away}"
    run = f"set spec.runningDaemonsetByDefault of ClusterBinding {binding.name}, or annotate the pod template {keys.RUNNING_DAEMONSET}=true"
    return f"pods of DaemonSets are not started on virtual nodes; {run}, or {keep_away}"


def leaves_home(meta: ObjectMeta) -> bool:
    """Returns False for pods of system namespaces and for placeholders of host ports."""
    return meta.namespace not in keys.SYSTEM_NAMESPACES and meta.labels.get(keys.HOSTPORT_FAKE_POD) != "true"


def in_virtual_names(text: str, virtual: Key, physical: Key) -> str:
    """Returns a message of the worker about a physical pod, with the names that its user knows."""
    text = text.replace(str(physical), str(virtual)).replace(physical.name, virtual.name)
    return text.replace(f'namespace "{physical.namespace}"', f'namespace "{virtual.namespace}"')


def identity(meta: ObjectMeta) -> PodRef | None:
    """Returns the virtual pod of a physical one; None unless its annotations name namespace, name and UID."""
    found = meta.annotations
    ref = PodRef(
        shared_string(found.get(keys.VIRTUAL_POD_NAMESPACE, "")),
        shared_string(found.get(keys.VIRTUAL_POD_NAME, "")),
        shared_string(found.get(keys.VIRTUAL_POD_UID, "")),
        shared_string(found.get(keys.VIRTUAL_NODE_NAME, "")),
    )
    return ref if ref.namespace and ref.name and ref.uid else None


def propagated(pod: Pod) -> keys.ExpectedMetadata:
    """Returns the user's labels and annotations, as desired on the physical pod."""
    meta = pod.metadata
    return keys.ExpectedMetadata(_of_the_user(meta.labels), _of_the_user(meta.annotations))


def marks(pod: Pod, target: Target) -> keys.ExpectedMetadata:
    """Returns our labels and annotations on the physical pod, without the expected metadata."""
    meta, maker = pod.metadata, target.workload
    labels = {**target.owner.labels, keys.VIRTUAL_NAMESPACE: meta.namespace, keys.WORKLOAD_TYPE: keys.label_value(maker.type)}
    if maker.name:
        labels[keys.WORKLOAD_NAME] = keys.label_value(maker.name)
    annotations = {
        **target.owner.annotations,
        keys.VIRTUAL_POD_NAMESPACE: meta.namespace,
        keys.VIRTUAL_POD_NAME: meta.name,
        keys.VIRTUAL_POD_UID: meta.uid,
        keys.VIRTUAL_NODE_NAME: pod.node,
        keys.SERVICE_ACCOUNT: pod.service_account,
    }
    if meta.generation:
        annotations[keys.VIRTUAL_GENERATION] = str(meta.generation)
    if digest := digest_of_changes(pod):
        annotations[keys.VIRTUAL_SPEC] = digest
    return keys.ExpectedMetadata(labels, annotations)


def digest_of_changes(pod: Pod) -> str:
    """Returns the digest for VIRTUAL_SPEC; "" for a pod whose spec is as it was created, which its UID identifies."""
    if pod.metadata.generation <= 1:
        return ""
    parts = [[(each.get("name"), each.get("image"), each.get("resources")) for each in pod.spec.get(kind) or ()] for kind in CONTAINERS]
    content = [parts, pod.spec.get("tolerations"), pod.spec.get("activeDeadlineSeconds")]
    return hashlib.sha256(encode_json(content)).hexdigest()[:16]


def is_internal(key: str) -> bool:
    """Checks that a label or annotation has a meaning between the clusters only and none for users."""
    return key.startswith(_OURS) and key not in _FOR_USERS


def is_propagated(key: str) -> bool:
    """Checks that a label or annotation of the user is on the physical pod as on the virtual one."""
    return not is_internal(key) and key not in _LEFT_AT_HOME


def where(pod: Pod) -> Key:
    """Returns the recorded physical pod of a virtual one; empty names without a record.

    A record that was copied with the YAML of another pod, or of an earlier one of this name, is ignored.
    """
    meta, annotations = pod.metadata, pod.metadata.annotations
    found = Key(annotations.get(keys.PHYSICAL_POD_NAMESPACE, ""), annotations.get(keys.PHYSICAL_POD_NAME, ""))
    # Kubeocean (Go) does not record which pod its record belongs to.
    is_its_own = annotations.get(keys.PHYSICAL_POD_OF, meta.uid) == meta.uid
    return found if is_its_own and found.name == keys.physical_name(meta.namespace, meta.name) else Key("", "")


def _of_the_user(entries: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if is_propagated(key)}
