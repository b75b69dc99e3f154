"""A malicious worker: redirects, endless and huge answers, wrong types, pods of others; nothing passes, nothing stops, memory is bounded.

Invariant: each attack goes on for as long as the process takes part in it, and afterwards the same process serves the worker honestly.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import struct
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import count
from typing import cast

import pytest
from prometheus_client import generate_latest

from tests.faults.attack.answers import CHUNKED, chunk
from tests.faults.attack.memory import resident
from tests.faults.attack.scene import TOKEN, VNODE, Scene, scene
from tests.faults.attack.worker import POURED, Asked, Misbehave, Worker, answer, node, working
from tests.support.program import eventually
from vkubelet.api.objects import NODES, Pod
from vkubelet.client import rest, transport, watch
from vkubelet.client.connection import Connection, Timeouts
from vkubelet.client.rest import Client
from vkubelet.errors import ApiError, VKubeletError
from vkubelet.provider import LogOptions, ProviderError
from vkubelet.testing.streams import MemoryIO

MOST = 1 << 20
"""Bytes of one answer in these tests; what the product allows is more, and is checked in the same way."""
HELD = 64 << 20
"""Bytes that the process may hold more during an attack."""


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are reached fast."""
    monkeypatch.setattr(transport, "LONGEST_ANSWER", MOST, raising=False)
    monkeypatch.setattr(rest, "LONGEST_PAGE", MOST, raising=False)
    monkeypatch.setattr(rest, "MOST_PAGES", 20, raising=False)
    monkeypatch.setattr(watch, "LONGEST_EVENT", MOST, raising=False)


CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"


