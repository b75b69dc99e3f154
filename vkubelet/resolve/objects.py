"""Caches of what pods use: ConfigMaps and Secrets, read by name, and service account tokens, each bound to its pod.

Invariant: only single objects are ever requested, so that the rights of one kubelet are enough, and an object that no pod uses any more is
dropped. A token is renewed before it expires, and not before it is due, however often it is requested; it is only in memory and its file.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from attrs import define, field, frozen

from vkubelet.api.objects import CONFIGMAPS, SECRETS, Key, Pod, Resource, Unknown
from vkubelet.api.podspec import Kind, Reference
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.informer import Change, Informer
from vkubelet.control.tokens import renewal_time, request_token, spread_of, wait_for_renewal
from vkubelet.errors import ApiError, Forbidden, NotFound
from vkubelet.resolve.references import Content
from vkubelet.resolve.volumes import TokenSource

log = logging.getLogger(__name__)

WATCHES: Final = 500
"""Number of objects that are watched, each by a dedicated connection; any others are polled."""

RENEW: Final = 60.0
"""Seconds after which an object that is not watched is read again."""

_NEWS_TRAVELS: Final = 3.0
"""Seconds until the API server's Node authorizer knows of a pod that was just bound."""
_ASK_AGAIN: Final = 0.25

_RESOURCES: Final = {Kind.CONFIGMAP: CONFIGMAPS, Kind.SECRET: SECRETS}

_TOKEN_SHARE: Final = 0.8
_TOKEN_SPREAD: Final = timedelta(seconds=10)


@frozen
class Name:
    """One object, and the client that may read it."""

    client: Client
    namespace: str
    reference: Reference

    @property
    def resource(self) -> Resource[Unknown]:
        return _RESOURCES[self.reference.kind]

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.reference.name)


@define
class _Entry:
    name: Name
    users: set[str] = field(factory=set)
    seen: Unknown | None = None
    """The object as last read."""
    read_at: float | None = None
    settled: bool = False
    """Whether it is immutable: then the cached content is used as long as a pod uses it, also after its deletion, as in a kubelet."""
    informer: Informer[Unknown] | None = None
    task: asyncio.Task[None] | None = None
    shared: weakref.ref[Content] | None = None
    shared_of: str = ""
    """The version of the object that `shared` contains."""

    def saw(self, obj: Unknown | None) -> None:
        self.seen, self.settled = obj, obj is not None and obj.body.get("immutable") is True

    def content(self, obj: Unknown) -> Content:
        """Returns one content for all users: a thousand pods may use one large object."""
        known = self.shared() if self.shared is not None and self.shared_of == _version(obj) else None
        if known is None:
            known = Content.of(self.name.reference.kind, obj)
            self.shared, self.shared_of = weakref.ref(known), _version(obj)
        return known


