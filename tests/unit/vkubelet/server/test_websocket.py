"""Messages and the channels they belong to."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.server.spdy import StreamReset
from vkubelet.server.websocket import BASE64, BINARY, CHANNEL_BUFFER, FORMS, PIECE, WebSocketChannel, decode, encode_base64
from vkubelet.testing.clock import ManualClock


class Sent:
    """Stands where a session stands for a channel."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes]] = []

    async def send(self, number: int, data: bytes) -> None:
        self.messages.append((number, data))


@pytest.fixture
async def sent() -> Sent:
    return Sent()


def channel_on(sent: Sent) -> WebSocketChannel:
    return WebSocketChannel(cast(Any, sent), 7)


@pytest.mark.parametrize(
    ("message", "form", "decoded"),
    [
        (b"\x00abc", BINARY, (0, b"abc")),
        (b"\x04", BINARY, (4, b"")),
        (b"\xff\x00", BINARY, (255, b"\x00")),
        (b"", BINARY, (-1, b"")),
        (b"0YWJj", BASE64, (0, b"abc")),
        (b"4", BASE64, (4, b"")),
        (b"0YWJ", BASE64, (-1, b"")),
        (b"0YW Jj", BASE64, (-1, b"")),
        ("0\u00e9\u00e9".encode(), BASE64, (-1, b"")),
        (b"", BASE64, (-1, b"")),
    ],
)
def test_messages(message: bytes, form: Any, decoded: tuple[int, bytes]) -> None:
    assert decode(message, form) == decoded


@given(st.integers(0, 200), st.binary())
def test_what_is_written_in_base64_is_read_again(number: int, data: bytes) -> None:
    text = encode_base64(number, data)
    assert (ord(text[0]) - ord("0"), decode(b"0" + text[1:].encode(), BASE64)[1]) == (number, data)


@given(st.binary(max_size=200))
def test_no_message_is_an_error(message: bytes) -> None:
    for form in FORMS.values():
        decode(message, form)


async def test_a_channel_gives_what_came_and_then_the_end(sent: Sent) -> None:
    channel = channel_on(sent)
    for data in (b"one", b"", b"two"):
        channel.arrived(data)
    assert await channel.read() == b"onetwo"
    channel.arrived(b"three")
    channel.finished()
    channel.arrived(b"dropped")
    assert (await channel.read(), await channel.read()) == (b"three", b"")


async def test_a_full_channel_has_room_once_it_is_read_or_given_up(sent: Sent) -> None:
    channel = channel_on(sent)
    for free in (channel.read, lambda: asyncio.to_thread(channel.discard)):
        channel.arrived(bytes(CHANNEL_BUFFER))
        assert channel.full
        waiting = asyncio.ensure_future(channel.room())
        await ManualClock().settle()
        assert not waiting.done()
        if free == channel.read:
            await channel.read()
        else:
            channel.discard()
        await waiting
    channel.arrived(b"dropped")
    with pytest.raises(StreamReset):
        await channel.read()


async def test_long_data_goes_out_in_pieces_and_none_after_the_end(sent: Sent) -> None:
    channel = channel_on(sent)
    data = bytes(range(256)) * 300
    await channel.write(data)
    assert all(number == 7 and len(piece) <= PIECE for number, piece in sent.messages)
    assert b"".join(piece for _, piece in sent.messages) == data
    await channel.close()
    with pytest.raises(StreamReset):
        await channel.write(b"late")
