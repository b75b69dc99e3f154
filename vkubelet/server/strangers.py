"""Limits the connections on which no request was allowed yet: callers without credentials cannot take the descriptors of the process.

Invariant: at most `most` connections are strangers. When all places are taken, new connections wait in the backlog of the kernel until the
oldest stranger is `_SPARED` seconds old; then that one is closed.
"""

import asyncio
import resource
from collections.abc import Callable
from typing import Protocol

KEPT_BACK, KEPT_SHARE = 128, 8
"""This number of descriptors, or one in that many of all, is reserved for connections: a node that cannot renew its Lease is of no use."""

_SPARED = 1.0
"""Seconds; an API server completes its handshake and first request far faster, so in a burst none of its connections is closed."""


class Cuttable(Protocol):
    """A connection, from the moment it was accepted."""

    def abort(self) -> None: ...


class Strangers:
    """Unauthorized connections; `on_room` is called whenever a place may have become free."""

    def __init__(self, most: int, on_room: Callable[[], None]) -> None:
        self._most = most
        self._on_room = on_room
        self._since: dict[Cuttable, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def add(self, connection: Cuttable) -> None:
        self._since[connection] = asyncio.get_running_loop().time()

    def settle(self, connection: Cuttable) -> None:
        """Removes a connection on which a request was allowed, or that is closed. Does nothing for any other."""
        if self._since.pop(connection, None) is not None:
            self._on_room()

    def has_room(self) -> bool:
        """Checks whether one more connection may be accepted now; if not, `on_room` follows."""
        if len(self._since) < self._most:
            return True
        oldest, since = next(iter(self._since.items()))
        loop = asyncio.get_running_loop()
        wait = since + _SPARED - loop.time()
        if wait <= 0:
            oldest.abort()
        elif self._timer is None:
            self._timer = loop.call_later(wait, self._ring)
        return False

    def _ring(self) -> None:
        self._timer = None
        self._on_room()


def kept_back(limit: int) -> int:
    """Returns the descriptors that no listener may take, of `limit` in all."""
    return max(KEPT_BACK, limit // KEPT_SHARE)


def most_strangers(wanted: int) -> int:
    """Returns the number of the settings, but at most half of the reserved descriptors: the other half is for the process itself."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, kept_back(limit) // 2)