class ObjectCache:
    """Cache of objects; `changed(user)` is called when an object of that user has changed; it must not wait."""

    def __init__(self, *, clock: Clock, changed: Callable[[str], None], watches: int = WATCHES) -> None:
        self._clock = clock
        self._changed = changed
        self._watches = watches
        self._entries: dict[Name, _Entry] = {}
        self._names: dict[str, frozenset[Name]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._watching = 0

    async def run(self) -> None:
        """Watches until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    def __len__(self) -> int:
        return len(self._entries)

    def hold(self, user: str, names: Collection[Name]) -> None:
        """Sets the objects that `user` uses from now on."""
        before, now = self._names.get(user, frozenset()), frozenset(names)
        for name in now - before:
            self._entries.setdefault(name, _Entry(name)).users.add(user)
        for name in before - now:
            self._drop(user, self._entries[name])
        if now:
            self._names[user] = now
        else:
            self._names.pop(user, None)

    def release(self, user: str) -> None:
        """Releases all objects of a user."""
        self.hold(user, ())

    def watched(self, user: str) -> bool:
        """Checks whether every change of the user's objects is reported by a watch."""
        return all(_is_live(self._entries[name]) for name in self._names.get(user, ()))

    async def read(self, name: Name) -> Unknown | None:
        """Returns the object as it is now, or was less than a minute ago, or before an outage; None: there is none. Raises ApiError."""
        entry = self._entries.get(name) or _Entry(name)
        if entry.settled:
            return entry.seen
        if entry.informer is not None and entry.informer.synced:
            return entry.informer.store.get(name.key)
        if entry.seen is None or entry.read_at is None or self._clock.monotonic() - entry.read_at >= RENEW:
            await self._renew(entry)
        self._watch(entry)
        return entry.seen

    async def content(self, name: Name) -> Content | None:
        """Returns the content of the object that `read` returns. Raises ApiError, and ValueError for invalid base64."""
        obj = await self.read(name)
        entry = self._entries.get(name) or _Entry(name)
        return entry.content(obj) if obj is not None else None

    async def _renew(self, entry: _Entry) -> None:
        try:
            entry.saw(await self._get(entry.name))
            entry.read_at = self._clock.monotonic()
        except ApiError as error:
            # While the API server does not respond, the last known content is the best available.
            if entry.seen is None or not error.retryable:
                raise

    async def _get(self, name: Name) -> Unknown | None:
        end = self._clock.monotonic() + _NEWS_TRAVELS
        while True:
            try:
                return await name.client.get(name.resource, name.key)
            except NotFound:
                return None
            except Forbidden:
                if self._clock.monotonic() >= end:
                    raise
            await self._clock.sleep(_ASK_AGAIN)

    def _watch(self, entry: _Entry) -> None:
        wanted = entry.users and not entry.settled
        if self._group is None or entry.task is not None or not wanted or self._watching >= self._watches:
            return
        name = entry.name
        where = Selection(namespace=name.namespace, fields=f"metadata.name={name.reference.name}")
        entry.informer = Informer(name.client, name.resource, where=where, clock=self._clock)
        entry.informer.on_change(lambda change: self._observe(entry, change))
        entry.task = self._group.create_task(entry.informer.run(), name=f"{name.resource.plural} {name.key}")
        self._watching += 1

    def _observe(self, entry: _Entry, change: Change[Unknown]) -> None:
        known = entry.seen
        entry.saw(change.new)
        if entry.settled:
            self._unwatch(entry)
        if _version(known) != _version(change.new):
            for user in list(entry.users):
                self._changed(user)

    def _drop(self, user: str, entry: _Entry) -> None:
        entry.users.discard(user)
        if entry.users:
            return
        del self._entries[entry.name]
        self._unwatch(entry)

    def _unwatch(self, entry: _Entry) -> None:
        if entry.task is not None:
            entry.task.cancel()
            entry.task = entry.informer = None
            self._watching -= 1


def _version(obj: Unknown | None) -> str:
    return obj.metadata.resource_version if obj is not None else ""


def _is_live(entry: _Entry) -> bool:
    return entry.settled or (entry.informer is not None and entry.informer.synced)


@frozen
class Token:
    """An issued token, with the time from which on it has to be renewed, and when it was received, monotonic."""

    text: str = field(repr=False)
    expiry: datetime
    due: datetime
    lifetime: float
    received: float


def due_at(uid: str, expiry: datetime, *, life: float) -> datetime:
    """Returns when a token valid for `life` seconds is renewed: after 80 % of that, at most a day, a few seconds apart for each pod."""
    return renewal_time(expiry, lifetime=life, share=_TOKEN_SHARE) - _TOKEN_SPREAD * spread_of(uid)


class TokenCache:
    """Tokens by the UID of their pod."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens: dict[str, dict[TokenSource, Token]] = {}

    async def read(self, pod: Pod, sources: Iterable[TokenSource], client: Client) -> dict[TokenSource, str]:
        """Returns a valid token for each source. Raises ApiError when there is none at all."""
        return {source: await self._read(pod, source, client) for source in dict.fromkeys(sources)}

    def due_in(self, uid: str) -> float | None:
        """Returns the seconds until a token of the pod is due; None: it has none."""
        return min(map(self._wait, self._tokens.get(uid, {}).values()), default=None)

    def forget(self, uid: str) -> None:
        """Drops the tokens of a deleted pod."""
        self._tokens.pop(uid, None)

    async def _read(self, pod: Pod, source: TokenSource, client: Client) -> str:
        known = self._tokens.get(pod.metadata.uid, {}).get(source)
        if known is not None and self._wait(known) > 0:
            return known.text
        try:
            fresh = await self._issue(pod, source, client)
        except ApiError as error:
            if known is None or self._clock.now() >= known.expiry:
                raise
            log.debug("a token could not be renewed yet: %s", error)
            return known.text
        self._tokens.setdefault(pod.metadata.uid, {})[source] = fresh
        return fresh.text

    def _wait(self, token: Token) -> float:
        """Returns the seconds until a token is due."""
        return wait_for_renewal(token.due, received=token.received, lifetime=token.lifetime, clock=self._clock)

    async def _issue(self, pod: Pod, source: TokenSource, client: Client) -> Token:
        issued = await request_token(client, pod, audience=source.audience, expiration=source.expiration)
        due = due_at(pod.metadata.uid, issued.expiry, life=issued.lifetime)
        return Token(issued.text, issued.expiry, due, issued.lifetime, self._clock.monotonic())
