"""SPDY frames against given vectors, and against what no peer should send."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.spdy_client import data_frame, syn_stream
from vkubelet.server import spdy_frames as spdy

SYN_STREAM = bytes.fromhex("80030001000000290000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a6800000000ffff")
EMPTY_BLOCK = bytes.fromhex("78f9e3c6a7c202a6230600000000ffff")


def parse(data: bytes) -> list[spdy.Frame]:
    return list(spdy.FrameParser().feed(data))


def block_of(plain: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, 15, zdict=spdy.DICTIONARY)
    return deflate.compress(plain) + deflate.flush(zlib.Z_SYNC_FLUSH)


def test_dictionary_is_the_one_of_the_specification() -> None:
    assert len(spdy.DICTIONARY) == 1423
    assert zlib.adler32(spdy.DICTIONARY) == 0xE3C6A7C2
    assert hashlib.sha256(spdy.DICTIONARY).hexdigest() == "51d27341373f923f3cd88e1eb7162aeaa3723d7585ff2399201dc06498407f02"


def test_syn_stream_as_a_kubernetes_client_sends_it() -> None:
    assert parse(SYN_STREAM) == [spdy.SynStream(1, {"streamtype": "error"})]


def test_first_reply_of_a_connection_has_an_empty_block() -> None:
    block = spdy.HeaderCompressor().compress({})
    assert block == EMPTY_BLOCK
    assert spdy.syn_reply(1, block) == bytes.fromhex("80030002 00000014 00000001") + EMPTY_BLOCK


def test_what_is_written_has_the_layout_of_the_specification() -> None:
    assert spdy.rst_stream(3, spdy.CANCEL) == bytes.fromhex("80030003 00000008 00000003 00000005")
    assert spdy.ping(7) == bytes.fromhex("80030006 00000004 00000007")
    assert spdy.goaway(5) == bytes.fromhex("80030007 00000008 00000005 00000000")
    assert spdy.data_head(1, 0x012345, fin=True) == bytes.fromhex("00000001 01012345")
    assert spdy.syn_reply(9, b"block", fin=True)[:12] == bytes.fromhex("80030002 01000009 00000009")


def test_every_kind_of_frame_is_read_in_parts_of_any_size() -> None:
    compressor = spdy.HeaderCompressor()
    stream = syn_stream(1, compressor.compress({"StreamType": "data", "port": "80"}), flags=spdy.FIN | spdy.UNIDIRECTIONAL)
    stream += spdy.syn_reply(1, compressor.compress({}), fin=True) + data_frame(1, b"hello", fin=True) + data_frame(3, b"")
    stream += spdy.rst_stream(1, 5) + spdy.ping(7) + spdy.goaway(3, 1)
    stream += (
        spdy.control_frame(spdy.SETTINGS, b"\0" * 12) + spdy.control_frame(spdy.WINDOW_UPDATE, b"\0" * 8) + spdy.control_frame(77, b"")
    )
    stream += spdy.control_frame(spdy.HEADERS, struct.pack(">I", 1) + compressor.compress({"a": "b"}), flags=spdy.FIN)
    expected: list[spdy.Frame] = [
        spdy.SynStream(1, {"streamtype": "data", "port": "80"}, fin=True, unidirectional=True),
        spdy.SynReply(1, {}, fin=True),
        spdy.Data(1, b"hello", fin=True),
        spdy.Data(3, b""),
        spdy.Reset(1, 5),
        spdy.Ping(7),
        spdy.GoAway(3, 1),
        spdy.LaterHeaders(1, {"a": "b"}, fin=True),
    ]
    assert parse(stream) == expected
    for size in (1, 2, 3, 7, 8, 13):
        parser = spdy.FrameParser()
        frames = [frame for at in range(0, len(stream), size) for frame in parser.feed(stream[at : at + size])]
        assert joined(frames) == expected
        assert parser.buffered == 0


def joined(frames: list[spdy.Frame]) -> list[spdy.Frame]:
    """Parts of a data frame put together again; the next frame of these tests is never data of the same stream."""
    result: list[spdy.Frame] = []
    for frame in frames:
        last = result[-1] if result else None
        if isinstance(frame, spdy.Data) and isinstance(last, spdy.Data) and frame.stream == last.stream:
            result[-1] = spdy.Data(frame.stream, last.data + frame.data, frame.fin)
        else:
            result.append(frame)
    return result


@pytest.mark.parametrize(
    ("head", "kept", "fins"),
    [(spdy.data_head(5, spdy.MAX_LENGTH, fin=True), spdy.MAX_LENGTH, 1), (struct.pack(">II", 0x80030063, spdy.MAX_LENGTH), 0, 0)],
    ids=["data", "unknown"],
)
def test_longest_frames_pass_without_being_kept(head: bytes, kept: int, fins: int) -> None:
    parser, part, frames = spdy.FrameParser(), b"x" * 65536, [0, 0]
    assert not list(parser.feed(head))
    for left in range(spdy.MAX_LENGTH, 0, -len(part)):
        for frame in parser.feed(part[:left]):
            assert isinstance(frame, spdy.Data)
            frames = [frames[0] + len(frame.data), frames[1] + frame.fin]
        assert parser.buffered == 0
    assert frames == [kept, fins]
    assert list(parser.feed(spdy.ping(1))) == [spdy.Ping(1)]


def test_header_compression_goes_on_from_block_to_block() -> None:
    compressor, decompressor = spdy.HeaderCompressor(), spdy.HeaderDecompressor()
    sizes = set()
    for number in range(1000):
        headers = {"streamtype": "data", "port": "8080", "requestid": str(number)}
        block = compressor.compress(headers)
        sizes.add(len(block) < 30)
        assert decompressor.decompress(block) == headers
    # Later blocks refer to earlier ones.
    assert sizes == {True, False}


def test_first_of_several_values_counts() -> None:
    plain = struct.pack(">I", 2) + pair(b"A", b"one\0two") + pair(b"a", b"three")
    assert spdy.parse_headers(plain) == {"a": "one"}


def pair(name: bytes, value: bytes) -> bytes:
    return struct.pack(">I", len(name)) + name + struct.pack(">I", len(value)) + value


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\1",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0rest",
        struct.pack(">I", 1) + pair(b"a", b"b") + b"\0",
        struct.pack(">I", 2) + pair(b"a", b"b"),
        struct.pack(">II", 1, 0xFFFFFFFF) + b"a",
        struct.pack(">II", 1, 1) + b"a" + b"\0\0",
    ],
)
def test_header_blocks_whose_lengths_lie_are_refused(plain: bytes) -> None:
    with pytest.raises(spdy.SpdyError, match="lengths"):
        parse(syn_stream(1, block_of(plain)))


def test_block_that_unfolds_too_far_is_refused_without_unfolding_it() -> None:
    bomb = block_of(struct.pack(">I", 1) + pair(b"a", b"x" * 30_000_000))
    assert len(bomb) < spdy.MAX_CONTROL
    tracemalloc.start()
    try:
        with pytest.raises(spdy.SpdyError, match="more than 65536 bytes"):
            parse(syn_stream(1, bomb))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    longest = struct.pack(">I", 1) + pair(b"a", b"x" * (spdy.MAX_HEADERS - 13))
    assert len(parse(syn_stream(1, block_of(longest)))) == 1


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (struct.pack(">II", 0x80020001, 20), "version 2"),
        (struct.pack(">II", 0x80030001, spdy.MAX_CONTROL + 1), "more than 65536"),
        (struct.pack(">II", 0x80030001, 9), "kind 1 with 9"),
        (struct.pack(">II", 0x80030002, 3), "kind 2 with 3"),
        (struct.pack(">II", 0x80030003, 7), "kind 3 with 7"),
        (struct.pack(">II", 0x80030006, 5), "kind 6 with 5"),
        (struct.pack(">II", 0x80030007, 0), "kind 7 with 0"),
        (syn_stream(1, b"no deflate"), "decompressed"),
        (syn_stream(1, zlib.compress(b"\0\0\0\0")), "after the end"),
        (syn_stream(1, b""), "lengths"),
    ],
)
def test_frames_that_can_not_be_understood_end_the_session(frame: bytes, why: str) -> None:
    with pytest.raises(spdy.SpdyError, match=why):
        parse(frame)


def test_frames_before_a_broken_one_are_given() -> None:
    frames = spdy.FrameParser().feed(spdy.ping(1) + struct.pack(">II", 0x80020001, 20))
    assert next(frames) == spdy.Ping(1)
    with pytest.raises(spdy.SpdyError):
        next(frames)


@settings(max_examples=200, deadline=None)
@given(data=st.lists(st.binary(max_size=200), max_size=10), head=st.sampled_from([b"", SYN_STREAM, b"\x80\x03\0\x08", b"\0\0\0\1"]))
def test_garbage_is_refused_or_ignored(data: list[bytes], head: bytes) -> None:
    parser = spdy.FrameParser()
    try:
        for part in (head, *data):
            list(parser.feed(part))
            assert parser.buffered < 8 + spdy.MAX_CONTROL
    except spdy.SpdyError:
        assert parser.buffered <= 8 + spdy.MAX_CONTROL
