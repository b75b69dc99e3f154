"""The pod a request means: found by namespace and name, among those of the node at whose port it was asked for.

Invariant: at a node's port the pods of all other nodes do not exist.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web
from attrs import frozen

from vkubelet.api.objects import Pod
from vkubelet.api.shapes import JsonView
from vkubelet.provider import PodStore
from vkubelet.server.listeners import MAIN, Listeners

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


@frozen
class NodePods:
    """The pods of the node a request was sent to."""

    store: PodStore
    listeners: Listeners

    def node(self, request: web.BaseRequest) -> str | None:
        """The node of the connection's local port: MAIN at the main port, None when the port was closed meanwhile."""
        name = request.transport.get_extra_info("sockname") if request.transport else None
        return self.listeners.node_of(name[1]) if name else None

    def find(self, request: web.BaseRequest, namespace: str, name: str) -> Pod:
        """Raises the kubelet's 404."""
        pod = self.store.by_name(namespace, name)
        node = self.node(request)
        if pod is None or node is None or (node != MAIN and pod.node != node):
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


def has_container(pod: Pod, name: str) -> bool:
    """The pod's spec has a container of any kind with this name."""
    spec = pod.spec
    return any(container["name"] == name for kind in _CONTAINERS for container in spec.get(kind) or ())


def container_status(pod: Pod, name: str) -> JsonView | None:
    """What the pod's status says of a container of any kind."""
    status = pod.status
    return next((entry for kind in _STATUSES for entry in status.get(kind) or () if entry["name"] == name), None)
