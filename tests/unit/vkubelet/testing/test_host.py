"""The host that only remembers."""

from __future__ import annotations

import asyncio

import pytest

from vkubelet.api.objects import PODS
from vkubelet.control.recorder import ObjectReference
from vkubelet.provider import Host, NodeDescription, PodReport, all_running
from vkubelet.testing.host import RecordingHost, make_pod, with_status


async def test_host_remembers_what_a_provider_published() -> None:
    recording, pod = RecordingHost(), make_pod()
    host: Host = recording
    host.set_node(NodeDescription("a", {"cpu": "1"}))
    host.set_node(NodeDescription("a", {"cpu": "2"}))
    host.remove_node("b")
    host.nodes_complete()
    host.report(PodReport(pod.ref))
    host.report(all_running(pod))
    host.set_pod_status(pod.ref, {"phase": "Running"}, annotations={"a": "b"})
    host.pod_gone(pod.ref)
    host.events.event(ObjectReference.of(PODS, pod), "Started", "it runs")
    assert recording.nodes["a"].capacity == {"cpu": "2"} and recording.removed == ["b"] and recording.complete
    assert recording.latest(pod.ref.uid) == all_running(pod)
    assert recording.status(pod.ref.uid) == {"phase": "Running"} and recording.annotations[pod.ref.uid] == {"a": "b"}
    assert recording.gone == [pod.ref]
    assert [event.reason for event in recording.events.events] == ["Started"]


async def test_host_stops_when_told() -> None:
    host = RecordingHost()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(host.until_stopped())
        await host.manual_clock.settle()
        assert not waiting.done()
        host.stop()


async def test_pods_of_the_host_are_found_in_every_way() -> None:
    host, pod = RecordingHost(), make_pod()
    host.pods.put(pod)
    assert host.pods.get(pod.ref) is host.pods.by_uid(pod.ref.uid) is host.pods.by_name("default", "web") is pod
    assert host.pods.on_node("node") == [pod] and host.pods.on_node("other") == []
    host.pods.remove(pod)
    assert list(host.pods) == []


async def test_host_without_a_client_says_so() -> None:
    with pytest.raises(LookupError):
        _ = RecordingHost().client


def test_made_pod_with_another_status_is_a_later_version() -> None:
    pod = make_pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5, "labels": {"a": "b"}})
    later = with_status(pod, {"phase": "Failed"})
    assert later.terminal and later.terminating and later.ref == pod.ref and later.spec == pod.spec
    assert (later.metadata.resource_version, later.metadata.labels) == ("2", {"a": "b"})
