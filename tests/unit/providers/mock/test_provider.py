"""Pods that follow the script in their annotations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from vkubelet.api.objects import Pod
from vkubelet.api.podspec import Kind, Reference
from vkubelet.errors import BadRequest, NoSuchContainer, NoSuchPod, PodRejected, Unavailable
from vkubelet.provider import LogOptions, PodReport, Running, SupportsLogs, SupportsPing, Terminated, Waiting
from vkubelet.resolve.references import Content
from vkubelet.testing.host import RecordingHost, make_pod
from vkubelet_providers.mock import Mock, address_of


@asynccontextmanager
async def running(mock: Mock) -> AsyncIterator[RecordingHost]:
    host = RecordingHost()
    async with asyncio.TaskGroup() as group:
        group.create_task(mock.run(host))
        await host.manual_clock.settle()
        yield host
        host.stop()


def scripted(name: str = "web", *, policy: str = "Always", **script: object) -> Pod:
    annotations = {f"mock.vkubelet.io/{key.replace('_', '-')}": str(value) for key, value in script.items()}
    return make_pod(name, node="mock", metadata={"annotations": annotations}, spec={"restartPolicy": policy})


def latest(host: RecordingHost, pod: Pod) -> PodReport:
    report = host.latest(pod.ref.uid)
    assert report is not None
    return report


async def logs(mock: Mock, pod: Pod, *, follow: bool = False, previous: bool = False) -> Sequence[bytes]:
    return [line async for line in mock.stream_logs(pod.ref, "main", LogOptions(follow=follow, previous=previous))]


async def test_mock_declares_one_node_or_several() -> None:
    async with running(Mock()) as host:
        assert list(host.nodes) == ["mock"] and host.complete
    async with running(Mock(Mock.Settings(node="vn", nodes=3))) as host:
        assert list(host.nodes) == ["vn-0", "vn-1", "vn-2"]


async def test_pod_starts_after_its_delay_and_is_ready_after_another() -> None:
    mock, pod = Mock(), scripted(start_delay=5, ready_delay=2)
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await host.manual_clock.advance(4.9)
        assert latest(host, pod).containers[0].state == Waiting() and latest(host, pod).ips == ()
        await host.manual_clock.advance(0.2)
        assert isinstance(latest(host, pod).containers[0].state, Running) and latest(host, pod).containers[0].ready is False
        assert latest(host, pod).ips == (address_of(pod.ref.uid),)
        await host.manual_clock.advance(2.0)
        assert latest(host, pod).containers[0].ready is True


async def test_job_ends_with_its_exit_code() -> None:
    mock, pod = Mock(), scripted(policy="Never", run_for=10, exit_code=3)
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await host.manual_clock.advance(10.0)
        state = latest(host, pod).containers[0].state
        assert isinstance(state, Terminated) and state.exit_code == 3
        assert [report.pod for report in await mock.list_pods("mock")] == [pod.ref]


async def test_crashing_pod_backs_off_and_restarts_with_a_previous_log() -> None:
    mock, pod = Mock(), scripted(policy="OnFailure", run_for=10, exit_code=1, restart_delay=5)
    async with running(mock) as host:
        await mock.sync_pod(pod)
        with pytest.raises(BadRequest):
            await logs(mock, pod, previous=True)
        await host.manual_clock.advance(12.0)
        assert latest(host, pod).containers[0].state == Waiting("CrashLoopBackOff", "back-off before the next start")
        await host.manual_clock.advance(4.0)
        container = latest(host, pod).containers[0]
        assert isinstance(container.state, Running) and container.restarts == 1 and container.last is not None
        assert len(await logs(mock, pod, previous=True)) == len(await logs(mock, pod)) == 1


async def test_sync_is_idempotent() -> None:
    mock, pod = Mock(), scripted()
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await host.manual_clock.advance(1.0)
        before = latest(host, pod)
        await mock.sync_pod(pod)
        await host.manual_clock.advance(1.0)
        assert latest(host, pod) == before and len(mock.pods) == 1


async def test_backend_outlives_a_restart_of_the_runtime() -> None:
    mock, pod = Mock(), scripted(run_for=100, policy="Never")
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await host.manual_clock.advance(1.0)
        before = latest(host, pod)
    async with running(mock) as host:
        await mock.sync_pod(pod)
        assert latest(host, pod) == before


async def test_stop_takes_its_time_and_no_longer_than_the_grace() -> None:
    mock, pod = Mock(), scripted(stop_delay=10)
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await mock.delete_pod(pod.ref, 30.0)
        await host.manual_clock.advance(9.9)
        assert host.gone == []
        await host.manual_clock.advance(0.2)
        state = latest(host, pod).containers[0].state
        assert host.gone == [pod.ref] and isinstance(state, Terminated) and state.exit_code == 0


async def test_shorter_grace_kills() -> None:
    mock, pod = Mock(), scripted(stop_delay=100)
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await mock.delete_pod(pod.ref, 30.0)
        await host.manual_clock.advance(1.0)
        await mock.delete_pod(pod.ref, 0.0)
        await host.manual_clock.settle()
        state = latest(host, pod).containers[0].state
        assert host.gone == [pod.ref] and isinstance(state, Terminated) and state.exit_code == 137
        assert not mock.pods


async def test_deletion_of_an_unknown_pod_is_answered_at_once() -> None:
    mock, pod = Mock(), scripted()
    async with running(mock) as host:
        await mock.delete_pod(pod.ref, 30.0)
        assert host.gone == [pod.ref]


async def test_log_is_followed_until_the_container_ends() -> None:
    mock, pod = Mock(), scripted(policy="Never", run_for=10, log_lines=2, log_interval=3)
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await host.manual_clock.settle()
        async with asyncio.TaskGroup() as group:
            follower = group.create_task(logs(mock, pod, follow=True))
            await host.manual_clock.advance(9.5)
            assert not follower.done()
            await host.manual_clock.advance(1.0)
        assert follower.result()[0] == b"2026-01-01T00:00:00+00:00 main: started, line 0\n"
        assert len(follower.result()) == 5


async def test_log_says_what_the_annotation_tells() -> None:
    mock, pod = Mock(), scripted(log_text="hello from {hostname} on {node}, {container}")
    async with running(mock) as host:
        await mock.sync_pod(pod)
        await host.manual_clock.settle()
        assert await logs(mock, pod) == [b"2026-01-01T00:00:00+00:00 hello from web on mock, main\n"]


async def test_log_of_the_unknown_is_refused() -> None:
    mock, pod = Mock(), scripted(start_delay=5)
    async with running(mock):
        with pytest.raises(NoSuchPod):
            await logs(mock, pod)
        await mock.sync_pod(pod)
        with pytest.raises(BadRequest):
            await logs(mock, pod)
        with pytest.raises(NoSuchContainer):
            [line async for line in mock.stream_logs(pod.ref, "other", LogOptions())]


async def test_rejection_failures_and_bad_scripts_are_told() -> None:
    mock = Mock()
    async with running(mock):
        with pytest.raises(PodRejected, match="OutOfcpu"):
            await mock.sync_pod(scripted(reject="OutOfcpu"))
        with pytest.raises(PodRejected, match="BadScript"):
            await mock.sync_pod(scripted(run_for="long"))
        flaky = scripted(sync_failures=1)
        with pytest.raises(Unavailable):
            await mock.sync_pod(flaky)
        await mock.sync_pod(flaky)


async def test_failing_node_fails_its_ping_and_its_list_alone() -> None:
    mock = Mock(Mock.Settings(nodes=2))
    async with running(mock):
        mock.failing.add("mock-0")
        with pytest.raises(Unavailable):
            await mock.ping("mock-0")
        with pytest.raises(Unavailable):
            await mock.list_pods("mock-0")
        assert list(await mock.list_pods("mock-1")) == []


async def test_lost_pod_is_reported_gone() -> None:
    mock, pod = Mock(), scripted()
    async with running(mock) as host:
        await mock.sync_pod(pod)
        mock.drop_pod(pod.ref.uid)
        await host.manual_clock.settle()
        assert host.gone == [pod.ref] and not mock.pods


def test_mock_has_the_capabilities_it_claims() -> None:
    assert isinstance(Mock(), SupportsLogs) and isinstance(Mock(), SupportsPing)


def test_addresses_are_stable_and_valid() -> None:
    assert address_of("a") == address_of("a") != address_of("b")


MOUNTED = [{"name": "main", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]
MISSING = [
    ({"containers": [{"name": "main", "image": "i", "envFrom": [{"configMapRef": {"name": "gone"}}]}]}, "CreateContainerConfigError"),
    (
        {
            "containers": [
                {"name": "main", "image": "i", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k"}}}]}
            ]
        },
        "CreateContainerConfigError",
    ),
    ({"containers": MOUNTED, "volumes": [{"name": "v", "secret": {"secretName": "gone"}}]}, "ContainerCreating"),
    ({"containers": MOUNTED, "volumes": [{"name": "v", "configMap": {"name": "gone"}}]}, "ContainerCreating"),
]


@pytest.mark.parametrize(("spec", "waiting"), MISSING)
async def test_pod_waits_for_a_missing_configmap_or_secret_and_runs_once_it_is_there(spec: dict[str, Any], waiting: str) -> None:
    mock, pod = Mock(), make_pod(node="mock", spec=spec)
    async with running(mock) as host:
        with pytest.raises(Unavailable, match="gone") as raised:
            await mock.sync_pod(pod)
        assert raised.value.waiting == waiting
        assert await mock.list_pods("mock") == []
        host.objects.update(
            {Reference(kind, "gone"): Content(binary={"k": b"v"}, secret=kind is Kind.SECRET) for kind in (Kind.SECRET, Kind.CONFIGMAP)}
        )
        await mock.sync_pod(pod)
        await host.manual_clock.settle()
        assert isinstance(latest(host, pod).containers[0].state, Running)


async def test_load_test_runs_pods_without_looking_at_what_they_refer_to() -> None:
    mock = Mock(Mock.Settings(resolve=False))
    async with running(mock) as host:
        for number, (spec, _) in enumerate(MISSING):
            pod = make_pod(f"p{number}", node="mock", spec=spec)
            await mock.sync_pod(pod)
            await host.manual_clock.settle()
            assert isinstance(latest(host, pod).containers[0].state, Running)


async def test_volumes_of_a_pod_are_deleted_with_it() -> None:
    mock, pod = Mock(), make_pod(node="mock", spec={"containers": MOUNTED, "volumes": [{"name": "v", "emptyDir": {}}]})
    async with running(mock) as host:
        await mock.sync_pod(pod)
        directory = mock.backend.directory(pod)
        assert directory is not None and directory.is_dir()
        await mock.delete_pod(pod.ref, 0.0)
        await host.manual_clock.settle()
        assert not directory.exists() and host.gone == [pod.ref]
