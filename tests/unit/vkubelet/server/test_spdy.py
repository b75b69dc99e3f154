"""SPDY sessions over a transport in memory: what is answered, what streams see, and how much is held."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.spdy_client import data_frame, syn_stream
from tests.support.spdy_line import Line
from vkubelet.server import spdy_frames as spdy
from vkubelet.server.spdy import (
    FRAME,
    MAX_STREAMS,
    SESSION_BUFFER,
    STREAM_BUFFER,
    SessionClosed,
    StreamReset,
    greeting,
)


@pytest.fixture
async def line() -> Line:
    return Line()


async def blocked(task: asyncio.Task[object], line: Line) -> bool:
    await line.clock.settle()
    return not task.done()


def test_greeting_names_the_chosen_protocol() -> None:
    lines = greeting("v4.channel.k8s.io").split(b"\r\n")
    assert lines == [
        b"HTTP/1.1 101 Switching Protocols",
        b"Connection: Upgrade",
        b"Upgrade: SPDY/3.1",
        b"X-Stream-Protocol-Version: v4.channel.k8s.io",
        b"",
        b"",
    ]


async def test_stream_is_answered_before_it_is_accepted_and_before_any_data(line: Line) -> None:
    line.send(line.open_frame(1, streamtype="error"), line.open_frame(3, streamType="stdin"))
    assert line.answers() == [spdy.SynReply(1, {}), spdy.SynReply(3, {})]
    first, second = await line.session.accept(), await line.session.accept()
    assert (first.id, first.headers, second.id, second.headers) == (1, {"streamtype": "error"}, 3, {"streamtype": "stdin"})
    await second.write(b"later")
    await first.write(b"Status")
    await first.close()
    await first.close()
    assert line.answers() == [spdy.Data(3, b"later"), spdy.Data(1, b"Status"), spdy.Data(1, b"", fin=True)]


async def test_accept_waits_for_the_next_stream(line: Line) -> None:
    accepting = asyncio.create_task(line.session.accept())
    assert await blocked(accepting, line)
    line.send(line.open_frame(1))
    assert (await accepting).id == 1


async def test_read_gives_what_came_and_then_nothing(line: Line) -> None:
    stream = await line.stream()
    line.send(data_frame(1, b"one"), data_frame(1, b"two"))
    assert await stream.read() == b"onetwo"
    reading = asyncio.create_task(stream.read())
    assert await blocked(reading, line)
    line.send(data_frame(1, b"three", fin=True))
    assert (await reading, await stream.read(), await stream.read()) == (b"three", b"", b"")


async def test_either_side_may_finish_and_the_other_goes_on(line: Line) -> None:
    stream = await line.stream()
    line.send(data_frame(1, b"", fin=True))
    assert await stream.read() == b""
    await stream.write(b"still")
    other = await line.stream(3)
    await other.close()
    line.send(data_frame(3, b"still"), data_frame(3, b"", fin=True))
    assert (await other.read(), await other.read()) == (b"still", b"")
    with pytest.raises(StreamReset, match="closed already"):
        await other.write(b"late")


async def test_stream_that_begins_finished_or_one_way(line: Line) -> None:
    line.send(line.open_frame(1, flags=spdy.FIN), line.open_frame(3, flags=spdy.UNIDIRECTIONAL))
    finished, one_way = await line.session.accept(), await line.session.accept()
    assert await finished.read() == b""
    await finished.write(b"data")
    with pytest.raises(StreamReset):
        await one_way.write(b"data")
    assert line.answers() == [spdy.SynReply(1, {}), spdy.Data(1, b"data")]


async def test_headers_frame_may_finish_a_stream(line: Line) -> None:
    stream = await line.stream()
    block = line._compressor.compress({"more": "headers"})
    line.send(spdy.control_frame(spdy.HEADERS, (1).to_bytes(4, "big") + block, flags=spdy.FIN))
    assert await stream.read() == b""
    # Its block was part of the compression.
    assert (await line.stream(3)).id == 3


async def test_reset_by_the_client_comes_after_the_data_before_it(line: Line) -> None:
    stream = await line.stream()
    line.send(data_frame(1, b"before"), spdy.rst_stream(1, spdy.CANCEL), data_frame(1, b"after"))
    assert await stream.read() == b"before"
    with pytest.raises(StreamReset, match="client reset"):
        await stream.read()
    with pytest.raises(StreamReset, match="client reset"):
        await stream.write(b"more")
    await stream.close()
    stream.reset()
    assert line.answers() == []


async def test_reset_wakes_who_reads_and_who_writes(line: Line) -> None:
    stream = await line.stream()
    line.transport.stuck = True
    reading, writing = asyncio.create_task(stream.read()), asyncio.create_task(stream.write(bytes(1_000_000)))
    assert await blocked(reading, line) and await blocked(writing, line)
    line.send(spdy.rst_stream(1, spdy.CANCEL))
    for task in (reading, writing):
        with pytest.raises(StreamReset):
            await task


async def test_reset_of_ours_is_told_once_and_drops_what_came(line: Line) -> None:
    stream = await line.stream()
    line.send(data_frame(1, b"x" * 1000))
    stream.reset(spdy.REFUSED_STREAM)
    stream.reset()
    await stream.close()
    assert line.answers() == [spdy.Reset(1, spdy.REFUSED_STREAM)]
    assert line.session.cost == 0
    line.send(data_frame(1, b"x" * STREAM_BUFFER * 2))
    assert (line.session.buffered, line.transport.reading, line.answers()) == (0, True, [])
    with pytest.raises(StreamReset, match="given up"):
        await stream.read()


async def test_finished_stream_is_not_reset(line: Line) -> None:
    stream = await line.stream()
    line.send(data_frame(1, b"", fin=True))
    await stream.close()
    stream.reset()
    assert line.answers() == [spdy.Data(1, b"", fin=True)]


async def test_ping_of_the_client_is_sent_back_and_an_answer_is_not(line: Line) -> None:
    line.send(spdy.ping(1), spdy.ping(2), spdy.ping(0xFFFFFFFF))
    assert line.answers() == [spdy.Ping(1), spdy.Ping(0xFFFFFFFF)]


async def test_frames_that_mean_nothing_here_are_ignored(line: Line) -> None:
    empty = line._compressor.compress({})
    line.send(spdy.control_frame(spdy.SETTINGS, b"\0" * 12), spdy.control_frame(spdy.WINDOW_UPDATE, b"\0" * 8))
    line.send(spdy.control_frame(99, b"x" * 100_000), spdy.syn_reply(1, empty), spdy.rst_stream(9, 1))
    assert line.answers() == []
    assert (await line.stream()).id == 1


@pytest.mark.parametrize("number", [0, 2, 1, 3])
async def test_bad_stream_ids_are_refused_and_the_compression_goes_on(line: Line, number: int) -> None:
    stream = await line.stream(5)
    line.send(line.open_frame(number, port="80"))
    assert line.answers() == [spdy.Reset(number, spdy.PROTOCOL_ERROR)]
    line.send(line.open_frame(7, port="80"))
    assert (await line.session.accept()).headers == {"port": "80"}
    await stream.write(b"alive")


async def test_repeated_stream_id_ends_the_stream_that_has_it(line: Line) -> None:
    stream = await line.stream(5)
    line.send(line.open_frame(5))
    assert line.answers() == [spdy.Reset(5, spdy.PROTOCOL_ERROR)]
    with pytest.raises(StreamReset):
        await stream.read()


async def test_data_of_a_stream_that_never_was_is_refused_and_of_one_that_ended_ignored(line: Line) -> None:
    stream = await line.stream(5)
    stream.reset()
    line.answers()
    line.send(data_frame(7, b"x"), data_frame(5, b"x"), data_frame(3, b"x"))
    assert line.answers() == [spdy.Reset(7, spdy.INVALID_STREAM)]


async def test_streams_beyond_the_limit_are_refused_until_others_are_done(line: Line) -> None:
    for number in range(1, 2 * MAX_STREAMS, 2):
        line.send(line.open_frame(number))
    line.answers()
    line.send(line.open_frame(2 * MAX_STREAMS + 1))
    assert line.answers() == [spdy.Reset(2 * MAX_STREAMS + 1, spdy.REFUSED_STREAM)]
    # The client alone can not make room: the handler still has the stream.
    line.send(spdy.rst_stream(1, spdy.CANCEL), line.open_frame(2 * MAX_STREAMS + 3))
    assert line.answers() == [spdy.Reset(2 * MAX_STREAMS + 3, spdy.REFUSED_STREAM)]
    await (await line.session.accept()).close()
    line.send(line.open_frame(2 * MAX_STREAMS + 5))
    assert line.answers() == [spdy.SynReply(2 * MAX_STREAMS + 5, {})]


async def test_stream_is_done_when_both_have_closed_and_all_is_read(line: Line) -> None:
    opened = []
    for number in range(1, 2 * MAX_STREAMS, 2):
        line.send(line.open_frame(number), data_frame(number, b"x", fin=True))
        opened.append(await line.session.accept())
        await opened[-1].close()
    line.answers()
    line.send(line.open_frame(4 * MAX_STREAMS + 1))
    assert line.answers() == [spdy.Reset(4 * MAX_STREAMS + 1, spdy.REFUSED_STREAM)]
    assert await opened[0].read() == b"x"
    opened[1].discard()
    line.send(line.open_frame(4 * MAX_STREAMS + 3), line.open_frame(4 * MAX_STREAMS + 5))
    assert line.answers() == [spdy.SynReply(4 * MAX_STREAMS + 3, {}), spdy.SynReply(4 * MAX_STREAMS + 5, {})]


# --- Limits -------------------------------------------------------------------------------------------------------------------------------


async def test_nothing_more_is_read_while_a_stream_is_full(line: Line) -> None:
    stream, other = await line.stream(1), await line.stream(3)
    for _ in range(STREAM_BUFFER // 32768):
        assert line.transport.reading
        line.send(data_frame(1, b"x" * 32768))
    assert not line.transport.reading
    line.send(data_frame(3, b"y"))
    assert (await other.read(), line.transport.reading) == (b"y", False)
    assert len(await stream.read()) == STREAM_BUFFER
    assert (line.transport.reading, line.session.buffered) == (True, 0)


async def test_many_small_pieces_count_for_what_they_cost(line: Line) -> None:
    await line.stream()
    sent = 0
    while line.transport.reading:
        line.send(data_frame(1, b"xy"))
        sent += 2
    assert sent < STREAM_BUFFER // 16


async def test_all_streams_together_are_bounded(line: Line) -> None:
    part, sent, number = b"x" * (STREAM_BUFFER // 2), 0, 1
    streams = []
    while line.transport.reading:
        line.send(line.open_frame(number), data_frame(number, part))
        streams.append(await line.session.accept())
        sent, number = sent + len(part), number + 2
    assert sent <= SESSION_BUFFER <= line.session.cost < SESSION_BUFFER + len(part)
    await streams[0].read()
    assert line.transport.reading


@pytest.mark.parametrize("how", ["discard", "reset"])
async def test_stream_that_nobody_reads_any_more_holds_nothing_up(line: Line, how: str) -> None:
    stream = await line.stream()
    line.send(data_frame(1, b"x" * STREAM_BUFFER))
    assert not line.transport.reading
    getattr(stream, how)()
    assert line.transport.reading
    line.send(data_frame(1, b"x" * STREAM_BUFFER))
    assert (line.transport.reading, line.session.buffered) == (True, 0)


async def test_stream_that_the_client_reset_still_counts_until_it_is_closed(line: Line) -> None:
    stream = await line.stream()
    line.send(data_frame(1, b"x" * STREAM_BUFFER), spdy.rst_stream(1, spdy.CANCEL))
    assert not line.transport.reading
    await stream.close()
    assert (line.transport.reading, line.session.buffered) == (True, 0)


async def test_write_waits_while_the_client_is_slow(line: Line) -> None:
    stream = await line.stream()
    line.transport.stuck = True
    data = bytes(range(256)) * 8192
    writing = asyncio.create_task(stream.write(data))
    assert await blocked(writing, line)
    assert line.transport.unread <= 256 * 1024 + FRAME + 8
    line.transport.read_all()
    await writing
    frames = line.answers()
    assert b"".join(frame.data for frame in frames if isinstance(frame, spdy.Data)) == data
    assert len(frames) == -(-len(data) // FRAME)


async def test_streams_write_in_turn(line: Line) -> None:
    streams = [await line.stream(number) for number in (1, 3, 5)]
    line.transport.stuck = True
    blocker = asyncio.create_task(streams[0].write(bytes(300_000)))
    await line.clock.settle()
    writing = [asyncio.create_task(stream.write(bytes(10 * FRAME))) for stream in streams]
    await line.clock.settle()
    line.answers()
    line.transport.read_all()
    await asyncio.gather(blocker, *writing)
    order = [frame.stream for frame in line.answers() if isinstance(frame, spdy.Data)]
    assert set(order[-15:-5]) == set(order[5:15]) == {1, 3, 5}


async def test_client_that_reads_no_answers_is_not_read_either(line: Line) -> None:
    stream = await line.stream()
    line.transport.stuck = True
    writing = asyncio.create_task(stream.write(bytes(1_000_000)))
    assert await blocked(writing, line)
    unread = line.transport.unread
    while line.transport.reading:
        line.send(spdy.ping(1) * 100)
    assert 64 * 1024 <= line.transport.unread - unread < 64 * 1024 + 1200
    line.transport.read_all()
    await writing
    assert line.transport.reading


# --- The end ------------------------------------------------------------------------------------------------------------------------------


async def test_client_that_takes_its_leave_opens_no_more_streams(line: Line) -> None:
    stream = await line.stream()
    line.send(line.open_frame(3), spdy.goaway(0), line.open_frame(5))
    assert (await line.session.accept()).id == 3
    with pytest.raises(SessionClosed, match="leave"):
        await line.session.accept()
    assert line.answers() == [spdy.SynReply(3, {})]
    await stream.write(b"alive")
    line.send(data_frame(1, b"alive"))
    assert await stream.read() == b"alive"


async def test_loss_of_the_connection_wakes_everybody(line: Line) -> None:
    stream, finished = await line.stream(1), await line.stream(3)
    line.transport.stuck = True
    line.send(data_frame(3, b"rest", fin=True))
    tasks: list[asyncio.Task[object]] = [asyncio.create_task(stream.write(bytes(1_000_000))), asyncio.create_task(stream.read())]
    accepting = asyncio.create_task(line.session.accept())
    await line.clock.settle()
    line.transport.lose()
    for task in tasks:
        with pytest.raises(StreamReset, match="lost"):
            await task
    with pytest.raises(SessionClosed, match="lost"):
        await accepting
    assert (await finished.read(), await finished.read()) == (b"rest", b"")
    await stream.close()
    await line.session.end()


async def test_end_resets_what_is_unfinished_and_says_good_bye(line: Line) -> None:
    await line.stream(1)
    finished, answered = await line.stream(3), await line.stream(5)
    line.send(data_frame(3, b"", fin=True))
    for stream in (finished, answered):
        await stream.close()
    line.answers()
    ending = asyncio.create_task(line.session.end())
    assert await blocked(ending, line)
    assert line.answers() == [spdy.Reset(1, spdy.CANCEL), spdy.Reset(5, spdy.CANCEL), spdy.GoAway(5, 0)]
    line.send(spdy.ping(1), data_frame(1, b"x" * STREAM_BUFFER * 2))
    assert (line.answers(), line.session.buffered, line.transport.reading) == ([], 0, True)
    line.transport.lose()
    await ending


@pytest.mark.parametrize(
    "bad",
    [b"\x80\x02" + b"\0" * 30, syn_stream(3, b"no deflate"), spdy.control_frame(spdy.SYN_STREAM, bytes(spdy.MAX_CONTROL + 1))],
    ids=["version", "compression", "length"],
)
async def test_broken_protocol_ends_the_session_with_a_word(line: Line, bad: bytes) -> None:
    stream = await line.stream()
    line.send(data_frame(1, b"before"), spdy.ping(1), bad, spdy.ping(3))
    assert line.answers() == [spdy.Ping(1), spdy.Reset(1, spdy.CANCEL), spdy.GoAway(1, spdy.PROTOCOL_ERROR)]
    assert line.transport.is_closing()
    assert await stream.read() == b"before"
    with pytest.raises(StreamReset):
        await stream.read()
    with pytest.raises(SessionClosed):
        await line.session.accept()


async def test_server_that_stops_refuses_new_streams_and_old_ones_go_on(line: Line) -> None:
    stream = await line.stream()
    line.session.stopping()
    line.session.stopping()
    line.send(line.open_frame(3))
    # No GOAWAY yet: it would be the last thing that clients of Go read.
    assert line.answers() == [spdy.Reset(3, spdy.REFUSED_STREAM)]
    with pytest.raises(SessionClosed, match="stops"):
        await line.session.accept()
    await stream.write(b"alive")


async def test_silent_session_is_broken_off_and_any_frame_counts_as_life(line: Line) -> None:
    stream = await line.stream()
    watching = asyncio.create_task(line.session.watch_idle(60.0))
    await line.clock.advance(50)
    line.send(spdy.ping(1))
    await line.clock.advance(50)
    await stream.write(b"output alone")
    await line.clock.advance(59)
    assert not line.transport.is_closing()
    line.answers()
    await line.clock.advance(1)
    assert line.transport.is_closing()
    assert line.answers() == [spdy.Reset(1, spdy.CANCEL), spdy.GoAway(1, 0)]
    with pytest.raises(SessionClosed, match="idle"):
        await line.session.accept()
    await watching
