"""Every label, annotation, finalizer, taint and derived name that Kubeocean sets on objects of either cluster.

Invariant: a name or mark is a pure function of what it represents, so any process at any time finds what another one created.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from attrs import field, frozen

from vkubelet.api.names import LABEL_LIMIT, hashed, is_label_value, md5_hex, short_name
from vkubelet.api.objects import ObjectMeta

DOMAIN: Final = "kubeocean.io/"

_HASH_LENGTH: Final = 32
_HASH: Final = re.compile(rb"-([0-9a-f]{32})")
_CACHED_MARKS: Final = 256
_CACHED_NAMES: Final = 4096
"""Every event of a pod derives its name in the worker, and the mark of its owner, a dozen times."""

# --- Ownership of objects -----------------------------------------------------------------------------------------------------------------

MANAGED_BY: Final = "kubeocean.io/managed-by"
MANAGED: Final = "kubeocean"
OWNER: Final = "kubeocean.io/owner"
HUB_UID: Final = "kubeocean.io/hub-uid"
CLUSTER_ID: Final = "kubeocean.io/cluster-id"
MOUNT_OWNER: Final = "kubeocean.io/mount-owner"
"""Annotation of a mount namespace: the mark of the one binding that may use it."""
TENANT_OF: Final = "kubeocean.io/tenant-of"
"""Label of a worker namespace for one hub namespace: the mount namespace, whose owner may use it (`namespaceMapping: PerNamespace`)."""
OWNER_LIMITS_EGRESS: Final = "kubeocean.io/owner-limits-egress"
"""Label "true" of a worker namespace for one hub namespace: NetworkPolicies of its owner alone decide what its pods reach."""

# --- Bindings -----------------------------------------------------------------------------------------------------------------------------

ACCEPTED_AS: Final = "kubeocean.io/accepted-as"
"""Annotation of a binding: the Identity under which it is served; written once, when it is first found valid."""
APPLIED: Final = "kubeocean.io/applied"
"""Annotation of an object that the manager created, or that is the mirror of one of an extra kind: a hash of its desired state."""
MIRRORED_KINDS: Final = "kubeocean.io/mirrored-kinds"
"""Annotation of a binding: the extra kinds of which the worker may have mirrors, recorded before the first one is created."""
VERSION: Final = "kubeocean.io/version"
"""Annotation of a CustomResourceDefinition that `kubeocean bind` created: the version of the command."""
SETTINGS_HASH: Final = "kubeocean.io/settings-hash"
"""Annotation of a pod template: a hash of the settings that are read once, so that a change of them starts new pods."""
LOGS_PROXY_ENABLED: Final = "kubeocean.io/logs-proxy-enabled"
LOGS_PROXY_SECRET_NAME: Final = "kubeocean.io/logs-proxy-secret-name"
LOGS_PROXY_SECRET_NAMESPACE: Final = "kubeocean.io/logs-proxy-secret-namespace"

# --- Virtual nodes ------------------------------------------------------------------------------------------------------------------------

CLUSTER_BINDING: Final = "kubeocean.io/cluster-binding"
FORCE_UNBIND: Final = "kubeocean.io/force-unbind"
"""Annotation "true" of a binding that is being deleted: give up objects that cannot be cleaned up in the worker."""
PHYSICAL_CLUSTER_ID: Final = "kubeocean.io/physical-cluster-id"
PHYSICAL_CLUSTER_NAME: Final = "kubeocean.io/physical-cluster-name"
PHYSICAL_NODE_NAME: Final = "kubeocean.io/physical-node-name"
PHYSICAL_NODE_UID: Final = "kubeocean.io/physical-node-uid"
PHYSICAL_NODE_ADDRESS: Final = "kubeocean.io/physical-node-innerip"
PHYSICAL_CSINODE_UID: Final = "kubeocean.io/physical-csinode-uid"
PROXIER_PORT: Final = "kubeocean.io/proxier_port"
POLICY_APPLIED: Final = "kubeocean.io/policy-applied"
POLICIES_APPLIED: Final = "kubeocean.io/policies-applied"
POLICY_DETAILS: Final = "kubeocean.io/policy-details"
LEASE_RECORD: Final = "kubeocean.io/lease-record"
"""Annotation of a virtual node: JSON of the policy that decided last and of that under which all pods fitted, see `leasing.record`."""
DASHBOARD_CERTIFICATE: Final = "kubeocean.io/dashboard-certificate"
"""Annotation of a pod of the manager: the certificate of the dashboard that it serves, as PEM."""
PROMETHEUS_URL: Final = "kubeocean.io/prometheus-url"
LAST_SYNC_TIME: Final = "kubeocean.io/last-sync-time"
EXPECTED_METADATA: Final = "kubeocean.io/expected-metadata"
DELETION_TAINT_TIME: Final = "kubeocean.io/deletion-taint-time"
CONFIRM_RETIRE: Final = "kubeocean.io/confirm-retire"
RETIREMENT_HELD: Final = "kubeocean.io/retirement-held"
"""Annotation of a binding, with `-` and the number of a shard behind the first: why retirements of its nodes wait for a confirmation."""
NODE_TYPE: Final = "type"
VIRTUAL_KUBELET: Final = "virtual-kubelet"
VIRTUAL_NODE_TYPE: Final = "vnode"

TAINT_VNODE: Final = "kubeocean.io/vnode"
TAINT_UNSCHEDULABLE: Final = "kubeocean.io/physical-node-unschedulable"
TAINT_CLOSED: Final = "kubeocean.io/out-of-time-windows"
TAINT_DELETING: Final = "kubeocean.io/vnode-deleting"
TAINT_WORKER_UNREACHABLE: Final = "kubeocean.io/worker-unreachable"
CONDITION_WORKER_REACHABLE: Final = "kubeocean.io/WorkerReachable"

# --- Pods ---------------------------------------------------------------------------------------------------------------------------------

VIRTUAL_POD_NAMESPACE: Final = "kubeocean.io/virtual-pod-namespace"
VIRTUAL_POD_NAME: Final = "kubeocean.io/virtual-pod-name"
VIRTUAL_POD_UID: Final = "kubeocean.io/virtual-pod-uid"
VIRTUAL_NODE_NAME: Final = "kubeocean.io/virtual-node-name"
VIRTUAL_GENERATION: Final = "kubeocean.io/virtual-generation"
"""Annotation of a physical pod: the generation of the virtual pod that it reflects."""
VIRTUAL_SPEC: Final = "kubeocean.io/virtual-spec"
"""Annotation of a physical pod: digest of what users may change in the spec that it reflects. A hub that was restored from a backup gives a
generation to another change. Without it, the generation alone counts."""
PHYSICAL_POD_NAMESPACE: Final = "kubeocean.io/physical-pod-namespace"
PHYSICAL_POD_NAME: Final = "kubeocean.io/physical-pod-name"
PHYSICAL_POD_UID: Final = "kubeocean.io/physical-pod-uid"
PHYSICAL_POD_OF: Final = "kubeocean.io/physical-pod-of"
"""Annotation of a virtual pod: its own UID, because users create pods from the YAML of others (`kubectl debug --copy-to`)."""
VIRTUAL_IMAGES: Final = "kubeocean.io/virtual-images"
"""Annotation of a physical pod: JSON of the user's image for each container that got another."""
RESIZE_PENDING: Final = "kubeocean.io/resize-pending"
"""Annotation of a physical pod: why it does not have the amounts that its virtual pod has; "Deferred: …" or "Infeasible: …"."""
PATCHED_METADATA: Final = "kubeocean.io/patched-metadata"
"""Annotation of a physical pod: JSON of the labels and annotations that the binding's patch set or removed on it."""
WORKLOAD_TYPE: Final = "kubeocean.io/workload-type"
WORKLOAD_NAME: Final = "kubeocean.io/workload-name"
RUNNING_DAEMONSET: Final = "kubeocean.io/running-daemonset"
HOSTPORT_FAKE_POD: Final = "kubeocean.io/hostport-fake-pod"
DEFAULT_PRIORITY_CLASS: Final = "kubeocean-default"
DEFAULT_PRIORITY: Final = -10000

