"""Objects of the Kubernetes API: decoded heads, their JSON bodies, resource types, merge patches and conditions.

Invariant: each reader of a body gets its own dict, so nothing that is stored can be changed by accident; keys unknown here survive.
`apply_merge(old, diff_merge(old, new))` is `new`, as long as `new` contains no null (RFC 7386 cannot set one). The `lastTransitionTime` of
a condition changes only when its `status` does (Kubernetes API conventions, "Typical status properties"). A Resource is a constant; two
equal ones mean the same endpoint and decode to the same head.

A Pod of 10 KB costs 7 KiB as head and bytes, and nothing at garbage collection; as a dict it costs 30 KiB and slows every collection down.
One that is kept for a while is compacted (`vkubelet.api.compact`), which no reader can see.
`managedFields` are dropped on decoding. A head of another kind is any class with `metadata`, `key` and `decode`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast
from urllib.parse import quote

import msgspec
from attrs import frozen

from vkubelet.api.compact import compact_later, shared_list, shared_string, shared_strings
from vkubelet.api.texts import Bodied, Text

Json = dict[str, Any]
"""A decoded JSON object that its reader owns and may change."""

JsonView = Mapping[str, Any]
"""A decoded JSON object that another component owns."""

POD_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
"""Types of the conditions of a pod that its kubelet or the scheduler sets; all others belong to other controllers."""

if TYPE_CHECKING:
    Timestamp = str
else:
    Timestamp = str | None  # bookmarks and reviews carry "creationTimestamp": null

_TERMINAL = frozenset({"Succeeded", "Failed"})
_set = msgspec.structs.force_setattr


class Key(NamedTuple):
    """Namespace and name; the namespace of cluster-scoped objects is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class PodRef(NamedTuple):
    """One incarnation of a pod, and the node it is bound to.

    As text the parts are joined by "_", which no Kubernetes name contains: `default_web_4f5c…_node-1` fits a job comment, and a label value
    when it is short enough.
    """

    namespace: str
    name: str
    uid: str
    node: str

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.namespace}_{self.name}_{self.uid}_{self.node}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text of `str`; raises ValueError when it does not have four parts or one of the first three is empty."""
        parts = text.split("_")
        if len(parts) != 4 or not all(parts[:3]):
            raise ValueError(f"not a pod reference: {text!r}")
        return cls(*parts)


class OwnerReference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One entry of `metadata.ownerReferences`."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = False


class ObjectMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """`metadata` without `managedFields` and `selfLink`; times are RFC 3339 text, absent ones "" or None."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    finalizers: Sequence[str] = []
    owner_references: Sequence[OwnerReference] = []
    creation_timestamp: Timestamp = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    generate_name: str = ""

    def __post_init__(self) -> None:
        if self.creation_timestamp is None:
            _set(self, "creation_timestamp", "")
        # They are keys of many dicts, each of which keeps the text that it got first.
        _set(self, "name", shared_string(self.name))
        _set(self, "namespace", shared_string(self.namespace))
        _set(self, "uid", shared_string(self.uid))

    def compact(self) -> None:
        """Shares what many objects have equal."""
        _set(self, "creation_timestamp", shared_string(self.creation_timestamp))
        _set(self, "labels", shared_strings(self.labels))
        _set(self, "annotations", shared_strings(self.annotations))
        _set(self, "finalizers", shared_list(self.finalizers))
        _set(self, "owner_references", shared_list(self.owner_references))

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


class KubeObject(Protocol):
    """Fields of an object that the client, the stores and the informers use."""

    @property
    def metadata(self) -> ObjectMeta: ...

    @property
    def key(self) -> Key: ...

    @classmethod
    def decode(cls, data: bytes | msgspec.Raw) -> Self:
        """Decodes the object's JSON; the result must not keep `data` alive. Raises `msgspec.DecodeError`, and nothing else."""
        ...


