"""`kubectl logs` through a real API server, which verifies our certificate, and the kubelet's answers to wrong questions."""

from __future__ import annotations

import asyncio
import ssl
import time
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from tests.integration.server.backend import ApplyingBackend, Backend, Silent, Stand, call, serving, tls
from tests.integration.server.shells import NOTICED
from tests.integration.tries import median_within
from tests.support.program import PATIENCE, eventually
from vkubelet.api.objects import Pod
from vkubelet.clock import SystemClock
from vkubelet.errors import BadRequest, NoSuchContainer, NoSuchPod, Unavailable
from vkubelet.provider import LogOptions
from vkubelet.server import Endpoint, ports
from vkubelet.testing.cluster import ClusterError, ControlPlane

NOW = datetime.now(UTC)


def stamp(seconds_ago: int) -> str:
    return (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")


def lines(*ages_and_texts: tuple[int, str]) -> bytes:
    return "".join(f"{stamp(age)} {text}\n" for age, text in ages_and_texts).encode()


HOUR = 3600
# Hours apart: the ages are fixed when the tests are collected, which may be long before this one runs.
THREE = ((72 * HOUR, "one"), (10 * HOUR, "two"), (5, "three"))


@pytest.fixture
async def endpoint(stand: Stand, node: str) -> Endpoint:
    return await stand.node(node)


@pytest.fixture
async def pod(stand: Stand, endpoint: Endpoint, namespace: str, node: str) -> Pod:
    """A pod of three lines, cut into chunks where it hurts."""
    found = await stand.pod(namespace, node)
    data = lines(*THREE)
    stand.backend.write(found, data[:3], data[3:40], data[40:])
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "one\ntwo\nthree\n"),
        (["--tail=2"], "two\nthree\n"),
        (["--tail=0"], ""),
        (["--tail=99"], "one\ntwo\nthree\n"),
        (["--tail=-1"], "one\ntwo\nthree\n"),
        (["--since=24h"], "two\nthree\n"),
        ([f"--since-time={stamp(10 * HOUR)}"], "two\nthree\n"),
        (["--limit-bytes=5"], "one\nt"),
        (["--tail=2", "--limit-bytes=5"], "two\nt"),
        (["--timestamps", "--tail=1"], f"{stamp(5)} three\n"),
        (["--tail=2", "--since=5h", "--timestamps"], f"{stamp(5)} three\n"),
        (["--follow", "--tail=1", "--limit-bytes=2"], "th"),
    ],
)
async def test_options_of_kubectl_logs(hub: ControlPlane, pod: Pod, options: list[str], expected: str) -> None:
    assert await hub.kubectl("logs", "-n", pod.metadata.namespace, "web", "-c", "app", *options) == expected


async def test_previous_log_is_the_one_before(hub: ControlPlane, stand: Stand, pod: Pod) -> None:
    ended = {"terminated": {"exitCode": 1, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}}
    await stand.status(pod.key, {"app": {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended, "restartCount": 1}})
    stand.backend.write(pod, lines((9, "earlier")), previous=True)
    assert await hub.kubectl("logs", "-n", pod.metadata.namespace, "web", "-c", "app", "-p") == "earlier\n"
    assert await hub.kubectl("logs", "-n", pod.metadata.namespace, "web", "-c", "app") == "one\ntwo\nthree\n"