# --- Objects that pods refer to -----------------------------------------------------------------------------------------------------------

VIRTUAL_NAMESPACE: Final = "kubeocean.io/virtual-namespace"
VIRTUAL_NAME: Final = "kubeocean.io/virtual-name"
PHYSICAL_NAMESPACE: Final = "kubeocean.io/physical-namespace"
PHYSICAL_NAME: Final = "kubeocean.io/physical-name"
VIRTUAL_VOLUME: Final = "kubeocean.io/virtual-volume"
"""Annotation of the copy of a claim: the volume of the hub that the claim is bound to in the hub."""
ALLOWED_VOLUMES: Final = "kubeocean.io/allowed-volume-sources"
"""Annotation that the worker's owner sets on a mount namespace: which volumes on disks of its machines may be used: `hostPath, local`."""
USED_BY_PV: Final = "kubeocean.io/used-by-pv"
TOKEN_SECRET: Final = "kubeocean.io/service-account-token"
TOKEN_EXPIRY: Final = "kubeocean.io/token-expiry"
TOKEN_LIFE: Final = "kubeocean.io/token-life"
SERVICE_ACCOUNT: Final = "kubeocean.io/service-account"

VIRTUAL_SERVICE: Final = "kubeocean.io/virtual-service"
"""Annotation of the mirror of an EndpointSlice: the name of its Service in the hub."""
LEDGER: Final = "kubeocean-ledger"
"""Name of the ConfigMap in the mount namespace with the resource-seconds that were lent; names of copies have a hash."""

