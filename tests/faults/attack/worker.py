"""A worker cluster over HTTP that answers honestly, until a test makes it malicious: it may then answer each request with any bytes.

Invariant: honest answers come from the objects of the test alone; every request is recorded with its headers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from attrs import define, field, frozen

from tests.support.memory_api import Body, MemoryApi
from vkubelet.api.objects import apply_merge
from vkubelet.client.transport import Call
from vkubelet.errors import ApiError

ADDRESS = "127.0.0.1"
POURED = 256 << 20
_HEAD = b"\r\n\r\n"


@frozen
class Asked:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """`watch`, `list`, `get`, `log`, `stream` or `write`."""
        if self.method != "GET":
            return "write"
        if "upgrade" in self.headers:
            return "stream"
        if self.query.get("watch"):
            return "watch"
        last = self.path.rpartition("/")[2]
        return "log" if last == "log" else "list" if last in _PLURALS else "get"


_PLURALS = {
    "nodes",
    "pods",
    "resourceleasingpolicies",
    "configmaps",
    "secrets",
    "persistentvolumeclaims",
    "csinodes",
    "events",
    "services",
    "endpointslices",
    "networkpolicies",
    "namespaces",
}

Misbehave = Callable[[Asked, asyncio.StreamWriter], Awaitable[bool]]
"""Answers a request, or returns False when an honest answer is to follow."""


class Cluster(MemoryApi):
    """Objects in memory that also take merge patches, and get UIDs."""

    _numbers = itertools.count(1)

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.path.endswith("reviews"):
            return json.dumps({"metadata": {}, "status": {"allowed": True}}).encode()
        if call.method == "POST":
            body = json.loads(call.body or b"{}")
            body["metadata"] |= {"uid": f"uid-{next(self._numbers)}", "generation": 1}
            return await super().fetch(_with_body(call, body), timeout)
        if call.method == "PATCH":
            known = self._found(call.path.removesuffix("/status"), call)
            changed = apply_merge(known, json.loads(call.body or b"{}"))
            changed["metadata"].pop("resourceVersion", None)
            self.put(call.path.removesuffix("/status"), changed)
            return json.dumps(self.objects[call.path.removesuffix("/status")]).encode()
        if call.path in ("/version", "/readyz"):
            return b"{}"
        return await super().fetch(call, timeout)


def _with_body(call: Call, body: Body) -> Call:
    return Call(call.method, call.path, call.attempt, params=call.params, body=json.dumps(body).encode())


@define
class Worker:
    """The server; `most` are the bytes of the longest malicious answer, `left` counts those on which the other end closed."""

    cluster: Cluster = field(factory=Cluster)
    misbehave: Misbehave | None = None
    asked: list[Asked] = field(factory=list)
    port: int = 0
    most: int = 0
    left: int = 0
    _writers: set[asyncio.StreamWriter] = field(factory=set)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    def cut(self) -> None:
        """Closes all connections, so that everything is asked for again."""
        for writer in self._writers:
            writer.transport.abort()

    async def pour(self, writer: asyncio.StreamWriter, piece: bytes) -> None:
        """Sends for as long as the other end takes it, up to POURED bytes: no test may take all memory."""
        sent = 0
        try:
            while sent < POURED:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        except ConnectionError:
            self.left += 1
            raise
        finally:
            self.most = max(self.most, sent)
        writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                asked = await _read(reader)
                self.asked.append(asked)
                if self.misbehave is None or not await self.misbehave(asked, writer):
                    await self._honest(asked, writer)
                await writer.drain()
        self._writers.discard(writer)
        writer.transport.abort()

    async def _honest(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        params = tuple(asked.query.items())
        call = Call(asked.method, asked.path, "", params=params, body=asked.body or None)
        if asked.kind == "watch":
            async with self.cluster.open(call, None) as stream:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    line = await stream.readany()
                    writer.write(b"%x\r\n%b\r\n" % (len(line), line))
                    await writer.drain()
        if asked.kind == "log":
            writer.write(answer(200, b"honest\n", kind="text/plain"))
            return
        try:
            writer.write(answer(200, await self.cluster.fetch(call, 1.0)))
        except ApiError as error:
            names = {"AlreadyExists": (409, "AlreadyExists"), "Conflict": (409, "Conflict"), "NotFound": (404, "NotFound")}
            code, reason = names.get(type(error).__name__, (500, "InternalError"))
            writer.write(answer(code, json.dumps({"kind": "Status", "reason": reason, "code": code, "message": reason}).encode()))


def answer(status: int, body: bytes, *, kind: str = "application/json", **headers: str) -> bytes:
    """A complete response."""
    lines = [f"HTTP/1.1 {status} Answer", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + _HEAD + body


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(_HEAD)).decode()
    first, *lines = head.rstrip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Asked(method, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), headers, body)


@asynccontextmanager
async def working() -> AsyncIterator[Worker]:
    """A worker that listens; all its connections are closed at the end."""
    worker = Worker()
    server = await asyncio.start_server(worker.serve, ADDRESS, 0, limit=1 << 20)
    worker.port = server.sockets[0].getsockname()[1]
    try:
        yield worker
    finally:
        worker.misbehave = None
        server.close()
        tasks = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == "Worker.serve"]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def node(name: str = "node-1", **metadata: Any) -> Body:
    """A physical node."""
    status = {
        "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"},
        "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        "nodeInfo": {"kubeletVersion": "v1.33.0", "operatingSystem": "linux", "architecture": "amd64"},
    }
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "labels": {}, **metadata}, "spec": {}, "status": status}
