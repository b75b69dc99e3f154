"""A hub and a worker for the dashboard: two bindings, one of which has no Secret, nodes in all states, and pods that wait.

Invariant: what a page has to escape is in every text that an API server accepts as free text.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from attrs import define

from kubeocean.dashboard.access import TokenAccess, TokenPath
from kubeocean.dashboard.observer import Observer
from kubeocean.dashboard.server import Dashboard, listening
from kubeocean.dashboard.source import Source
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, definition
from tests.faults.model.server import ApiModel
from tests.support.served_model import ServedModel, served
from tests.unit.kubeocean.builders import at
from vkubelet.api.codec import decode_yaml
from vkubelet.client.connection import connection_from_kubeconfig
from vkubelet.client.rest import Client
from vkubelet.commands.clusters import Choice
from vkubelet.testing.clock import ManualClock

Body = dict[str, Any]

ADMIN, READER = "admin", "reader"
NOW = at("2026-03-04 09:20")
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
REPLY = 'failed to pull: registry said "</title><svg onload=document.title=1>"'
BIG = "0/32 nodes are available: 32 Insufficient cpu."
HARMLESS = {
    f"{BIG} {HOSTILE}": BIG,
    HOSTILE: "container runtime is down",
    REPLY: 'failed to pull image "app:1": not found',
    '"><svg onload=document.title=2>': "",
}
"""Ordinary texts in the place of hostile ones."""
BINDINGS = ("frankfurt", "oslo")
_API = "/apis/cloud.tencent.com/v1beta1"
_CPU, _MEMORY = 32, 128
NIGHT = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["night"]}]}]}
DAY = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["night"]}]}]}


def filled(clock: ManualClock, *, nodes: int = 24, pods: int = 60, hostile: bool = True) -> tuple[ApiModel, ApiModel]:
    """A hub and a worker; every fourth node is leased at night only. Without `hostile`, texts are those of an ordinary cluster."""
    hub, worker = ApiModel(now=clock.now), ApiModel(now=clock.now)
    hub.define(decode_yaml(definition(CLUSTERBINDINGS)))
    worker.define(decode_yaml(definition(POLICIES)))
    for name in ("team-a", "batch", "ml", keys.NAMESPACE):
        hub.apply(f"/api/v1/namespaces/{name}", {"metadata": {"name": name}}, user=ADMIN)
    for at_, name in enumerate(BINDINGS):
        put(hub, f"{_API}/clusterbindings/{name}", binding(name, ready=at_ == 0))
    for body in policies():
        put(worker, f"{_API}/resourceleasingpolicies/{body['metadata']['name']}", body)
    for number in range(nodes):
        put(worker, f"/api/v1/nodes/node-{number:02}", physical(number))
        put(worker, f"/api/v1/namespaces/default/pods/local-{number}", local_pod(number))
        put(hub, f"/api/v1/nodes/vnode-frankfurt-node-{number:02}", spoken(virtual(number), hostile=hostile))
    for number in range(8):
        put(hub, f"/api/v1/nodes/vnode-oslo-edge-{number}", spoken(unreachable(number), hostile=hostile))
    for body in waiting_pods():
        put(hub, pod_path(body), spoken(body, hostile=hostile))
    for number in range(pods):
        body = pod(number, nodes)
        put(hub, pod_path(body), body)
    return hub, worker


def put(model: ApiModel, path: str, body: Body) -> None:
    """Creates an object with its status, as its controllers would."""
    model.apply(path, {key: value for key, value in body.items() if key != "status"}, user=ADMIN)
    if "/nodes/" in path:
        # Admission gives a new node a taint, which the controller of nodes removes.
        model.apply(path, {"spec": {"taints": body.get("spec", {}).get("taints", [])}}, user=ADMIN)
    if "status" in body:
        model.apply(f"{path}/status", {"status": body["status"]}, user=ADMIN)


def spoken(body: Body, *, hostile: bool) -> Body:
    """An object with hostile texts, or with ordinary ones in their place."""
    text = json.dumps(body)
    for words, instead in () if hostile else HARMLESS.items():
        text = text.replace(json.dumps(words)[1:-1], json.dumps(instead)[1:-1])
    made: Body = json.loads(text)
    return made


def local_requests(number: int) -> tuple[int, int]:
    """Cores and GiB of the local pod of a node."""
    return 1 + number % 5, 2 + number % 7 * 3


def local_pod(number: int) -> Body:
    cpu, memory = local_requests(number)
    body = pod_body("default", f"local-{number}", f"node-{number:02}", {"cpu": str(cpu), "memory": f"{memory}Gi"})
    return {**body, "status": {"phase": "Running"}}


def pod_path(body: Body) -> str:
    return f"/api/v1/namespaces/{body['metadata']['namespace']}/pods/{body['metadata']['name']}"


def binding(name: str, *, ready: bool) -> Body:
    why = "the worker cluster has not responded for 40 s; check the server of the kubeconfig and the network"
    word, message = ("True", "") if ready else ("False", why)
    conditions = [
        {
            "type": kind,
            "status": word,
            "reason": "Ready" if ready else "ConnectivityFailed",
            "message": message,
            "lastTransitionTime": "2026-03-04T08:00:00Z",
        }
        for kind in ("Ready", "Connected")
    ]
    return {
        "apiVersion": CLUSTERBINDINGS.api_version,
        "kind": CLUSTERBINDINGS.kind,
        "metadata": {"name": name},
        "spec": {
            "clusterID": name,
            "mountNamespace": "kubeocean-worker",
            "secretRef": {"name": f"{name}-kubeconfig", "namespace": keys.NAMESPACE},
            "allowInsecureWorker": True,
        },
        "status": {"phase": "Ready" if ready else "Failed", "conditions": conditions},
    }


def policies() -> Iterator[Body]:
    def made(name: str, **spec: Any) -> Body:
        meta = {"name": name}
        return {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, "metadata": meta, "spec": {"cluster": "frankfurt", **spec}}

    half = [{"resource": "cpu", "percent": 75}, {"resource": "memory", "percent": 75}]
    yield made("day", nodeSelector=DAY, resourceLimits=half, timeZone="Europe/Berlin")
    night = [{"start": "20:00", "end": "06:59", "days": []}]
    yield made(
        "night", nodeSelector=NIGHT, timeWindows=night, timeZone="Europe/Berlin", forceReclaim=True, gracefulReclaimPeriodSeconds=600
    )
    lunch = [{"start": "12:00", "end": "12:59", "days": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]}]
    yield made("lunch", nodeSelector=NIGHT, timeWindows=lunch, timeZone="Europe/Berlin", priority=5, resourceLimits=half)


def physical(number: int) -> Body:
    meta = {"name": f"node-{number:02}", "labels": {"pool": "night" if number % 4 == 0 else "day"}}
    amounts = {"cpu": str(_CPU), "memory": f"{_MEMORY}Gi", "pods": "110"}
    return {"metadata": meta, "status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready()]}}


def ready(status: str = "True", message: str = "") -> Body:
    return {"type": "Ready", "status": status, "reason": "KubeletReady", "message": message}


def virtual(number: int) -> Body:
    night = number % 4 == 0
    taints = [{"key": keys.TAINT_VNODE, "effect": "NoSchedule"}]
    if night:
        taints.append({"key": keys.TAINT_CLOSED, "effect": "NoExecute", "value": "true"})
    # What a policy leaves of what the local pod leaves, in millicores and MiB.
    share = 100 if night else 75
    cpu, memory = local_requests(number)
    amounts = {"cpu": f"{(_CPU - cpu) * share * 10}m", "memory": f"{(_MEMORY - memory) * share * 1024 // 100}Mi", "pods": "109"}
    condition = ready("False", f"kubelet of node-{number:02}: {HOSTILE}") if number == 7 else ready()
    return {
        "metadata": {
            "name": f"vnode-frankfurt-node-{number:02}",
            "labels": {keys.CLUSTER_BINDING: "frankfurt"},
            "annotations": {keys.PHYSICAL_NODE_NAME: f"node-{number:02}", keys.POLICIES_APPLIED: "night" if night else "day"},
        },
        "spec": {"taints": taints},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [condition]},
    }


def unreachable(number: int) -> Body:
    message = "the worker cluster is unreachable since 08:00; pods stay as they are"
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "metadata": {
            "name": f"vnode-oslo-edge-{number}",
            "labels": {keys.CLUSTER_BINDING: "oslo"},
            "annotations": {keys.PHYSICAL_NODE_NAME: f"edge-{number}" + ('"><svg onload=document.title=2>' if number == 0 else "")},
        },
        "spec": {"taints": [{"key": keys.TAINT_WORKER_UNREACHABLE, "effect": "NoSchedule"}]},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready(message=message)]},
    }


def pod(number: int, nodes: int, *, name: str = "") -> Body:
    namespace = ("team-a", "batch", "ml")[number % 3]
    open_nodes = [each for each in range(nodes) if each % 4 and each != 7]
    node = open_nodes[(number * 7) % len(open_nodes)]
    requests = {"cpu": ("500m", "2", "6")[number % 3], "memory": ("1Gi", "4Gi", "24Gi")[number % 3]}
    made = pod_body(namespace, name or f"{namespace}-{number}", f"vnode-frankfurt-node-{node:02}", requests)
    return {**made, "status": {"phase": "Running"}}


def pod_body(namespace: str, name: str, node: str, requests: Body) -> Body:
    spec: Body = {
        "containers": [{"name": "main", "image": "app:1", "resources": {"requests": requests}}],
        "tolerations": [{"key": keys.TAINT_VNODE, "operator": "Exists"}],
    }
    if node:
        spec["nodeName"] = node
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def waiting_pods() -> Iterator[Body]:
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": REPLY}}, "ready": False, "restartCount": 0}
    pulls = pod_body("team-a", "pulls", "vnode-frankfurt-node-01", {"cpu": "1"})
    yield {**pulls, "status": {"phase": "Pending", "containerStatuses": [{**waiting, "image": "app:1", "imageID": ""}]}}
    big = pod_body("ml", "big", "", {"cpu": "64"})
    unschedulable = f"{BIG} {HOSTILE}"
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unschedulable}
    yield {**big, "status": {"phase": "Pending", "conditions": [scheduled]}}


@define
class Stand:
    """A dashboard over two served models; `address` is its first page, with the token."""

    hub: ServedModel
    worker: ServedModel
    clock: ManualClock
    observer: Observer
    port: int
    token: str

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}"


@asynccontextmanager
async def standing(*, user: str = ADMIN, nodes: int = 24, pods: int = 60, hostile: bool = True) -> AsyncIterator[Stand]:
    """Serves a hub, a worker, and the dashboard of one user of the hub."""
    clock = ManualClock(NOW - timedelta(minutes=30))
    models = filled(clock, nodes=nodes, pods=pods, hostile=hostile)
    async with served(models[0]) as hub, served(models[1]) as worker:
        secret = {"metadata": {"name": "frankfurt-kubeconfig"}, "stringData": {"kubeconfig": worker.kubeconfig("kubeocean")}}
        hub.model.apply(f"/api/v1/namespaces/{keys.NAMESPACE}/secrets/frankfurt-kubeconfig", secret, user=ADMIN)
        await clock.advance(30 * 60)
        connection = connection_from_kubeconfig(hub.kubeconfig(user).encode())
        async with Client(connection, field_manager="dashboard") as client:
            observer = Observer(Source(client, Choice("computing cluster", "--context"), clock), clock, 10.0)
            path = TokenPath()
            async with listening(Dashboard(TokenAccess(observer, path), clock).application(), "127.0.0.1", 0) as path.port:
                yield Stand(hub, worker, clock, observer, path.port, path.token)
