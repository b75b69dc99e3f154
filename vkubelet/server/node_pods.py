"""Finds the pod of a request by namespace and name, among those of the node whose port received it.

Invariant: at a node's port the pods of all other nodes do not exist.
"""

import re
from collections.abc import Iterable, Sequence

from aiohttp import hdrs, web
from attrs import frozen
from multidict import CIMultiDictProxy

from vkubelet.api.objects import JsonView, Pod
from vkubelet.api.podspec import CONTAINER_STATUSES, containers
from vkubelet.provider import PodStore
from vkubelet.server.listeners import MAIN, Listeners

FORWARDED = "X-Forwarded-Uri"
"""Header with the URI that kube-apiserver's node proxy received; the proxy sets it on all requests but upgrades, whatever its caller
sent."""

# aiohttp warns about plain text as a key where it has a type for it.
_CLAIMED = web.RequestKey("claimed_node", str) if hasattr(web, "RequestKey") else "vkubelet.claimed_node"
_NODE_PROXY = re.compile(r"/api/v1/nodes/(?:https:)?([a-z0-9.-]+)(?::[0-9]*)?/proxy(?:/|\Z)")


@frozen
class NodePods:
    """Pods of the node that received a request."""

    store: PodStore
    listeners: Listeners

    def node(self, request: web.BaseRequest) -> str | None:
        """Returns the node of the request: MAIN when it could be any, at the main port; None when the port belongs to no node (any more).

        The local port of the connection decides, or the node recorded by `claim`.
        """
        claimed = request.get(_CLAIMED)
        if claimed is not None:
            return claimed if self.listeners.shares(claimed) else None
        name = request.transport.get_extra_info("sockname") if request.transport else None
        return self.listeners.node_of(name[1]) if name else None

    def lookup(self, request: web.BaseRequest, namespace: str, name: str) -> Pod | None:
        """Returns the pod, or None when the node has no such pod."""
        pod = self.store.by_name(namespace, name)
        node = self.node(request)
        return pod if pod is not None and node is not None and node in (MAIN, pod.node) else None

    def claim(self, request: web.BaseRequest) -> str | None:
        """Claims the request for the node that the API server's node proxy names, with a shared main port.

        Only for callers authenticated by a client certificate, whose rights on that very node are then checked: a caller without rights on
        it gains nothing by naming it. The API server forwards everything but a plain GET with headers that its caller chooses.
        """
        if not self.listeners.sharing or self.node(request) != MAIN:
            return None
        plain = request.method == hdrs.METH_GET and not asks_for_upgrade(request.headers)
        named = forwarded_node(request.headers.getall(FORWARDED, ())) if plain else None
        if named is not None:
            request[_CLAIMED] = named
        return named

    def find(self, request: web.BaseRequest, namespace: str, name: str) -> Pod:
        """Returns the pod. Raises the kubelet's 404."""
        pod = self.lookup(request, namespace, name)
        if pod is None:
            raise web.HTTPNotFound(text=f'pod "{name}" does not exist')
        return pod

    def all(self, request: web.BaseRequest) -> Iterable[Pod]:
        """Returns all pods of the node. Raises 404 at the main port, which stands for no single node."""
        return self.store.on_node(self.single_node(request))

    def single_node(self, request: web.BaseRequest) -> str:
        """Returns the node. Raises 404 at the main port."""
        node = self.node(request)
        if not node:
            raise web.HTTPNotFound(text="404 page not found")
        return node


def forwarded_node(lines: Sequence[str]) -> str | None:
    """Returns the node in the one line of FORWARDED; None when there is none, or more than one."""
    found = _NODE_PROXY.match(lines[0]) if len(lines) == 1 else None
    return found[1] if found else None


def asks_for_upgrade(headers: CIMultiDictProxy[str]) -> bool:
    """Checks for an upgrade request, as broadly as kube-apiserver does."""
    return hdrs.UPGRADE in headers or any("upgrade" in line.lower() for line in headers.getall(hdrs.CONNECTION, ()))


def has_container(pod: Pod, name: str) -> bool:
    """Checks whether the pod's spec has a container of any type with this name."""
    return container_spec(pod, name) is not None


def container_spec(pod: Pod, name: str) -> JsonView | None:
    """Returns the spec of a container of any type."""
    spec = pod.spec
    return next((container for container in containers(spec) if container["name"] == name), None)


def container_status(pod: Pod, name: str) -> JsonView | None:
    """Returns the status of a container of any type."""
    status = pod.status
    return next((entry for kind in CONTAINER_STATUSES for entry in status.get(kind) or () if entry["name"] == name), None)
