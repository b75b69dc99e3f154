"""Reserves on a virtual node the host ports that other pods use on its physical node, so that no scheduler places a conflicting pod.

Invariant: one placeholder pod per virtual node, with exactly the ports of the worker's pods that are not this binding's; the new one is
created before the old one is deleted. It is a mirror pod, as for a static pod of another kubelet, so that no client starts, evicts or
waits for it.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import frozen

from kubeocean.model import keys
from kubeocean.nodes.reconciler import physical_name
from kubeocean.scope import WorkerScope
from vkubelet.api.names import MIRROR_POD, md5_hex
from vkubelet.api.objects import PODS, Json, JsonView, Key, Node, Pod, get_condition
from vkubelet.client.rest import Selection
from vkubelet.clock import rfc3339
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.control.workqueue import Priority
from vkubelet.errors import AlreadyExists, Forbidden, NotFound, Unavailable
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

PREFIX: Final = "fake-pod-for-hostport-"
_BY_NODE: Final = "node"
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_ALL_ADDRESSES: Final = "0.0.0.0"
_REFUSED_AGAIN: Final = 60.0
_MESSAGE: Final = "placeholder without containers: pods of the worker cluster use these host ports of the node"


@frozen(order=True)
class HostPort:
    """A port of the node, as the scheduler compares it; `container` is the port inside the container."""

    address: str
    protocol: str
    port: int
    container: int = 0


def host_ports(spec: JsonView) -> list[HostPort]:
    """Returns the host ports that a pod uses on its node, those of init containers included."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return [
        HostPort(each.get("hostIP") or _ALL_ADDRESSES, each.get("protocol") or "TCP", each["hostPort"], each.get("containerPort") or 0)
        for container in containers
        for each in container.get("ports") or ()
        if each.get("hostPort")
    ]


def merged(ports: Iterable[HostPort]) -> list[HostPort]:
    """Returns the ports in order without duplicates: the API server rejects a pod that lists a port twice."""
    found: dict[tuple[str, str, int], HostPort] = {}
    for each in sorted(ports):
        found.setdefault((each.address, each.protocol, each.port), each)
    return list(found.values())


def placeholder(node: Node, ports: Sequence[HostPort]) -> Json:
    """Builds the placeholder pod for these ports of a virtual node. Pure. Its name derives from both, so it is created only once."""
    fingerprint = md5_hex(f"{node.metadata.uid} {ports}")
    named = [
        {"name": f"port-{i}", "hostIP": each.address, "protocol": each.protocol, "hostPort": each.port, "containerPort": each.container}
        for i, each in enumerate(ports)
    ]
    container = {"name": "fake-container", "image": "busybox:1.28", "command": ["sleep", "100000000"], "ports": named}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid, "controller": True}
    return {
        "metadata": {
            "name": f"{PREFIX}{fingerprint}",
            "namespace": keys.FAKE_NAMESPACE,
            "labels": {keys.HOSTPORT_FAKE_POD: "true", keys.MANAGED_BY: keys.MANAGED},
            "annotations": {MIRROR_POD: fingerprint},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": node.metadata.name,
            "containers": [container],
            "priorityClassName": "system-node-critical",
            "tolerations": [{"operator": "Exists"}],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
        },
    }


def placeholder_status(pod: Pod, *, now: str) -> Json | None:
    """Returns the patch to the desired status, scheduled and Running so that it raises no alerts, or None when the status is current."""
    scheduled = get_condition(pod.status.get("conditions") or (), "PodScheduled")
    if pod.phase == "Running" and scheduled is not None and scheduled.get("status") == "True":
        return None
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    status = {"phase": "Running", "reason": "HostPorts", "message": _MESSAGE, "conditions": [condition]}
    return {"metadata": {"uid": pod.metadata.uid}, "status": status}


