"""The pod a request means: found by namespace and name, among those of the node at whose port it was asked for.

Invariant: at a node's port the pods of all other nodes do not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from aiohttp import hdrs, web
from attrs import frozen
from multidict import CIMultiDictProxy

from vkubelet.api.objects import Pod
from vkubelet.api.shapes import JsonView
from vkubelet.provider import PodStore
from vkubelet.server.listeners import MAIN, Listeners

FORWARDED = "X-Forwarded-Uri"
"""What kube-apiserver's node proxy says it was asked for; it sets this on all requests but upgrades, whatever its own caller sent."""

# Plain text as a key is warned about where there is a type for it.
_CLAIMED = web.RequestKey("claimed_node", str) if hasattr(web, "RequestKey") else "vkubelet.claimed_node"
_NODE_PROXY = re.compile(r"/api/v1/nodes/(?:https:)?([a-z0-9.-]+)(?::[0-9]*)?/proxy(?:/|\Z)")
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


@frozen
class NodePods:
    """The pods of the node a request was sent to."""

    store: PodStore
    listeners: Listeners

    def node(self, request: web.BaseRequest) -> str | None:
        """The node the request is for: MAIN when it could be any, at the main port; None when it is nobody's of ours (any more).

        That is told by the connection's local port, or by what `claim` noted.
        """
        claimed = request.get(_CLAIMED)
        if claimed is not None:
            return claimed if self.listeners.shares(claimed) else None
        name = request.transport.get_extra_info("sockname") if request.transport else None
        return self.listeners.node_of(name[1]) if name else None

    def lookup(self, request: web.BaseRequest, namespace: str, name: str) -> Pod | None:
        """None when the node has no such pod."""
        pod = self.store.by_name(namespace, name)
        node = self.node(request)
        return pod if pod is not None and node is not None and node in (MAIN, pod.node) else None

    def claim(self, request: web.BaseRequest) -> str | None:
        """With a shared main port, the node that the API server's node proxy names, from now on the one the request is for.

        Only for callers whom a client certificate proved, and who are then asked about that very node: a caller without rights on it gains
        nothing by naming it. Anything but a plain GET is passed on by the API server with headers of its caller's choice.
        """
        if not self.listeners.sharing or self.node(request) != MAIN:
            return None
        plain = request.method == hdrs.METH_GET and not asks_for_upgrade(request.headers)
        named = forwarded_node(request.headers.getall(FORWARDED, ())) if plain else None
        if named is not None:
            request[_CLAIMED] = named
        return named

    def find(self, request: web.BaseRequest, namespace: str, name: str) -> Pod:
        """Raises the kubelet's 404."""
        pod = self.lookup(request, namespace, name)
        if pod is None:
            raise web.HTTPNotFound(text=f'pod "{name}" does not exist')
        return pod

    def all(self, request: web.BaseRequest) -> Iterable[Pod]:
        """All pods of the node. Raises 404 at the main port, which stands for no single node."""
        return self.store.on_node(self.single_node(request))

    def single_node(self, request: web.BaseRequest) -> str:
        """Raises 404 at the main port."""
        node = self.node(request)
        if not node:
            raise web.HTTPNotFound(text="404 page not found")
        return node


def forwarded_node(lines: Sequence[str]) -> str | None:
    """The node in the one line of FORWARDED; None when there is none, or more than one."""
    found = _NODE_PROXY.match(lines[0]) if len(lines) == 1 else None
    return found[1] if found else None


def asks_for_upgrade(headers: CIMultiDictProxy[str]) -> bool:
    """Read as broadly as kube-apiserver reads it."""
    return hdrs.UPGRADE in headers or any("upgrade" in line.lower() for line in headers.getall(hdrs.CONNECTION, ()))


def has_container(pod: Pod, name: str) -> bool:
    """The pod's spec has a container of any kind with this name."""
    return container_spec(pod, name) is not None


def container_spec(pod: Pod, name: str) -> JsonView | None:
    """What the pod's spec says of a container of any kind."""
    spec = pod.spec
    return next((container for kind in _CONTAINERS for container in spec.get(kind) or () if container["name"] == name), None)


def container_status(pod: Pod, name: str) -> JsonView | None:
    """What the pod's status says of a container of any kind."""
    status = pod.status
    return next((entry for kind in _STATUSES for entry in status.get(kind) or () if entry["name"] == name), None)
