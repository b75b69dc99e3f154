"""Nodes that this process serves, with the description and health that the provider declared for each.

Invariant: a node is unknown, declared or retiring; it leaves the table only when its Node object is deleted and it is not declared.
"""

import enum
from collections.abc import Callable

from attrs import evolve, field, frozen

from vkubelet.clock import Clock
from vkubelet.provider import NodeDescription


class NodeState(enum.Enum):
    """What the provider has declared about a node."""

    UNKNOWN = "unknown"
    """Its Node has our mark, but the provider has not yet declared whether it still backs it."""
    DECLARED = "declared"
    RETIRING = "retiring"
    """No new pods; once the node is empty, Node and Lease are deleted."""


@frozen
class Health:
    """Reason why declared nodes are not Ready; with an empty reason they are."""

    reason: str = ""
    message: str = ""


HEALTHY = Health()


@frozen
class Declared:
    """Known state of one node. `changed_at` is the monotonic time of the last change of the description."""

    state: NodeState
    description: NodeDescription | None = None
    changed_at: float = 0.0
    health: Health = field(default=HEALTHY)


class DeclaredNodes:
    """Table of nodes; listeners are called with the node's name after every change."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._nodes: dict[str, Declared] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._provider_health = HEALTHY
        self.complete = False
        self.closed = False
        """The process stops: its nodes accept no new pods."""
        self._last_health = HEALTHY

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Registers `listener(name)`, called after every change of a node."""
        self._listeners.append(listener)

    def get(self, name: str) -> Declared | None:
        return self._nodes.get(name)

    def names(self) -> list[str]:
        return list(self._nodes)

    def is_declared(self, name: str) -> bool:
        """Checks that the provider backs this node."""
        node = self._nodes.get(name)
        return node is not None and node.state is NodeState.DECLARED

    def count(self, state: NodeState) -> int:
        """Counts the nodes in this state, for the metrics."""
        return sum(node.state is state for node in self._nodes.values())

    def health(self, name: str) -> Health:
        """Returns the provider's failure if it failed, else the health of the node itself."""
        if self._last_health.reason:
            return self._last_health
        node = self._nodes.get(name)
        return self._provider_health if self._provider_health.reason or node is None else node.health

    def found(self, name: str) -> None:
        """Records a Node with our mark that exists in the cluster; once the declarations are complete, an undeclared one is retiring."""
        if name not in self._nodes:
            self._put(name, Declared(NodeState.RETIRING if self.complete else NodeState.UNKNOWN))

    def declare(self, description: NodeDescription) -> None:
        """Declares a node or changes its description; an equal description changes nothing."""
        known = self._nodes.get(description.name)
        if known is not None and known.state is NodeState.DECLARED and known.description == description:
            return
        health = known.health if known is not None else HEALTHY
        self._put(description.name, Declared(NodeState.DECLARED, description, self._clock.monotonic(), health))

    def finish_declaring(self) -> None:
        """Completes the declarations: nodes that are still unknown become retiring (rule `declared-before`)."""
        if self.complete:
            return
        self.complete = True
        for name, node in list(self._nodes.items()):
            if node.state is NodeState.UNKNOWN:
                self._put(name, evolve(node, state=NodeState.RETIRING))
            else:
                self._notify(name)

    def retire(self, name: str) -> None:
        """Withdraws a node; for a node that is not known here it does nothing."""
        node = self._nodes.get(name)
        if node is not None and node.state is not NodeState.RETIRING:
            self._put(name, evolve(node, state=NodeState.RETIRING, changed_at=self._clock.monotonic()))

    def remove_undeclared(self, name: str) -> None:
        """Drops a node whose Node was deleted; a node that was declared again meanwhile stays."""
        if name in self._nodes and not self.is_declared(name):
            del self._nodes[name]
            self._notify(name)

    def close(self, health: Health) -> None:
        """Closes all nodes to new pods from now on; an unhealthy `health` applies to all, whatever the provider reports."""
        self.closed, self._last_health = True, health
        for name in list(self._nodes):
            self._notify(name)

    def remove(self, name: str) -> None:
        """Drops a node in any state, because it is being deleted."""
        self._nodes.pop(name, None)

    def set_health(self, name: str, health: Health) -> None:
        """Records the result of the ping of one node."""
        node = self._nodes.get(name)
        if node is not None and node.health != health:
            self._put(name, evolve(node, health=health, changed_at=self._clock.monotonic()))

    def set_provider_health(self, health: Health) -> None:
        """Records that the provider itself failed, or runs again."""
        if self._provider_health == health:
            return
        self._provider_health = health
        for name in list(self._nodes):
            self._notify(name)

    def _put(self, name: str, node: Declared) -> None:
        self._nodes[name] = node
        self._notify(name)

    def _notify(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)
