"""Services at the ports of a mock pod.

Invariant: each service closes its side when the client has sent everything, or when the task is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from vkubelet.provider import ByteStream

_LONGEST_HEAD: Final = 1 << 16
_HEAD_END: Final = b"\r\n\r\n"


async def echo(stream: ByteStream, name: str) -> None:
    while data := await stream.read():
        await stream.write(data)


async def discard(stream: ByteStream, name: str) -> None:
    while await stream.read():
        pass


async def http(stream: ByteStream, name: str) -> None:
    """Serves one request of any type; the response names the pod and the path."""
    head = b""
    while _HEAD_END not in head and len(head) < _LONGEST_HEAD:
        data = await stream.read()
        if not data:
            return
        head += data
    words = head.partition(b"\r\n")[0].split()
    path = words[1].decode(errors="replace") if len(words) == 3 else "?"
    body = f"{name} answers at {path}\n".encode()
    fields = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    await stream.write(fields.encode() + body)


ANSWERING: Final[Mapping[str, Callable[[ByteStream, str], Awaitable[None]]]] = {"echo": echo, "http": http, "discard": discard}


async def serve(answer: str, stream: ByteStream, *, name: str) -> None:
    """Serves a connection; `name` is that of the pod."""
    await ANSWERING[answer](stream, name)
    await stream.close()
