"""Exec, attach and port-forward, from the messages of the server to whoever is at our end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp.http import WSMessage
from attrs import define, field

from tests.unit.vkubelet.client.wire import CLOSED, Wire, channels, message
from vkubelet.client import remote
from vkubelet.errors import ApiError, ServerError, Unreachable
from vkubelet.provider import TerminalSize
from vkubelet.testing.clock import ManualClock

SUCCESS = b'{"metadata":{},"status":"Success"}'


def exited(code: str) -> bytes:
    causes = b'[{"reason":"ExitCode","message":"' + code.encode() + b'"}]'
    return b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":' + causes + b'},"message":"no"}'


@pytest.mark.parametrize(("status", "code"), [(SUCCESS, 0), (exited("1"), 1), (exited("137"), 137), (SUCCESS[:9], None), (b"", None)])
def test_exit_code_is_what_the_status_says(status: bytes, code: int | None) -> None:
    assert remote.exit_code(status, "open x") == code


@pytest.mark.parametrize(
    "status",
    [b'{"status":"Failure","reason":"InternalError","code":500,"message":"no such program"}', exited("no such program"), exited("")],
    ids=["failure", "not a number", "empty"],
)
def test_other_failures_are_errors(status: bytes) -> None:
    with pytest.raises(Exception, match="open x: no"):
        remote.exit_code(status, "open x")


async def no_sizes() -> AsyncIterator[TerminalSize]:
    for never in ():
        yield never


@define
class Heard:
    """A console that remembers."""

    tty: bool = False
    stdin: AsyncIterator[bytes] | None = None
    resizes: AsyncIterator[TerminalSize] = field(factory=no_sizes)
    stdout: bytes = b""
    stderr: bytes = b""

    async def write_stdout(self, data: bytes) -> None:
        self.stdout += data

    async def write_stderr(self, data: bytes) -> None:
        self.stderr += data


async def output(*messages: WSMessage, console: Heard) -> int:
    stream = channels(Wire(messages))
    return await remote._beside(remote._receive_output(stream, console), stream.read_ahead())


async def test_output_goes_where_it_belongs_and_the_status_ends_it() -> None:
    console = Heard()
    said = [message(1, b"out"), message(2, b"err"), message(1, b"more"), message(255, b"\x01"), message(3, exited("7"))]
    assert await output(*said, console=console) == 7
    assert (console.stdout, console.stderr) == (b"outmore", b"err")


async def test_status_may_come_in_parts() -> None:
    assert await output(message(3, SUCCESS[:9]), message(1, b"x"), message(3, SUCCESS[9:]), console=Heard()) == 0


async def test_stream_that_ends_without_a_status_is_no_success() -> None:
    with pytest.raises(Unreachable, match="cut before the command had ended"):
        await output(message(1, b"out"), CLOSED, console=Heard())


async def test_stdin_and_sizes_are_passed_on_with_their_end() -> None:
    async def typed() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async def sizes() -> AsyncIterator[TerminalSize]:
        yield TerminalSize(80, 24)

    wire = Wire()
    await remote._send_stdin(channels(wire), typed())
    await remote._send_resizes(channels(wire), sizes())
    assert wire.sent == [b"\x00one", b"\x00two", b"\xff\x00", b'\x04{"Width":80,"Height":24}']


async def test_failure_of_whoever_writes_our_end_is_passed_on_as_it_is() -> None:
    async def fails() -> None:
        raise ConnectionResetError("gone")

    for main, other in ((fails(), asyncio.sleep(100)), (asyncio.sleep(100), fails())):
        with pytest.raises(ConnectionResetError, match="gone"):
            await remote._beside(main, other)


# --- port-forward ---


@define
class Pipe:
    """Our end of a connection: gives what it has, then nothing."""

    gives: list[bytes] = field(factory=list)
    got: bytes = b""

    async def read(self) -> bytes:
        return self.gives.pop(0) if self.gives else b""

    async def write(self, data: bytes) -> None:
        self.got += data

    async def close(self) -> None:
        raise AssertionError


async def received(pipe: Pipe, *messages: WSMessage) -> None:
    stream = channels(Wire([*messages, CLOSED]))
    await stream.read_ahead()
    await remote._receive_data(stream, pipe)


PORT = b"\x50\x00"


async def test_first_two_bytes_of_a_channel_are_the_port() -> None:
    pipe = Pipe()
    await received(pipe, message(0, PORT), message(1, PORT), message(0, b"data"))
    assert pipe.got == b"data"
    await received(pipe, message(0, PORT), message(0, b"joined"))
    assert pipe.got == b"datajoined"


async def test_what_the_server_says_on_the_error_channel_is_raised() -> None:
    with pytest.raises(ServerError, match="connection refused"):
        await received(Pipe(), message(0, PORT), message(1, PORT), message(1, b"connection refused"))
    with pytest.raises(Unreachable, match="cut before it began"):
        await received(Pipe())


async def test_connection_that_the_client_has_ended_lasts_as_long_as_the_pod_answers() -> None:
    clock, wire = ManualClock(), Wire()
    stream = channels(wire)
    async with asyncio.TaskGroup() as group:
        group.create_task(remote._send_data(stream, Pipe([b"all"]), clock))
        await clock.advance(0.9)
        stream.received += 10
        await clock.advance(0.9)
        assert not wire.closed.is_set()
        await clock.advance(0.3)
        assert wire.closed.is_set()
    assert wire.sent == [b"\x00all"]


@pytest.mark.parametrize(
    "status",
    [
        exited("²"),
        exited("9" * 5000),
        b'{"status":"Failure","reason":"NonZeroExitCode","details":"text","message":"no"}',
        b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":{"a":1}},"message":"no"}',
        b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[1,null,"x"]},"message":"no"}',
    ],
)
def test_a_status_of_odd_types_is_an_error_of_the_server(status: bytes) -> None:
    with pytest.raises(ApiError):
        remote.exit_code(status, "open x")
