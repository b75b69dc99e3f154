"""The WebSocket of a server that says what the test wants it to say.

Invariant: nothing is said before it is asked for, so what was taken is known.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

import aiohttp
from aiohttp.http import WSMessage

from vkubelet.client.channels import V5, Channels

CLOSED = WSMessage(aiohttp.WSMsgType.CLOSED, None, None)


def message(channel: int, data: bytes = b"") -> WSMessage:
    return WSMessage(aiohttp.WSMsgType.BINARY, bytes((channel,)) + data, None)


class Wire:
    """`taken` counts what was received; behind the last message the server is silent."""

    def __init__(self, messages: Iterable[WSMessage] = (), *, protocol: str = V5) -> None:
        self.protocol = protocol
        self.sent: list[bytes] = []
        self.pings = 0
        self.taken = 0
        self.closed = asyncio.Event()
        self._messages = deque(messages)

    async def receive(self) -> WSMessage:
        if not self._messages:
            await self.closed.wait()
            return CLOSED
        self.taken += 1
        return self._messages.popleft()

    async def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    async def ping(self) -> None:
        self.pings += 1

    async def close(self) -> None:
        self.closed.set()


def channels(wire: Wire) -> Channels:
    return Channels(wire, "open x")  # type: ignore[arg-type]