# --- Finalizers ---------------------------------------------------------------------------------------------------------------------------

FINALIZER_MANAGER: Final = "kubeocean.io/clusterbinding-manager"
FINALIZER_SYNCER: Final = "kubeocean.io/clusterbinding-syncer"
POLICY_CLAIM: Final = "policy.kubeocean.io/"
FINALIZER_POLICY: Final = "policy.kubeocean.io/finalizer"
"""Finalizer of Kubeocean (Go) and of versions before `policy_finalizer`; it does not distinguish hubs, and is only ever removed."""
FINALIZER_VNODE: Final = "kubeocean.io/vnode"
"""Never set here; removed from Nodes that Kubeocean (Go) left behind."""

# --- Namespaces ---------------------------------------------------------------------------------------------------------------------------

NAMESPACE: Final = "kubeocean-system"
WORKER_NAMESPACE: Final = "kubeocean-worker"
FAKE_NAMESPACE: Final = "kubeocean-fake"
SYSTEM_NAMESPACES: Final = frozenset({"kube-system", "kube-public", "kube-node-lease", NAMESPACE, FAKE_NAMESPACE})
"""Pods of these namespaces never leave the computing cluster."""

_VNODE_LIMIT: Final = 63

SINGLE: Final = "Single"
"""All pods of a binding run in its mount namespace."""
PER_NAMESPACE: Final = "PerNamespace"
"""The pods of each hub namespace run in a separate worker namespace: the mount namespace, "-", and the name of the hub namespace."""
PREFIX_LIMIT: Final = 29
"""Longest mount namespace that remains a prefix of every name that is made of it: longer names are hashed after 30 characters."""


