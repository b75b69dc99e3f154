"""The dashboard as the manager serves it, before a real API server, and readers with tokens of ServiceAccounts.

Invariant: the dashboard acts as a user with exactly the rights of `permissions.manager_objects` with a dashboard; what a test makes
ends with it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from attrs import define, field

from kubeocean.dashboard.serving import ServedDashboard
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS
from kubeocean.rbac import permissions
from kubeocean.settings import DashboardSettings
from tests.integration.dashboard.clusters import DAY, filled, policies
from tests.integration.patient import patient_connection
from tests.support.bound import CRDS
from tests.support.program import PATIENCE, eventually
from tests.support.served_model import served
from tests.unit.kubeocean.builders import at
from vkubelet.api.objects import Key
from vkubelet.api.rbac import RBAC, role_binding
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.https import HttpsSettings
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.cluster import ControlPlane

Body = dict[str, Any]
Rule = dict[str, list[str]]

MANAGER = "manager-of-the-dashboard"
NODES: Rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}
BINDINGS: Rule = {"apiGroups": ["cloud.tencent.com"], "resources": ["clusterbindings"], "verbs": ["get", "list"]}
PODS: Rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
LIST_PODS: Rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
EVENTS: Rule = {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]}
BUDGETS: Rule = {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list"]}
SECRETS: Rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
NAMESPACES: Rule = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}


@define
class Page:
    """An answer."""

    status: int
    text: str
    headers: dict[str, str]


@define
class Served:
    """A dashboard, and the objects that it shows: binding and node named after the test, a pod in each of two namespaces."""

    hub: ControlPlane
    dashboard: ServedDashboard
    mark: str
    teams: tuple[str, str]
    made: list[Sequence[str]] = field(factory=list)
    _numbers: int = 0

    @property
    def node(self) -> str:
        return f"vnode-{self.mark}-node-01"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.dashboard.server.port}"

    async def reader(self, *wide: Rule, namespace: str = "", narrow: Sequence[Rule] = ()) -> str:
        """The token of a new ServiceAccount with these rights: `wide` in the cluster, `narrow` in a namespace."""
        self._numbers += 1
        space, name = self.teams[0], f"reader-{self._numbers}"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": space}
        await apply(self.hub, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": space}})
        await self.grant(subject, f"{self.mark}-{name}", *wide)
        await self.grant(subject, f"{self.mark}-{name}", *narrow, namespace=namespace)
        return (await self.hub.kubectl("create", "token", "-n", space, name)).strip()

    async def grant(self, subject: Body, name: str, *rules: Rule, namespace: str = "") -> None:
        """Binds a role with these rules, if there are any, to the subject."""
        if not rules:
            return
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        role = {"apiVersion": f"{RBAC}/v1", "kind": "Role" if namespace else "ClusterRole", "metadata": meta, "rules": list(rules)}
        await apply(self.hub, role, role_binding(name, namespace, role=name, subject=subject))
        if not namespace:
            self.made.append(("clusterrole,clusterrolebinding", name))

    async def get(self, path: str, token: str = "", *, headers: Body | None = None, context: ssl.SSLContext | None = None) -> Page:
        """One request of its own connection; the certificate of the server is checked elsewhere."""
        sent = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        connector = aiohttp.TCPConnector(ssl=context or unverified())
        async with aiohttp.ClientSession(connector=connector) as session, session.get(self.url + path, headers=sent) as answer:
            return Page(answer.status, await answer.text(), dict(answer.headers))

    async def shown(self, path: str, token: str, text: str) -> Page:
        """The page once it shows a text: an API server learns of roles a little late, and refusals are remembered for a while."""

        async def there() -> Page | None:
            page = await self.get(path, token)
            return page if text in page.text else None

        found: Page = await eventually(there, f"{path} shows {text}")
        return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def apply(hub: ControlPlane, *items: Body) -> None:
    await hub.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))


@asynccontextmanager
async def serving(hub: ControlPlane, tmp_path: Path, *, pod: Key | None = None, **settings: Any) -> AsyncIterator[Served]:
    """Serves the dashboard while entered."""
    mark = f"d{uuid.uuid4().hex[:6]}"
    async with AsyncExitStack() as stack:
        teams = (await hub.namespace("team-a"), await hub.namespace("team-b"))
        await _install(hub)
        clock = SystemClock()
        client = await stack.enter_async_context(Client(await patient_connection(hub.client_config(MANAGER)), field_manager="dashboard"))
        chosen = DashboardSettings(enabled=True, interval=2.0, server=HttpsSettings(**{"bind_address": "127.0.0.1", "port": 0, **settings}))
        made = Served(hub, ServedDashboard(client, clock, chosen, keys.NAMESPACE, pod), mark, teams)
        stack.push_async_callback(_remove, made)
        await _fill(made, stack)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        task = group.create_task(made.dashboard.run())
        stack.callback(task.cancel)
        await eventually(lambda: made.dashboard.server.problem is None, "the dashboard is served")
        yield made


async def _install(hub: ControlPlane) -> None:
    await hub.kubectl("apply", "-f", str(CRDS / "clusterbindings.yaml"))
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (keys.NAMESPACE, keys.FAKE_NAMESPACE)]
    rights = [body for body in permissions.manager_objects(dashboard=True) if body["kind"] != "ServiceAccount"]
    for body in rights:
        body["metadata"]["name"] = f"{MANAGER}-{body['metadata']['name']}"
        if "subjects" in body:
            body["subjects"] = [{"apiGroup": RBAC, "kind": "User", "name": MANAGER}]
            body["roleRef"]["name"] = f"{MANAGER}-{body['roleRef']['name']}"
    await apply(hub, *spaces, *rights)
    await hub.kubectl("wait", "--for=condition=Established", "-f", str(CRDS / "clusterbindings.yaml"), f"--timeout={PATIENCE:.0f}s")


async def _fill(made: Served, stack: AsyncExitStack) -> None:
    """One binding of a served worker with nodes of its own, one virtual node, and a pod in each namespace."""
    mark = made.mark
    _, worker = filled(ManualClock(at("2026-03-04 09:20")), nodes=2, pods=0, hostile=False)
    api = await stack.enter_async_context(served(worker))
    secret = {"name": f"{mark}-kubeconfig", "namespace": keys.NAMESPACE}
    limits = [{"resource": "cpu", "percent": 75}]
    spec = {"cluster": mark, "nodeSelector": DAY, "resourceLimits": limits}
    policy = next(iter(policies()))
    worker.apply(
        f"/apis/cloud.tencent.com/v1beta1/resourceleasingpolicies/{mark}-half",
        {**policy, "metadata": {"name": f"{mark}-half"}, "spec": spec},
        user="admin",
    )
    binding = {"clusterID": mark, "secretRef": secret, "mountNamespace": "kubeocean-worker", "allowInsecureWorker": True}
    meta = {
        "name": made.node,
        "labels": {keys.CLUSTER_BINDING: mark},
        "annotations": {keys.PHYSICAL_NODE_NAME: "node-01", keys.POLICIES_APPLIED: f"{mark}-half"},
    }
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    await apply(
        made.hub,
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "stringData": {"kubeconfig": api.kubeconfig("kubeocean")}},
        {"apiVersion": CLUSTERBINDINGS.api_version, "kind": CLUSTERBINDINGS.kind, "metadata": {"name": mark}, "spec": binding},
        {"apiVersion": "v1", "kind": "Node", "metadata": meta},
        *(_pod(made, team) for team in made.teams),
    )
    made.made += [("clusterbinding", mark), ("node", made.node)]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    status = {"status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}}
    await made.hub.kubectl("patch", "node", made.node, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def _pod(made: Served, team: str) -> Body:
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    spec = {"nodeName": made.node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-of-{team}", "namespace": team}, "spec": spec}


async def _remove(made: Served) -> None:
    for kinds, name in made.made:
        await made.hub.kubectl("delete", kinds, name, "--ignore-not-found", "--wait=false")
    for team in made.teams:
        await made.hub.kubectl("delete", "pod", f"pod-of-{team}", "-n", team, "--grace-period=0", "--force", "--ignore-not-found")
