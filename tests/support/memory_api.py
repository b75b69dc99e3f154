"""An API server as bytes in memory, in the place of a client's transport: objects, watches and the writes that were made.

Invariant: it stores what was sent and judges nothing, so that clients meet also what a real API server would refuse.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

from attrs import frozen

from vkubelet.api.objects import apply_merge
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.clock import Clock, rfc3339
from vkubelet.errors import AlreadyExists, Conflict, NotFound

Body = dict[str, Any]


@frozen
class Write:
    """One call that changed something."""

    method: str
    path: str
    body: Body


class MemoryApi:
    """Objects by the path of their URL. A patch replaces the top-level members it names, within `status` too."""

    def __init__(self) -> None:
        self.connection = Connection("https://127.0.0.1:1")
        self.objects: dict[str, Body] = {}
        self.writes: list[Write] = []
        self.hold_end_marker = False
        """The initial events of a watch stay incomplete until `send_end_marker`."""
        self._version = 0
        self._streams: list[_Stream] = []

    def client(self) -> Client:
        """A client whose calls come here."""
        made = Client(self.connection)
        self.lend_to(made)
        return made

    def lend_to(self, client: Client) -> None:
        """Let the calls of a client that exists come here."""
        client.transport, client._owns_transport = self, False  # type: ignore[assignment]

    def put(self, path: str, body: Body) -> None:
        """Create or replace an object, as another client would."""
        self._version += 1
        type_ = "MODIFIED" if path in self.objects else "ADDED"
        self.objects[path] = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": str(self._version)}}
        self._publish(type_, path)

    def delete(self, path: str) -> None:
        """Remove an object."""
        self._publish("DELETED", path)
        self.objects.pop(path, None)

    def _publish(self, type_: str, path: str) -> None:
        for stream in self._streams:
            if stream.wants(path):
                stream.send({"type": type_, "object": self.objects[path]})

    # --- what a client asks of its transport ---

    async def fetch(self, call: Call, timeout: float) -> bytes:
        path = call.path.removesuffix("/status")
        if call.method == "GET":
            return json.dumps(self._found(path, call)).encode()
        body = json.loads(call.body) if call.body else {}
        self.writes.append(Write(call.method, call.path, body))
        if call.method == "POST":
            path = f"{path}/{body['metadata'].get('name', '')}"
            if path in self.objects:
                raise AlreadyExists(call.attempt, "already exists")
            self.put(path, body)
            return json.dumps(self.objects[path]).encode()
        known = self._found(path, call)
        if call.method == "DELETE":
            self.delete(path)
            return b"{}"
        if call.method == "PUT":
            if body["metadata"].get("resourceVersion", "") not in ("", known["metadata"]["resourceVersion"]):
                raise Conflict(call.attempt, "the object has been modified")
            self.put(path, body)
            return json.dumps(self.objects[path]).encode()
        status = {**known.get("status", {}), **body.get("status", {})}
        self.put(path, {**known, "status": status})
        return json.dumps(self.objects[path]).encode()

    def _found(self, path: str, call: Call) -> Body:
        if path in self.objects:
            return self.objects[path]
        items = [each for name, each in self.objects.items() if _item_of(name, path)]
        if not items and not path.endswith("s"):
            raise NotFound(call.attempt, "not found")
        return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    @asynccontextmanager
    async def open(self, call: Call, timeout: object) -> AsyncIterator[Any]:
        with self._stream(call) as stream:
            yield stream

    @contextmanager
    def _stream(self, call: Call) -> Iterator[_Stream]:
        stream = _Stream(call)
        for path, body in self.objects.items():
            if stream.wants(path):
                stream.send({"type": "ADDED", "object": body})
        self._streams.append(stream)
        if not self.hold_end_marker:
            stream.send(self._end_marker())
        try:
            yield stream
        finally:
            self._streams.remove(stream)

    def send_end_marker(self) -> None:
        """Complete the initial events of all watches."""
        for stream in self._streams:
            stream.send(self._end_marker())

    def _end_marker(self) -> Body:
        marker = {"resourceVersion": str(self._version), "annotations": {"k8s.io/initial-events-end": "true"}}
        return {"type": "BOOKMARK", "object": {"metadata": marker}}

    async def writes_done(self, timeout: float) -> bool:
        return True

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        yield

    @contextmanager
    def refusing(self, listener: object) -> Iterator[None]:
        """It refuses nothing for want of a right."""
        yield


class MergingApi(MemoryApi):
    """Merges patches, as an API server does with those of RFC 7386."""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method != "PATCH":
            return await super().fetch(call, timeout)
        path, change = call.path.removesuffix("/status"), json.loads(call.body or b"{}")
        known = self._found(path, call)
        self.writes.append(Write(call.method, call.path, change))
        version = known["metadata"]["resourceVersion"]
        if change.get("metadata", {}).get("resourceVersion", version) != version:
            raise Conflict(call.attempt, "the object has been modified")
        self.put(path, apply_merge(known, change))
        return json.dumps(self.objects[path]).encode()


class TokenApi(MergingApi):
    """Also issues tokens; its clock is `ahead` of that of the process, in seconds."""

    LIFE = 3600

    def __init__(self, clock: Clock, *, ahead: float = 0.0) -> None:
        super().__init__()
        self.clock, self.ahead, self.issued = clock, ahead, 0

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if not call.path.endswith("/token"):
            return await super().fetch(call, timeout)
        self.issued += 1
        expiry = rfc3339(self.clock.now() + timedelta(seconds=self.ahead + self.LIFE))
        status = {"token": f"token-{self.issued}", "expirationTimestamp": expiry}
        return json.dumps({"spec": {"expirationSeconds": self.LIFE}, "status": status}).encode()


def _item_of(path: str, collection: str) -> bool:
    """Whether an object is in a collection, of its namespace or of all."""
    start, _, plural = collection.rpartition("/")
    return path.startswith(f"{start}/") and path.rpartition("/")[0].endswith(f"/{plural}")


class _Stream:
    """The body of a watch; it is its own `content`."""

    def __init__(self, call: Call) -> None:
        self._path = call.path
        self._name = dict(call.params).get("fieldSelector", "").partition("metadata.name=")[2]
        self.content = self
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()

    def wants(self, path: str) -> bool:
        return _item_of(path, self._path) and self._name in ("", path.rpartition("/")[2])

    def send(self, event: Body) -> None:
        self._lines.put_nowait(json.dumps(event).encode() + b"\n")

    async def readany(self) -> bytes:
        return await self._lines.get()
