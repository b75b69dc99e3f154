"""A way to API servers on which writes are counted, and a process is killed at the n-th of them; or on which every answer is an error.

Invariant: exactly n writes reach the servers: those that come later are held until the process is dead, and then dropped.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web
from attrs import define, field
from yarl import URL

from vkubelet.testing.cluster import ControlPlane

_READS = ("GET", "HEAD")
_UNCOUNTED = ("leases", "events", "nodes", "clusterbindings", "certificatesigningrequests")
"""What is written now and then whatever happens to pods."""
_DIGESTED = 0.02
"""Seconds that a process gets to act upon an answer before it is killed."""
_HOP_BY_HOP = frozenset({"Connection", "Keep-Alive", "Transfer-Encoding", "Host", "Content-Length"})


@define
class _Trap:
    """Kills `kill()` as soon as the writes 1 … `at` are answered; `withheld`: before the last answer is handed on."""

    at: int
    kill: Callable[[], None]
    withheld: bool
    seen: int = 0
    answered: int = 0
    dead: asyncio.Event = field(factory=asyncio.Event)


class Gate:
    """Use as a context manager; it runs beside the test. `way` gives kubeconfigs that lead through it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runners: list[web.AppRunner] = []
        self._sessions: list[aiohttp.ClientSession] = []
        self._trap: _Trap | None = None
        self.refuses_with = 0
        """Status of every answer from now on; 0: that of the server. Streams that are open go on."""
        self.fired = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def way(self, plane: ControlPlane, user: str) -> Path:
        """A kubeconfig that leads here; what is asked by it is asked of the cluster in the name of the user."""
        direct = yaml.safe_load(plane.client_config(user).read_text())
        credentials = plane.directory / "clients" / f"{user}-gate.pem"
        path = credentials.with_suffix(".kubeconfig")
        port = asyncio.run_coroutine_threadsafe(self._open(plane, credentials, direct), self._loop).result(20)
        direct["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        direct["users"][0]["user"] = {}
        path.write_text(yaml.safe_dump(direct))
        return path

    def arm(self, at: int, pid: int, *, withheld: bool) -> None:
        """Kill the process with its `at`-th write from now on, after the answer or just before it arrives."""
        self.fired = False

        def kill() -> None:
            os.kill(pid, signal.SIGKILL)
            self.fired = True

        self._loop.call_soon_threadsafe(self._set, at, kill, withheld)

    def disarm(self) -> bool:
        """Let everything pass from now on; whether the process was killed before that."""

        async def disarm() -> bool:
            self._trap = None
            return self.fired

        return asyncio.run_coroutine_threadsafe(disarm(), self._loop).result(10)

    @property
    def writes(self) -> int:
        """Since `arm`."""
        trap = self._trap
        return trap.seen if trap is not None else 0

    def _set(self, at: int, kill: Callable[[], None], withheld: bool) -> None:
        self._trap = _Trap(at, kill, withheld)

    async def _open(self, plane: ControlPlane, file: Path, config: dict[str, Any]) -> int:
        context = _context(plane, file, config)
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=context), auto_decompress=False)
        self._sessions.append(session)
        app = web.Application(client_max_size=1 << 26)

        async def serve(request: web.Request) -> web.StreamResponse:
            return await self._serve(request, session, plane.url)

        app.router.add_route("*", "/{path:.*}", serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    async def _end(self) -> None:
        for session in self._sessions:
            await session.close()
        for runner in self._runners:
            await runner.cleanup()

    async def _serve(self, request: web.Request, session: aiohttp.ClientSession, url: str) -> web.StreamResponse:
        trap = self._trap
        if self.refuses_with:
            return web.Response(status=self.refuses_with)
        if trap is None or not _counts(request):
            return await self._pass(request, session, url)
        trap.seen += 1
        if trap.seen > trap.at:
            return await _dropped(trap)
        answer = await self._pass(request, session, url, before=lambda: self._answered(trap))
        if trap.answered == trap.at:
            await asyncio.sleep(_DIGESTED)
            self._spring(trap)
        return answer

    async def _answered(self, trap: _Trap) -> bool:
        """Whether the answer to a write may be handed on."""
        trap.answered += 1
        if trap.answered == trap.at and trap.withheld:
            self._spring(trap)
            return False
        return True

    def _spring(self, trap: _Trap) -> None:
        if not trap.dead.is_set():
            self._trap = None
            trap.kill()
            trap.dead.set()

    async def _pass(
        self, request: web.Request, session: aiohttp.ClientSession, url: str, before: Callable[[], Awaitable[bool]] | None = None
    ) -> web.StreamResponse:
        headers = {key: value for key, value in request.headers.items() if key not in _HOP_BY_HOP}
        body = await request.read() if request.can_read_body else None
        timeout = aiohttp.ClientTimeout(total=None)
        target = URL(f"{url}{request.raw_path}", encoded=True)
        async with session.request(request.method, target, data=body, headers=headers, timeout=timeout) as there:
            kept = {key: value for key, value in there.headers.items() if key not in _HOP_BY_HOP}
            if before is None:
                return await _streamed(request, there, kept)
            content = await there.read()
            if not await before():
                raise web.HTTPServiceUnavailable
            answer = web.Response(status=there.status, headers=kept, body=content)
            await answer.prepare(request)
            await answer.write_eof()
            return answer


def _counts(request: web.Request) -> bool:
    if request.method in _READS:
        return False
    parts = request.path.split("/")
    return not any(part in _UNCOUNTED or part.endswith("reviews") for part in parts)


async def _dropped(trap: _Trap) -> web.StreamResponse:
    await trap.dead.wait()
    raise web.HTTPServiceUnavailable


async def _streamed(request: web.Request, there: aiohttp.ClientResponse, headers: dict[str, str]) -> web.StreamResponse:
    answer = web.StreamResponse(status=there.status, headers=headers)
    try:
        await answer.prepare(request)
        async for chunk in there.content.iter_any():
            await answer.write(chunk)
        await answer.write_eof()
    except (OSError, aiohttp.ClientError):
        # The process is dead, or the server ended its watch in the middle.
        if request.transport is not None:
            request.transport.abort()
    return answer


def _context(plane: ControlPlane, file: Path, config: dict[str, Any]) -> ssl.SSLContext:
    user = config["users"][0]["user"]
    pem = b"".join(base64.b64decode(user[key]) for key in ("client-certificate-data", "client-key-data"))
    file.write_bytes(pem)
    context = ssl.create_default_context(cafile=str(plane.ca))
    context.load_cert_chain(file)
    return context
