"""What mock nodes say of themselves: descriptions, numbers, logs, and silence."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from vkubelet.api.objects import Json, Pod
from vkubelet.errors import SettingsError
from vkubelet.provider import (
    MetricsEndpoint,
    Running,
    SupportsMetrics,
    SupportsNodeLogs,
    SupportsPolling,
    SupportsStats,
    Taint,
)
from vkubelet.settings import convert
from vkubelet.testing.host import RecordingHost, make_pod
from vkubelet.testing.streams import MemoryIO
from vkubelet_providers.mock import Mock
from vkubelet_providers.mock.usage import NODE_CORES, NODE_MEMORY, Meter


@asynccontextmanager
async def running(mock: Mock) -> AsyncIterator[RecordingHost]:
    host = RecordingHost()
    async with asyncio.TaskGroup() as group:
        group.create_task(mock.run(host))
        await host.manual_clock.settle()
        yield host
        host.stop()


def scripted(name: str = "web", *, policy: str = "Always", containers: tuple[str, ...] = ("main",), **script: object) -> Pod:
    annotations = {f"mock.vkubelet.io/{key.replace('_', '-')}": str(value) for key, value in script.items()}
    body: list[Json] = [{"name": one, "image": "image", "readinessProbe": {"periodSeconds": 5}} for one in containers]
    return make_pod(name, node="mock", metadata={"annotations": annotations}, spec={"restartPolicy": policy, "containers": body})


# --- numbers ---------------------------------------------------------------------------------------------------------------------------


def test_meter_adds_up_over_changing_rates() -> None:
    meter = Meter()
    meter.turn(0.5, 10.0)
    assert meter.read(20.0) == 5.0
    meter.turn(2.0, 20.0)
    meter.turn(0.0, 21.0)
    assert meter.read(100.0) == 7.0


async def test_summary_tells_nodes_pods_and_containers() -> None:
    mock, pod = Mock(), scripted(cpu_usage="500m", memory_usage="64Mi", containers=("one", "two"))
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await mock.sync_pod(scripted("late", start_delay=100))
        await host.manual_clock.advance(10.0)
        document = await mock.stats_summary("mock")
    assert [entry["podRef"]["name"] for entry in document["pods"]] == ["web"]
    containers = document["pods"][0]["containers"]
    assert [entry["name"] for entry in containers] == ["one", "two"]
    assert containers[0]["cpu"]["usageNanoCores"] == 500_000_000
    assert containers[0]["cpu"]["usageCoreNanoSeconds"] == 5_000_000_000
    assert containers[0]["memory"]["workingSetBytes"] == 64 << 20
    assert document["node"]["cpu"]["usageNanoCores"] == round((1.0 + NODE_CORES) * 1e9)
    assert document["node"]["memory"]["workingSetBytes"] == (128 << 20) + NODE_MEMORY
    assert document["node"]["startTime"] == "2026-01-01T00:00:00Z"


async def test_cpu_time_of_a_node_only_grows_when_pods_restart_and_go() -> None:
    mock, seen = Mock(), list[float]()
    async with running(mock) as host:
        await mock.sync_pod(scripted(cpu_usage="2", run_for=10, restart_delay=5, exit_code=1))
        await mock.sync_pod(scripted("other", cpu_usage="1"))
        for second in range(40):
            await host.manual_clock.advance(1.0)
            seen.append((await mock.stats_summary("mock"))["node"]["cpu"]["usageCoreNanoSeconds"] / 1e9)
            if second == 20:
                await mock.delete_pod(scripted("other").ref, 0.0)
    assert seen == sorted(seen)
    # 40 s of the node, 21 s of the one pod, 10 of each 15 s of the other, twice as fast.
    assert seen[-1] == pytest.approx(40 * NODE_CORES + 21 + 2 * (10 + 10 + 10), abs=0.01)


async def test_usage_follows_the_annotation() -> None:
    mock = Mock()
    async with running(mock) as host:
        await mock.sync_pod(scripted(cpu_usage="1"))
        await host.manual_clock.advance(10.0)
        await mock.sync_pod(scripted(cpu_usage="3"))
        await host.manual_clock.advance(10.0)
        cpu = (await mock.stats_summary("mock"))["pods"][0]["cpu"]
    assert (cpu["usageNanoCores"], cpu["usageCoreNanoSeconds"]) == (3_000_000_000, 40_000_000_000)


async def test_metrics_endpoints_name_the_pod() -> None:
    mock = Mock()
    async with running(mock) as host:
        await mock.sync_pod(scripted(cpu_usage="500m"))
        await host.manual_clock.advance(12.0)
        texts = {endpoint: (await mock.metrics("mock", endpoint)).decode() for endpoint in MetricsEndpoint}
    assert 'container_cpu_usage_seconds_total{container="main",pod="web",namespace="default"} 6.0 ' in texts[MetricsEndpoint.RESOURCE]
    assert 'container_memory_rss{container="main"' in texts[MetricsEndpoint.CADVISOR]
    assert 'probe_type="Readiness",container="main",pod="web"' in texts[MetricsEndpoint.PROBES]
    assert 'result="successful"} 3.0' in texts[MetricsEndpoint.PROBES]


def archive(name: str, data: bytes) -> bytes:
    """A tar archive of one file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        made.addfile(member, io.BytesIO(data))
    return packed.getvalue()


