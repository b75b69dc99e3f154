"""An API server in memory: the product's clients call it instead of a connection, and a schedule decides what happens to each call.

Invariant: what it answers is what a real API server answers to the same requests in the same order; faults come only from `faults`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec

from tests.faults.model.custom import kinds_of
from tests.faults.model.faults import Faults
from tests.faults.model.kinds import Kind, Kinds
from tests.faults.model.refusals import Refusal, expired
from tests.faults.model.request import Request
from tests.faults.model.requests import Requests
from tests.faults.model.selectors import selector
from tests.faults.model.storage import Change, Key, Storage, Stored
from tests.faults.model.watching import Watch, bookmark
from tests.faults.model.writes import Guard
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call
from vkubelet.clock import Clock, SystemClock
from vkubelet.errors import ApiError, Unreachable

Body = dict[str, Any]

CONTROLLERS: Final = "system:kube-controller-manager"
NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")

_FRESH_WITHIN, _FRESH_CHECKS = 3.0, 10
"""Seconds for which a real API server waits for its watch cache before it refuses a read (blockTimeout); checks here within that time."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class ApiModel:
    """One API server with its storage. `rng` makes UIDs and generated names; with `controllers` a new namespace gets what they create."""

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        faults: Faults | None = None,
        rng: random.Random | None = None,
        url: str = "https://127.0.0.1:1",
        controllers: bool = True,
    ) -> None:
        self.faults = faults
        self.kinds = Kinds()
        self.storage = Storage(now)
        self.connection = Connection(url)
        self.watches: list[Watch] = []
        """Open streams."""
        self._requests = Requests(self.storage, self.kinds, now=now, rng=rng or random.Random(0))
        if controllers:
            self._requests.writer.created = self._created
        for name in NAMESPACES:
            self.apply(f"/api/v1/namespaces/{name}", {"metadata": {"name": name}}, user=CONTROLLERS)

    # --- Clients --------------------------------------------------------------------------------------------------------------------

    def client(self, user: str, *, clock: Clock | None = None) -> Client:
        """Returns a client whose calls are served here; `user` is recorded with its writes."""
        made = Client(self.connection, clock=clock)
        self.lend_to(made, user)
        return made

    def lend_to(self, client: Client, user: str) -> None:
        """Serves the calls of an existing client here."""
        line = Line(self, user, clock=client.transport.clock, connection=client.connection)
        client.transport, client._owns_transport = line, False  # type: ignore[assignment]

    def allow(self, check: Callable[[str, Body], bool]) -> None:
        """Sets what answers access reviews: `check(user, spec of the review)`."""
        self._requests.subresources.allowed = check

    def guard(self, check: Guard) -> None:
        """Sets the admission policies of creations."""
        self._requests.writer.guard = check

    def define(self, definition: Body) -> None:
        """Adds the resource types of a CustomResourceDefinition."""
        for kind in kinds_of(definition):
            self.kinds.add(kind)

    # --- State and past ---------------------------------------------------------------------------------------------------------------

    @property
    def history(self) -> list[Change]:
        """Every accepted write; never shortened."""
        return self.storage.history

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        return self.storage.version

    def kind(self, group: str, version: str, plural: str) -> Kind:
        """Returns a resource type. Raises KeyError."""
        return self.kinds.get(group, version, plural)

    def get(self, group: str, version: str, plural: str, namespace: str, name: str) -> Body | None:
        """Returns an object to read, which must not be changed."""
        found = self.storage.get(self.kind(group, version, plural), (namespace, name))
        return found.body if found is not None else None

    def objects(self, group: str, version: str, plural: str, namespace: str = "") -> list[Body]:
        """Returns all objects of a resource, which must not be changed."""
        table = self.storage.table(self.kind(group, version, plural))
        return [each.body for key, each in sorted(table.now.items()) if namespace in ("", key[0])]

    def everything(self) -> Iterator[tuple[Kind, Key, Body]]:
        """Yields every object."""
        for each in self.storage.items():
            metadata = each.body["metadata"]
            yield each.kind, (metadata.get("namespace", ""), metadata["name"]), each.body

    # --- Other users ------------------------------------------------------------------------------------------------------------------

    def serve(self, request: Request) -> bytes:
        """Serves a request at once, without faults. Raises Refusal."""
        return self._requests.serve(request)

    def call(self, method: str, path: str, body: Body | None = None, *, user: str, **more: Any) -> Body:
        """Serves a request of another user at once, without faults; returns the decoded response. Raises Refusal."""
        data = _encode(body) if body is not None else b""
        found: Body = _decode(self.serve(Request(method=method, path=path, user=user, body=data, **more)))
        return found

    def apply(self, path: str, body: Body, *, user: str) -> Body:
        """Creates the object at `path`, or merges `body` into it, as another user. Raises Refusal."""
        try:
            return self.call("PATCH", path, body, user=user, content_type="application/merge-patch+json")
        except Refusal as refusal:
            if refusal.code != 404 or path.endswith("/status"):
                raise
        return self.call("POST", path.rpartition("/")[0], body, user=user)

    def delete(self, path: str, *, user: str, grace: int | None = None, uid: str = "") -> None:
        """Deletes an object as another user. Raises Refusal."""
        options: Body = {} if grace is None else {"gracePeriodSeconds": grace}
        if uid:
            options["preconditions"] = {"uid": uid}
        self.call("DELETE", path, options, user=user)

    def finalize(self, namespace: str, *, user: str) -> None:
        """Removes a terminating namespace, as the namespace controller does once it is empty."""
        kind = self.kind("", "v1", "namespaces")
        self.storage.remove(kind, ("", namespace), user=user, verb="finalize", path=f"/api/v1/namespaces/{namespace}/finalize")

    def _created(self, stored: Stored) -> None:
        """Does what controllers do at once for a new namespace."""
        if stored.kind.plural == "namespaces":
            base = f"/api/v1/namespaces/{quote(stored.body['metadata']['name'])}"
            self.call("POST", f"{base}/serviceaccounts", {"metadata": {"name": "default"}}, user=CONTROLLERS)
            body = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "CA of the model"}}
            self.call("POST", f"{base}/configmaps", body, user=CONTROLLERS)

    # --- etcd -------------------------------------------------------------------------------------------------------------------------

    def compact(self, version: int | None = None) -> None:
        """Forgets the past up to `version`, or up to now: watches and pages from before get 410."""
        self.storage.compact(self.version if version is None else version)

    def restore(self, version: int) -> None:
        """Returns to the state of `version`; the API server restarts, so every stream is cut."""
        self.storage.restore(version)
        self.cut_watches()

    def cut_watches(self) -> None:
        """Interrupts every stream."""
        for watch in tuple(self.watches):
            watch.cut(ConnectionResetError("the connection was reset"))

    # --- Watches ----------------------------------------------------------------------------------------------------------------------

    async def is_fresh(self) -> bool:
        """Waits, but not for long, until the watch cache has all that was written so far, as a watch with initial events needs it."""
        needed = self.storage.version
        for _ in range(_FRESH_CHECKS):
            if self.storage.seen >= needed:
                return True
            await asyncio.sleep(_FRESH_WITHIN / _FRESH_CHECKS)
        return self.storage.seen >= needed

    def open_watch(self, request: Request) -> Watch:
        """Opens a stream. Raises Refusal."""
        route, params = self.kinds.route(request.path), request.params
        check = selector(params.get("labelSelector", ""), params.get("fieldSelector", ""), route.kind.kind)
        watch = Watch(route.kind, namespace=route.namespace, check=check, path=request.path, user=request.user)
        watch.current = lambda: self.storage.seen
        watch.bookmarks = params.get("allowWatchBookmarks") == "true"
        if self.faults is not None:
            watch.choose = self.faults.event
        if params.get("timeoutSeconds"):
            watch.ends_at = asyncio.get_running_loop().time() + int(params["timeoutSeconds"])
        since = params.get("resourceVersion", "")
        initial = params.get("sendInitialEvents") == "true"
        table = self.storage.table(route.kind)
        if initial or since in ("", "0"):
            version = request.version if request.version is not None else self.storage.seen
            watch.version = version
            watch.offer_initial(sorted(table.at(version).items()))
            if initial and watch.bookmarks:
                watch.offer(bookmark(route.kind, version, initial_end=True))
        else:
            version = int(since)
            watch.version = version
            if version < self.storage.compacted:
                watch.refuse(expired(f"too old resource version: {version} ({self.storage.compacted})"))
        for event in table.since(version):
            if event.version <= self.storage.seen:
                watch.on_event(event)
        if not watch.closed:
            self.watches.append(watch)
            self.storage.listeners.setdefault(route.kind, []).append(watch.on_event)
        return watch

    def close_watch(self, watch: Watch) -> None:
        """Forgets a stream that its client has left."""
        if watch in self.watches:
            self.watches.remove(watch)
            self.storage.listeners[watch.kind].remove(watch.on_event)


