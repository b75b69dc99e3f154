"""Versioned storage of the model, in the place of etcd.

Invariant: a stored object is never changed, only replaced; every replacement has a resourceVersion of its own, and all are kept in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec
from attrs import frozen

from tests.faults.model.kinds import Kind
from tests.faults.model.refusals import expired

Body = dict[str, Any]
Key = tuple[str, str]

_encode: Final = msgspec.json.Encoder().encode


class Stored:
    """One version of an object: `body` without kind and apiVersion, as they are in the type."""

    __slots__ = ("_item", "_whole", "body", "kind", "settled", "version")

    def __init__(self, kind: Kind, body: Body, version: int) -> None:
        self.kind = kind
        self.body = body
        self.version = version
        self.settled = True
        """False if it is stored without a default that every answer shows: then even a write without a difference is stored."""
        self._item: bytes | None = None
        self._whole: bytes | None = None

    @property
    def item(self) -> bytes:
        """JSON text as an item of a list."""
        if self._item is None:
            self._item = _encode(self.body)
        return self._item

    @property
    def whole(self) -> bytes:
        """JSON text as the response to a GET and in events."""
        if self._whole is None:
            self._whole = self.kind.head + self.item[1:] if self.kind.head else self.item
        return self._whole

    def at(self, version: int) -> Stored:
        """Returns the object as a DELETED event shows it, with the resourceVersion of its deletion."""
        return Stored(self.kind, {**self.body, "metadata": {**self.body["metadata"], "resourceVersion": str(version)}}, version)


@frozen
class Change:
    """One accepted write. `old` None: a creation; `new` None: a deletion. `time` is that of the server."""

    index: int
    version: int
    time: datetime
    user: str
    verb: str
    path: str
    kind: Kind
    key: Key
    old: Body | None
    new: Body | None


@frozen
class Event:
    """One step of a resource: what the key had before, and has now."""

    version: int
    key: Key
    old: Stored | None
    new: Stored | None


class Table:
    """Objects of one resource and their past."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.now: dict[Key, Stored] = {}
        self.past: list[Event] = []

    def at(self, version: int) -> dict[Key, Stored]:
        """Returns all objects as of a version."""
        if not self.past or self.past[-1].version <= version:
            return self.now
        found = dict(self.now)
        for event in reversed(self.past):
            if event.version <= version:
                break
            if event.old is None:
                found.pop(event.key, None)
            else:
                found[event.key] = event.old
        return found

    def since(self, version: int) -> list[Event]:
        """Returns what happened after a version."""
        start = len(self.past)
        while start and self.past[start - 1].version > version:
            start -= 1
        return self.past[start:]

    def cut(self, version: int) -> None:
        """Forgets what happened up to a version."""
        self.past = self.since(version)


class Storage:
    """All tables, one counter of versions."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._tables: dict[Kind, Table] = {}
        self.version = 1
        self.compacted = 0
        """Versions below this are not served any more."""
        self.history: list[Change] = []
        self.listeners: dict[Kind, list[Callable[[Event], None]]] = {}
        self._behind = 0
        self._unseen: deque[tuple[Kind, Event]] = deque()
        """What the watch cache has not received yet."""

    @property
    def seen(self) -> int:
        """The version of the watch cache: what watches show, and reads that accept any version (resourceVersion 0)."""
        return self._unseen[0][1].version - 1 if self._unseen else self.version

    def lag(self, behind: int) -> None:
        """Keeps the watch cache so many versions behind, from the next write on."""
        self._behind = behind
        self._show()

    def table(self, kind: Kind) -> Table:
        found = self._tables.get(kind)
        if found is None:
            found = self._tables[kind] = Table(kind)
        return found

    def get(self, kind: Kind, key: Key, version: int | None = None) -> Stored | None:
        """Returns an object as it is, or as of a version that may be older."""
        table = self.table(kind)
        if version is None:
            return table.now.get(key)
        return table.at(version).get(key)

    def put(self, kind: Kind, key: Key, body: Body, *, user: str, verb: str, path: str) -> Stored:
        """Stores an object whose metadata nobody else holds; its resourceVersion is set."""
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        table = self.table(kind)
        old, new = table.now.get(key), Stored(kind, body, self.version)
        table.now[key] = new
        self._happened(table, Event(self.version, key, old, new), user=user, verb=verb, path=path)
        return new

    def remove(self, kind: Kind, key: Key, *, user: str, verb: str, path: str) -> Stored:
        """Removes an object; returns it as it was stored last, with the version of its removal."""
        self.version += 1
        table = self.table(kind)
        old = table.now.pop(key)
        self._happened(table, Event(self.version, key, old, None), user=user, verb=verb, path=path)
        return old.at(self.version)

    def _happened(self, table: Table, event: Event, *, user: str, verb: str, path: str) -> None:
        table.past.append(event)
        old, new = event.old.body if event.old else None, event.new.body if event.new else None
        self.history.append(Change(len(self.history), event.version, self._now(), user, verb, path, table.kind, event.key, old, new))
        self._unseen.append((table.kind, event))
        self._show()

    def _show(self) -> None:
        """Passes to the watches what the watch cache receives."""
        while self._unseen and self._unseen[0][1].version <= self.version - self._behind:
            kind, event = self._unseen.popleft()
            for listener in tuple(self.listeners.get(kind, ())):
                listener(event)

    def items(self) -> Iterator[Stored]:
        """Yields every object there is."""
        for table in self._tables.values():
            yield from tuple(table.now.values())

    def compact(self, version: int) -> None:
        """Forgets older versions: requests for them are answered by 410."""
        self.compacted = max(self.compacted, version)
        for table in self._tables.values():
            table.cut(version)

    def restore(self, version: int) -> None:
        """Returns to the state of an older version, as etcd does that is restored from a snapshot; versions continue from there."""
        if version < self.compacted:
            raise expired(f"version {version} was compacted")
        for table in self._tables.values():
            table.now, table.past = dict(table.at(version)), []
        self._unseen.clear()
        self.version = version
        self.compacted = version
