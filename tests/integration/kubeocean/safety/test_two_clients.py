"""Rule `two-clients`: what a kubelet of its own may write goes through `node_client`, all else through the binding's client.

The proof is by rights: two users, neither of whom may do the other's part, and nothing is refused.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kubeocean.cli import runtime_defaults
from kubeocean.provider import KubeoceanProvider
from kubeocean.settings import KubeoceanSettings
from tests.integration.kubeocean.conftest import MakeScene
from tests.support.audit import Audit
from tests.support.bound import Bound, apply, delete, get
from tests.support.program import eventually
from tests.support.stage import Stage
from vkubelet import settings
from vkubelet.client.connection import Connection, load_connection
from vkubelet.client.rest import Client
from vkubelet.runtime import Runtime
from vkubelet.settings import Settings

ALLOWED_TO_NODES = {
    ("create", "nodes"),
    ("patch", "nodes/status"),
    ("patch", "pods/status"),
    ("delete", "pods"),
    ("create", "pods/eviction"),
    ("create", "serviceaccounts/token"),
    ("create", "leases"),
    ("update", "leases"),
    ("delete", "leases"),
}
READS_BY_NAME = {("get", "nodes"), ("get", "pods"), ("get", "leases")}
"""A kubelet identity may not list."""


class TwoUsers(Runtime):
    """Every node writes as another user."""

    def __init__(self, bound: Bound, *, binding: Connection, nodes: Connection) -> None:
        self.second = Client(nodes, field_manager=f"kubeocean-{bound.name}")
        extra = {
            "server": {"node_address": bound.hub.host_address, "main_port": 0, "approve_own_csr": True},
            "health": {"health_address": "", "metrics_address": ""},
            "lease": {"renew_every": 1.0},
        }
        chosen = settings.convert(settings.merged(runtime_defaults(bound.name), extra), Settings)
        super().__init__(KubeoceanProvider(KubeoceanSettings(binding=bound.name)), chosen, connection=binding)

    def node_client(self, node: str) -> Client:
        return self.second


def group_of(resource: str) -> str:
    return "coordination.k8s.io" if resource == "leases" else ""


async def split_rights(bound: Bound, second: str) -> None:
    """Take from our user what nodes do, and give it to the second one."""
    name = f"kubeocean-syncer-{bound.name}"
    rules = []
    for rule in (await get(bound.hub, "clusterrole", name))["rules"]:
        for resource in rule["resources"]:
            left = [verb for verb in rule["verbs"] if (verb, resource) not in ALLOWED_TO_NODES]
            if left:
                rules.append({**copy.deepcopy(rule), "resources": [resource], "verbs": left})
    await bound.hub.kubectl("patch", "clusterrole", name, "--type=merge", "-p", json.dumps({"rules": rules}))
    await bound.hub.kubectl("delete", "rolebinding", name, "-n", "kube-node-lease")
    granted = sorted(ALLOWED_TO_NODES | READS_BY_NAME)
    role: dict[str, Any] = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"nodes-of-{bound.name}"},
        "rules": [{"apiGroups": [group_of(resource)], "resources": [resource], "verbs": [verb]} for verb, resource in granted],
    }
    to = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role["metadata"]["name"]},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": second}],
    }
    await apply(bound.hub, role, to)


@asynccontextmanager
async def run(bound: Bound, second: str) -> AsyncIterator[None]:
    binding = await load_connection(kubeconfig=bound.hub.client_config(bound.user))
    nodes = await load_connection(kubeconfig=bound.hub.client_config(second))
    runtime = TwoUsers(bound, binding=binding, nodes=nodes)
    async with runtime.second, asyncio.TaskGroup() as group:
        group.create_task(runtime.run())
        try:
            yield
        finally:
            runtime.stop()


async def whole_life(stage: Stage) -> None:
    """A node with pods, from its registration to its end."""
    bound = stage.bound
    await bound.node_ready(stage.nodes[0])
    first = await _renewed_at(stage)
    await eventually(lambda: _is_renewed(stage, first), "its lease is renewed")
    for name in ("deleted", "evicted"):
        await stage.create(name)
        await stage.running(name)
    theirs = {"metadata": {"labels": {"worker.example.com/team": "a"}}}
    await stage.there.patch("pods", stage.physical_name("deleted"), theirs, namespace=bound.mount)
    await stage.until("deleted", lambda p: p["metadata"].get("labels"), "has the worker's label")
    await stage.home.delete("pods", "deleted", stage.namespace)
    await stage.absent("deleted")
    await stage.there.patch("nodes", stage.nodes[0], {"spec": {"unschedulable": True}})
    await eventually(lambda: _tainted(stage), "the virtual node is closed, too")
    await delete(bound.worker, "resourceleasingpolicy", f"all-of-{bound.name}", "--wait=false")
    await stage.absent("evicted")

    async def gone() -> bool:
        return await stage.home.get("nodes", stage.vnode) is None

    await eventually(gone, "the node is removed")
    await eventually(lambda: _no_lease(stage), "its lease is removed")


async def _tainted(stage: Stage) -> bool:
    node = await stage.home.get("nodes", stage.vnode)
    taints = node["spec"].get("taints", ()) if node is not None else ()
    return any(taint["key"] == "kubeocean.io/physical-node-unschedulable" for taint in taints)


async def _renewed_at(stage: Stage) -> str | None:
    lease = await get(stage.bound.hub, "lease", stage.vnode, "-n", "kube-node-lease")
    return lease["spec"]["renewTime"] if lease is not None else None


async def _is_renewed(stage: Stage, first: str | None) -> bool:
    return await _renewed_at(stage) not in (None, first)


async def _no_lease(stage: Stage) -> bool:
    return await get(stage.bound.hub, "lease", stage.vnode, "-n", "kube-node-lease") is None


async def test_nodes_write_as_one_user_and_the_binding_as_another(scene: MakeScene) -> None:
    def policies(bound: Bound) -> list[dict[str, Any]]:
        return [bound.policy(forceReclaim=True, gracefulReclaimPeriodSeconds=60)]

    made = await scene(start=False, policies=policies)
    bound, second = made.bound, f"nodes-of-{made.bound.name}"
    await split_rights(bound, second)
    by_binding, by_nodes = Audit(bound.hub, bound.user), Audit(bound.hub, second)
    async with run(bound, second):
        stage = await Stage.of(bound, made.nodes)
        await whole_life(stage)

    def written() -> set[tuple[str, str]]:
        return {(call.verb, call.what) for call in by_nodes.writes()}

    await eventually(lambda: written() >= ALLOWED_TO_NODES, "the audit log has all of it")
    assert written() == ALLOWED_TO_NODES
    assert {(call.verb, call.what) for call in by_nodes.calls()} - written() <= READS_BY_NAME
    assert not {(call.verb, call.what) for call in by_binding.writes()} & ALLOWED_TO_NODES
    refused = [str(call) for audit in (by_binding, by_nodes) for call in audit.calls() if call.code == 403]
    assert not refused
    assert ("patch", "nodes") in {(call.verb, call.what) for call in by_binding.writes()}, "taints"
    assert ("delete", "nodes") in {(call.verb, call.what) for call in by_binding.writes()}
    assert ("patch", "pods") in {(call.verb, call.what) for call in by_binding.writes()}, "labels"
