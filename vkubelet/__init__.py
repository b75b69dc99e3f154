"""A virtual-kubelet runtime: nodes of a Kubernetes cluster that are backed by anything.

Invariant: every name here is one of `vkubelet.provider`, which contains the complete contract; importing this package has no other effect.
"""

from vkubelet.api.objects import Key, Node, Pod, PodRef
from vkubelet.errors import (
    BadRequest,
    NoSuchContainer,
    NoSuchPod,
    PodRejected,
    ProviderError,
    SettingsError,
    Unavailable,
    VKubeletError,
)
from vkubelet.provider import (
    ContainerIO,
    ContainerReport,
    Host,
    LogOptions,
    NodeDescription,
    PodReport,
    PodStore,
    Provider,
    Running,
    Taint,
    Terminated,
    Waiting,
    all_running,
)

__all__ = [
    "BadRequest",
    "ContainerIO",
    "ContainerReport",
    "Host",
    "Key",
    "LogOptions",
    "NoSuchContainer",
    "NoSuchPod",
    "Node",
    "NodeDescription",
    "Pod",
    "PodRef",
    "PodRejected",
    "PodReport",
    "PodStore",
    "Provider",
    "ProviderError",
    "Running",
    "SettingsError",
    "Taint",
    "Terminated",
    "Unavailable",
    "VKubeletError",
    "Waiting",
    "all_running",
]
