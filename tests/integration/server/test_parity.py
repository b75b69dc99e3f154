"""The same questions to a real kubelet and to ours, about the same pod and the same log, have the same answers."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.server.backend import Reply, Stand, call, serving
from tests.integration.server.metered import Metered
from tests.support.bound import delete
from tests.support.program import eventually, holds
from vkubelet.api.objects import Pod
from vkubelet.server import Endpoint
from vkubelet.server.node_metrics import cpu_and_memory
from vkubelet.server.settings import DebugSettings
from vkubelet.testing.cluster import ControlPlane, WorkerNode
from vkubelet.testing.cluster.images import BUSYBOX
from vkubelet.testing.fixtures import run_apart

SCRIPT = "for i in 1 2 3 4 5; do echo line $i; sleep 1; done; echo; echo the end; sleep 1000"
CRASHING = "echo dying; printf 'last words'; exit 3"


class Pair:
    """The pod `web` on a real node, and its image on a virtual one."""

    def __init__(self, real: tuple[ControlPlane, Endpoint, str], ours: tuple[ControlPlane, Endpoint, str]) -> None:
        self._sides = (real, ours)
        self.namespaces = (real[2], ours[2])

    async def ask(self, path: str, *, method: str = "GET", certificate: bool = True) -> tuple[Reply, Reply]:
        real, ours = [
            await call(cluster, endpoint, path.replace("NS", namespace), method=method, certificate=certificate)
            for cluster, endpoint, namespace in self._sides
        ]
        return real, ours


def spec(node: str) -> dict[str, object]:
    def container(name: str, **more: object) -> dict[str, object]:
        return {"name": name, "image": BUSYBOX, "imagePullPolicy": "Never", **more}

    containers = [
        container("app", command=["sh", "-c", SCRIPT]),
        container("crashing", command=["sh", "-c", CRASHING]),
        {**container("unpulled"), "image": "localhost/none:none"},
    ]
    return {"nodeName": node, "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "containers": containers}


@frozen
class Real:
    """The pod `web` on a real node, settled, and what its containers have said."""

    kubelet: Endpoint
    namespace: str
    body: dict[str, object]
    logs: dict[str, str]


@pytest.fixture(scope="module")
def real(worker: ControlPlane, worker_node: WorkerNode) -> Iterator[Real]:
    made = run_apart(settled_pod(worker, worker_node))
    yield made
    run_apart(delete(worker, "namespace", made.namespace, "--wait=false"))


async def settled_pod(worker: ControlPlane, worker_node: WorkerNode) -> Real:
    there = await worker.namespace("parity")
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec(worker_node.name)}
    await worker.kubectl("apply", "-n", there, "-f", "-", stdin=json.dumps(manifest))
    kubelet = Endpoint(worker_node.address, 10250)

    async def settled() -> dict[str, object] | None:
        pod = json.loads(await worker.kubectl("get", "pod", "-n", there, "web", "-o", "json"))
        statuses = {status["name"]: status for status in pod["status"].get("containerStatuses", ())}
        ended = statuses.get("crashing", {}).get("lastState", {}).get("terminated")
        refused = statuses.get("unpulled", {}).get("state", {}).get("waiting", {}).get("reason") == "ErrImageNeverPull"
        return pod if ended and refused else None

    body = await eventually(settled, "the real pod has settled", seconds=90)

    async def log_of(container: str, until: str) -> str:
        async def written() -> str:
            reply = await call(worker, kubelet, f"/containerLogs/{there}/web/{container}?timestamps=true")
            return reply.text if until in reply.text else ""

        return str(await eventually(written, f"the log of {container} is written", seconds=60))

    return Real(kubelet, there, body, {"app": await log_of("app", "the end"), "crashing": await log_of("crashing", "last words")})


@pytest.fixture
async def pair(hub: ControlPlane, worker: ControlPlane, real: Real, namespace: str) -> AsyncIterator[Pair]:
    async with serving(hub, Metered(), debug=DebugSettings(profiling=True)) as stand:
        yield Pair((worker, real.kubelet, real.namespace), (hub, await _image(stand, real, namespace), namespace))


async def _image(stand: Stand, real: Real, namespace: str) -> Endpoint:
    node = f"v-{uuid.uuid4().hex[:8]}"
    endpoint = await stand.node(node)
    body = {**real.body, "metadata": {"name": "web", "namespace": namespace, "uid": "image"}, "spec": spec(node)}
    pod = Pod.decode(json.dumps(body).encode())
    stand.pods.held[pod.key] = pod
    assert isinstance(stand.backend, Metered)
    stand.backend.use(pod.ref)
    for container, log in real.logs.items():
        stand.backend.write(pod, log.encode(), container=container)
    return endpoint


OPTIONS = [
    "",
    "tailLines=2",
    "tailLines=0",
    "tailLines=100",
    "tail=3",
    "tail=all&tailLines=1",
    "limitBytes=1",
    "limitBytes=12",
    "tailLines=4&limitBytes=9",
    "timestamps=true",
    "timestamps=true&tailLines=3",
    "timestamps=yes&limitBytes=40",
    "sinceSeconds=3600",
    "sinceTime=2020-01-01T00:00:00Z",
    "sinceTime=2090-01-01T00:00:00Z",
    "sinceTime=",
    "previous=false&follow=0",
]

WRONG = [
    "app?tailLines=x",
    "app?tailLines=",
    "app?tailLines=-1",
    "app?tailLines=1.5",
    "app?tail=x",
    "app?limitBytes=0",
    "app?limitBytes=-1",
    "app?sinceSeconds=0",
    "app?sinceSeconds=x",
    "app?sinceTime=yesterday",
    "app?sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z",
    "app?stream=Nothing",
    "app?previous=true",
    "unpulled",
    "unpulled?previous=true",
    "none",
]


async def test_logs_and_errors_are_those_of_a_kubelet(pair: Pair) -> None:
    questions = [f"/containerLogs/NS/web/app?{query}" for query in OPTIONS]
    questions += [f"/containerLogs/NS/web/{rest}" for rest in WRONG]
    questions += [f"/containerLogs/NS/web/crashing?{query}" for query in ("", "tailLines=1", "limitBytes=8")]
    questions += ["/containerLogs/NS/none/app"]

    async def differ(question: str) -> tuple[object, object] | None:
        real, ours = await pair.ask(question)
        answers = (real.status, real.text), (ours.status, ours.text)
        return None if answers[0] == answers[1] else answers

    async def same() -> None:
        assert {question: found for question in different if (found := await differ(question))} == {}

    different = {question: found for question in questions if (found := await differ(question))}
    # The container that crashes again and again has said nothing for a moment each time.
    await holds(same)


async def test_since_cuts_between_the_same_lines(pair: Pair) -> None:
    whole, _ = await pair.ask("/containerLogs/NS/web/app?timestamps=true")
    times = [line.partition(" ")[0] for line in whole.text.splitlines()]
    for time in times:
        for query in (f"sinceTime={time}", f"sinceTime={time}&tailLines=3", f"sinceTime={time}&timestamps=true"):
            real, ours = await pair.ask(f"/containerLogs/NS/web/app?{query}")
            assert (real.status, real.text) == (ours.status, ours.text), query


async def test_node_endpoints_answer_as_a_kubelets(pair: Pair) -> None:
    for path in ("/healthz?verbose", "/healthz?exclude=ping&exclude=moon&verbose", "/healthz", "/healthz/ping", "/healthz/syncloop"):
        real, ours = await pair.ask(path)
        # A virtual node has no device plugins.
        assert (real.status, real.text.replace("[+]device-plugin ok\n", "")) == (ours.status, ours.text), path
        assert real.headers.get("X-Content-Type-Options") == ours.headers.get("X-Content-Type-Options"), path
    for path in ("/healthz", "/pods", "/containerLogs/NS/web/app"):
        real, ours = await pair.ask(path, certificate=False)
        assert (real.status, real.text) == (ours.status, ours.text) == (401, "Unauthorized"), path
    moved, also = await pair.ask("/runningpods")
    # The code is Go's choice: 301 before Go 1.26, 307 since.
    assert moved.status in (301, 307)
    assert also.status == 301
    assert moved.headers["Location"] == also.headers["Location"]
    for path, method in (("/nothing", "GET"), ("/pods", "DELETE"), ("/containerLogs/NS/web/app", "POST")):
        real, ours = await pair.ask(path, method=method)
        assert real.status == ours.status, path


SAME_STATUS = [
    *("/", "/nothing", "/stats/", "/metrics/", "/metrics/nothing", "/configz/", "/flagz", "/statusz", "/debug/pprof/nothing"),
    *("/stats/summary", "/stats/summary?only_cpu_and_memory=true", "POST /stats/summary", "DELETE /stats/summary"),
    *("/metrics", "/metrics/resource", "/metrics/probes", "/metrics/cadvisor", "/metrics/slis"),
    *("/configz", "/logs/", "/logs/nothing", "/logs/%2e%2e/passwd", "POST /logs/", "/pods/", "HEAD /pods", "POST /pods"),
    *("/checkpoint/a/b/c", "/run/a/b/c", "PUT /exec/a/b/c", "/debug/pprof/goroutine?debug=2"),
]


MEASURED = {"cpu", "memory", "network", "fs", "rootfs", "swap"}

# This kubelet has run no probe, and has a certificate from elsewhere.
ELSEWHERE = {
    "prober_probe": ("counter", {"probe_type", "container", "pod", "namespace", "pod_uid", "result"}),
    "kubelet_server_expiration_renew_errors": ("counter", set[str]()),
    "kubelet_certificate_manager_server_ttl_seconds": ("gauge", set[str]()),
    "kubelet_certificate_manager_server_rotation_seconds": ("histogram", {"le"}),
}
PREFIXES = ("node", "pod", "container", "resource", "machine", "prober", "kubelet")


async def test_usage_metrics_and_debug_endpoints_are_those_of_a_kubelet(pair: Pair) -> None:
    different: dict[str, Any] = {}
    for question in SAME_STATUS:
        method, _, path = question.rpartition(" ")
        real, ours = await pair.ask(path, method=method or "GET")
        if real.status != ours.status:
            different[question] = (real.status, ours.status)
    there, here = pair.namespaces

    async def summaries(query: str) -> list[dict[str, Any]] | None:
        """Both, as soon as the kubelet has measured the container."""
        real, ours = [json.loads(reply.text) for reply in await pair.ask(f"/stats/summary{query}")]
        return [real, ours] if {"workingSetBytes", "usageCoreNanoSeconds"} <= measured(real, there) else None

    real_summary, our_summary = await eventually(lambda: summaries(""), "usage is measured", seconds=60)
    real_cut, our_cut = await eventually(lambda: summaries("?only_cpu_and_memory=true"), "usage is measured")
    different |= beyond(shape(our_summary, here), shape(real_summary, there))
    different |= beyond(shape(our_cut, here), shape(real_cut, there))
    cut_by_us, cut_by_it = (
        {name: fields for name, fields in shape(document, there).items() if "." not in name}
        for document in (cpu_and_memory(real_summary), real_cut)
    )
    different |= beyond(cut_by_us, cut_by_it) | beyond(cut_by_it, cut_by_us)
    for path in ("/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/metrics"):
        theirs, mine = [families(reply) for reply in await pair.ask(path)]
        for name, (kind, labels) in mine.items():
            real_kind, real_labels = {**ELSEWHERE, **theirs}.get(name, ("none", set()))
            if kind != real_kind or not labels <= real_labels:
                different[f"{path} {name}"] = (kind, labels, real_kind, real_labels)
        assert len(mine) > 2 or path == "/metrics/probes"
    assert different == {}


def shape(document: dict[str, Any], namespace: str) -> dict[str, set[str]]:
    """The names of the fields, level by level; which ones swap has depends on the moment."""
    (pod,) = [pod for pod in document["pods"] if (pod["podRef"]["namespace"], pod["podRef"]["name"]) == (namespace, "web")]
    (app,) = [container for container in pod["containers"] if container["name"] == "app"]
    parts = {"node": document["node"], "pod": pod, "container": app, "reference": pod["podRef"]}
    inner = {f"{n}.{k}": set(part[k]) for n, part in parts.items() for k in MEASURED & set(part) if k != "swap"}
    return {name: set(part) for name, part in parts.items()} | inner


def measured(document: dict[str, Any], namespace: str) -> set[str]:
    """What is told of the container `app`'s CPU and memory."""
    pods = [pod for pod in document["pods"] if pod["podRef"]["namespace"] == namespace]
    apps = [container for pod in pods for container in pod.get("containers", ()) if container["name"] == "app"]
    return {field for app in apps for part in ("cpu", "memory") for field in app.get(part, ())}


def beyond(mine: dict[str, set[str]], theirs: dict[str, set[str]]) -> dict[str, set[str]]:
    return {name: more for name, fields in mine.items() if (more := fields - theirs.get(name, set()))}


def families(reply: Reply) -> dict[str, tuple[str, set[str]]]:
    """Type and labels by name, of what a kubelet has as well; the deprecated scrape_error is gone from newer ones."""
    found = text_string_to_metric_families(reply.text)
    return {
        family.name: (family.type, {label for sample in family.samples for label in sample.labels})
        for family in found
        if family.name.partition("_")[0] in PREFIXES and family.samples and not family.name.endswith("_created")
    }
