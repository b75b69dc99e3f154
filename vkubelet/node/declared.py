"""Which nodes this process answers for, and what the provider says of each.

Invariant: a node is unknown, declared or retiring; it leaves the table only when its Node object is gone and it is not declared.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from attrs import evolve, field, frozen

from vkubelet.clock import Clock
from vkubelet.provider import NodeDescription


class Standing(enum.Enum):
    """How the provider stands to a node."""

    UNKNOWN = "unknown"
    """Its Node bears our mark, but the provider has not yet said whether it still backs it."""
    DECLARED = "declared"
    RETIRING = "retiring"
    """No new pods; once it is empty, Node and Lease are deleted."""


@frozen
class Health:
    """Why nodes are not Ready although they are declared; an empty reason means they are."""

    reason: str = ""
    message: str = ""


HEALTHY = Health()


@frozen
class Declared:
    """What is known of one node. `changed_at` is the monotonic time of the last change of the description."""

    standing: Standing
    description: NodeDescription | None = None
    changed_at: float = 0.0
    health: Health = field(default=HEALTHY)


class DeclaredNodes:
    """The table; every change is told to the listeners by the node's name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._nodes: dict[str, Declared] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._provider_health = HEALTHY
        self.complete = False
        self.closed = False
        """The process stops: its nodes take no new pods."""
        self._last_health = HEALTHY

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener(name)` after every change of a node."""
        self._listeners.append(listener)

    def get(self, name: str) -> Declared | None:
        return self._nodes.get(name)

    def names(self) -> list[str]:
        return list(self._nodes)

    def count(self, standing: Standing) -> int:
        """How many nodes stand like that, for the metrics."""
        return sum(node.standing is standing for node in self._nodes.values())

    def health(self, name: str) -> Health:
        """The provider's failure if it failed, else the node's own."""
        if self._last_health.reason:
            return self._last_health
        node = self._nodes.get(name)
        return self._provider_health if self._provider_health.reason or node is None else node.health

    def found(self, name: str) -> None:
        """A Node with our mark exists in the cluster; once the declarations are complete, an undeclared one is retiring."""
        if name not in self._nodes:
            self._put(name, Declared(Standing.RETIRING if self.complete else Standing.UNKNOWN))

    def declare(self, description: NodeDescription) -> None:
        """Declare a node or change what was said of it; an equal description changes nothing."""
        known = self._nodes.get(description.name)
        if known is not None and known.standing is Standing.DECLARED and known.description == description:
            return
        health = known.health if known is not None else HEALTHY
        self._put(description.name, Declared(Standing.DECLARED, description, self._clock.monotonic(), health))

    def finish_declaring(self) -> None:
        """All nodes known so far are declared: those still unknown become retiring (layout.md section 16, rule 7)."""
        if self.complete:
            return
        self.complete = True
        for name, node in list(self._nodes.items()):
            if node.standing is Standing.UNKNOWN:
                self._put(name, evolve(node, standing=Standing.RETIRING))
            else:
                self._tell(name)

    def retire(self, name: str) -> None:
        """Withdraw a node; one that is not known here has nothing to withdraw."""
        node = self._nodes.get(name)
        if node is not None and node.standing is not Standing.RETIRING:
            self._put(name, evolve(node, standing=Standing.RETIRING, changed_at=self._clock.monotonic()))

    def forget(self, name: str) -> None:
        """Its Node is gone; a node that was declared again meanwhile stays."""
        node = self._nodes.get(name)
        if node is not None and node.standing is not Standing.DECLARED:
            del self._nodes[name]
            self._tell(name)

    def close(self, health: Health) -> None:
        """No node takes new pods from now on; an unhealthy `health` is said of all, whatever the provider says."""
        self.closed, self._last_health = True, health
        for name in list(self._nodes):
            self._tell(name)

    def drop(self, name: str) -> None:
        """Forget a node however it stands, because it is being deleted."""
        self._nodes.pop(name, None)

    def set_health(self, name: str, health: Health) -> None:
        """What the ping of one node said."""
        node = self._nodes.get(name)
        if node is not None and node.health != health:
            self._put(name, evolve(node, health=health, changed_at=self._clock.monotonic()))

    def set_provider_health(self, health: Health) -> None:
        """The provider as a whole failed, or runs again."""
        if self._provider_health == health:
            return
        self._provider_health = health
        for name in list(self._nodes):
            self._tell(name)

    def _put(self, name: str, node: Declared) -> None:
        self._nodes[name] = node
        self._tell(name)

    def _tell(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)