async def test_follow_shows_each_line_at_once_and_ends_with_the_container(hub: ControlPlane, stand: Stand, pod: Pod) -> None:
    log = stand.backend.logs[pod.metadata.uid, "app", False]
    kubectl = (await hub.site.binaries.ensure(["kubectl"]))["kubectl"]
    args = ("logs", "-f", "--tail=1", "-n", pod.metadata.namespace, "web", "-c", "app")
    process = await asyncio.create_subprocess_exec(str(kubectl), f"--kubeconfig={hub.kubeconfig}", *args, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        assert await process.stdout.readline() == b"three\n"
        for number in range(3):
            log.append(lines((0, f"new {number}")))
            assert await process.stdout.readline() == f"new {number}\n".encode()
        log.append(f"{stamp(0)} last word without newline".encode())
        # kubectl holds the beginning of a line back until it has the end, of the line or of the log.
        log.end()
        assert await process.stdout.read() == b"last word without newline"
        assert await process.wait() == 0


async def test_headers_of_a_silent_log_come_before_its_first_line(hub: ControlPlane, stand: Stand, pod: Pod, endpoint: Endpoint) -> None:
    log = stand.backend.write(pod)
    async with followed(hub, endpoint, pod) as response:
        assert response.status == 200
        assert response.headers["Transfer-Encoding"] == "chunked"
        log.append(lines((0, "finally")))
        assert await response.content.readline() == b"finally\n"
        log.end()
        assert await response.read() == b""


class followed:
    """`-f` as the API server asks for it, on a connection of its own."""

    def __init__(self, hub: ControlPlane, endpoint: Endpoint, pod: Pod) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls(hub, certificate=True)))
        self._url = f"https://{endpoint.address}:{endpoint.port}/containerLogs/{pod.metadata.namespace}/{pod.metadata.name}/app?follow=true"

    async def __aenter__(self) -> aiohttp.ClientResponse:
        self.response = await self._session.get(self._url)
        return self.response

    async def __aexit__(self, *_: object) -> None:
        self.response.close()
        await self._session.close()


async def test_provider_stream_is_closed_within_two_seconds_when_kubectl_is_killed(hub: ControlPlane, stand: Stand, pod: Pod) -> None:
    kubectl = (await hub.site.binaries.ensure(["kubectl"]))["kubectl"]
    command = (str(kubectl), f"--kubeconfig={hub.kubeconfig}", "logs", "-f", "-n", pod.metadata.namespace, "web", "-c", "app")
    clock = SystemClock()

    async def once() -> float:
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"one\n"
        assert stand.backend.streams == 1
        process.kill()
        began = clock.monotonic()
        await eventually(lambda: stand.backend.streams == 0, "the provider's stream is closed", every=0.02)
        seconds = clock.monotonic() - began
        await process.wait()
        return seconds

    await median_within(NOTICED, once, "the end of a killed kubectl's stream")


async def test_streams_of_leaving_clients_leave_nothing_behind(hub: ControlPlane, stand: Stand, pod: Pod, endpoint: Endpoint) -> None:
    tasks = len(asyncio.all_tasks())
    for _ in range(50):
        async with followed(hub, endpoint, pod) as response:
            assert await response.content.readline() == b"one\n"
    await eventually(lambda: stand.backend.streams == 0, "all streams are closed")
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left")


async def test_client_that_does_not_read_holds_the_provider_back(hub: ControlPlane, stand: Stand, pod: Pod, endpoint: Endpoint) -> None:
    stand.backend.write(pod, *[lines((9, "x" * 65536)) for _ in range(1000)])
    reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port, ssl=tls(hub, certificate=True), limit=1024)
    path = f"/containerLogs/{pod.metadata.namespace}/web/app"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: kubelet\r\n\r\n".encode())
    assert b"200" in await reader.readline()
    given = -1
    while given != stand.backend.given:
        given = stand.backend.given
        await asyncio.sleep(0.5)
    assert given < 500
    writer.transport.abort()
    await eventually(lambda: stand.backend.streams == 0, "the stream is closed")


async def test_a_client_of_http_1_0_reads_the_log_until_the_connection_is_closed(
    hub: ControlPlane, stand: Stand, pod: Pod, endpoint: Endpoint
) -> None:
    stand.backend.write(pod, lines((1, "one"), (2, "two")))
    reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port, ssl=tls(hub, certificate=True))
    path = f"/containerLogs/{pod.metadata.namespace}/web/app"
    writer.write(f"GET {path} HTTP/1.0\r\nHost: kubelet\r\nConnection: keep-alive\r\n\r\n".encode())
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200") and b"ransfer-" not in head
    assert body == b"one\ntwo\n"
    writer.close()


