"""The recorded provider is the provider: same capabilities, same answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from vkubelet.errors import NoSuchPod, Unavailable
from vkubelet.provider import Host, LogOptions, NodeDescription, Pod, PodRef, PodReport, SupportsLogs, SupportsPolling, all_running
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.conformance.observed import CAPABILITIES, Recording, capabilities_of, observed
from vkubelet.testing.host import RecordingHost, make_pod
from vkubelet_providers.minimal import Minimal
from vkubelet_providers.mock import Mock

KNOWN = ["Attach", "Exec", "LogOptions", "Logs", "Metrics", "NodeLogs", "Ping", "Polling", "PortForward", "Stats"]


class Polled(Minimal):
    """Tells nothing by itself, and applies log options."""

    poll_interval = 3.0
    logs_apply_options = True

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        self.pods.pop(pod.uid, None)


class NoLogs(Minimal):
    stream_logs = None  # type: ignore[assignment]


def recorded(provider: Minimal | Mock) -> tuple[Minimal | Mock, Recording]:
    recording = Recording(ManualClock())
    return observed(provider, recording), recording  # type: ignore[return-value]


def test_every_capability_of_the_contract_is_known() -> None:
    assert [name.removeprefix("Supports") for name in CAPABILITIES] == KNOWN


@pytest.mark.parametrize("provider", [Minimal(), NoLogs(), Polled(), Mock(), Mock(Mock.Settings(poll_interval=2.0))], ids=str)
def test_recording_adds_and_takes_no_capability(provider: Minimal | Mock) -> None:
    assert capabilities_of(recorded(provider)[0]) == capabilities_of(provider)


def test_values_beside_the_methods_are_the_providers() -> None:
    made, _ = recorded(Polled())
    assert isinstance(made, SupportsPolling) and made.poll_interval == 3.0
    assert made.logs_apply_options is True  # type: ignore[attr-defined]


async def test_calls_and_what_is_said_are_noted_and_passed_on() -> None:
    made, recording = recorded(Minimal())
    host, pod = RecordingHost(), make_pod(node="minimal")
    async with asyncio.TaskGroup() as group:
        group.create_task(made.run(host))
        await host.manual_clock.settle()
        await made.sync_pod(pod)
        assert [report.pod for report in await made.list_pods("minimal")] == [pod.ref]
        assert isinstance(made, SupportsLogs)
        assert [line async for line in made.stream_logs(pod.ref, "main", LogOptions())]
        await made.delete_pod(pod.ref, 1.0)
        with pytest.raises(NoSuchPod):
            await anext(made.stream_logs(pod.ref, "main", LogOptions()))
        host.stop()
    assert [(call.method, call.uid, call.error) for call in recording.calls] == [
        ("sync_pod", "uid-web", ""),
        ("list_pods", "", ""),
        ("stream_logs", "uid-web", ""),
        ("delete_pod", "uid-web", ""),
        ("stream_logs", "uid-web", "NoSuchPod"),
    ]
    assert all(call.ended is not None for call in recording.calls)
    assert [(report.pod, report.containers) for report in recording.reports] == [(pod.ref, frozenset({"main"})), (pod.ref, None)]
    assert (list(recording.nodes), recording.complete) == (["minimal"], True) and list(host.nodes) == ["minimal"]
    assert host.gone == [pod.ref] and recording.gone_at("uid-web") is not None


async def test_run_that_is_cut_off_is_cancelled_and_fails_as_any_other() -> None:
    ended: list[str] = []

    class Mine(Minimal):
        async def run(self, host: Host) -> None:
            try:
                await super().run(host)
            finally:
                ended.append("cleaned up")

    made, recording = recorded(Mine())
    asyncio.get_running_loop().call_soon(recording.cut_off)
    with pytest.raises(Unavailable):
        await made.run(RecordingHost())
    assert ended == ["cleaned up"] and recording.runs == 1


async def test_error_of_run_passes_as_it_is() -> None:
    class Mine(Minimal):
        async def run(self, host: Host) -> None:
            raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await recorded(Mine())[0].run(RecordingHost())


async def test_list_of_a_polled_provider_says_what_runs_and_what_has_ended() -> None:
    provider = Polled()
    made, recording = recorded(provider)
    pod = make_pod(node="minimal")
    provider.pods[pod.ref.uid] = all_running(pod)
    await made.list_pods("minimal")
    await made.delete_pod(pod.ref, 0.0)
    assert recording.gone_at("uid-web") is None
    await made.list_pods("another")
    await made.list_pods("minimal")
    assert [report.containers for report in recording.reports] == [frozenset({"main"}), None]


@pytest.mark.parametrize("kind", [Minimal, Polled])
async def test_a_deletion_of_a_pod_that_the_backend_does_not_have_counts_as_gone(kind: type[Minimal]) -> None:
    class Strict(kind):  # type: ignore[misc, valid-type]
        async def delete_pod(self, pod: PodRef, grace: float) -> None:
            if self.pods.pop(pod.uid, None) is None:
                raise NoSuchPod(f"no pod {pod.key}")

    provider, pod = Strict(), make_pod(node="minimal")
    made, recording = recorded(provider)
    provider.pods[pod.ref.uid] = all_running(pod)
    await made.delete_pod(pod.ref, 1.0)
    assert recording.gone_at("uid-web") is None
    with pytest.raises(NoSuchPod):
        await made.delete_pod(pod.ref, 0.0)
    assert recording.gone_at("uid-web") is not None and [report.containers for report in recording.reports] == [None]


async def test_first_sync_after_a_restart_notes_whether_the_backend_held_the_pod() -> None:
    provider = Minimal()
    provider.host = RecordingHost()
    made, recording = recorded(provider)
    held, new = make_pod("held", node="minimal"), make_pod("new", node="minimal")
    provider.pods[held.ref.uid] = all_running(held)
    recording.held_before = {}
    for pod in (held, new, new):
        await made.sync_pod(pod)
    assert recording.held_before == {"uid-held": True, "uid-new": False}


class _Lister(Minimal):
    """Shows that a stream is closed with its reader."""

    closed = False

    async def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"2026-01-01T00:00:00Z line\n"
        finally:
            self.closed = True

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return ()

    async def sync_pod(self, pod: Pod) -> None: ...


async def test_stream_that_is_left_is_closed_and_noted_as_ended() -> None:
    provider = _Lister()
    made, recording = recorded(provider)
    stream = made.stream_logs(make_pod().ref, "main", LogOptions())
    await anext(stream)
    assert recording.calls[0].ended is None and not provider.closed
    await stream.aclose()  # type: ignore[attr-defined]
    assert recording.calls[0].ended is not None and provider.closed


def test_nodes_are_those_of_the_present_run() -> None:
    recording = Recording(ManualClock())
    assert recording.nodes == dict[str, NodeDescription]() and not recording.complete
