"""The tutorial provider."""

from __future__ import annotations

import asyncio

import pytest

from vkubelet.errors import NoSuchPod
from vkubelet.provider import LogOptions, Running
from vkubelet.testing.host import RecordingHost, make_pod
from vkubelet_providers.minimal import Minimal


async def test_minimal_provider_runs_pods_until_they_are_deleted() -> None:
    provider, host, pod = Minimal(Minimal.Settings("tiny")), RecordingHost(), make_pod(node="tiny")
    async with asyncio.TaskGroup() as group:
        group.create_task(provider.run(host))
        await host.manual_clock.settle()
        assert list(host.nodes) == ["tiny"] and host.complete
        await provider.sync_pod(pod)
        await provider.sync_pod(pod)
        assert [type(c.state) for c in host.reports[-1].containers] == [Running]
        assert [report.pod for report in await provider.list_pods("tiny")] == [pod.ref]
        await provider.delete_pod(pod.ref, 30.0)
        assert host.gone == [pod.ref] and list(await provider.list_pods("tiny")) == []
        host.stop()


async def test_minimal_log_is_a_line_with_a_time_and_follows_until_the_pod_is_deleted() -> None:
    provider, host, pod = Minimal(), RecordingHost(), make_pod(node="minimal")
    provider.host = host
    await provider.sync_pod(pod)
    lines = [line async for line in provider.stream_logs(pod.ref, "main", LogOptions())]
    assert lines == [b"2026-01-01T00:00:00+00:00 main of web runs on minimal\n"]
    followed: list[bytes] = []

    async def follow() -> None:
        followed.extend([line async for line in provider.stream_logs(pod.ref, "main", LogOptions(follow=True))])

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        await host.manual_clock.advance(2.5)
        await provider.delete_pod(pod.ref, 0.0)
        await host.manual_clock.advance(1.0)
    assert len(followed) == 4
    with pytest.raises(NoSuchPod):
        await anext(provider.stream_logs(pod.ref, "main", LogOptions()))
