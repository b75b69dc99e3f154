"""Sums what the nodes of each policy offer and lease, updated node by node: a policy may decide about thousands of nodes.

Invariant: the amounts of a policy are the sums over the nodes put last under it; reading them does not iterate over the nodes.
"""

from __future__ import annotations

from collections import Counter

from attrs import define, field, frozen

from kubeocean.policies.status import Amounts
from vkubelet.api.quantity import Resources, add_resources, subtract_resources


@frozen
class _Node:
    policy: str
    offered: Resources
    leased: Resources


@define
class _Sum:
    """Sums of one policy. `having` counts the nodes that have a resource, because an amount of zero differs from a missing one."""

    offered: Resources = field(factory=dict)
    leased: Resources = field(factory=dict)
    having: Counter[str] = field(factory=Counter)

    def put(self, node: _Node) -> None:
        self.offered = add_resources(self.offered, node.offered)
        self.leased = add_resources(self.leased, node.leased)
        self.having.update(node.offered.keys())

    def remove(self, node: _Node) -> None:
        self.having.subtract(node.offered.keys())
        offered = subtract_resources(self.offered, node.offered)
        self.offered = {name: amount for name, amount in offered.items() if self.having[name] > 0}
        self.leased = {name: amount for name, amount in subtract_resources(self.leased, node.leased).items() if amount}


class PolicyAmounts:
    """Amounts by policy. Keys are names of physical nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._sums: dict[str, _Sum] = {}

    def put(self, name: str, *, policy: str, offered: Resources, leased: Resources) -> bool:
        """Counts a node under its deciding policy, in place of its earlier amounts. Returns whether they differ."""
        node = _Node(policy, offered, leased)
        if self._nodes.get(name) == node:
            return False
        self.remove(name)
        self._nodes[name] = node
        self._sums.setdefault(policy, _Sum()).put(node)
        return True

    def lease(self, name: str, leased: Resources) -> str:
        """Updates the leased amount of a node whose pods changed. Returns the policy whose sum changed; "" for an uncounted node."""
        node = self._nodes.get(name)
        if node is None:
            return ""
        self.put(name, policy=node.policy, offered=node.offered, leased=leased)
        return node.policy

    def remove(self, name: str) -> None:
        """Removes a withdrawn node."""
        node = self._nodes.pop(name, None)
        if node is not None:
            self._sums[node.policy].remove(node)

    def of(self, policy: str) -> Amounts:
        """Returns the sums over the nodes of a policy."""
        total = self._sums.get(policy, _Sum())
        return Amounts(total.offered, {name: amount for name, amount in total.leased.items() if amount})