class HostPortReconciler:
    """Reconciles one placeholder pod for each virtual node. Keys are names of physical nodes."""

    def __init__(self, scope: WorkerScope) -> None:
        self._scope = scope
        self._used: dict[str, dict[str, list[HostPort]]] = {}
        self._problem = ""
        client, clock = scope.host.client, scope.host.clock
        ours = Selection(namespace=keys.FAKE_NAMESPACE, labels=f"{keys.HOSTPORT_FAKE_POD}=true,{keys.MANAGED_BY}={keys.MANAGED}")
        store: Store[Pod] = Store(indexes={_BY_NODE: lambda pod: [pod.node]})
        self.informer: Informer[Pod] = Informer(client, PODS, where=ours, store=store, clock=clock, metrics=scope.host.metrics)
        self.controller: Controller[str] = Controller("host ports", self.reconcile, workers=4, clock=clock, metrics=scope.host.metrics)
        scope.worker.pods.on_change(self._pod_changed)
        self.informer.on_change(self._placeholder_changed)

    async def run(self) -> None:
        """Waits for the complete lists, enqueues every node, and runs the controller until cancelled."""
        await self._scope.worker.wait_complete()
        for informer in (self.informer, self._scope.hub_nodes):
            await informer.wait_synced()
        for node in self._scope.hub_nodes.store:
            self.controller.add(physical_name(node), priority=Priority.LOW)
        await self.controller.run()

    def hub_node_changed(self, change: Change[Node]) -> None:
        """Enqueues a virtual node that was created, deleted or is being withdrawn; the caller's watch of hub Nodes outlives one worker."""
        node = change.new or change.old
        concerns = change.more_than_status or self.informer.store.has(_BY_NODE, change.key.name)
        if node is not None and concerns and (name := physical_name(node)):
            self.controller.add(name, priority=Priority.LOW if change.initial else Priority.HIGH)

    async def reconcile(self, name: str) -> float | None:
        """Ensures that the virtual node has the one placeholder it needs, or none. Raises Unavailable while that is unknown, ApiError."""
        if not self._scope.owns_physical(name):
            return None
        virtual = keys.vnode_name(self._scope.worker.mount.owner.cluster_id, name)
        node = self._scope.hub_nodes.store.get(Key("", virtual))
        existing = self.informer.store.by_index(_BY_NODE, virtual)
        with bind(node=virtual, physical_node=name):
            if self._scope.virtual.get(virtual) is None and not self._scope.virtual.is_complete:
                raise Unavailable("the virtual nodes are not known completely yet", retry_after=1.0)
            ports = self._ports(name) if self._needs_placeholder(virtual, node) else []
            if node is None or not ports:
                await self._delete(existing)
                return None
            wanted = placeholder(node, ports)
            current = next((pod for pod in existing if pod.metadata.name == wanted["metadata"]["name"] and not pod.terminating), None)
            current = current or await self._create(wanted)
            if current is None:
                return _REFUSED_AGAIN
            await self._write_status(current)
            await self._delete(pod for pod in existing if pod.metadata.uid != current.metadata.uid)
            return None

    def _needs_placeholder(self, virtual: str, node: Node | None) -> bool:
        return node is not None and not node.metadata.deletion_timestamp and self._scope.virtual.get(virtual) is not None

    def _ports(self, name: str) -> list[HostPort]:
        return merged(port for ports in self._used.get(name, {}).values() for port in ports)

    async def _create(self, wanted: Json) -> Pod | None:
        """Creates the placeholder; None when that is refused, which an event of the binding reports."""
        node = wanted["spec"]["nodeName"]
        client = self._scope.host.node_client(node)
        try:
            made = await client.create(PODS, wanted)
        except AlreadyExists:
            made = await client.get(PODS, Key(keys.FAKE_NAMESPACE, wanted["metadata"]["name"]))
            if made.node != node or made.terminating:
                raise Unavailable(f"an earlier pod {made.key} is still terminating", retry_after=2.0) from None
        except NotFound as error:
            self._refused(f"namespace {keys.FAKE_NAMESPACE} does not exist; create it ({error.message})")
            return None
        except Forbidden as error:
            self._refused(f"this process may not create pods in namespace {keys.FAKE_NAMESPACE}; grant it the right ({error.message})")
            return None
        self._problem = ""
        self.informer.adopt(made)
        return made

    def _refused(self, problem: str) -> None:
        if self._problem != problem:
            self._problem = problem
            text = f"host ports that are used in the worker cluster are not reserved on its virtual nodes: {problem}"
            self._scope.binding.event("HostPortsNotShown", text, warning=True)

    async def _write_status(self, pod: Pod) -> None:
        change = placeholder_status(pod, now=rfc3339(self._scope.host.clock.now()))
        if change is not None:
            self.informer.adopt(await self._scope.host.node_client(pod.node).patch(PODS, pod.key, change, subresource="status"))

    async def _delete(self, pods: Iterable[Pod]) -> None:
        for pod in list(pods):
            try:
                await self._scope.host.node_client(pod.node).delete(PODS, pod.key, grace=0, uid=pod.metadata.uid)
            except NotFound:
                log.debug("placeholder is deleted already")

    def _pod_changed(self, change: Change[Pod]) -> None:
        """Tracks only pods that use host ports, so that all others cost nothing here."""
        touched: set[str] = set()
        if change.old is not None and self._used.get(change.old.node, {}).pop(change.old.metadata.uid, None) is not None:
            touched.add(change.old.node)
        if change.new is not None and (ports := self._local_ports(change.new)):
            self._used.setdefault(change.new.node, {})[change.new.metadata.uid] = ports
            touched.add(change.new.node)
        for name in touched:
            self.controller.add(name, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _local_ports(self, pod: Pod) -> list[HostPort]:
        if not pod.node or pod.phase in _ENDED or b'"hostPort"' not in pod.spec_json or self._scope.worker.backed(pod) is not None:
            return []
        return host_ports(pod.spec)

    def _placeholder_changed(self, change: Change[Pod]) -> None:
        pod = change.new or change.old
        node = self._scope.hub_nodes.store.get(Key("", pod.node)) if pod is not None else None
        if node is not None and (name := physical_name(node)):
            self.controller.add(name, priority=Priority.LOW if change.initial else Priority.HIGH)