async def test_a_thousand_followers_at_once_all_get_the_line(hub: ControlPlane, stand: Stand, pod: Pod, endpoint: Endpoint) -> None:
    log = stand.backend.write(pod)
    url = f"https://{endpoint.address}:{endpoint.port}/containerLogs/{pod.metadata.namespace}/web/app?follow=true"
    connector = aiohttp.TCPConnector(ssl=tls(hub, certificate=True), limit=0)
    # aiohttp gives a connection 30 s by default, the handshakes of all the others before it included.
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session:

        async def follow() -> bytes:
            async with session.get(url) as response:
                return await response.read()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(follow()) for _ in range(1000)]
            await eventually(lambda: stand.backend.streams == 1000, "all follow", seconds=150)
            log.append(lines((0, "hello")))
            log.end()
    assert {task.result() for task in tasks} == {b"hello\n"}


async def test_options_reach_a_provider_that_applies_them_and_its_bytes_pass_unchanged(
    hub: ControlPlane, namespace: str, node: str
) -> None:
    backend = ApplyingBackend()
    async with serving(hub, backend) as stand:
        await stand.node(node)
        await stand.pod(namespace, node)
        args = ("logs", "-n", namespace, "web", "-c", "app", "--tail=7", "--limit-bytes=3", "--timestamps")
        assert await hub.kubectl(*args) == "as the backend wants it"
    assert backend.asked == [LogOptions(tail=7, limit_bytes=3, timestamps=True)]


@pytest.mark.parametrize(
    ("states", "options", "text"),
    [
        ({}, [], 'container "app" in pod "web" is not available'),
        (
            {"app": {"state": {"waiting": {"reason": "ContainerCreating"}}}},
            [],
            'container "app" in pod "web" is waiting to start: ContainerCreating',
        ),
        (
            {"app": {"state": {"waiting": {"reason": "ImagePullBackOff"}}}},
            [],
            'container "app" in pod "web" is waiting to start: trying and failing to pull image',
        ),
        ({"app": {"state": {"running": {}}}}, ["-p"], 'previous terminated container "app" in pod "web" not found'),
    ],
)
async def test_kubectl_shows_why_there_is_no_log(
    hub: ControlPlane, stand: Stand, pod: Pod, states: dict[str, object], options: list[str], text: str
) -> None:
    await stand.status(pod.key, states)
    with pytest.raises(ClusterError) as error:
        await hub.kubectl("logs", "-n", pod.metadata.namespace, "web", "-c", "app", *options)
    assert f"Error from server (BadRequest): {text}" in str(error.value)


@pytest.mark.parametrize(
    ("failure", "status", "text"),
    [
        (NoSuchPod("gone"), 404, 'pod "web" does not exist'),
        (NoSuchContainer("gone"), 404, 'container "app" not found in pod "web"'),
        (BadRequest("no such thing"), 400, "no such thing"),
        (Unavailable("starting", retry_after=3), 503, "starting"),
        (ValueError("secret insides"), 500, "internal error"),
        (ConnectionResetError("of the backend"), 500, "internal error"),
    ],
)
async def test_errors_of_the_provider_before_the_first_line(
    hub: ControlPlane, stand: Stand, pod: Pod, endpoint: Endpoint, *, failure: Exception, status: int, text: str
) -> None:
    stand.backend.write(pod)
    stand.backend.failure = failure
    reply = await call(hub, endpoint, f"/containerLogs/{pod.metadata.namespace}/web/app")
    assert (reply.status, reply.text) == (status, text)


