"""SPDY sessions over a real TLS listener, with a client that sends what no good client would."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import struct
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.integration.server.backend import Backend, call, serving, tls
from tests.integration.server.sessions import PROTOCOL, echo, on_every_loop, sessions
from tests.support.program import PATIENCE
from tests.support.spdy_client import connected, data_frame, syn_stream, upgrade_request
from vkubelet.server import spdy_frames as spdy
from vkubelet.server.spdy import SESSION_BUFFER, STREAM_BUFFER, SessionClosed, SpdySession, SpdyStream, StreamReset
from vkubelet.testing.cluster import ControlPlane


def holding(held: list[SpdySession], streams: list[SpdyStream]) -> Callable[[SpdySession], Awaitable[None]]:
    """A handler that takes one stream and then does nothing at all."""

    async def serve(session: SpdySession) -> None:
        held.append(session)
        streams.append(await session.accept())
        await asyncio.Event().wait()

    return serve


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@on_every_loop
async def test_answer_to_the_upgrade_and_bytes_right_behind_it(tmp_path: Path) -> None:
    async with sessions(echo, tmp_path) as echoes:
        first = syn_stream(1, spdy.HeaderCompressor().compress({"streamtype": "error"}))
        behind = first + data_frame(1, b"GET / HTTP/1.1\r\n\r\n", fin=True) + spdy.ping(1)
        async with echoes.session(behind=behind) as client:
            lines = client.head.split("\r\n")
            assert lines[0] == "HTTP/1.1 101 Switching Protocols"
            assert sorted(lines[1:]) == ["", "", "Connection: Upgrade", "Upgrade: SPDY/3.1", f"X-Stream-Protocol-Version: {PROTOCOL}"]
            assert await client.next(spdy.SynReply) == spdy.SynReply(1, {})
            assert await client.next(spdy.Ping) == spdy.Ping(1)
            assert await client.read_stream(1) == b"GET / HTTP/1.1\r\n\r\n"
            # Of the client alone; a good one comes next.
            client.abort()
        assert await echoes.until_ended() == ["cancelled"]
        # In many small reads, and after requests that were plain.
        async with echoes.connect() as client:
            for request in (b"GET /plain HTTP/1.1\r\nHost: n\r\n\r\n", b"POST /plain HTTP/1.1\r\nHost: n\r\nContent-Length: 4\r\n\r\nbody"):
                assert await client.upgrade(request) == 200
                await client.reader.readexactly(int(re.findall(r"Content-Length: (\d+)", client.head)[0]))
            for byte in upgrade_request("/exec", PROTOCOL):
                await client.send(bytes([byte]))
            assert await client.upgrade(b"", behind=behind) == 101
            assert await client.read_stream(1) == b"GET / HTTP/1.1\r\n\r\n"


@on_every_loop
async def test_one_header_compression_serves_a_thousand_streams(tmp_path: Path) -> None:
    async def tell_headers(session: SpdySession) -> None:
        for _ in range(1000):
            stream = await session.accept()
            await stream.write(repr(sorted(stream.headers.items())).encode())
            await stream.close()

    async with sessions(tell_headers, tmp_path) as running, running.session() as client:
        wanted = {number: {"streamtype": "data", "port": "8080", "requestid": str(number // 4)} for number in range(1, 2000, 2)}
        # The refused ones in between are part of the compression as well.
        for number, headers in wanted.items():
            await client.send(client.open_frame(number, headers), client.open_frame(2 * number, {"refused": str(number)}))
        await client.next(spdy.GoAway)
        frames = client.frames
    told = {frame.stream: frame.data.decode() for frame in frames if isinstance(frame, spdy.Data) and frame.data}
    assert told == {number: repr(sorted(headers.items())) for number, headers in wanted.items()}
    replies = [frame.stream for frame in frames if isinstance(frame, spdy.SynReply)]
    assert replies == list(wanted)
    refused = [frame for frame in frames if isinstance(frame, spdy.Reset) and frame.stream % 2 == 0]
    assert refused == [spdy.Reset(2 * number, spdy.PROTOCOL_ERROR) for number in wanted]
    assert await running.until_ended() == ["returned"]
    assert frames[-1] == spdy.GoAway(1999, 0)


@on_every_loop
async def test_odd_frames_do_not_disturb_a_session(tmp_path: Path) -> None:
    async with sessions(echo, tmp_path) as echoes:
        async with echoes.session() as client:
            await client.send(spdy.control_frame(spdy.SETTINGS, struct.pack(">III", 1, 4, 100)), spdy.ping(1), spdy.ping(2))
            await client.send(spdy.control_frame(77, os.urandom(5000)), spdy.control_frame(spdy.WINDOW_UPDATE, bytes(8)), spdy.ping(3))
            assert [await client.next(spdy.Ping), await client.next(spdy.Ping)] == [spdy.Ping(1), spdy.Ping(3)]
            await client.send(client.open_frame(5, {}), data_frame(5, b"one"))
            await client.send(*[client.open_frame(number, {}) for number in (3, 4, 5)])
            assert [await client.next(spdy.Reset) for _ in range(3)] == [spdy.Reset(number, spdy.PROTOCOL_ERROR) for number in (3, 4, 5)]
            await client.send(client.open_frame(7, {}), data_frame(9, b"to nobody"), data_frame(7, b"two", fin=True))
            assert await client.next(spdy.Reset) == spdy.Reset(9, spdy.INVALID_STREAM)
            assert await client.read_stream(7) == b"two"
            assert not [frame for frame in client.frames if isinstance(frame, spdy.GoAway | spdy.LaterHeaders)]


@on_every_loop
async def test_longest_frames_are_served_or_refused(tmp_path: Path) -> None:
    async with sessions(echo, tmp_path) as echoes:
        data = os.urandom(spdy.MAX_LENGTH)
        async with echoes.session() as client:
            await client.send(client.open_frame(1, {}), spdy.control_frame(99, data))
            async with asyncio.TaskGroup() as group:
                group.create_task(client.send(data_frame(1, data, fin=True)))
                came = await client.read_stream(1)
            assert hashlib.sha256(came).digest() == hashlib.sha256(data).digest()
            head = struct.pack(">II", 0x80030001, spdy.MAX_LENGTH)
            await client.send(head)
            assert await client.next(spdy.GoAway) == spdy.GoAway(1, spdy.PROTOCOL_ERROR)
            await client.until_closed()
        assert await echoes.until_ended() == ["cancelled"]


@on_every_loop
async def test_block_that_unfolds_to_thirty_megabytes_ends_the_session(tmp_path: Path) -> None:
    async with sessions(echo, tmp_path) as echoes:
        deflate = zlib.compressobj(9, zlib.DEFLATED, 15, zdict=spdy.DICTIONARY)
        bomb = deflate.compress(struct.pack(">II", 1, 30_000_000) + bytes(30_000_000)) + deflate.flush(zlib.Z_SYNC_FLUSH)
        async with echoes.session() as client:
            await client.send(syn_stream(1, bomb))
            assert await client.next(spdy.GoAway) == spdy.GoAway(0, spdy.PROTOCOL_ERROR)
            await client.until_closed()
        assert await echoes.until_ended() == ["cancelled"]


@on_every_loop
async def test_each_direction_of_a_stream_ends_by_itself(tmp_path: Path) -> None:
    seen: list[object] = []

    async def serve(session: SpdySession) -> None:
        half, reset = await session.accept(), await session.accept()
        seen.extend([await half.read(), await half.read()])
        await half.write(b"after your end")
        await half.close()
        seen.append(await reset.read())
        try:
            await reset.read()
        except StreamReset as error:
            seen.append(str(error))
        try:
            await session.accept()
        except SessionClosed as error:
            seen.append(str(error))

    async with sessions(serve, tmp_path) as running, running.session() as client:
        await client.send(client.open_frame(1, {}), client.open_frame(3, {}), data_frame(1, b"in"))
        await eventually(lambda: seen == [] and running.open == 1)
        await client.send(data_frame(3, b"before"), spdy.rst_stream(3, spdy.CANCEL), data_frame(1, b"", fin=True))
        await client.send(spdy.goaway(0))
        assert await client.read_stream(1) == b"after your end"
        await client.next(spdy.GoAway)
        assert client.frames[-1] == spdy.GoAway(3, 0)
        assert not [frame for frame in client.frames if isinstance(frame, spdy.Reset)]
    assert seen == [b"in", b"", b"before", "the client reset the stream", "the client takes its leave"]
    assert await running.until_ended() == ["returned"]


@on_every_loop
async def test_slow_reader_costs_a_bounded_buffer_and_holds_nobody_up(tmp_path: Path) -> None:
    written: list[int] = []

    async def flood(session: SpdySession) -> None:
        stream = await session.accept()
        while stream.headers.get("streamtype") == "flood":
            await stream.write(bytes(65536))
            written.append(65536)
        await stream.write(b"quick")
        await stream.close()

    async with sessions(flood, tmp_path) as running, running.session() as slow:
        # The client's own reader holds something too, before it stops to read the socket.
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await slow.send(slow.open_frame(1, {"streamtype": "flood"}))
        taken = [-1, -1]
        while not taken[-1] == taken[-2] == sum(written):
            taken.append(sum(written))
            await asyncio.sleep(0.2)
        before = taken[-1]
        # Most of it lies in the kernel's two buffers, which grow to some megabytes on loopback.
        assert 0 < before < 16 * 1024 * 1024
        async with running.session() as quick:
            await quick.send(quick.open_frame(1, {}))
            assert await quick.read_stream(1) == b"quick"
        assert sum(written) == before
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        reading = asyncio.create_task(slow.read_and_forget())
        await eventually(lambda: sum(written) > 2 * before)
        reading.cancel()
    assert sorted(await running.until_ended(2)) == ["cancelled", "returned"]


@on_every_loop
async def test_handler_that_reads_nothing_bounds_what_is_taken_in(tmp_path: Path) -> None:
    held: list[SpdySession] = []
    streams: list[SpdyStream] = []
    async with sessions(holding(held, streams), tmp_path) as running, running.session() as client:
        await client.send(client.open_frame(1, {}))
        sending = asyncio.create_task(client.send(data_frame(1, bytes(spdy.MAX_LENGTH)) * 2))
        await eventually(lambda: bool(held) and held[0].buffered >= STREAM_BUFFER)
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert held[0].buffered < STREAM_BUFFER + 600_000 < SESSION_BUFFER
        assert not sending.done()
        # What is given up is drained.
        streams[0].reset()
        await asyncio.wait_for(sending, PATIENCE)
        assert held[0].buffered == 0
        await client.send(spdy.ping(1))
        await client.next(spdy.Ping)


@on_every_loop
async def test_client_that_leaves_while_nothing_is_read_is_noticed(tmp_path: Path) -> None:
    held: list[SpdySession] = []
    async with sessions(holding(held, []), tmp_path) as running:
        async with running.session() as client:
            await client.send(client.open_frame(1, {}))
            # What is not taken in fits into the kernel's buffer, or the news would be stuck behind it.
            await client.send(data_frame(1, bytes(2 * STREAM_BUFFER)))
            await eventually(lambda: bool(held) and held[0].buffered >= STREAM_BUFFER)
            assert running.ended == []
            client.abort()
        assert await running.until_ended() == ["cancelled"]


@on_every_loop
async def test_clients_that_leave_take_everything_with_them(tmp_path: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    async with sessions(holding([], []), tmp_path) as running:
        files, tasks = 0, 0
        for round_ in range(100):
            if round_ == 10:
                await eventually(lambda: running.open == 0)
                files, tasks = open_files(), len(asyncio.all_tasks())
            async with running.session() as client:
                await client.send(client.open_frame(1, {}))
                await client.next(spdy.SynReply)
        assert set(await running.until_ended(100)) == {"cancelled"}
        await eventually(lambda: open_files() <= files and len(asyncio.all_tasks()) <= tasks)


@on_every_loop
async def test_session_that_ends_first_leaves_nothing_either(tmp_path: Path) -> None:
    async def one_stream(session: SpdySession) -> None:
        await (await session.accept()).close()

    async with sessions(one_stream, tmp_path) as running:
        for _ in range(20):
            async with running.session() as client:
                await client.send(client.open_frame(1, {}))
                await client.next(spdy.GoAway)
        assert await running.until_ended(20) == 20 * ["returned"]
        await eventually(lambda: not running.http.connections)


@on_every_loop
async def test_what_comes_before_the_answer_is_bounded_and_not_lost(tmp_path: Path) -> None:
    data = os.urandom(spdy.MAX_LENGTH)
    async with sessions(echo, tmp_path) as running, running.connect() as client:
        await client.send(upgrade_request("/checked", PROTOCOL), client.open_frame(1, {}))
        # More than the buffers of the kernel take.
        sending = asyncio.create_task(client.send(data_frame(1, data, fin=True)))
        _, late = await asyncio.wait([sending], timeout=0.5)
        assert late
        running.checked.set()
        assert await client.upgrade(b"") == 101
        assert hashlib.sha256(await client.read_stream(1)).digest() == hashlib.sha256(data).digest()
        await sending


@pytest.mark.parametrize("patient", [True, False])
@on_every_loop
async def test_stop_of_the_server_ends_sessions_with_goaway(tmp_path: Path, patient: bool) -> None:
    async def serve(session: SpdySession) -> None:
        stream = await session.accept()
        try:
            await session.accept()
        except SessionClosed:
            if patient:
                await stream.write(b"last words")
                await stream.close()
            else:
                await asyncio.Event().wait()

    async with sessions(serve, tmp_path) as running, running.session() as client:
        await client.send(client.open_frame(1, {}))
        await client.next(spdy.SynReply)
        stopping = asyncio.create_task(running.connections.stop(within=PATIENCE if patient else 0.2))
        frames = await client.until_closed()
        await asyncio.wait_for(stopping, PATIENCE)
        assert running.ended == ["returned" if patient else "cancelled"]
        last = [spdy.Data(1, b"last words"), spdy.Data(1, b"", fin=True)] if patient else []
        assert frames[1 : 1 + len(last)] == last
        assert frames[1 + len(last) :] == [spdy.Reset(1, spdy.CANCEL), spdy.GoAway(1, 0)]


@on_every_loop
async def test_silent_session_ends_with_goaway(tmp_path: Path) -> None:
    async with sessions(holding([], []), tmp_path, idle=1.0) as running, running.session() as client:
        await client.send(client.open_frame(1, {}))
        assert (await client.until_closed())[-2:] == [spdy.Reset(1, spdy.CANCEL), spdy.GoAway(1, 0)]
        assert await running.until_ended() == ["cancelled"]


@on_every_loop
async def test_refused_upgrade_is_the_last_answer_of_its_connection(tmp_path: Path) -> None:
    async with sessions(echo, tmp_path) as echoes:
        for path, status in (("/refused", 403), ("/plain", 200)):
            async with echoes.connect() as client:
                assert await client.upgrade(upgrade_request(path, PROTOCOL), behind=b"GET /plain HTTP/1.1\r\nHost: n\r\n\r\n") == status
                rest = await asyncio.wait_for(client.reader.read(), PATIENCE)
                assert rest in (b"not you", b"plain POST")
        assert echoes.ended == []
        async with echoes.connect() as client:
            assert await client.upgrade(b"POST /exec HTTP/1.1\r\nHost: n\r\nUpgrade: SPDY/3.1\r\n\r\n") == 400
            assert await client.reader.readexactly(53) == b"unable to upgrade: missing upgrade headers in request"
        assert echoes.ended == ["refused"]


@on_every_loop
async def test_sessions_without_tls() -> None:
    async with sessions(echo, None) as running, running.session() as client:
        await client.send(client.open_frame(1, {}), data_frame(1, b"x" * 100_000, fin=True))
        assert await client.read_stream(1) == b"x" * 100_000


async def test_nobody_gets_to_spdy_without_credentials(hub: ControlPlane) -> None:
    async with serving(hub, Backend()) as stand:
        port = stand.server.main_port
        assert port is not None
        behind = syn_stream(1, spdy.HeaderCompressor().compress({"streamtype": "error"})) + spdy.ping(1)
        for path in ("/exec/ns/pod/c?command=ls&output=1", "/attach/ns/pod/c?output=1", "/portForward/ns/pod"):
            for extra in ({}, {"Authorization": "Bearer no.such.token"}):
                async with connected(hub.host_address, port, tls(hub, certificate=False)) as client:
                    assert await client.upgrade(upgrade_request(path, PROTOCOL, **extra), behind=behind) == 401
                    assert "SPDY" not in client.head
                    assert await asyncio.wait_for(client.reader.read(), PATIENCE) == b"Unauthorized"
            async with connected(hub.host_address, port, tls(hub, certificate=True)) as client:
                assert await client.upgrade(upgrade_request(path, PROTOCOL), behind=behind) not in (101, 401, 403)
        endpoint = await stand.server.open("v-spdy-none")
        assert (await call(hub, endpoint, "/pods", certificate=False)).status == 401
