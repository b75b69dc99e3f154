"""Keeps the virtual nodes that this provider has declared, and publishes them as retained while the worker is unreachable.

Invariant: a node leaves this table only by `retire`; `hold` changes the published form of a node and never the set of nodes.
"""

import asyncio
import logging
from collections.abc import Iterator, Set

from attrs import evolve, frozen

from kubeocean.model import keys
from vkubelet.api.names import INSTANCE, OWNED, owned_keys
from vkubelet.api.objects import Json, JsonView, Node
from vkubelet.api.quantity import Resources, parse_resources
from vkubelet.clock import in_batches
from vkubelet.provider import Host, NodeDescription, Taint

log = logging.getLogger(__name__)

HOLD_REASON = "WorkerUnreachableHold"
_GIVEN_UP = "WorkerUnreachable"
"""Reason of a Ready condition that no physical node has: the pods of the node are given up."""
UNREACHABLE_TAINT = Taint(key=keys.TAINT_WORKER_UNREACHABLE, effect="NoSchedule")


@frozen
class VirtualNode:
    """A declared node, and the physical node that backs it."""

    description: NodeDescription
    physical_name: str
    physical_uid: str


class VirtualNodes:
    """The table of declared nodes; it outlives connections to the worker. `run` publishes them in another form."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._nodes: dict[str, VirtualNode] = {}
        self._retired: set[str] = set()
        self._hold = ""
        self._hold_ready = True
        self._reformed = asyncio.Event()
        self._complete = False

    def get(self, name: str) -> VirtualNode | None:
        return self._nodes.get(name)

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[VirtualNode]:
        return iter(list(self._nodes.values()))

    def keys(self) -> Set[str]:
        """Returns the names of the declared nodes."""
        return self._nodes.keys()

    def is_retired(self, name: str) -> bool:
        """Checks whether the node was withdrawn and still exists in the hub."""
        return name in self._retired

    @property
    def is_complete(self) -> bool:
        """Whether `complete` was called."""
        return self._complete

    def complete(self) -> None:
        """Notifies the runtime once that every node known so far is declared or withdrawn."""
        if not self._complete:
            self._complete = True
            self._host.nodes_complete()

    def physical_name(self, virtual: str) -> str:
        """Returns the physical node of a virtual one, "" if it is not declared."""
        node = self._nodes.get(virtual)
        return node.physical_name if node is not None else ""

    def allocatable(self, virtual: str) -> Resources | None:
        """Returns the allocatable of a declared node; None for any other."""
        node = self._nodes.get(virtual)
        return parse_resources(node.description.allocatable) if node is not None else None

    def declare(self, description: NodeDescription, *, physical_name: str, physical_uid: str) -> None:
        """Declares a node or changes it; while the worker is unreachable it is published in the retained form."""
        self._retired.discard(description.name)
        self._nodes[description.name] = VirtualNode(description, physical_name, physical_uid)
        self._publish(description)

    def keep(self, live: Node) -> None:
        """Declares a Node of ours as observed in the hub, because its desired state is unknown."""
        if live.metadata.name not in self._nodes:
            labels = live.metadata.labels
            name = live.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "") or labels.get(keys.PHYSICAL_NODE_NAME, "")
            uid = labels.get(keys.PHYSICAL_NODE_UID, "")
            self.declare(description_of(live), physical_name=name, physical_uid=uid)

    def retire(self, name: str) -> None:
        """Withdraws a node; also one that was never declared here but exists in the hub."""
        self._nodes.pop(name, None)
        self._retired.add(name)
        self._host.remove_node(name)

    def remove(self, name: str) -> None:
        """Drops a withdrawn node that was deleted from the hub."""
        self._retired.discard(name)

    def hold(self, message: str, *, ready: bool = True) -> None:
        """Publishes every node in its retained form, as the worker is unreachable: Ready as before or, if it is given up, Unknown."""
        self._reform(message, ready)

    def release(self) -> None:
        """Publishes the nodes by their last description when the worker is reachable again."""
        self._reform("", True)

    def _reform(self, message: str, ready: bool) -> None:
        if (self._hold, self._hold_ready) != (message, ready):
            self._hold, self._hold_ready = message, ready
            self._reformed.set()

    async def run(self) -> None:
        """Publishes all nodes again, in batches, whenever their form has changed; until cancelled."""
        while True:
            await self._reformed.wait()
            self._reformed.clear()
            async for name in in_batches(self._host.clock, self._nodes):
                node = self._nodes.get(name)
                if node is not None:
                    self._publish(node.description)

    def _publish(self, description: NodeDescription) -> None:
        self._host.set_node(retained(description, self._hold, ready=self._hold_ready) if self._hold else description)


def retained(description: NodeDescription, message: str, *, ready: bool = True) -> NodeDescription:
    """Returns the retained form: no new pods, Ready as before or Unknown, with the reason as message (rule `worker-unreachable`)."""
    conditions = [
        _retained_condition(condition, message)
        for condition in description.conditions
        if condition["type"] != keys.CONDITION_WORKER_REACHABLE
    ]
    if not ready:
        conditions = [condition for condition in conditions if condition["type"] != "Ready"]
        conditions.append({"type": "Ready", "status": "Unknown", "reason": _GIVEN_UP, "message": message})
    if not any(condition["type"] == "Ready" for condition in conditions):
        conditions.append({"type": "Ready", "status": "True", "reason": HOLD_REASON, "message": message})
    conditions.append({"type": keys.CONDITION_WORKER_REACHABLE, "status": "False", "reason": "WorkerUnreachable", "message": message})
    taints = [taint for taint in description.taints if taint.key != UNREACHABLE_TAINT.key]
    return evolve(description, conditions=conditions, taints=[*taints, UNREACHABLE_TAINT])


def _retained_condition(condition: JsonView, message: str) -> Json:
    if condition["type"] == "Ready" and condition["status"] == "True":
        return {**condition, "reason": HOLD_REASON, "message": message}
    return dict(condition)


def description_of(live: Node) -> NodeDescription:
    """Returns the description under which a Node was last written, read from the Node itself."""
    owned, status, info = owned_keys(live), live.status, dict(live.status.get("nodeInfo") or {})
    labels = {key: value for key, value in live.metadata.labels.items() if key in owned.labels and key != INSTANCE}
    annotations = {key: value for key, value in live.metadata.annotations.items() if key in owned.annotations and key != OWNED}
    taints = [
        Taint(key=taint["key"], effect=taint["effect"], value=taint.get("value", ""), time_added=taint.get("timeAdded", ""))
        for taint in live.spec.get("taints") or ()
        if taint["key"] in owned.taints and taint["key"] != UNREACHABLE_TAINT.key
    ]
    conditions = [
        c
        for c in status.get("conditions") or ()
        if c["type"] in owned.conditions and c["type"] != keys.CONDITION_WORKER_REACHABLE and c.get("reason") != _GIVEN_UP
    ]
    return NodeDescription(
        live.metadata.name,
        status.get("capacity") or {},
        allocatable=status.get("allocatable") or {},
        labels=labels,
        annotations=annotations,
        taints=taints,
        conditions=conditions,
        os=info.get("operatingSystem") or "linux",
        arch=info.get("architecture") or "amd64",
        info=info,
    )
