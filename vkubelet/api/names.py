"""Names: how long ones are shortened, the well-known keys of Kubernetes, and the keys that vkubelet sets on a Node.

Invariant: the same input gives the same name in every process and at any time. A damaged annotation owns nothing: keys that are not
recorded as ours are left alone.
"""

import hashlib
import ipaddress
import json
import re
from collections.abc import Collection
from typing import Final

from attrs import evolve, field, frozen

from vkubelet.api.objects import Node

HOSTNAME: Final = "kubernetes.io/hostname"
OS: Final = "kubernetes.io/os"
ARCH: Final = "kubernetes.io/arch"
BETA_OS: Final = "beta.kubernetes.io/os"
BETA_ARCH: Final = "beta.kubernetes.io/arch"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
BETA_INSTANCE_TYPE: Final = "beta.kubernetes.io/instance-type"
REGION: Final = "topology.kubernetes.io/region"
ZONE: Final = "topology.kubernetes.io/zone"
EXCLUDE_FROM_LOAD_BALANCERS: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
NODE_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
MIRROR_POD: Final = "kubernetes.io/config.mirror"
ATTACH_BY_CONTROLLER: Final = "volumes.kubernetes.io/controller-managed-attach-detach"
SERVICE_NAME: Final = "kubernetes.io/service-name"
SLICE_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
HEADLESS: Final = "service.kubernetes.io/headless"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

TAINT_NOT_READY: Final = "node.kubernetes.io/not-ready"
TAINT_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
TAINT_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
TAINT_MEMORY_PRESSURE: Final = "node.kubernetes.io/memory-pressure"
TAINT_DISK_PRESSURE: Final = "node.kubernetes.io/disk-pressure"
TAINT_PID_PRESSURE: Final = "node.kubernetes.io/pid-pressure"
TAINT_NETWORK_UNAVAILABLE: Final = "node.kubernetes.io/network-unavailable"
TAINT_OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"

NODE_LEASE_NAMESPACE: Final = "kube-node-lease"
SYSTEM_NAMESPACE: Final = "kube-system"

OWNED: Final = "vkubelet.io/owned"
"""Annotation: JSON of our instance, and of the label, annotation, condition and taint keys and resource names we set, so that those no
longer desired are removed, also after a restart."""

INSTANCE: Final = "vkubelet.io/instance"
"""Label: the vkubelet instance that registered the Node."""

LABEL_LIMIT: Final = 63
NAME_LIMIT: Final = 253

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def md5_hex(text: str) -> str:
    """Returns 32 hexadecimal digits; a fingerprint, not a protection."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def hashed(prefix: str, full: str, *, keep: int = 30) -> str:
    """Returns the first `keep` characters of `prefix`, "-", and the MD5 of `full`: at most `keep` + 33 characters.

    Dots at the cut are removed, because "." followed by "-" is in no valid name.
    """
    return f"{prefix[:keep].rstrip('.')}-{md5_hex(full)}"


def short_name(name: str, *, limit: int = LABEL_LIMIT, keep: int = 30) -> str:
    """Returns `name` when it has at most `limit` characters, else `hashed(name, name)`."""
    return name if len(name) <= limit else hashed(name, name, keep=keep)


def is_dns_label(name: str) -> bool:
    """Checks for an RFC 1123 label: namespaces, Services."""
    return _LABEL.fullmatch(name) is not None


def is_dns_subdomain(name: str) -> bool:
    """Checks for an RFC 1123 subdomain: the name of nearly every other object."""
    return len(name) <= NAME_LIMIT and _SUBDOMAIN.fullmatch(name) is not None


def is_label_value(value: str) -> bool:
    """Checks for at most 63 letters, digits, "-", "_", ".", the first and last a letter or digit; may be empty."""
    return _LABEL_VALUE.fullmatch(value) is not None


def is_ip(text: str) -> bool:
    """Checks whether `text` is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@frozen
class Owned:
    """Keys that we set on a Node with our last write."""

    labels: Collection[str] = field(default=(), kw_only=True)
    annotations: Collection[str] = field(default=(), kw_only=True)
    conditions: Collection[str] = field(default=(), kw_only=True)
    taints: Collection[str] = field(default=(), kw_only=True)
    resources: Collection[str] | None = field(default=(), kw_only=True)
    """None: the annotation was written before it contained resources, when all of them were ours."""


def instance_of(live: Node) -> str:
    """Returns the vkubelet instance that registered the Node, by its label or, without one, by our annotation; "" when neither names
    one."""
    try:
        noted = json.loads(live.metadata.annotations.get(OWNED, "{}")).get("instance", "")
    except (ValueError, AttributeError):
        noted = ""
    return live.metadata.labels.get(INSTANCE) or (noted if isinstance(noted, str) else "")


def owned_keys(live: Node) -> Owned:
    """Returns the keys recorded on the Node with our last write; none if the annotation is missing or damaged."""
    try:
        note = json.loads(live.metadata.annotations.get(OWNED, '{"resources": []}'))
        keys = {kind: tuple(note.get(kind, ())) for kind in ("labels", "annotations", "conditions", "taints", "resources")}
    except (ValueError, AttributeError, TypeError):
        return Owned()
    intact = all(isinstance(key, str) for kind in keys.values() for key in kind)
    if not intact:
        return Owned()
    return Owned(**keys) if "resources" in note else evolve(Owned(**keys), resources=None)
