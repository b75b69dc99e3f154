"""What counts as an answer of an address, by connections on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from kubeocean.services.routes import is_reached


@contextmanager
def silent_port() -> Iterator[int]:
    """A port that answers no connection: its queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=0)))
        port = int(listener.getsockname()[1])
        for _ in range(4):
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


async def test_open_and_closed_ports_answer() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        assert await is_reached("127.0.0.1", port)
    assert await is_reached("127.0.0.1", port)


async def test_silence_is_no_route() -> None:
    with silent_port() as port:
        assert not await is_reached("127.0.0.1", port, timeout=0.3)
