"""What a provider gets of a client's channels, and what the client is told at the end."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from attrs import define, field
from multidict import CIMultiDict

from vkubelet.api.objects import Json
from vkubelet.errors import Unavailable
from vkubelet.provider import ContainerIO, TerminalSize
from vkubelet.server.remotecommand import (
    ACCEPTED_HEADER,
    Channels,
    RemoteIO,
    Resizes,
    Wishes,
    Work,
    perform,
    spdy_protocol,
    terminal_size,
    wants_websocket,
    websocket_protocol,
)
from vkubelet.server.spdy import StreamReset
from vkubelet.server.statuses import SUCCESS, exit_status
from vkubelet.testing.clock import ManualClock


@define
class Line:
    """A channel in memory; `log` is shared by those of a session, so that it tells their order."""

    name: str
    log: list[str]
    incoming: list[bytes] = field(factory=list)
    sent: bytes = b""
    closed: bool = False
    broken: bool = False
    dropped: bool = False
    stuck: bool = False

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        if self.broken:
            raise StreamReset("broken")
        return self.incoming.pop(0) if self.incoming else b""

    async def write(self, data: bytes) -> None:
        await (asyncio.Event().wait() if self.stuck else asyncio.sleep(0))
        if self.broken:
            raise StreamReset("broken")
        self.sent += data
        self.log.append(f"{self.name} {len(data)}")

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.log.append(f"{self.name} closed")

    def discard(self) -> None:
        self.dropped = True

    def reset(self) -> None:
        self.broken = True
        self.log.append(f"{self.name} reset")


class Session:
    def __init__(self, *, structured: bool = True) -> None:
        self.log: list[str] = []
        self.error, self.stdin, self.stdout, self.stderr, self.resize = (
            Line(name, self.log) for name in ("error", "stdin", "stdout", "stderr", "resize")
        )
        self.channels = Channels(
            structured=structured, error=self.error, stdin=self.stdin, stdout=self.stdout, stderr=self.stderr, resize=self.resize
        )

    def io(self, *, tty: bool = False, stdin: bool = True) -> RemoteIO:
        return RemoteIO(self.channels, ManualClock(), tty=tty, stdin=stdin)

    def told(self) -> Json:
        found: Json = json.loads(self.error.sent)
        return found


@pytest.fixture
async def session() -> Session:
    return Session()


@pytest.mark.parametrize(
    ("query", "version", "streams"),
    [
        ({"output": "1"}, 4, {"error", "stdout"}),
        ({"input": "1", "output": "1", "error": "1"}, 4, {"error", "stdin", "stdout", "stderr"}),
        ({"input": "1", "output": "1", "error": "1", "tty": "1"}, 4, {"error", "stdin", "stdout", "resize"}),
        ({"output": "1", "tty": "1"}, 3, {"error", "stdout", "resize"}),
        ({"output": "1", "tty": "1"}, 2, {"error", "stdout"}),
        ({"error": "1", "input": "true"}, 4, {"error", "stderr"}),
    ],
)
def test_streams_the_client_will_open(query: dict[str, str], version: int, streams: set[str]) -> None:
    assert Wishes.of(query).spdy_streams(version) == streams


@pytest.mark.parametrize("query", [{}, {"tty": "1"}, {"output": "true"}, {"error": "1", "tty": "1"}])
def test_a_client_must_want_something(query: dict[str, str]) -> None:
    with pytest.raises(web.HTTPBadRequest) as error:
        Wishes.of(query)
    assert error.value.text == "you must specify at least 1 of stdin, stdout, stderr"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (b'{"Width":80,"Height":24}', TerminalSize(80, 24)),
        (b'{"width":80,"height":24,"more":{}', None),
        (b'{"width":80,"height":24}', TerminalSize(80, 24)),
        (b'{"Width":0,"Height":0}', None),
        (b'{"Width":80}', None),
        (b'{"Width":"80","Height":24}', None),
        (b'{"Width":65536,"Height":24}', None),
        (b"}", None),
        (b"\xff}", None),
    ],
)
def test_terminal_sizes(text: bytes, size: TerminalSize | None) -> None:
    assert terminal_size(text) == size


async def test_of_several_sizes_the_last_counts_and_the_end_is_an_end() -> None:
    sizes = Resizes()
    whole = b'{"Width":1,"Height":1}{"Width":80,"Height":24}\n{"Width":0,"Height":0}\n'
    for at in range(len(whole)):
        sizes.feed(whole[at : at + 1])
    assert await anext(sizes) == TerminalSize(80, 24)
    sizes.feed(b'{"Width":2,"Height":2}')
    sizes.end()
    assert [size async for size in sizes] == [TerminalSize(2, 2)]
    assert [size async for size in sizes] == []


async def test_sizes_without_an_end_are_forgotten_and_the_next_one_is_understood() -> None:
    sizes = Resizes()
    sizes.feed(b"{" * 5000)
    sizes.feed(b'{"Width":80,"Height":24}')
    assert await anext(sizes) == TerminalSize(80, 24)


async def test_stdin_ends_with_the_client_and_with_its_stream(session: Session) -> None:
    session.stdin.incoming = [b"a", b"b"]
    io = session.io()
    assert io.stdin is not None
    assert [data async for data in io.stdin] == [b"a", b"b"]
    session.stdin.broken = True
    assert [data async for data in io.stdin] == []
    assert session.io(stdin=False).stdin is None


async def test_a_terminal_has_one_output(session: Session) -> None:
    io = session.io(tty=True)
    await io.write_stdout(b"out")
    await io.write_stderr(b"err")
    assert (session.stdout.sent, session.stderr.sent) == (b"outerr", b"")


async def test_output_that_nobody_wants_is_dropped(session: Session) -> None:
    session.stdout.broken = True
    await session.io().write_stdout(b"x")
    await RemoteIO(Channels(error=session.error, structured=True), ManualClock(), tty=False, stdin=True).write_stderr(b"x")
    assert session.stdout.sent == session.stderr.sent == b""


async def work(session: Session, *, code: int = 0, error: BaseException | None = None, stdin: bool = True) -> None:
    async def call(io: ContainerIO) -> Json:
        await io.write_stdout(b"12345")
        if error is not None:
            raise error
        return exit_status(code, ["x"])

    await perform(session.channels, Work(call=call, action="trying", tty=False, stdin=stdin), clock=ManualClock())


async def test_outputs_are_closed_before_the_error_channel_says_how_it_ended(session: Session) -> None:
    await work(session, code=3)
    length = len(session.error.sent)
    assert session.log == ["stdout 5", "stdout closed", "stderr closed", f"error {length}", "error closed", "stdin closed", "resize closed"]
    assert session.told() == exit_status(3, ["x"])
    assert session.stdin.dropped


async def test_stdin_that_the_container_does_not_read_is_dropped_at_once(session: Session) -> None:
    session.stdin.incoming = [b"x"]
    await work(session, stdin=False)
    assert session.stdin.dropped and session.stdin.incoming == [b"x"]


@pytest.mark.parametrize("error", [Unavailable("later"), ExceptionGroup("several", [Unavailable("later")])])
async def test_an_error_of_the_provider_is_told(session: Session, error: Exception) -> None:
    await work(session, error=error)
    assert (session.told()["message"], session.told()["code"]) == ("later", 503)


async def test_an_error_that_is_a_bug_is_told_without_its_insides_and_raised(session: Session) -> None:
    with pytest.raises(ExceptionGroup):
        await work(session, error=ValueError("insides"))
    assert session.told()["message"] == "Internal error occurred: error trying: internal error"
    assert session.error.closed


async def test_a_broken_off_session_is_no_success(session: Session) -> None:
    with pytest.raises(asyncio.CancelledError):
        await work(session, error=asyncio.CancelledError())
    assert session.told()["status"] == "Failure"
    assert session.told()["message"] == "Internal error occurred: error trying: the stream was broken off"


async def test_old_versions_hear_nothing_of_a_success_and_a_lost_client_is_no_error() -> None:
    session = Session(structured=False)
    await work(session)
    assert session.error.sent == b""
    session = Session()
    session.error.broken = session.stdout.broken = True
    await work(session)


async def test_sizes_are_read_though_nobody_asks_for_them(session: Session) -> None:
    session.resize.incoming = [b'{"Width":1,"Height":1}'] * 50

    async def call(io: ContainerIO) -> Json:
        while session.resize.incoming:
            await asyncio.sleep(0)
        return SUCCESS

    await perform(session.channels, Work(call=call, action="trying", tty=True), clock=ManualClock())
    assert session.told() == SUCCESS


async def test_a_provider_is_cancelled_once_however_often_the_session_is(session: Session) -> None:
    ended: list[str] = []

    async def call(io: ContainerIO) -> Json:
        try:
            await asyncio.Event().wait()
        finally:
            for step in ("kill", "wait", "remove"):
                await asyncio.sleep(0)
                ended.append(step)
        return SUCCESS

    task = asyncio.ensure_future(perform(session.channels, Work(call=call, action="trying", tty=False), clock=ManualClock()))
    await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["kill", "wait", "remove"]


OURS = ("v4.channel.k8s.io", "v2.channel.k8s.io")


def offering(*lines: str) -> CIMultiDict[str]:
    return CIMultiDict([("x-stream-protocol-version", line) for line in lines])


@pytest.mark.parametrize(
    ("headers", "websocket"),
    [
        ({"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}, False),
        ({"Connection": "keep-alive, Upgrade", "Upgrade": "websocket"}, True),
        ({"Connection": "upgrade", "Upgrade": "WebSocket"}, True),
    ],
)
def test_the_upgrade_header_tells(headers: dict[str, str], *, websocket: bool) -> None:
    assert wants_websocket("GET", CIMultiDict(headers)) is websocket


@pytest.mark.parametrize(
    ("method", "headers", "status", "text"),
    [
        ("POST", {}, 400, "Upgrade request required"),
        ("POST", {"Upgrade": "SPDY/3.1"}, 400, "Upgrade request required"),
        ("POST", {"Connection": "Upgrade", "Upgrade": "h2c"}, 400, "unable to upgrade: missing upgrade headers in request"),
        ("POST", {"Connection": "Upgrade", "Upgrade": "websocket"}, 405, "bad method"),
    ],
)
def test_other_requests_are_refused(method: str, headers: dict[str, str], status: int, text: str) -> None:
    with pytest.raises(web.HTTPException) as error:
        wants_websocket(method, CIMultiDict(headers))
    assert (error.value.status, error.value.text) == (status, text)


@pytest.mark.parametrize(
    ("lines", "chosen"),
    [
        (["v4.channel.k8s.io"], "v4.channel.k8s.io"),
        (["v5.channel.k8s.io", "v4.channel.k8s.io", "v2.channel.k8s.io"], "v4.channel.k8s.io"),
        (["v2.channel.k8s.io", "v4.channel.k8s.io"], "v2.channel.k8s.io"),
        (["v5.channel.k8s.io, v2.channel.k8s.io,v4.channel.k8s.io"], "v2.channel.k8s.io"),
    ],
)
def test_the_clients_first_choice_that_is_ours_wins(lines: list[str], chosen: str) -> None:
    assert spdy_protocol(offering(*lines), OURS) == chosen


def test_nothing_in_common_is_told_with_what_is_ours() -> None:
    with pytest.raises(web.HTTPForbidden) as error:
        spdy_protocol(offering("v9", "v8"), OURS)
    assert error.value.text == (
        "unable to upgrade: unable to negotiate protocol: client supports [v9 v8], server accepts [v4.channel.k8s.io v2.channel.k8s.io]"
    )
    assert error.value.headers.getall(ACCEPTED_HEADER) == list(OURS)


@pytest.mark.parametrize("lines", [[], [""], [" , "]])
def test_no_version_is_a_bad_request(lines: list[str]) -> None:
    with pytest.raises(web.HTTPBadRequest) as error:
        spdy_protocol(offering(*lines), OURS)
    assert error.value.text == "unable to upgrade: X-Stream-Protocol-Version is required"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (None, ""),
        ("v4.channel.k8s.io", "v4.channel.k8s.io"),
        ("nope, v2.channel.k8s.io", "v2.channel.k8s.io"),
        ("base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io", "v4.channel.k8s.io"),
    ],
)
def test_subprotocol_of_a_websocket(offered: str | None, chosen: str) -> None:
    headers = CIMultiDict({"Sec-WebSocket-Protocol": offered} if offered is not None else {})
    assert websocket_protocol(headers, OURS) == chosen


def test_a_refusal_never_repeats_a_token() -> None:
    with pytest.raises(web.HTTPForbidden) as error:
        websocket_protocol(CIMultiDict({"Sec-WebSocket-Protocol": "base64url.bearer.authorization.k8s.io.c2VjcmV0"}), OURS)
    assert "c2VjcmV0" not in str(error.value.text)
