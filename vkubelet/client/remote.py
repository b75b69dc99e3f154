"""Exec, attach and port-forward against an API server, connected to the streams of a local client.

Invariant: a command has an exit code only when the server reported it; an interrupted stream is an error.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine
from typing import Final, Protocol, TypeVar

from vkubelet.api.codec import decode_json, encode_json, status_error
from vkubelet.client.channels import V4, V5, Channels, open_channels
from vkubelet.client.rest import Client, Params
from vkubelet.client.transport import Call
from vkubelet.clock import Clock
from vkubelet.errors import ServerError, Unreachable, task_error

T = TypeVar("T")

# Channels of exec and attach, and of each forwarded port.
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE = range(5)
_DATA, _ERROR = range(2)
_LONGEST_STATUS: Final = 1 << 20
_EXIT_CODE: Final = re.compile(r"[0-9]{1,10}")
_LINGER: Final = 1.0
"""Seconds of silence after which a forwarded connection is closed that the client has closed: v4 cannot notify the pod."""


class Size(Protocol):
    """Columns and rows of a terminal."""

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...


class Console(Protocol):
    """Local side of a remote command; a provider's ContainerIO is one. `stdin` None: the command gets none."""

    @property
    def tty(self) -> bool: ...

    @property
    def stdin(self) -> AsyncIterator[bytes] | None: ...

    @property
    def resizes(self) -> AsyncIterator[Size]: ...

    async def write_stdout(self, data: bytes) -> None: ...

    async def write_stderr(self, data: bytes) -> None: ...


class Duplex(Protocol):
    """Local side of a forwarded connection; `read` returns nothing when it is closed."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


async def remote_command(client: Client, path: str, params: Params, *, console: Console) -> int:
    """Connects `console` to `pods/exec` or `pods/attach` (`path`) until the remote side is done; returns the exit code.

    `params` name container and command; the console determines which streams exist. Raises ApiError with the message of the server.
    """
    flags = (("stdin", console.stdin is not None), ("stdout", True), ("stderr", not console.tty), ("tty", console.tty))
    call = Call("GET", path, f"open {path}", "connect", "pods", [*params, *((name, "true") for name, wanted in flags if wanted)])
    # Only stdin needs to be closed explicitly.
    protocols = (V4,) if console.stdin is None else (V5, V4)
    async with open_channels(client.transport, call, protocols) as channels:
        beside = [channels.read_ahead(), channels.keep_alive(client.transport.clock)]
        if console.stdin is not None:
            beside.append(_send_stdin(channels, console.stdin))
        if console.tty:
            beside.append(_send_resizes(channels, console.resizes))
        return await _beside(_receive_output(channels, console), *beside)


async def port_forward(client: Client, path: str, port: int, *, stream: Duplex) -> None:
    """Connects `stream` to a port of the pod (`path` is its `pods/portforward`) until one side closes it.

    Raises ApiError with the message of the server, also when no process listens.
    """
    call = Call("GET", path, f"open {path}", "connect", "pods", [("ports", str(port))])
    clock = client.transport.clock
    async with open_channels(client.transport, call, (V4,)) as channels:
        beside = (channels.read_ahead(), channels.keep_alive(clock), _send_data(channels, stream, clock))
        await _beside(_receive_data(channels, stream), *beside)
        await stream.close()


async def _beside(main: Coroutine[object, object, T], *others: Coroutine[object, object, None]) -> T:
    """Returns what `main` returns; the others run as long as it does, and the failure of one fails all."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(other) for other in others]
            result = await main
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as problems:
        raise task_error(problems) from None
    return result


# --- exec and attach ---


async def _send_stdin(channels: Channels, stdin: AsyncIterator[bytes]) -> None:
    try:
        async for data in stdin:
            await channels.send(_STDIN, data)
        await channels.end(_STDIN)
    except Unreachable:
        return  # a command may exit before it has read everything; its exit status is received


async def _send_resizes(channels: Channels, resizes: AsyncIterator[Size]) -> None:
    try:
        async for size in resizes:
            await channels.send(_RESIZE, encode_json({"Width": size.width, "Height": size.height}))
    except Unreachable:
        return


async def _receive_output(channels: Channels, console: Console) -> int:
    status_body = b""
    while (message := await channels.receive()) is not None:
        channel, data = message
        if channel == _STDOUT:
            await console.write_stdout(data)
        elif channel == _STDERR:
            await console.write_stderr(data)
        elif channel == _STATUS:
            # The message that arrives last, after all output.
            status_body = (status_body + data)[:_LONGEST_STATUS]
            code = exit_code(status_body, channels.attempt)
            if code is not None:
                return code
    raise Unreachable(channels.attempt, status_body.decode(errors="replace") or "the stream was cut before the command had ended")


def exit_code(status: bytes, attempt: str) -> int | None:
    """Parses the Status of a command (spec: remote command, v4); returns None when it is incomplete. Raises ApiError unless the command
    exited."""
    try:
        status_body = decode_json(status)
    except ValueError:
        return None
    if status_body.get("status") == "Success":
        return 0
    details = status_body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    found = [each for each in causes if isinstance(each, dict)] if isinstance(causes, list) else []
    codes = [str(cause.get("message")) for cause in found if cause.get("reason") == "ExitCode"]
    if status_body.get("reason") == "NonZeroExitCode" and codes and _EXIT_CODE.fullmatch(codes[0]):
        return int(codes[0])
    raise status_error(attempt, status)


# --- port-forward ---


async def _receive_data(channels: Channels, stream: Duplex) -> None:
    opened: set[int] = set()
    problem = b""
    while (message := await channels.receive()) is not None:
        channel, data = message
        if channel not in opened:
            # The first message of each channel is the port, in two bytes.
            opened.add(channel)
            data = data[2:]
        if channel == _ERROR:
            problem = (problem + data)[:_LONGEST_STATUS]
        elif channel == _DATA and data:
            await stream.write(data)
    if problem:
        raise ServerError(channels.attempt, problem.decode(errors="replace"), status=500, reason="InternalError")
    if _DATA not in opened:
        raise Unreachable(channels.attempt, "the stream was cut before it began")


async def _send_data(channels: Channels, stream: Duplex, clock: Clock) -> None:
    try:
        while data := await stream.read():
            await channels.send(_DATA, data)
    except Unreachable:
        return  # receivers are notified
    seen = -1
    while seen != channels.received:
        seen = channels.received
        await clock.sleep(_LINGER)
    await channels.close()