class Line:
    """What a client has in the place of its connections to an API server (`vkubelet.client.transport.Transport`)."""

    def __init__(self, model: ApiModel, user: str, *, clock: Clock | None = None, connection: Connection | None = None) -> None:
        self.model = model
        self.user = user
        self.clock: Clock = clock or SystemClock()
        self.connection = connection or model.connection
        self._writes = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def fetch(self, call: Call, timeout: float) -> bytes:
        """Serves a call. Raises ApiError."""
        if call.allow is not None:
            call.allow()
        try:
            async with asyncio.timeout(timeout):
                return await self._serve(call)
        except TimeoutError as error:
            raise Unreachable(call.attempt, "no response within the time limit") from error

    async def _serve(self, call: Call) -> bytes:
        faults = self.model.faults
        try:
            if faults is None:
                await asyncio.sleep(0)
                return self.model.serve(self._request(call))
            await faults.before(call)
            answer: bytes | Refusal
            try:
                answer = self.model.serve(self._request(call))
            except Refusal as refusal:
                answer = refusal
            await faults.after(call)
            if isinstance(answer, Refusal):
                raise answer
            return answer
        except Refusal as refusal:
            raise refusal.error(call.attempt) from None

    def _request(self, call: Call) -> Request:
        faults = self.model.faults
        version = faults.read_version(call) if faults is not None and call.method == "GET" else None
        return Request(
            method=call.method,
            path=call.path,
            user=self.user,
            params=dict(call.params),
            body=call.body or b"",
            content_type=call.content_type,
            version=version,
        )

    @asynccontextmanager
    async def open(self, call: Call, timeout: aiohttp.ClientTimeout) -> AsyncIterator[Watch]:
        """Opens a watch. Raises ApiError."""
        try:
            async with asyncio.timeout(timeout.connect):
                watch = await self._watch(call)
        except TimeoutError as error:
            raise Unreachable(call.attempt, "no response within the time limit") from error
        watch.silence = timeout.sock_read
        try:
            yield watch
        finally:
            self.model.close_watch(watch)

    async def _watch(self, call: Call) -> Watch:
        faults = self.model.faults
        try:
            if faults is None:
                await asyncio.sleep(0)
            else:
                await faults.before(call)
            watch = self.model.open_watch(self._request(call))
        except Refusal as refusal:
            raise refusal.error(call.attempt) from None
        if faults is not None:
            try:
                await faults.after(call)
            except ApiError:
                self.model.close_watch(watch)
                raise
        return watch

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Counts a write while it is in flight."""
        self._writes += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._writes -= 1
            if not self._writes:
                self._quiet.set()

    async def writes_done(self, timeout: float) -> bool:
        """Waits until no write is in flight, at most `timeout` seconds; returns whether that was reached."""
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Counts nothing: streams of logs are not served."""
        yield
