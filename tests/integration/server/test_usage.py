"""Usage and metrics of a node, asked for by kubectl through the API server and read by Prometheus' own parser."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.server.backend import Backend, Stand, call, serving
from tests.integration.server.metered import Metered
from vkubelet.api.objects import Pod
from vkubelet.server import Endpoint
from vkubelet.testing.cluster import ControlPlane

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
async def backend() -> Metered:
    return Metered()


@pytest.fixture
async def stand(hub: ControlPlane, backend: Metered) -> AsyncIterator[Stand]:
    async with serving(hub, backend) as running:
        yield running


@pytest.fixture
async def pod(stand: Stand, backend: Metered, namespace: str, node: str) -> Pod:
    """On a node of its own, beside another node with a pod."""
    await stand.node(node)
    found = await stand.pod(namespace, node)
    backend.use(found.ref)
    await stand.server.open(f"{node}-2")
    backend.use((await stand.pod(namespace, f"{node}-2", name="other")).ref)
    return found


async def raw(hub: ControlPlane, node: str, path: str) -> str:
    return await hub.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/{path}")


async def scraped(hub: ControlPlane, node: str, path: str) -> Series:
    families = text_string_to_metric_families(await raw(hub, node, path))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def series(name: str, /, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


async def test_summary_tells_of_this_node_and_its_pods_only(hub: ControlPlane, stand: Stand, pod: Pod, node: str) -> None:
    document = json.loads(await raw(hub, node, "stats/summary"))
    assert document["node"]["nodeName"] == node
    assert document["node"]["cpu"]["usageNanoCores"] == 500_000_000
    assert document["node"]["fs"]["capacityBytes"] == 100
    (told,) = document["pods"]
    assert told["podRef"] == {"name": "web", "namespace": pod.metadata.namespace, "uid": pod.metadata.uid}
    (container,) = told["containers"]
    assert container["startTime"] == "2026-01-01T00:00:00Z"
    assert container["cpu"]["usageCoreNanoSeconds"] == 2_500_000_000
    assert container["memory"]["workingSetBytes"] == 1 << 20
    assert {"rootfs"} <= set(container)
    assert {"network"} <= set(told)


async def test_summary_of_cpu_and_memory_only_by_get_and_post(hub: ControlPlane, stand: Stand, pod: Pod, node: str) -> None:
    endpoint = await stand.server.open(node)
    for method in ("GET", "POST"):
        less = await call(hub, endpoint, "/stats/summary?only_cpu_and_memory=true", method=method)
        assert less.status == 200
        assert less.headers["Content-Type"] == "application/json"
        document = json.loads(less.text)
        assert set(document["node"]) == {"nodeName", "startTime", "cpu", "memory"}
        assert set(document["pods"][0]) == {"podRef", "cpu", "memory", "containers"}
        assert set(document["pods"][0]["containers"][0]) == {"name", "startTime", "cpu", "memory"}
        for query in ("", "?only_cpu_and_memory=false", "?only_cpu_and_memory=1", "?only_cpu_and_memory=true&only_cpu_and_memory=true"):
            whole = await call(hub, endpoint, f"/stats/summary{query}", method=method)
            assert "fs" in json.loads(whole.text)["node"], query


async def test_resource_metrics_parse_and_have_their_labels_in_order(hub: ControlPlane, pod: Pod, node: str) -> None:
    text = await raw(hub, node, "metrics/resource")
    namespace = pod.metadata.namespace
    assert f'container_cpu_usage_seconds_total{{container="app",pod="web",namespace="{namespace}"}} 2.5 ' in text
    assert f'pod_cpu_usage_seconds_total{{namespace="{namespace}",pod="web"}} 2.5 ' in text
    found = await scraped(hub, node, "metrics/resource")
    assert found[series("node_cpu_usage_seconds_total")] == 2.5
    assert found[series("node_memory_working_set_bytes")] == 1 << 20
    assert found[series("container_start_time_seconds", container="app", pod="web", namespace=namespace)] == 1767225600
    assert found[series("resource_scrape_error")] == 0
    assert not any("other" in dict(labels).values() for _, labels in found)


async def test_cadvisor_and_probe_metrics_parse(hub: ControlPlane, pod: Pod, node: str) -> None:
    found = await scraped(hub, node, "metrics/cadvisor")
    assert found[series("machine_cpu_cores")] == 4
    assert any(name == "container_memory_working_set_bytes" and ("pod", "web") in labels for name, labels in found)
    probes = await scraped(hub, node, "metrics/probes")
    names = {"container": "app", "pod": "web", "namespace": pod.metadata.namespace, "pod_uid": pod.metadata.uid}
    assert probes[series("prober_probe_total", probe_type="Readiness", result="failed", **names)] == 1
    assert probes[series("prober_probe_total", probe_type="Readiness", result="successful", **names)] == 4


async def test_metrics_of_the_process_are_seen_as_this_node(hub: ControlPlane, stand: Stand, pod: Pod, node: str) -> None:
    stand.metrics.pod_worker.observe(node, "sync", 0.2)
    stand.metrics.pod_worker.observe(f"{node}-2", "kill", 0.2)
    endpoint = await stand.server.open(node)
    reply = await call(hub, endpoint, "/metrics")
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = await scraped(hub, node, "metrics")
    assert found[series("kubelet_node_name", node=node)] == 1
    assert found[series("kubelet_running_pods")] == found[series("kubelet_desired_pods", static="")] == 1
    assert found[series("kubelet_pod_worker_duration_seconds_count", operation_type="sync")] == 1
    assert series("kubelet_pod_worker_duration_seconds_count", operation_type="kill") not in found
    labels = {"method": "GET", "server_type": "readwrite", "long_running": "false"}
    assert found[series("kubelet_http_requests_total", path="metrics", **labels)] == 2
    assert found[series("kubelet_http_inflight_requests", path="metrics", **labels)] == 1
    # What everybody counts together: calls of API servers by their answer, here those of the reviews.
    assert any(name == "vkubelet_api_seconds_count" for name, _ in found)
    health = await scraped(hub, node, "metrics/slis")
    assert health[series("kubernetes_healthcheck", name="syncloop", type="healthz")] == 1
    await stand.server.close(node)
    assert stand.metrics.pod_worker.of(node) == {}


async def test_a_provider_without_the_capability_answers_501(hub: ControlPlane, node: str) -> None:
    async with serving(hub, Backend()) as plain:
        endpoint = await plain.node(node)
        for path in ("/stats/summary", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/logs/", "/logs/kubelet.log"):
            reply = await call(hub, endpoint, path)
            assert (reply.status, reply.text) == (501, "501 not implemented"), path
        checkpoint = await call(hub, endpoint, "/checkpoint/a/b/c", method="POST")
        assert (checkpoint.status, checkpoint.text) == (501, "501 not implemented")
        assert (await call(hub, endpoint, "/metrics")).status == 200


async def test_unknown_routes_and_wrong_methods(hub: ControlPlane, stand: Stand, node: str) -> None:
    endpoint = await stand.node(node)
    for path in ("/nothing", "/", "/stats", "/stats/", "/metrics/", "/metrics/nothing", "/configz/", "/flagz", "/statusz", "/debug"):
        assert (await call(hub, endpoint, path)).status == 404, path
    for method, path, allowed in (
        ("DELETE", "/stats/summary", "GET,POST"),
        ("POST", "/metrics", "GET"),
        ("POST", "/metrics/resource", "GET"),
        ("PUT", "/configz", "GET"),
        ("POST", "/logs/", "GET"),
        ("GET", "/checkpoint/a/b/c", "POST"),
        ("POST", "/pods", "GET"),
    ):
        reply = await call(hub, endpoint, path, method=method)
        assert (reply.status, reply.headers["Allow"]) == (405, allowed), path


async def test_routes_of_a_node_do_not_exist_at_the_main_port(hub: ControlPlane, stand: Stand, pod: Pod) -> None:
    assert stand.server.main_port is not None
    main = Endpoint(hub.host_address, stand.server.main_port)
    for path in ("/stats/summary", "/metrics", "/metrics/resource", "/metrics/slis", "/logs/", "/pods", "/runningpods/"):
        assert (await call(hub, main, path)).status == 404, path