def endless(worker: Worker, head: bytes, piece: bytes) -> Misbehave:
    """Answers each request by a head and pieces without an end."""

    async def misbehave(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        writer.write(head)
        await worker.pour(writer, piece)
        return True

    return misbehave


def bomb(size: int) -> bytes:
    """`size` spaces, compressed."""
    packer = zlib.compressobj(wbits=31)
    return b"".join([*(packer.compress(b" " * MOST) for _ in range(size // MOST)), packer.flush()])


def compressed(worker: Worker) -> Misbehave:
    body = bomb(256 * MOST)

    async def misbehave(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer(200, body, Content_Encoding="gzip"))
        return True

    return misbehave


def pages(worker: Worker, token: Callable[[int], str], *, items: int) -> Misbehave:
    """Refuses initial events, and gives lists whose pages never end."""
    numbers = count(1)

    async def misbehave(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.kind == "watch":
            code = 410 if asked.query.get("resourceVersion") else 400
            writer.write(answer(code, json.dumps({"kind": "Status", "code": code, "message": "no initial events"}).encode()))
            return True
        if asked.kind == "list":
            number = next(numbers)
            body = {
                "metadata": {"resourceVersion": "1", "continue": token(number)},
                "items": [node(f"n-{number}-{i}") for i in range(items)],
            }
            writer.write(answer(200, json.dumps(body).encode()))
            return True
        return False

    return misbehave


def refusing(status: int, **headers: str) -> Callable[[Worker], Misbehave]:
    """Answers each request with this status."""

    def made(worker: Worker) -> Misbehave:
        body = json.dumps({"kind": "Status", "code": status, "message": "go away", "details": {"retryAfterSeconds": 10**18}}).encode()

        async def misbehave(asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(answer(status, body, **headers))
            return True

        return misbehave

    return made


ENDLESS: dict[str, Callable[[Worker], Misbehave]] = {
    "body": lambda worker: endless(worker, CHUNKED, chunk(b" " * 65536)),
    "body-until-closed": lambda worker: endless(worker, CLOSED, b"[" * 65536),
    "line-of-a-watch": lambda worker: endless(worker, CHUNKED, chunk(b"x" * 65536)),
    "body-of-an-error": lambda worker: endless(worker, CHUNKED.replace(b"200 OK", b"500 No"), chunk(b"x" * 65536)),
    "headers": lambda worker: endless(worker, b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"y" * 4000 + b"\r\n"),
    "header-line": lambda worker: endless(worker, b"HTTP/1.1 200 OK\r\nX-More: ", b"y" * 65536),
    "status-line": lambda worker: endless(worker, b"HTTP/1.1 200 ", b"O" * 65536),
}
OTHERS: dict[str, Callable[[Worker], Misbehave]] = {
    "compressed-body": compressed,
    # Skipped while it is read: it costs time, which is limited, and no memory.
    "chunk-extension": lambda worker: endless(worker, CHUNKED + b"5;", b"x" * 65536),
    "pages-with-one-token": lambda worker: pages(worker, lambda number: "again", items=3),
    "pages-with-new-tokens": lambda worker: pages(worker, lambda number: f"page-{number}", items=3),
    "empty-pages": lambda worker: pages(worker, lambda number: f"page-{number}", items=0),
    "come-back-next-century": refusing(429, Retry_After="99999999999"),
    "come-back-in-no-number": refusing(503, Retry_After="²"),
    "come-back-never": refusing(429, Retry_After="9" * 400),
    "unauthorized": refusing(401),
    "no-content": refusing(204),
}


async def attacked(served: Scene, misbehave: Misbehave, *, times: int = 12) -> None:
    """Attacks on so many requests; then the worker is honest again, and a pod is started on it."""
    worker = served.worker
    begun = len(worker.asked)
    worker.misbehave = misbehave
    worker.cut()
    await eventually(lambda: served.alive() and len(worker.asked) >= begun + times, "the attack has been tried often enough", seconds=60.0)
    worker.misbehave = None
    worker.cut()
    await served.start("after")


@pytest.mark.parametrize("name", ENDLESS)
async def test_an_answer_without_an_end_is_cut_off(name: str) -> None:
    async with working() as worker:
        worker.misbehave = ENDLESS[name](worker)
        async with Client(Connection(worker.url, timeouts=Timeouts(read=5.0, silence=5.0))) as client:
            before = resident()
            for attempt in (lambda: client.request("GET", "/version"), lambda: client.list(NODES), lambda: watched(client)):
                with pytest.raises(ApiError):
                    await asyncio.wait_for(attempt(), 20.0)
            assert resident() - before < HELD
        assert worker.most < 64 * MOST


async def watched(client: Client) -> None:
    async for _ in client.watch(NODES, initial=True):
        pass


@pytest.mark.parametrize("name", [*ENDLESS, *OTHERS])
async def test_a_binding_survives_what_its_worker_answers(name: str) -> None:
    async with scene() as served:
        await served.connected()
        before = resident()
        await attacked(served, {**ENDLESS, **OTHERS}[name](served.worker))
        assert resident() - before < HELD
        assert name not in ENDLESS or served.worker.most < POURED


# --- Credentials ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
async def test_a_redirect_is_an_error_and_takes_no_credentials_along(status: int) -> None:
    async with working() as thief, scene() as served:
        await served.connected()
        pod = await served.start("web")

        async def away(asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(answer(status, b"", Location=f"{thief.url}{asked.path}"))
            return True

        served.worker.misbehave = away
        with pytest.raises(ProviderError):
            await logs_of(served, pod)
        with pytest.raises(ProviderError):
            await served.provider.exec(pod.ref, "main", ["true"], MemoryIO(b""))
        with pytest.raises(ProviderError):
            await served.provider.stats_summary(VNODE)
        await attacked(served, away)
        assert all(asked.headers["authorization"] == f"Bearer {TOKEN}" for asked in served.worker.asked)
        assert not thief.asked


PLANTED = "go-away-please"


def texts(served: Scene) -> dict[str, str]:
    """What others see of the process: Events, what it wrote to the hub, statuses of nodes and pods, and metrics."""
    host = served.host
    return {
        "events": str(host.events.events),
        "objects": str([body for path, body in served.hub.objects.items() if "/secrets/" not in path]),
        "nodes": str(host.nodes),
        "statuses": str([host.statuses, host.failed, host.annotations]),
        "metrics": (generate_latest(host.metrics.registry) + generate_latest(host.metrics.provider)).decode(),
    }


async def test_no_text_contains_the_credentials_whatever_the_worker_sends_back(caplog: pytest.LogCaptureFixture) -> None:
    """In a header, a message and a body: no log line, Event, status, metric or error repeats them. What is planted beside them arrives."""
    caplog.set_level(logging.DEBUG)
    errors: list[str] = []

    async def echo(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        text = f"you are {asked.headers.get('authorization')}"
        body = {"kind": "Status", "code": 500, "message": f"{PLANTED} {text}", "details": {"name": text}}
        writer.write(answer(500, json.dumps(body).encode(), X_Echo=text, Warning=f'299 - "{text}"'))
        return True

    async with scene() as served:
        served.worker.misbehave = echo
        await eventually(lambda: "'Connected', 'status': 'False'" in texts(served)["objects"], "a condition states the problem")
        conditions = texts(served)["objects"]
        served.worker.misbehave = None
        await served.connected()
        pod = await served.start("web")
        served.worker.misbehave = echo
        command = served.provider.exec(pod.ref, "main", ["true"], MemoryIO(b""))
        for call in (logs_of(served, pod), command, served.provider.stats_summary(VNODE), served.provider.delete_pod(pod.ref, 1.0)):
            try:
                await call
            except VKubeletError as error:
                errors.append(str(error))
        await attacked(served, echo)
        places = {**texts(served), "conditions": conditions, "log": caplog.text, "errors": " ".join(errors)}
    assert {place for place, text in places.items() if PLANTED in text} == {"conditions", "errors", "events", "log"}
    assert "kubeocean_" in places["metrics"] and VNODE in places["nodes"] and places["statuses"]
    assert [place for place, text in places.items() if TOKEN in text] == []


# --- Streams ----------------------------------------------------------------------------------------------------------------------------


async def logs_of(served: Scene, pod: Pod, *, most: int = 1 << 20) -> bytes:
    """The beginning of the pod's log."""
    got = b""
    async with aclosing(cast(AsyncGenerator[bytes, None], served.provider.stream_logs(pod.ref, "main", LogOptions(follow=True)))) as log:
        async for part in log:
            got += part
            if len(got) > most:
                break
    return got


async def test_a_log_without_an_end_waits_for_its_reader_and_ends_with_it() -> None:
    async with scene() as served:
        await served.connected()
        pod, worker = await served.start("web"), served.worker

        async def endless_log(asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if asked.kind != "log":
                return False
            writer.write(CHUNKED)
            await worker.pour(writer, chunk(b"x" * 65536))
            return True

        worker.misbehave = endless_log
        before = resident()
        assert len(await logs_of(served, pod)) > MOST
        await eventually(lambda: worker.left == 1, "the stream of the worker is closed")
        assert resident() - before < HELD
        assert worker.most < 16 * MOST


SOCKET = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n"


def accepted(asked: Asked) -> bytes:
    """The answer to the request for a WebSocket."""
    key = base64.b64encode(hashlib.sha1(asked.headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    return SOCKET + b"Sec-WebSocket-Accept: " + key + b"\r\n\r\n"


def status_of(body: object) -> bytes:
    """A message of the error channel."""
    data = b"\3" + json.dumps(body).encode()
    return struct.pack(">BBH", 0x82, 126, len(data)) + data


MESSAGES: dict[str, bytes] = {
    "text": b"\x81\x03abc",
    "no-channel": b"\x82\x00",
    "unknown-channel": b"\x82\x03\xffab" + status_of({"status": "Success"}),
    "a-huge-frame": struct.pack(">BBQ", 0x82, 127, 1 << 40) + b"\1" + b"x" * 65536,
    "reserved-bits": b"\xf2\x02\1a",
    "no-status": b"\x88\x02\x03\xe8",
    "status-of-odd-types": status_of({"status": ["Success"], "details": "x", "message": {"a": 1}}),
    "exit-code-that-is-none": status_of(
        {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "9" * 5000}]}}
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
async def test_no_message_of_the_worker_is_a_success_of_a_command_or_ends_more_than_it(name: str) -> None:
    async with scene() as served:
        await served.connected()
        pod = await served.start("web")

        async def talk(asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if asked.kind != "stream":
                return False
            writer.write(accepted(asked) + MESSAGES[name])
            await writer.drain()
            if name in ("no-channel",):
                writer.transport.abort()
            return True

        served.worker.misbehave = talk
        run = served.provider.exec(pod.ref, "main", ["true"], MemoryIO(b""))
        if name == "unknown-channel":
            assert await asyncio.wait_for(run, 30.0) == 0
        else:
            with pytest.raises(ProviderError):
                await asyncio.wait_for(run, 30.0)
        served.worker.misbehave = None
        await served.start("after")