@pytest.mark.parametrize("failure", [Unavailable("backend lost"), ValueError("a bug"), ConnectionResetError("backend")])
async def test_an_error_after_the_first_line_breaks_the_stream_off(
    hub: ControlPlane, stand: Stand, pod: Pod, endpoint: Endpoint, failure: Exception
) -> None:
    stand.backend.failure = failure
    with pytest.raises(aiohttp.ClientPayloadError):
        await call(hub, endpoint, f"/containerLogs/{pod.metadata.namespace}/web/app")


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("web/app?tailLines=x", 400, '{"message": "Unable to decode query."}'),
        ("web/app?limitBytes=0", 422, '{"message": "Invalid request."}'),
        ("none/app", 404, 'pod "none" does not exist'),
        ("web/none", 404, 'container "none" not found in pod "web"'),
        ("web/side", 400, 'container "side" in pod "web" is not available'),
    ],
)
async def test_wrong_questions_get_the_kubelets_answers(
    hub: ControlPlane, pod: Pod, endpoint: Endpoint, *, path: str, status: int, text: str
) -> None:
    reply = await call(hub, endpoint, f"/containerLogs/{pod.metadata.namespace}/{path}")
    assert (reply.status, reply.text) == (status, text)


async def test_a_provider_without_logs_answers_501(hub: ControlPlane, namespace: str, node: str) -> None:
    async with serving(hub, Silent()) as stand:
        endpoint = await stand.node(node)
        await stand.pod(namespace, node)
        reply = await call(hub, endpoint, f"/containerLogs/{namespace}/web/app")
    assert reply.status == 501


async def test_logs_need_a_certificate_the_api_server_can_verify(hub: ControlPlane, namespace: str, node: str) -> None:
    async with serving(hub, Backend(), certificate="self-signed") as stand:
        await eventually(lambda: stand.server.problem is None, "it is certified")
        await stand.node(node)
        stand.backend.write(await stand.pod(namespace, node), lines((1, "hidden")))
        with pytest.raises(ClusterError, match="certificate"):
            await hub.kubectl("logs", "-n", namespace, "web", "-c", "app")
        skipping = await hub.kubectl("logs", "-n", namespace, "web", "-c", "app", "--insecure-skip-tls-verify-backend")
        assert skipping == "hidden\n"


async def test_open_streams_end_when_the_server_stops(hub: ControlPlane, namespace: str, node: str) -> None:
    async with serving(hub, Backend()) as stand:
        endpoint = await stand.node(node)
        pod = await stand.pod(namespace, node)
        log = stand.backend.write(pod, lines((1, "first")))
        stream = followed(hub, endpoint, pod)
        response = await stream.__aenter__()
        assert await response.content.readline() == b"first\n"
        asyncio.get_running_loop().call_later(0.5, log.append, lines((0, "last")))
        asyncio.get_running_loop().call_later(0.5, log.end)
    # It had its time to come to an end by itself.
    assert await response.read() == b"last\n"
    await stream.__aexit__()
    with pytest.raises((aiohttp.ClientError, OSError, ssl.SSLError)):
        await call(hub, endpoint, "/healthz")


async def test_a_stream_that_goes_on_is_closed_after_its_grace(
    hub: ControlPlane, namespace: str, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grace is shortened."""
    grace = 4.0
    monkeypatch.setattr(ports, "STREAMS_END", grace)
    async with serving(hub, Backend()) as stand:
        endpoint = await stand.node(node)
        pod = await stand.pod(namespace, node)
        stand.backend.write(pod, lines((1, "first")))
        stream = followed(hub, endpoint, pod)
        response = await stream.__aenter__()
        assert await response.content.readline() == b"first\n"
        began = time.monotonic()
    took = time.monotonic() - began
    response.close()
    print(f"closed after {took:.1f} s")
    assert grace - 0.1 < took < 1.75 * grace


async def test_no_timer_of_the_server_ends_a_log_that_says_nothing(
    hub: ControlPlane, namespace: str, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest of them is shortened, so that the silence outlasts it many times."""
    monkeypatch.setattr(ports, "_KEEP_ALIVE", 0.1)
    async with serving(hub, Backend()) as stand:
        endpoint = await stand.node(node)
        pod = await stand.pod(namespace, node)
        log = stand.backend.write(pod, lines((1, "first")))
        async with followed(hub, endpoint, pod) as response:
            assert await response.content.readline() == b"first\n"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await response.content.readline()
            log.append(lines((0, "at last")))
            assert await response.content.readline() == b"at last\n"
            log.end()
            assert await response.read() == b""
