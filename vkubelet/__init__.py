"""A virtual-kubelet runtime: nodes of a Kubernetes cluster that are backed by anything.

Invariant: these names are all a provider needs; everything else may move. They are imported when they are asked for, because every pytest
of an environment imports this package for its plug-in.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in __all__:
            for home in ("vkubelet.errors", "vkubelet.api.objects", "vkubelet.provider"):
                found = getattr(import_module(home), name, None)
                if found is not None:
                    globals()[name] = found
                    return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
