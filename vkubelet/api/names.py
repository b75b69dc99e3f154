"""Names: how long ones are shortened, and the well-known keys of Kubernetes.

Invariant: the same input gives the same name in every process and at any time.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

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
