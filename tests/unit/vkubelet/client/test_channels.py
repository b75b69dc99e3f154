"""What is kept of a stream, and how it is put into messages."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp.http import WSMessage

from tests.unit.vkubelet.client.wire import CLOSED, Wire, channels, message
from vkubelet.client.channels import V4
from vkubelet.errors import Unreachable
from vkubelet.testing.clock import ManualClock


async def test_what_came_meanwhile_is_one_piece_for_each_turn_of_a_channel() -> None:
    stream = channels(Wire([message(1), message(1, b"a"), message(1, b"b"), message(2, b"c"), message(1, b"d"), CLOSED]))
    await stream.read_ahead()
    assert [await stream.receive() for _ in range(5)] == [(1, b"ab"), (2, b"c"), (1, b"d"), None, None]


async def test_no_more_is_read_ahead_than_a_few_messages() -> None:
    wire = Wire([message(1, bytes(32768))] * 100 + [CLOSED])
    stream = channels(wire)
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.read_ahead())
        await asyncio.sleep(0)
        assert wire.taken == 9
        total = 0
        while (got := await stream.receive()) is not None:
            total += len(got[1])
            assert wire.taken * 32768 - total <= 10 * 32768
    assert total == 100 * 32768


async def test_what_is_no_message_of_a_channel_is_an_error() -> None:
    with pytest.raises(Unreachable, match="a message that belongs to no channel"):
        await channels(Wire([WSMessage(aiohttp.WSMsgType.TEXT, "hello", None)])).read_ahead()


async def test_much_is_sent_in_pieces_and_nothing_not_at_all() -> None:
    wire = Wire()
    stream = channels(wire)
    await stream.send(0, bytes(600_000))
    await stream.send(0, b"")
    assert [len(each) for each in wire.sent] == [262_145, 262_145, 75_713]
    assert {each[0] for each in wire.sent} == {0}


async def test_only_v5_has_a_word_for_the_end_of_a_channel() -> None:
    five, four = Wire(), Wire(protocol=V4)
    await channels(five).end(0)
    await channels(four).end(0)
    assert (five.sent, four.sent) == ([b"\xff\x00"], [])


async def test_quiet_connection_is_kept_alive() -> None:
    clock, wire = ManualClock(), Wire()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(channels(wire).keep_alive(clock))
        await clock.advance(70)
        task.cancel()
    assert wire.pings == 3
