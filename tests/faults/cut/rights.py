"""The rights of the process in one cluster, taken away one by one while it runs; which of them nothing can use then, and why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from attrs import define

from tests.support.bound import SAMPLES, Body, get
from tests.support.objects import Question, objects_of
from tests.support.program import eventually
from tests.support.reviews import allows
from tests.support.roles import narrowed
from vkubelet.api.codec import decode_yaml_documents
from vkubelet.api.rbac import Check
from vkubelet.testing.cluster import ControlPlane

_START = "read once, when the process starts"
_CERTIFICATE = "requests the serving certificate of the kubelet port, at the start and after half a year"
_TENANTS = "only with spec.namespaceMapping: PerNamespace"
_WEBSOCKET = "streams are WebSocket requests, which are GET; API servers before 1.35 do not check `create` for them"
_WATCHED = "watched, and never read one by one"
_LEADER = "only with leader election, in which a process that cannot renew its Lease exits on purpose: test_leaders.py"
_UNBINDING = "only when the binding is deleted"
NOT_USED = {
    "hub: get namespaces": _START,
    "hub: create certificatesigningrequests.certificates.k8s.io": _CERTIFICATE,
    "hub: get certificatesigningrequests.certificates.k8s.io": _CERTIFICATE,
    "hub: update certificatesigningrequests.certificates.k8s.io/approval": _CERTIFICATE,
    "hub: approve signers.certificates.k8s.io": _CERTIFICATE,
    "hub: get networkpolicies.networking.k8s.io": _TENANTS,
    "hub: list networkpolicies.networking.k8s.io": _TENANTS,
    "hub: watch networkpolicies.networking.k8s.io": _TENANTS,
    "hub: list namespaces": _TENANTS,
    "hub: watch namespaces": _TENANTS,
    "hub: get pods": "only for a pod whose deletion no watch has reported, as after a start",
    "hub: get endpointslices.discovery.k8s.io": _WATCHED,
    "hub: get leases.coordination.k8s.io in namespace kubeocean-system": _LEADER,
    "hub: create leases.coordination.k8s.io in namespace kubeocean-system": _LEADER,
    "hub: update leases.coordination.k8s.io in namespace kubeocean-system": _LEADER,
    "worker: get resourceleasingpolicies.cloud.tencent.com": _WATCHED,
    "worker: patch secrets": "only for tokens that Kubeocean (Go) created",
    "worker: patch endpointslices.discovery.k8s.io": _UNBINDING,
    "worker: patch pods/resize": "an API server refuses a resize until the kubelet reports amounts, which simulated kubelets do not",
    "worker: create pods/exec": _WEBSOCKET,
    "worker: create pods/attach": _WEBSOCKET,
    "worker: create pods/portforward": _WEBSOCKET,
}
"""Rights that the process does not use while it runs in this scene, with the reason."""

LOG_ONLY = {"hub: patch clusterbindings.cloud.tencent.com/status": "it is the condition that cannot be written"}
"""Rights whose lack the log alone shows, with the reason."""


def what_of(check: Check) -> str:
    """The resource as the audit log writes it."""
    return f"{check.resource}/{check.subresource}" if check.subresource else check.resource


@define(eq=False)
class Rights:
    """The rights of the process in one cluster, which its `roles` grant."""

    plane: ControlPlane
    side: str
    """`hub` or `worker`."""
    user: str
    roles: Sequence[tuple[str, str, str]]
    """Kind, namespace and name."""
    checks: Sequence[Check]

    def name(self, check: Check) -> str:
        """Names a right as NOT_USED does; the namespaces of Leases distinguish two rights."""
        return f"{self.side}: {check if self.side == 'hub' else str(check).partition(' in namespace ')[0]}"

    @asynccontextmanager
    async def without(self, check: Check) -> AsyncIterator[None]:
        """The owner of the cluster takes one right away while the block runs."""
        before = {role: await self._rules(role) for role in self.roles}
        for role, rules in before.items():
            left = narrowed(rules, check)
            if left != rules and (not check.namespace or role[1] in ("", check.namespace)):
                await self._set(role, left)
        try:
            await eventually(lambda: self._may(check, False), f"{check} is forbidden", seconds=20)
            yield
        finally:
            await asyncio.gather(*(self._set(role, rules) for role, rules in before.items()))
        await eventually(lambda: self._may(check, True), f"{check} is allowed", seconds=20)

    async def _rules(self, role: tuple[str, str, str]) -> list[Body]:
        return list((await get(self.plane, *_place(role)))["rules"])

    async def _set(self, role: tuple[str, str, str], rules: list[Body]) -> None:
        kind, namespace, name = role
        await objects_of(self.plane).patch(Question(kind.lower(), name, namespace or "default"), {"rules": rules})

    async def _may(self, check: Check, answer: bool) -> bool:
        attributes = {
            "verb": check.verb,
            "group": check.group,
            "resource": check.resource,
            "subresource": check.subresource,
            "namespace": check.namespace,
            "name": check.name,
        }
        return await allows(self.plane, self.user, **attributes) is answer


def _place(role: tuple[str, str, str]) -> list[str]:
    kind, namespace, name = role
    return [kind.lower(), name, *(["-n", namespace] if namespace else [])]


def roles_of(sample: str, name: str, namespaces: dict[str, str]) -> list[tuple[str, str, str]]:
    """The roles of a sample file, as `roles_for` names them."""
    found = []
    for body in decode_yaml_documents((SAMPLES / sample).read_text()):
        if body["kind"] in ("Role", "ClusterRole"):
            space = body["metadata"].get("namespace", "")
            found.append((body["kind"], namespaces.get(space, space), f"{body['metadata']['name']}-{name}"))
    return found