@frozen
class Identity:
    """Identity by which all objects of a binding are found: clusterID, in names and marks, mount namespace, and the mapping of namespaces.

    Fixed once served, except for the mapping, which changes while nothing of the binding is in the worker.
    """

    cluster_id: str
    mount_namespace: str
    mapping: str = SINGLE

    def note(self, uid: str) -> str:
        """Returns the value of ACCEPTED_AS; with the UID of the binding, because users create bindings from the YAML of others."""
        mapping = "" if self.mapping == SINGLE else f"_{self.mapping}"
        return f"{self.cluster_id}_{uid}_{self.mount_namespace}{mapping}"

    def namespace_of(self, namespace: str) -> str:
        """Returns the worker namespace of a hub namespace; cluster-scoped objects ("") belong to the mount namespace."""
        if self.mapping == SINGLE or not namespace:
            return self.mount_namespace
        return short_name(f"{self.mount_namespace}-{namespace}")

    def includes(self, namespace: str) -> bool:
        """Checks whether a worker namespace may be that of a hub namespace, by its name."""
        if self.mapping == SINGLE:
            return namespace == self.mount_namespace
        return namespace.startswith(f"{self.mount_namespace}-")

    def overlaps(self, other: Identity) -> bool:
        """Checks whether a hub namespace may get the same worker namespace under both, as `c` of `a-b` and `b-c` of `a`."""
        prefixes = [each.mount_namespace for each in (self, other) if each.mapping != SINGLE]
        spaces = (self.mount_namespace, other.mount_namespace)
        return any(space.startswith(f"{prefix}-") for prefix in prefixes for space in spaces)

    @classmethod
    def accepted(cls, meta: ObjectMeta) -> Identity | None:
        """Returns the identity under which the binding is served; None before. Earlier versions recorded no namespace."""
        cluster_id, _, rest = meta.annotations.get(ACCEPTED_AS, "").partition("_")
        uid, _, rest = rest.partition("_")
        namespace, _, mapping = rest.partition("_")
        return cls(cluster_id, namespace, mapping or SINGLE) if cluster_id and uid == meta.uid else None


def synced_by(cluster_id: str) -> str:
    """Returns the label of a hub object that has a copy in the worker cluster of this binding; the value is "true"."""
    return f"kubeocean.io/synced-by-{cluster_id}"


def deleting(cluster_id: str) -> str:
    """Returns the annotation that requests the release of a hub object; the value is the name of the binding."""
    return f"kubeocean.io/deleting-{cluster_id}"


def object_finalizer(cluster_id: str) -> str:
    """Returns the finalizer of a hub object that has a copy in the worker cluster of this binding."""
    return f"kubeocean.io/finalizer-{cluster_id}"


def policy_finalizer(owner: Owner) -> str:
    """Returns the finalizer of a ResourceLeasingPolicy by which this binding of this hub leases."""
    return f"{POLICY_CLAIM}{owner.mark}"


@frozen
class Owner:
    """Owner of a physical object: one binding (by its clusterID) of one hub (by the UID of its kube-system namespace).

    The binding's own UID does not matter, so a binding that was deleted and created again finds its pods.
    """

    hub_uid: str
    cluster_id: str

    @property
    def mark(self) -> str:
        """One label value for both: the clusterID for people, and a hash that distinguishes hubs."""
        return _mark(self.hub_uid, self.cluster_id)

    @property
    def labels(self) -> dict[str, str]:
        return {MANAGED_BY: MANAGED, OWNER: self.mark}

    @property
    def annotations(self) -> dict[str, str]:
        return {HUB_UID: self.hub_uid, CLUSTER_ID: self.cluster_id}

    @classmethod
    def of(cls, meta: ObjectMeta) -> Owner | None:
        """Returns the owner that the annotations name."""
        hub_uid, cluster_id = meta.annotations.get(HUB_UID, ""), meta.annotations.get(CLUSTER_ID, "")
        return cls(hub_uid, cluster_id) if hub_uid and cluster_id else None


def vnode_name(cluster_id: str, node: str) -> str:
    """Returns the name of the virtual node of a physical one; at most 63 characters."""
    return short_name(f"vnode-{cluster_id}-{node}", limit=_VNODE_LIMIT)


@lru_cache(_CACHED_MARKS)
def _mark(hub_uid: str, cluster_id: str) -> str:
    return f"{cluster_id}-{md5_hex(f'{hub_uid}/{cluster_id}')}"


@lru_cache(_CACHED_NAMES)
def physical_name(namespace: str, name: str) -> str:
    """Returns the name in the worker of a pod, ConfigMap, Secret or claim; the namespace is empty for cluster-scoped objects."""
    return hashed(name, f"{namespace}/{name}")


