"""In-memory representation of API objects: a decoded head, and the rest as bytes.

Invariant: each reader of a body gets its own dict, so nothing that is stored can be changed by accident; keys unknown here survive.

A Pod of 10 KB costs 7 KiB this way and nothing at garbage collection; as a dict it costs 30 KiB and slows every collection down.
`managedFields` are dropped on decoding. A head of another kind is any class with `metadata`, `key` and `decode`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, cast

import msgspec
from attrs import frozen

from vkubelet.api.shapes import Json

if TYPE_CHECKING:
    Timestamp = str
else:
    Timestamp = str | None  # bookmarks and reviews carry "creationTimestamp": null

_TERMINAL = frozenset({"Succeeded", "Failed"})


class Key(NamedTuple):
    """Namespace and name; the namespace of cluster-scoped objects is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@frozen
class PodRef:
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
    def parse(cls, text: str) -> PodRef:
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
            msgspec.structs.force_setattr(self, "creation_timestamp", "")

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


class _Phase(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


_wire = msgspec.json.Decoder(_Wire).decode
_bound_to = msgspec.json.Decoder(_BoundTo).decode
_phase = msgspec.json.Decoder(_Phase).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_metadata = msgspec.json.Decoder(ObjectMeta).decode
_body = msgspec.json.Decoder().decode


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A Pod; `node` and `phase` are decoded once, because every event is dispatched by them."""

    metadata: ObjectMeta
    node: str
    phase: str
    spec_json: bytes
    status_json: bytes

    @classmethod
    def decode(cls, data: bytes | msgspec.Raw) -> Self:
        wire = _wire(data)
        spec, status = bytes(wire.spec), bytes(wire.status)
        return cls(wire.metadata, _bound_to(spec).node_name, _phase(status).phase, spec, status)

    @property
    def spec(self) -> Json:
        """Spec, decoded again at each access; the caller owns it."""
        return cast(Json, _body(self.spec_json))

    @property
    def status(self) -> Json:
        """Status, decoded again at each access; the caller owns it."""
        return cast(Json, _body(self.status_json))

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

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


class Node(msgspec.Struct, frozen=True, gc=False):
    """A Node."""

    metadata: ObjectMeta
    spec_json: bytes
    status_json: bytes

    @classmethod
    def decode(cls, data: bytes | msgspec.Raw) -> Self:
        wire = _wire(data)
        return cls(wire.metadata, bytes(wire.spec), bytes(wire.status))

    @property
    def spec(self) -> Json:
        """Spec, decoded again at each access; the caller owns it."""
        return cast(Json, _body(self.spec_json))

    @property
    def status(self) -> Json:
        """Status, decoded again at each access; the caller owns it."""
        return cast(Json, _body(self.status_json))

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
