"""The client: the verbs of the Kubernetes API, returning heads.

Invariant: nothing is changed in a cluster without checking the fence first, and no call is repeated here except after a refreshed 401.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self, TypeVar

import aiohttp
from attrs import evolve, frozen

from vkubelet.api.codec import ObjectList, WatchEvent, decode_object, encode_json, kind_of
from vkubelet.api.objects import Json, JsonView, Key, KubeObject, ObjectMeta, PodRef, Resource
from vkubelet.client.connection import Connection
from vkubelet.client.responses import METADATA_ONLY, Requested, by_name, to_list, to_object
from vkubelet.client.transport import JSON, Call, Transport, gathered
from vkubelet.client.watch import watch, watch_params
from vkubelet.clock import Clock, SystemClock
from vkubelet.errors import Expired, ServerError
from vkubelet.metrics import Metrics

T = TypeVar("T", bound=KubeObject)

Ref = Key | PodRef | ObjectMeta | str
"""Reference to an object; text is the name of a cluster-scoped one."""

Params = Sequence[tuple[str, str]]

LONGEST_PAGE = 1 << 30
"""Bytes of one response to a LIST."""
MOST_PAGES = 10_000
"""Pages of one LIST; ten times as many objects as the largest cluster has pods."""
_PAGE = 500
_READS = frozenset({"GET", "HEAD"})


@frozen
class Selection:
    """Selected objects of a resource: those of a namespace ("" = all), by label selector, by field selector.

    With `metadata_only` the API server sends no more of them than their metadata (PartialObjectMetadata).
    """

    namespace: str = ""
    labels: str = ""
    fields: str = ""
    metadata_only: bool = False

    def params(self) -> list[tuple[str, str]]:
        return [(key, value) for key, value in (("labelSelector", self.labels), ("fieldSelector", self.fields)) if value]

    def accept(self, kind: str) -> str:
        """Returns the media types of a response, whose objects have this kind where they are metadata only."""
        return f"{JSON};as={kind};g=meta.k8s.io;v=v1,{JSON}" if self.metadata_only else JSON


class Fence(Protocol):
    """Check before every call that changes something."""

    def check(self) -> None:
        """Raises Fenced when nothing may be written now."""
        ...


class PatchKind(enum.Enum):
    """Content types of a patch. Custom resources do not support strategic ones."""

    STRATEGIC = "application/strategic-merge-patch+json"
    MERGE = "application/merge-patch+json"


@frozen
class _Change:
    """A write and its target; `path` only when it is not the object's own.

    `named` is False where the name in the response is not known: of a review, an eviction, a token, or a name that the server completes.
    """

    verb: str
    method: str
    key: Key
    subresource: str
    path: str = ""
    named: bool = True


class Client:
    """Client of one API server. Use as `async with Client(connection) as hub`.

    Every method raises ApiError as described in `vkubelet.errors`. A write without a response in time is Unreachable, and may have
    happened.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        field_manager: str = "vkubelet",
        clock: Clock | None = None,
        fence: Fence | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.connection = connection
        self.field_manager = field_manager
        self.transport = Transport(connection, clock=clock or SystemClock(), metrics=metrics)
        self._fence = fence
        self._dry = False
        self._owns_transport = True

    async def __aenter__(self) -> Self:
        if self._owns_transport:
            await self.transport.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._owns_transport:
            await self.transport.__aexit__(kind, error, trace)

    def fenced(self, fence: Fence | None) -> Client:
        """Returns the same client and pool with another fence; the pool is open as long as this one is."""
        other = Client(self.connection, field_manager=self.field_manager, fence=fence)
        other.transport, other._owns_transport, other._dry = self.transport, False, self._dry
        return other

    def through(self, transport: Transport) -> Client:
        """Returns the same client over another transport, which must be open as long as it is used."""
        other = self.fenced(self._fence)
        other.transport = transport
        return other

    def dry_run(self) -> Client:
        """Returns the same client and pool; its writes are admitted and validated by the API server, and not persisted."""
        other = self.fenced(self._fence)
        other._dry = True
        return other

    @property
    def fence(self) -> Fence | None:
        """Fence that is checked before a write, for other clients that must stop with this one."""
        return self._fence

    def server_now(self) -> datetime:
        """Returns the time of the API server, to the second, as far as its responses have shown it."""
        return self.transport.server_now()

    async def writes_done(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until no write of this pool is in flight; returns whether that was reached."""
        return await self.transport.writes_done(timeout)

    async def get(self, resource: Resource[T], ref: Ref) -> T:
        key = _key(ref)
        path = resource.path(key.namespace, key.name)
        call = Call("GET", path, f"get {resource} {key}", "get", resource.plural)
        return to_object(resource, await self._read(call), self._requested(call.attempt, resource, key.namespace, key.name))

    async def list(self, resource: Resource[T], where: Selection = Selection()) -> ObjectList[T]:
        """Lists all objects as of one moment, read in pages from etcd, so never older than the call."""
        items: list[T] = []
        token = ""
        for _ in range(MOST_PAGES):
            try:
                page = await self._page(resource, where, token=token, limit=_PAGE)
            except Expired:
                if not token:
                    raise
                # The snapshot of the pages was compacted; a single large response cannot be.
                return await self._page(resource, where, token="", limit=0)
            items += page.items
            if not page.continue_:
                return ObjectList(items, page.resource_version)
            if page.continue_ == token:
                raise ServerError(f"list {resource}", "the server continues the list at the same place again")
            token = page.continue_
        raise ServerError(f"list {resource}", f"the server's list has more than {MOST_PAGES} pages")

    async def create(self, resource: Resource[T], body: JsonView, *, namespace: str = "", subresource: str = "", parent: str = "") -> T:
        """Creates an object (POST); the namespace defaults to the body's. With `parent` and `subresource` it goes to, for example,
        `pods/NAME/eviction`.

        apiVersion and kind are filled in, unless a subresource requires another kind. Where the server responds with only a Status, as it
        does to an eviction, the result is empty.
        """
        metadata = body.get("metadata") or {}
        namespace = namespace or metadata.get("namespace", "")
        key = Key(namespace, parent or metadata.get("name") or metadata.get("generateName", ""))
        path = resource.path(namespace, parent, subresource) if parent else resource.path(namespace)
        named = bool(metadata.get("name")) and not subresource
        return await self._change(resource, _Change("create", "POST", key, subresource, path, named=named), body)

    async def patch(
        self, resource: Resource[T], ref: Ref, change: JsonView, *, subresource: str = "", kind: PatchKind = PatchKind.STRATEGIC
    ) -> T:
        """Patches an object (PATCH) with a patch of this kind."""
        return await self._change(resource, _Change("patch", "PATCH", _key(ref), subresource), change, content_type=kind.value)

    async def apply(self, resource: Resource[T], body: JsonView, *, subresource: str = "") -> T:
        """Applies an object (server-side apply) with our field manager; conflicts with other managers are overridden."""
        change = _Change("apply", "PATCH", _key_of_body(body), subresource)
        return await self._change(resource, change, body, content_type="application/apply-patch+yaml")

    async def replace(self, resource: Resource[T], body: JsonView, *, subresource: str = "") -> T:
        """Replaces an object (PUT); with a resourceVersion in it, a change by another client since then is a Conflict."""
        return await self._change(resource, _Change("replace", "PUT", _key_of_body(body), subresource), body)

    async def delete(
        self, resource: Resource[T], ref: Ref, *, grace: int | None = None, uid: str = "", resource_version: str = "", propagation: str = ""
    ) -> None:
        """Deletes an object (DELETE), with preconditions. Raises NotFound, and Conflict when the object has another UID or resourceVersion.

        `grace` is in seconds, None for the object's own; `propagation` Background, Foreground or Orphan.
        """
        key = _key(ref)
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if propagation:
            options["propagationPolicy"] = propagation
        preconditions = {name: value for name, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        if preconditions:
            options["preconditions"] = preconditions
        if self._dry:
            options["dryRun"] = ["All"]
        path = resource.path(key.namespace, key.name)
        await self._write(Call("DELETE", path, f"delete {resource} {key}", "delete", resource.plural, body=encode_json(options)))

    def watch(
        self, resource: Resource[T], *, since: str = "", where: Selection = Selection(), initial: bool = False
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Watches one stream of events after `since`, until the server closes it. Raises Expired and Unreachable.

        With `initial` the existing objects come first as ADDED, then a bookmark with `initial_end`; an empty `since` then means:
        consistent.
        """
        call = Call(
            "GET",
            resource.path(where.namespace),
            f"watch {resource}",
            "watch",
            resource.plural,
            (*where.params(), *watch_params(since, initial=initial)),
            compressed=False,
            accept=where.accept(METADATA_ONLY),
        )
        requested = self._requested(call.attempt, resource, where.namespace, by_name(where.fields))
        return watch(self.transport, call, resource, requested=requested)

    @asynccontextmanager
    async def stream(self, path: str, params: Params = (), *, compressed: bool = False) -> AsyncIterator[AsyncIterator[bytes]]:
        """Streams the response of a GET as it arrives, until it is complete. Errors before the first byte are raised on entering.

        `compressed` is for responses that arrive at once: a server that compresses buffers its output.
        """
        call = Call("GET", path, f"get {path}", "stream", params=params, compressed=compressed)
        timeouts = self.connection.timeouts
        timeout = aiohttp.ClientTimeout(total=None, connect=timeouts.reach, sock_connect=timeouts.connect)
        async with self.transport.streaming(), self.transport.open(call, timeout) as response:
            yield gathered(response, call.attempt, self.transport.clock)

    async def request(self, method: str, path: str, *, params: Params = (), body: object = None, accept: str = JSON) -> bytes:
        """Sends any other request, such as GET /version; returns the response as bytes."""
        data = None if body is None else encode_json(body)
        call = Call(method, path, f"{method.lower()} {path}", method.lower(), params=params, body=data, accept=accept)
        return await (self._read(call) if method in _READS else self._write(call))

    async def _page(self, resource: Resource[T], where: Selection, *, token: str, limit: int) -> ObjectList[T]:
        params = where.params()
        if limit:
            params.append(("limit", str(limit)))
        if token:
            params.append(("continue", token))
        path, attempt, accept = resource.path(where.namespace), f"list {resource}", where.accept(f"{METADATA_ONLY}List")
        call = Call("GET", path, attempt, "list", resource.plural, params, longest=LONGEST_PAGE, accept=accept)
        return to_list(resource, await self._read(call), self._requested(attempt, resource, where.namespace, by_name(where.fields)))

    async def _change(self, resource: Resource[T], change: _Change, body: JsonView, *, content_type: str = "application/json") -> T:
        params = [("fieldManager", self.field_manager)]
        if self._dry:
            params.append(("dryRun", "All"))
        if change.verb == "apply":
            params.append(("force", "true"))
        if change.verb != "patch" and not (change.verb == "create" and change.subresource):
            body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        target = f"{resource}/{change.subresource}" if change.subresource else str(resource)
        call = Call(
            change.method,
            change.path or resource.path(change.key.namespace, change.key.name, change.subresource),
            f"{change.verb} {target} {change.key}",
            change.verb,
            resource.plural,
            params,
            encode_json(body),
            content_type,
        )
        answer = await self._write(call)
        requested = self._requested(call.attempt, resource, change.key.namespace)
        if not change.named:
            plain = change.subresource and kind_of(answer) == "Status"
            return decode_object(resource.head, b"{}" if plain else answer, attempt=call.attempt, server=requested.server)
        return to_object(resource, answer, evolve(requested, name=change.key.name))

    def _requested(self, attempt: str, resource: Resource[T], namespace: str, name: str = "") -> Requested:
        return Requested(self.connection.url, attempt, namespace if resource.namespaced else "", name)

    async def _read(self, call: Call) -> bytes:
        return await self.transport.fetch(call, self.connection.timeouts.read)

    async def _write(self, call: Call) -> bytes:
        # Reviews (TokenReview and the like) are queries sent by POST; a follower may send them.
        if self._fence is not None and not call.resource.endswith("reviews"):
            call.allow = self._fence.check
        async with self.transport.writing():
            return await self.transport.fetch(call, self.connection.timeouts.write)


def _key(ref: Ref) -> Key:
    if isinstance(ref, str):
        return Key("", ref)
    return ref if isinstance(ref, Key) else ref.key


def _key_of_body(body: JsonView) -> Key:
    metadata = body["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])
