"""What the streams of a SPDY session cost beside their data."""

from __future__ import annotations

import pytest

from tests.support.spdy_line import Line
from vkubelet.server import spdy_frames as spdy
from vkubelet.server.spdy import MAX_STREAMS, SESSION_BUFFER


@pytest.fixture
async def line() -> Line:
    return Line()


async def test_headers_that_nothing_reads_are_not_kept(line: Line) -> None:
    line.send(line.open_frame(1, streamtype="data", port="80", requestid="1", other="x" * 60_000))
    assert (await line.session.accept()).headers == {"streamtype": "data", "port": "80", "requestid": "1"}
    assert line.session.cost < 2000


async def test_stream_with_a_long_header_is_refused(line: Line) -> None:
    line.send(line.open_frame(1, streamtype="data", requestid="a" * 60_000))
    assert line.answers() == [spdy.Reset(1, spdy.REFUSED_STREAM)]
    assert line.session.cost == 0


async def test_open_streams_count_for_what_they_cost_and_never_stop_reading(line: Line) -> None:
    opened = 0
    for number in range(1, 2 * MAX_STREAMS, 2):
        line.send(line.open_frame(number, streamtype="data" * 60, port="8" * 250, requestid=f"{number:0250}"))
        opened += isinstance(line.answers()[0], spdy.SynReply)
    assert 1000 < opened < MAX_STREAMS
    assert 1000 * opened < line.session.cost <= SESSION_BUFFER // 2
    assert line.transport.reading
    for number in range(1, 2 * MAX_STREAMS, 2):
        line.send(spdy.rst_stream(number, spdy.CANCEL))
    for _ in range(opened):
        (await line.session.accept()).discard()
    assert line.session.cost == 0
