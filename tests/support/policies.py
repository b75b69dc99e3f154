"""Decides about connections between pods as a network plugin does, from NetworkPolicies alone: none runs in the tests' clusters."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import field, frozen

from tests.support.bound import get
from vkubelet.testing.cluster import ControlPlane

Body = Mapping[str, Any]


@frozen
class Peer:
    """One side of a connection; without a namespace it is no pod of the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] = field(factory=dict)
    address: str = "192.0.2.1"
    ports: Mapping[str, int] = field(factory=dict)
    """Ports of its containers by name."""


@frozen
class Plugin:
    """A cluster: its NetworkPolicies, and the labels of its namespaces."""

    policies: Iterable[Body]
    namespaces: Mapping[str, Mapping[str, str]]

    def admits(self, source: Peer, target: Peer, port: int = 80, protocol: str = "TCP") -> bool:
        """Whether the policies of both sides admit a connection."""
        return self._allows("Ingress", target, source, target, port, protocol) and self._allows(
            "Egress", source, target, target, port, protocol
        )

    def is_isolated(self, pod: Peer, kind: str) -> bool:
        return bool(self._selecting(kind, pod))

    def _selecting(self, kind: str, pod: Peer) -> list[Body]:
        if not pod.namespace:
            return []
        mine = [each["spec"] for each in self.policies if each["metadata"]["namespace"] == pod.namespace]
        return [spec for spec in mine if kind in spec["policyTypes"] and selects(spec.get("podSelector") or {}, pod.labels)]

    def _allows(self, kind: str, pod: Peer, other: Peer, target: Peer, port: int, protocol: str) -> bool:
        specs = self._selecting(kind, pod)
        side = "from" if kind == "Ingress" else "to"
        rules = [rule for spec in specs for rule in spec.get(kind.lower()) or ()]
        return not specs or any(
            self._is_peer(rule.get(side) or [], other, pod.namespace) and is_port(rule.get("ports") or [], target, port, protocol)
            for rule in rules
        )

    def _is_peer(self, peers: list[Body], other: Peer, namespace: str) -> bool:
        return not peers or any(self._matches(peer, other, namespace) for peer in peers)

    def _matches(self, peer: Body, other: Peer, namespace: str) -> bool:
        assert set(peer) <= {"podSelector", "namespaceSelector", "ipBlock"} and peer, f"the API server would refuse {peer}"
        if "ipBlock" in peer:
            address, block = ipaddress.ip_address(other.address), peer["ipBlock"]
            excluded = any(address in ipaddress.ip_network(each) for each in block.get("except") or ())
            return not other.namespace and address in ipaddress.ip_network(block["cidr"]) and not excluded
        if not other.namespace or not selects(peer.get("podSelector") or {}, other.labels):
            return False
        if peer.get("namespaceSelector") is None:
            return other.namespace == namespace
        return selects(peer["namespaceSelector"], self.namespaces[other.namespace])


async def plugin(cluster: ControlPlane) -> Plugin:
    """A cluster as its network plugin sees it now."""
    found = (await get(cluster, "networkpolicies", "-A"))["items"]
    spaces = (await get(cluster, "namespaces"))["items"]
    return Plugin(found, {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in spaces})


def is_port(ports: list[Body], target: Peer, port: int, protocol: str) -> bool:
    return not ports or any(
        (each.get("protocol") or "TCP") == protocol and _covers(each.get("port"), each.get("endPort"), target, port) for each in ports
    )


def _covers(first: int | str | None, last: int | None, target: Peer, port: int) -> bool:
    if first is None:
        return True
    if isinstance(first, str):
        return target.ports.get(first) == port
    return first <= port <= (last or first)


def selects(selector: Body, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels."""
    assert set(selector) <= {"matchLabels", "matchExpressions"}, selector
    return (selector.get("matchLabels") or {}).items() <= labels.items() and all(
        _holds(each, labels) for each in selector.get("matchExpressions") or ()
    )


def _holds(requirement: Body, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement["key"]), requirement.get("values") or []
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[requirement["operator"]]