class _Wire(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class _BoundTo(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""


class _RunAs(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    service_account_name: str | None = None


class _Phase(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


_wire = msgspec.json.Decoder(_Wire).decode
_bound_to = msgspec.json.Decoder(_BoundTo).decode
_run_as = msgspec.json.Decoder(_RunAs).decode
_phase = msgspec.json.Decoder(_Phase).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_metadata = msgspec.json.Decoder(ObjectMeta).decode
_body = msgspec.json.Decoder().decode


class Pod(Bodied, msgspec.Struct, frozen=True, gc=False):
    """A Pod; `node` and `phase` are decoded once, because every event is dispatched by them."""

    metadata: ObjectMeta
    node: str
    phase: str
    spec_text: bytes | Text
    status_text: bytes | Text

    @classmethod
    def decode(cls, data: bytes | msgspec.Raw) -> Self:
        wire = _wire(data)
        spec, status = bytes(wire.spec), bytes(wire.status)
        pod = cls(wire.metadata, shared_string(_bound_to(spec).node_name), shared_string(_phase(status).phase), spec, status)
        compact_later(pod)
        return pod

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def service_account(self) -> str:
        """Name of the service account that it runs as, read without decoding the rest of the spec."""
        return _run_as(self.spec_json).service_account_name or "default"

    @property
    def ref(self) -> PodRef:
        return PodRef(self.metadata.namespace, self.metadata.name, self.metadata.uid, self.node)

    @property
    def terminating(self) -> bool:
        """Whether its deletion was requested."""
        return self.metadata.deletion_timestamp is not None

    @property
    def terminal(self) -> bool:
        """Whether its phase is Succeeded or Failed, which never changes again."""
        return self.phase in _TERMINAL


class Node(Bodied, msgspec.Struct, frozen=True, gc=False):
    """A Node."""

    metadata: ObjectMeta
    spec_text: bytes | Text
    status_text: bytes | Text

    @classmethod
    def decode(cls, data: bytes | msgspec.Raw) -> Self:
        wire = _wire(data)
        node = cls(wire.metadata, bytes(wire.spec), bytes(wire.status))
        compact_later(node)
        return node

    @property
    def key(self) -> Key:
        return Key("", self.metadata.name)

    @property
    def kubelet_port(self) -> int | None:
        """The published port of the kubelet server: the only place where it is stored."""
        port = self.status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
        return port if isinstance(port, int) and port > 0 else None


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A Lease of coordination.k8s.io/v1."""

    metadata: ObjectMeta
    spec_json: bytes

    @classmethod
    def decode(cls, data: bytes | msgspec.Raw) -> Self:
        wire = _wire(data)
        return cls(wire.metadata, bytes(wire.spec))

    @property
    def spec(self) -> Json:
        """Spec, decoded again at each access; the caller owns it."""
        return cast(Json, _body(self.spec_json))

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """An object of any kind: the head, and the complete object as bytes.

    The items of a list carry neither apiVersion nor kind; those of a watch do.
    """

    metadata: ObjectMeta
    raw: bytes

    @classmethod
    def decode(cls, data: bytes | msgspec.Raw) -> Self:
        raw = _without_managed_fields(bytes(data))
        return cls(_wire(raw).metadata, raw)

    @property
    def body(self) -> Json:
        """The complete object, decoded again at each access; the caller owns it."""
        return cast(Json, _body(self.raw))

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)


def _without_managed_fields(data: bytes) -> bytes:
    if b'"managedFields"' not in data:
        return data
    members = _members(data)
    metadata = _members(members.get("metadata", b"{}"))
    if metadata.pop("managedFields", None) is None:
        return data
    members["metadata"] = msgspec.Raw(msgspec.json.encode(metadata))
    return msgspec.json.encode(members)


T = TypeVar("T", bound=KubeObject)


@frozen
class Resource(Generic[T]):
    """One type of object; the group of the core API is empty, `plural` is its name in paths, `head` the class its objects decode to."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    head: type[T]

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Returns the path of the collection (of all namespaces when `namespace` is empty), of an object, or of its subresource.

        Raises ValueError for a namespaced object without namespace, or a subresource without name.
        """
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.plural} {name}: the namespace is missing")
        if subresource and not name:
            raise ValueError(f"{self.plural}/{subresource}: the name is missing")
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=":"))
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods", "Pod", True, Pod)
NODES = Resource("", "v1", "nodes", "Node", False, Node)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", True, Unknown)
SECRETS = Resource("", "v1", "secrets", "Secret", True, Unknown)
SERVICES = Resource("", "v1", "services", "Service", True, Unknown)
ENDPOINTSLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, Unknown)
NETWORKPOLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, Unknown)
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, Unknown)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, Unknown)
EVENTS = Resource("", "v1", "events", "Event", True, Unknown)
PVCS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, Unknown)
PVS = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Unknown)
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True, Unknown)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Unknown)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", True, Unknown)
ROLEBINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True, Unknown)
CLUSTERROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, Unknown)
CLUSTERROLEBINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, Unknown)
PDBS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, Unknown)
CSRS = Resource("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", False, Unknown)
CSINODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", False, Unknown)
PRIORITYCLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, Unknown)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, Unknown)
ADMISSIONPOLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False, Unknown
)
ADMISSIONPOLICYBINDINGS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False, Unknown
)
TOKENREVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, Unknown)
SUBJECTACCESSREVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False, Unknown)
SELFSUBJECTACCESSREVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, Unknown)


def diff_merge(old: JsonView, new: JsonView) -> Json:
    """Returns an RFC 7386 merge patch, empty when nothing differs; lists are replaced completely."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := diff_merge(before, value):
                patch[key] = inner
        elif key not in old or before != value or type(before) is not type(value):
            patch[key] = value
    return patch


def apply_merge(target: JsonView, patch: JsonView) -> Json:
    """Returns the object after a merge patch (RFC 7386, section 2); the arguments are not changed."""
    result: Json = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = apply_merge(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result


def get_condition(conditions: Sequence[JsonView], type_: str) -> Json | None:
    """Returns a copy of the condition of this type."""
    return next((dict(condition) for condition in conditions if condition.get("type") == type_), None)


def set_condition(conditions: Sequence[JsonView], new: JsonView, *, now: datetime) -> list[Json]:
    """Returns the conditions with `new` in place of the one of its type, or appended.

    `lastTransitionTime` is the old one's while the status is the same; else that of `new`, or `now`.
    """
    changed = [_merged(old, new, now) if old.get("type") == new["type"] else dict(old) for old in conditions]
    if all(old.get("type") != new["type"] for old in conditions):
        changed.append(_merged({}, new, now))
    return changed


def _merged(old: JsonView, new: JsonView, now: datetime) -> Json:
    kept = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
    moment = kept or new.get("lastTransitionTime") or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**new, "lastTransitionTime": moment}