def hashes_in(text: bytes) -> list[str]:
    """Returns what `hash_of` returns for each hashed name that a text contains, wherever that is, and maybe more."""
    return [each.decode() for each in _HASH.findall(text)]


def hash_of(name: str) -> str:
    """Returns the hash in a `physical_name`."""
    return name[-_HASH_LENGTH:]


def item_name(scope: str, name: str, item: str) -> str:
    """Returns the name in the worker of the mirror that one item of an object has; `scope` is the namespace, or the owner without one."""
    return hashed(name, f"{scope}/{name}/{item}")


def service_name(namespace: str, name: str) -> str:
    """Returns the name in the worker of the mirror of a Service: `name--namespace`, to which a DNS server rewrites `name.namespace`.

    A name that is too long, or that could be split in two ways, is hashed like that of other copies; no rewrite leads to it.
    """
    return f"{name}--{namespace}" if has_plain_name(namespace, name) else physical_name(namespace, name)


def has_plain_name(namespace: str, name: str) -> bool:
    """Checks that `service_name` is not a hash."""
    return len(name) + len(namespace) + 2 <= LABEL_LIMIT and "--" not in name and "--" not in namespace


@lru_cache(_CACHED_NAMES)
def token_secret_name(namespace: str, pod: str, uid: str) -> str:
    """Returns the name of the Secret with all tokens of a pod incarnation; "_" separates it from the copy of any Secret a user can name."""
    return hashed(pod, f"{namespace}/{pod}_token_{uid}")


def retirement_held(shard: int) -> str:
    """Returns the annotation of a binding in which a shard other than the first records its retirements that wait."""
    return f"{RETIREMENT_HELD}-{shard}"


def deciding_policy(annotations: Mapping[str, str]) -> str:
    """Returns the policy that decides on a virtual node with these annotations: the first of those applied; empty without any."""
    return annotations.get(POLICIES_APPLIED, "").partition(",")[0]


def label_value(text: str) -> str:
    """Encodes `text` as a label value: IPv6 addresses in full with "-" for ":", texts that are too long or invalid by their hash."""
    if ":" in text:
        try:
            return ipaddress.ip_address(text).exploded.replace(":", "-")
        except ValueError:
            pass
    if is_label_value(text):
        return text
    short = short_name(text, limit=LABEL_LIMIT)
    return short if is_label_value(short) else md5_hex(text)


_KEPT_WHOLE: Final = 64
"""Limit in characters; a hash with its name has more."""


@frozen
class ExpectedMetadata:
    """Metadata that was last desired on an object, stored as its annotation: it distinguishes a dropped key from one that others added.

    Long values are stored as hashes, or a pod with every annotation stored twice would exceed the limit of the API server (256 KiB).
    """

    labels: Mapping[str, str] = field(factory=dict)
    annotations: Mapping[str, str] = field(factory=dict)

    @property
    def shortened(self) -> ExpectedMetadata:
        """Copy with long values hashed, as it is stored."""
        return ExpectedMetadata(*({key: shortened(value) for key, value in each.items()} for each in (self.labels, self.annotations)))

    def encode(self) -> str:
        """Encodes as Base64 of JSON, like Kubeocean (Go); equal values give equal text."""
        kept = self.shortened
        value = {"labels": dict(kept.labels), "annotations": dict(kept.annotations)}
        return base64.b64encode(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> ExpectedMetadata | None:
        """Decodes the annotation; None when it is missing or damaged."""
        try:
            value = json.loads(base64.b64decode(text, validate=True)) if text else None
        except (binascii.Error, ValueError):
            return None
        if not isinstance(value, dict):
            return None
        labels, annotations = value.get("labels") or {}, value.get("annotations") or {}
        return cls(labels, annotations) if _is_text_map(labels) and _is_text_map(annotations) else None


def shortened(value: str) -> str:
    """Returns a value as `ExpectedMetadata` stores it."""
    return value if len(value) <= _KEPT_WHOLE else f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
