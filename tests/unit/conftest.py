"""Unit tests talk to nobody: a test that opens a connection or a port fails.

Invariant: the guard looks at what the interpreter does, not at which library asked for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

NETWORK = {"socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.sendmsg"}
guarded = False


def refuse_network(event: str, arguments: tuple[object, ...]) -> None:
    if guarded and event in NETWORK:
        raise AssertionError(f"a unit test talks to the network: {event}{arguments}")


# An audit hook can not be taken away again, so it is switched; the socket pair of an event loop raises none of these events.
sys.addaudithook(refuse_network)


@pytest.fixture(autouse=True)
def without_network() -> Iterator[None]:
    global guarded
    guarded = True
    yield
    guarded = False
