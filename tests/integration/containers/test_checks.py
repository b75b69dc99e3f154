"""Probes and hooks against real listeners on loopback; no cluster."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.program import PATIENCE
from tests.support.starter import Executor
from vkubelet.api.objects import Json, PodRef
from vkubelet.clock import SystemClock
from vkubelet.containers.checks import CheckResult, Checks, CheckTarget

REF = PodRef("default", "web", "uid", "node")


class Server:
    """Answers by path, and keeps what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.headers: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        where = request.path
        if where == "/slow":
            await asyncio.Event().wait()
        if where == "/away":
            raise web.HTTPFound("http://example.test/")
        if where == "/moved":
            raise web.HTTPFound("/fine")
        if where == "/loop":
            raise web.HTTPFound("/loop")
        return web.Response(status=int(where[1:]) if where[1:].isdigit() else 200, text="hello")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made, app = Server(), web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port at which nobody listens, and nobody else can begin to while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def run(action: Json, *, timeout: float = PATIENCE, provider: object = None, ports: list[Json] | None = None) -> CheckResult:
    async with Checks(provider, clock=SystemClock()) as checks:
        return await checks.run(CheckTarget(REF, "main", {"name": "main", "ports": ports or []}, "127.0.0.1"), action, timeout=timeout)


@pytest.mark.parametrize(
    ("path", "ok", "output"),
    [
        ("/fine", True, "hello"),
        ("/399", True, "hello"),
        ("/404", False, "HTTP probe failed with statuscode: 404"),
        ("/500", False, "HTTP probe failed with statuscode: 500"),
        ("/moved", True, "hello"),
    ],
)
async def test_http_codes(server: Server, path: str, ok: bool, output: str) -> None:
    outcome = await run({"httpGet": {"port": server.port, "path": path}})
    assert (outcome.ok, outcome.output, outcome.warning) == (ok, output, False)


async def test_redirect_to_another_host_is_a_warning_and_is_not_followed(server: Server) -> None:
    outcome = await run({"httpGet": {"port": server.port, "path": "/away"}})
    assert (outcome.ok, outcome.warning) == (True, True)
    assert outcome.output.startswith("Probe terminated redirects, Response body: ")


async def test_redirects_without_end_fail(server: Server) -> None:
    outcome = await run({"httpGet": {"port": server.port, "path": "/loop"}})
    assert outcome.ok is False
    assert outcome.output.endswith("stopped after 10 redirects")


async def test_headers_are_those_of_the_probe_over_ours(server: Server) -> None:
    headers = [{"name": "X-Any", "value": "1"}, {"name": "user-agent", "value": "mine"}, {"name": "Host", "value": "inside.test"}]
    await run({"httpGet": {"port": server.port, "httpHeaders": headers}})
    (seen,) = server.headers
    assert (seen["x-any"], seen["user-agent"], seen["host"], seen["accept"]) == ("1", "mine", "inside.test", "*/*")


async def test_named_port_and_one_that_is_not_there(server: Server) -> None:
    action = {"httpGet": {"port": "web", "path": "/fine"}}
    assert (await run(action, ports=[{"name": "web", "containerPort": server.port}])).ok is True
    outcome = await run(action)
    assert (outcome.ok, outcome.output) == (None, "couldn't find port: web in container main")


async def test_timeout_is_a_failure(server: Server) -> None:
    outcome = await run({"httpGet": {"port": server.port, "path": "/slow"}}, timeout=0.5)
    text = f'Get "http://127.0.0.1:{server.port}/slow": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'
    assert (outcome.ok, outcome.output) == (False, text)


async def test_nobody_who_listens(unused_port: int) -> None:
    http = await run({"httpGet": {"port": unused_port, "path": "/x"}})
    tcp = await run({"tcpSocket": {"port": unused_port}})
    grpc = await run({"grpc": {"port": unused_port}})
    refused = f"dial tcp 127.0.0.1:{unused_port}: connect: connection refused"
    assert http == CheckResult(False, f'Get "http://127.0.0.1:{unused_port}/x": {refused}')
    assert tcp == CheckResult(False, refused)
    text = f'timeout: failed to connect service "127.0.0.1:{unused_port}" within {PATIENCE:g}s: context deadline exceeded'
    assert grpc == CheckResult(False, text)


async def test_tcp_needs_no_more_than_a_connection(server: Server) -> None:
    assert (await run({"tcpSocket": {"port": server.port}})).ok is True


async def test_https_does_not_verify_the_certificate(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = tmp_path / "both.pem"
    certificate.write_bytes(self_signed())
    context.load_cert_chain(certificate)
    made, app = Server(), web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        assert (await run({"httpGet": {"port": port, "path": "/fine", "scheme": "HTTPS"}})).ok is True
        assert (await run({"httpGet": {"port": port, "path": "/fine"}})).ok is False
    finally:
        await runner.cleanup()


def self_signed() -> bytes:
    """Key and certificate of nobody."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1)).sign(key, hashes.SHA256())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private + made.public_bytes(serialization.Encoding.PEM)


async def test_command_succeeds_fails_and_takes_too_long() -> None:
    provider = Executor()
    provider.backend.host = type("Host", (), {"clock": SystemClock()})()
    provider.codes["bad"] = 3
    provider.takes["slow"] = 5.0
    assert (await run({"exec": {"command": ["good"]}}, provider=provider)).ok is True
    assert await run({"exec": {"command": ["bad"]}}, provider=provider) == CheckResult(
        False, "bad says 3", error="command 'bad' exited with 3: "
    )
    slow = await run({"exec": {"command": ["slow", "x"]}}, provider=provider, timeout=0.1)
    assert slow == CheckResult(False, 'command timed out: "slow x" timed out after 0.1s')


# --- gRPC: what servers may answer; a real one is asked beside the cluster ---


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


HEADERS = frame(1, 4, 1, b"\x88")
MESSAGE = {status: b"\x00\x00\x00\x00\x02\x08" + bytes((status,)) for status in (1, 2)}


@pytest.mark.parametrize(
    ("answer", "ok", "output"),
    [
        (frame(4, 0, 0) + HEADERS + frame(0, 0, 1, MESSAGE[1]) + frame(1, 5, 1, b""), True, ""),
        (frame(4, 0, 0) + frame(6, 0, 0, b"12345678") + HEADERS + frame(0, 8, 1, b"\x02" + MESSAGE[1] + b"\x00\x00"), True, ""),
        (HEADERS + frame(0, 0, 1, MESSAGE[1][:4]) + frame(0, 0, 1, MESSAGE[1][4:]), True, ""),
        (HEADERS + frame(0, 0, 1, MESSAGE[2]), False, 'service unhealthy (responded with "NOT_SERVING")'),
        (frame(1, 5, 1, b"\x88"), False, "does not implement the service"),
        (frame(7, 0, 0, b"\x00" * 8), False, "the server closed the call"),
        (frame(3, 0, 1, b"\x00" * 4), False, "the server closed the call"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "the response is not a HealthCheckResponse"),
        (b"", False, ""),
    ],
)
async def test_answers_of_grpc_servers(answer: bytes, ok: bool, output: str) -> None:
    asked = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"some.service" not in asked:
            block = await reader.read(4096)
            assert block, "the client has gone"
            asked.extend(block)
        writer.write(answer)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        outcome = await run({"grpc": {"port": port, "service": "some.service"}})
    assert outcome.ok is ok
    assert output in outcome.output
    assert asked.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
