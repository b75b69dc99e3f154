"""A way to API servers on which requests meet troubles, writes are counted, and a process is killed at the n-th of them.

Invariant: with a trap exactly n writes reach the servers: those that come later are held until the process is dead, and then dropped.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from attrs import define, evolve, field, frozen
from yarl import URL

from tests.support.beside import Beside
from tests.support.program import Program
from tests.support.troubles import Asked, Trouble, edited, first_events, listed_at, one_of, status_body
from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.cluster.pki import KeyFiles

_DIGESTED = 0.02
"""Seconds that a process gets to act upon an answer before it is killed."""
_HOP_BY_HOP = frozenset({"Connection", "Keep-Alive", "Transfer-Encoding", "Host", "Content-Length"})


def of_pods(asked: Asked) -> bool:
    """Writes but for those that come now and then whatever happens to pods."""
    return asked.is_write and asked.resource not in ("leases", "events", "nodes", "clusterbindings", "certificatesigningrequests")


def of_objects(asked: Asked) -> bool:
    """Writes but for renewals of Leases, Events, and certificates, which each start of a process asks for."""
    return asked.is_write and asked.resource not in ("leases", "events", "certificatesigningrequests")


@define
class _Trap:
    """Kills `kill()` as soon as the writes 1 … `at` are answered; `withheld`: before the last answer is handed on."""

    at: int
    kill: Callable[[], None]
    withheld: bool
    counts: Callable[[Asked], bool]
    seen: list[str] = field(factory=list)
    answered: int = 0
    dead: asyncio.Event = field(factory=asyncio.Event)


@define(eq=False)
class Active:
    """A trouble that is on. `met`: the requests it befell, as `METHOD PATH`; `changed`: the events of watches, as `TYPE KIND`."""

    trouble: Trouble
    met: list[str] = field(factory=list)
    changed: list[str] = field(factory=list)
    lifted: asyncio.Event = field(factory=asyncio.Event)
    open: set[asyncio.BaseTransport] = field(factory=set)
    """Connections whose answers it befalls now."""

    def befalls(self, asked: Asked) -> bool:
        left = self.trouble.times is None or len(self.met) < self.trouble.times
        return left and self.trouble.when(asked)

    def in_effect(self) -> Trouble:
        """The trouble, with an edit that counts the events it changes."""
        edit = self.trouble.events
        if edit is None:
            return self.trouble

        def counted(event: dict[str, Any]) -> list[dict[str, Any] | float]:
            passed = list(edit(event))
            if passed != [event]:
                self.changed.append(f"{event['type']} {event['object'].get('kind', '')}")
            return passed

        return evolve(self.trouble, events=counted)


@frozen
class _Passage:
    """One request on its way to a cluster."""

    request: web.Request
    asked: Asked
    session: aiohttp.ClientSession
    url: str

    def headers(self) -> dict[str, str]:
        return {key: value for key, value in self.request.headers.items() if key not in _HOP_BY_HOP}

    @property
    def target(self) -> URL:
        return URL(f"{self.url}{self.request.raw_path}", encoded=True)

    async def read(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        """Another question in the place of this one: status and decoded answer."""
        headers = {**self.headers(), "Accept-Encoding": "identity"}
        async with self.session.get(URL(self.url + path).with_query(query), headers=headers) as there:
            return there.status, await there.json()

    def reset(self) -> web.StreamResponse:
        """The connection is gone, whatever was written."""
        if self.request.transport is not None:
            self.request.transport.abort()
        return web.Response()


class Gate(Beside):
    """Use as a context manager; it runs beside the test. `way` and `lead` give kubeconfigs that lead through it."""

    def __init__(self) -> None:
        super().__init__()
        self._runners: list[web.AppRunner] = []
        self._sessions: list[aiohttp.ClientSession] = []
        self._trap: _Trap | None = None
        self._seen: list[str] = []
        self._active: list[Active] = []
        self._transports: set[asyncio.BaseTransport] = set()
        self._presented: dict[str, list[ssl.SSLContext]] = {}
        """By the name of the cluster, with which certificates it is served here."""
        self.fired = False

    # --- for tests ---

    def way(self, plane: ControlPlane, user: str) -> Path:
        """A kubeconfig that leads here; what is asked by it is asked of the cluster in the name of the user."""
        return self.lead(plane, plane.client_config(user))

    def lead(self, plane: ControlPlane, kubeconfig: Path) -> Path:
        """The same for any kubeconfig of a cluster. Its certificate is that of the gate, by the CA of the cluster."""
        direct = decode_yaml(kubeconfig.read_text())
        path = kubeconfig.with_name(f"{kubeconfig.stem}-gate.kubeconfig")
        port = self.run(self._open(plane, path.with_suffix(".pem"), direct))
        direct["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        path.write_text(yaml.safe_dump(direct))
        return path

    @contextmanager
    def trouble(self, trouble: Trouble, *, reset: bool = False) -> Iterator[Active]:
        """Requests meet it while the block runs, the newest where several fit; answers that it still befalls at the end are reset.

        `reset`: all connections are reset at its beginning, so that watches meet it too.
        """
        active = Active(trouble)
        self.do(lambda: self._active.append(active))
        if reset:
            self.reset()
        try:
            yield active
        finally:
            self.do(lambda: self._lift(active))

    def present(self, plane: ControlPlane, files: KeyFiles) -> None:
        """From now on a cluster is served with another certificate; all connections are reset."""
        for context in self._presented[plane.name]:
            context.load_cert_chain(files.certificate, files.key)
        self.reset()

    def reset(self) -> None:
        """Reset all connections; new ones are served."""
        self.do(lambda: _abort(self._transports))

    def arm(self, at: int, program: Program, *, withheld: bool, counts: Callable[[Asked], bool] = of_pods) -> None:
        """Kill the process that the program is then with its `at`-th write from now on, after the answer or just before it arrives."""
        self.fired = False

        def kill() -> None:
            # Who finds the process dead must know already that it did not end by itself.
            self.fired = True
            os.kill(program.process.pid, signal.SIGKILL)

        def set_trap() -> None:
            self._trap = _Trap(at, kill, withheld, counts)
            self._seen = self._trap.seen

        self.do(set_trap)

    def disarm(self) -> bool:
        """Let everything pass from now on; whether the process was killed before that."""

        def disarm() -> bool:
            self._trap = None
            return self.fired

        return self.do(disarm)

    @property
    def writes(self) -> int:
        """Since `arm`."""
        return len(self._seen)

    @property
    def written(self) -> list[str]:
        """The writes since `arm`, as `METHOD PATH`."""
        return list(self._seen)

    # --- the server ---

    async def _open(self, plane: ControlPlane, file: Path, config: dict[str, Any]) -> int:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=_as_client(plane, file, config)),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self._sessions.append(session)
        app = web.Application(client_max_size=1 << 26)

        async def serve(request: web.Request) -> web.StreamResponse:
            asked = Asked(plane.name, request.method, request.path, dict(request.query))
            transport = request.transport
            assert transport is not None
            self._transports.add(transport)
            try:
                return await self._serve(_Passage(request, asked, session, plane.url))
            finally:
                self._transports.discard(transport)

        app.router.add_route("*", "/{path:.*}", serve)
        # The watches of a process that is dead end with it.
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        self._runners.append(runner)
        await runner.setup()
        context = _as_server(plane)
        self._presented.setdefault(plane.name, []).append(context)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        for active in list(self._active):
            self._lift(active)
        for session in self._sessions:
            await session.close()
        for runner in self._runners:
            await runner.cleanup()

    def _lift(self, active: Active) -> None:
        self._active.remove(active)
        active.lifted.set()
        _abort(active.open)

    async def _serve(self, passage: _Passage) -> web.StreamResponse:
        asked = passage.asked
        active = next((each for each in reversed(self._active) if each.befalls(asked)), None)
        if active is None:
            return await self._counted(passage, None)
        active.met.append(f"{asked.method} {passage.request.path_qs}")
        transport = passage.request.transport
        assert transport is not None
        active.open.add(transport)
        try:
            if active.trouble.spares_the_server:
                return await _spared(passage, active)
            if active.trouble.version and asked.method == "GET":
                return await _stale(passage, active)
            await asyncio.sleep(active.trouble.late)
            return await self._counted(passage, active.in_effect())
        finally:
            active.open.discard(transport)

    async def _counted(self, passage: _Passage, trouble: Trouble | None) -> web.StreamResponse:
        trap, asked = self._trap, passage.asked
        if trap is None or not trap.counts(asked):
            return await _passed(passage, trouble)
        trap.seen.append(f"{asked.method} {asked.path}")
        if len(trap.seen) > trap.at:
            return await _dropped(trap)
        counted = asyncio.Event()

        async def before() -> bool:
            counted.set()
            return await self._answered(trap)

        try:
            answer = await _passed(passage, trouble, before=before)
            if trap.answered == trap.at:
                await asyncio.sleep(_DIGESTED)
            return answer
        finally:
            # Its client may have given it up, or replaced the connection: no answer will follow.
            trap.answered += not counted.is_set()
            if trap.answered == trap.at:
                self._spring(trap)

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


def _abort(transports: Iterable[asyncio.BaseTransport]) -> None:
    for transport in list(transports):
        transport.abort()  # type: ignore[attr-defined]


async def _dropped(trap: _Trap) -> web.StreamResponse:
    await trap.dead.wait()
    raise web.HTTPServiceUnavailable


async def _spared(passage: _Passage, active: Active) -> web.StreamResponse:
    trouble = active.trouble
    if trouble.hangs:
        await active.lifted.wait()
        return passage.reset()
    if trouble.unsent:
        return passage.reset()
    headers = {"Retry-After": str(trouble.retry_after)} if trouble.retry_after else {}
    return web.json_response(status_body(trouble.status), status=trouble.status, headers=headers)


async def _stale(passage: _Passage, active: Active) -> web.StreamResponse:
    asked, version = passage.asked, active.trouble.version
    if asked.is_read_of_one:
        path, _, name = asked.path.rpartition("/")
        status, body = await passage.read(path, listed_at({}, version, name=name))
        found = one_of(body) if status == 200 else body
        return web.json_response(found, status=status) if found else web.json_response(status_body(404), status=404)
    if asked.is_list:
        status, body = await passage.read(asked.path, listed_at(asked.query, version))
        return web.json_response(body, status=status)
    if not asked.is_watch:
        return await _passed(passage, None)
    answer = web.StreamResponse(headers={"Content-Type": "application/json"})
    await answer.prepare(passage.request)
    if asked.query.get("sendInitialEvents") == "true":
        _, body = await passage.read(asked.path, listed_at(asked.query, version))
        for event in first_events(body):
            await answer.write(json.dumps(event).encode() + b"\n")
    # What follows is learnt by the next watch.
    await active.lifted.wait()
    return passage.reset()


async def _passed(passage: _Passage, trouble: Trouble | None, before: Callable[[], Awaitable[bool]] | None = None) -> web.StreamResponse:
    request = passage.request
    body = await request.read() if request.can_read_body else None
    headers = passage.headers()
    if trouble is not None and trouble.events is not None:
        headers["Accept-Encoding"] = "identity"
    target = passage.target
    if trouble is not None and trouble.page and int(passage.asked.query.get("limit", "0")) > trouble.page:
        target = target.update_query(limit=trouble.page)
    async with passage.session.request(request.method, target, data=body, headers=headers) as there:
        kept = {key: value for key, value in there.headers.items() if key not in _HOP_BY_HOP}
        if trouble is not None and trouble.lost:
            await there.read()
            return passage.reset()
        if before is None:
            return await _streamed(passage, there, headers=kept, trouble=trouble or Trouble())
        content = await there.read()
        if not await before():
            raise web.HTTPServiceUnavailable
        answer = web.Response(status=there.status, headers=kept, body=content)
        await answer.prepare(request)
        await answer.write_eof()
        return answer


async def _streamed(passage: _Passage, there: aiohttp.ClientResponse, *, headers: dict[str, str], trouble: Trouble) -> web.StreamResponse:
    answer = web.StreamResponse(status=there.status, headers=headers)
    try:
        await answer.prepare(passage.request)
        if trouble.events is not None and passage.asked.is_watch:
            async for line in there.content:
                for each in edited(line, trouble.events):
                    await asyncio.sleep(each) if isinstance(each, float | int) else await answer.write(each)
        else:
            async for chunk in there.content.iter_any():
                if trouble.torn:
                    await answer.write(chunk[: len(chunk) // 2])
                    return passage.reset()
                await answer.write(chunk)
                await asyncio.sleep(len(chunk) / trouble.rate if trouble.rate else 0)
        await answer.write_eof()
    except (OSError, aiohttp.ClientError):
        # The process is dead, or the server ended its watch in the middle.
        passage.reset()
    return answer


def _as_client(plane: ControlPlane, file: Path, config: dict[str, Any]) -> ssl.SSLContext:
    """With the certificate that the kubeconfig has; a token comes with each request."""
    context = ssl.create_default_context(cafile=str(plane.ca))
    user = config["users"][0]["user"]
    if "client-certificate-data" in user:
        file.write_bytes(b"".join(base64.b64decode(user[key]) for key in ("client-certificate-data", "client-key-data")))
        context.load_cert_chain(file)
    return context


def _as_server(plane: ControlPlane) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    files = plane.serving_certificate("gate", ["127.0.0.1"], organizations=())
    context.load_cert_chain(files.certificate, files.key)
    return context