async def test_files_count_as_storage() -> None:
    mock, pod = Mock(), scripted()
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await host.manual_clock.settle()
        await mock.exec(pod.ref, "main", ["tar", "-xmf", "-", "-C", "/tmp"], MemoryIO(archive("f", bytes(10000))))
        used = (await mock.stats_summary("mock"))["pods"][0]["ephemeral-storage"]["usedBytes"]
    assert used == 10000 + len("web\n")


# --- nodes -----------------------------------------------------------------------------------------------------------------------------


async def test_nodes_are_described_by_settings() -> None:
    data: Json = {
        "node": "sim", "nodes": 2, "cpu": "8", "capacity": {"nvidia.com/gpu": "4"}, "allocatable": {"cpu": "7"}, "arch": "arm64",
        "labels": {"topology.kubernetes.io/zone": "zone-{number}"}, "annotations": {"of": "{node}"}, "provider_id": "mock://{node}",
        "taints": [{"key": "gpu", "effect": "NoSchedule"}], "info": {"kubeletVersion": "v1.30.0"},
    }  # fmt: skip
    async with running(Mock(convert(data, Mock.Settings))) as host:
        node = host.nodes["sim-1"]
    assert node.capacity == {"cpu": "8", "memory": "256Gi", "pods": "1000", "nvidia.com/gpu": "4"}
    assert node.allocatable == {**node.capacity, "cpu": "7"}
    assert (node.labels, node.annotations) == ({"topology.kubernetes.io/zone": "zone-1"}, {"of": "sim-1"})
    assert (node.provider_id, node.arch, list(node.taints)) == ("mock://sim-1", "arm64", [Taint("gpu", "NoSchedule")])
    assert node.info == {"kubeletVersion": "v1.30.0"}
    with pytest.raises(SettingsError):
        convert({"nodes": "many"}, Mock.Settings)


async def test_node_logs_tell_of_its_own_pods() -> None:
    mock = Mock(Mock.Settings(nodes=2))
    async with running(mock) as host:
        for number in (0, 1):
            await mock.sync_pod(make_pod(f"web-{number}", node=f"mock-{number}"))
        await host.manual_clock.settle()
        assert [chunk async for chunk in mock.node_logs("mock-0", "")] == [b'<pre>\n<a href="mock.log">mock.log</a>\n</pre>\n']
        text = b"".join([chunk async for chunk in mock.node_logs("mock-1", "mock.log")])
        assert text == b"2026-01-01T00:00:00+00:00 pod default/web-1 started\n"
        with pytest.raises(FileNotFoundError):
            [chunk async for chunk in mock.node_logs("mock-0", "syslog")]


# --- a backend that tells nothing ------------------------------------------------------------------------------------------------------


async def test_polling_is_offered_only_when_asked_for_and_then_nothing_is_told() -> None:
    assert not isinstance(Mock(), SupportsPolling)
    mock, pod = Mock(Mock.Settings(poll_interval=2.5)), scripted()
    assert isinstance(mock, SupportsPolling) and mock.poll_interval == 2.5
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await host.manual_clock.advance(1.0)
        assert host.reports == []
        assert [isinstance(report.containers[0].state, Running) for report in await mock.list_pods("mock")] == [True]
        await mock.delete_pod(pod.ref, 0.0)
        await host.manual_clock.settle()
        assert (host.reports, host.gone, list(await mock.list_pods("mock"))) == ([], [], [])


def test_mock_has_these_capabilities() -> None:
    mock = Mock()
    assert isinstance(mock, SupportsStats) and isinstance(mock, SupportsMetrics) and isinstance(mock, SupportsNodeLogs)
