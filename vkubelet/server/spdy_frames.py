"""SPDY/3.1 as Kubernetes uses it: frames to bytes and back, and header blocks with SPDY's dictionary. Pure.

Invariant: for any input, the parser buffers no more than one frame head and one control frame of MAX_CONTROL bytes, a header block
decompresses to no more than MAX_HEADERS bytes, and every error is a SpdyError.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from attrs import frozen

MAX_CONTROL: Final = 64 * 1024
"""Longest control frame that is read; longer ones close the session, unless they are of a type that is ignored anyway."""
MAX_HEADERS: Final = 64 * 1024
MAX_LENGTH: Final = 2**24 - 1

FIN: Final = 1
UNIDIRECTIONAL: Final = 2

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9

PROTOCOL_ERROR, INVALID_STREAM, REFUSED_STREAM, CANCEL, INTERNAL_ERROR = 1, 2, 3, 5, 6

_VERSION = 3
_HEAD = 8
_STREAM_ID = 0x7FFFFFFF
_UNSIGNED = struct.Struct(">I")
_PAIR = struct.Struct(">II")
_FIXED = {RST_STREAM: 8, PING: 4, GOAWAY: 8}
_AT_LEAST = {SYN_STREAM: 10, SYN_REPLY: 4, HEADERS: 4}

_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow authorization "
    "cache-control connection content-base content-encoding content-language content-length content-location content-md5 content-range "
    "content-type date etag expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since last-modified "
    "location max-forwards pragma proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding "
    "upgrade user-agent vary via warning www-authenticate method get status"
)
_PHRASES = (*_WORDS.split(), "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found"
    "500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,public"
    "privatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY: Final = b"".join(_UNSIGNED.pack(len(word)) + word.encode() for word in _PHRASES) + _TEXT.encode()
"""Initial dictionary of a header compression (SPDY/3, section 2.6.10.1)."""


class SpdyError(Exception):
    """The peer violated the protocol so that the session cannot continue."""


@frozen
class SynStream:
    """The peer opens a stream; names of headers are in lower case, of several values the first counts."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False
    unidirectional: bool = False


@frozen
class SynReply:
    """The peer has accepted a stream."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


@frozen
class LaterHeaders:
    """A HEADERS frame."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


@frozen
class Data:
    """A part of a data frame, as received; `fin` is set on the last part."""

    stream: int
    data: bytes
    fin: bool = False


@frozen
class Reset:
    """The peer resets a stream, in both directions."""

    stream: int
    status: int


@frozen
class Ping:
    """Request to send it back unchanged, when the number is odd."""

    number: int


@frozen
class GoAway:
    """The peer accepts no more streams."""

    last: int
    status: int


Frame = SynStream | SynReply | LaterHeaders | Data | Reset | Ping | GoAway


# --- Header blocks --------------------------------------------------------------------------------------------------------------------


class HeaderCompressor:
    """Compressor of one direction of a connection: every block passes it, in the order of sending."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(9, zlib.DEFLATED, 15, zdict=DICTIONARY)

    def compress(self, headers: Mapping[str, str]) -> bytes:
        block = bytearray(_UNSIGNED.pack(len(headers)))
        for name, value in headers.items():
            for text in (name.lower().encode(), value.encode()):
                block += _UNSIGNED.pack(len(text)) + text
        return self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


class HeaderDecompressor:
    """Decompressor of the other direction: every block passes it, in the order of arrival."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def decompress(self, block: bytes | memoryview) -> dict[str, str]:
        """Decompresses a block. Raises SpdyError for an invalid or too long one; after that the direction is unusable."""
        try:
            plain = self._inflate.decompress(block, MAX_HEADERS + 1)
        except zlib.error as error:
            raise SpdyError("a header block that cannot be decompressed") from error
        if len(plain) > MAX_HEADERS or self._inflate.unconsumed_tail:
            raise SpdyError(f"a header block of more than {MAX_HEADERS} bytes")
        if self._inflate.eof:
            raise SpdyError("a header block after the end of the header compression")
        return parse_headers(plain)


def parse_headers(plain: bytes) -> dict[str, str]:
    """Parses the pairs of a decompressed block. Raises SpdyError."""
    texts: list[bytes] = []
    at, end = 4, len(plain)
    count = _UNSIGNED.unpack_from(plain)[0] if end >= 4 else -1
    while at < end and len(texts) < 2 * count:
        if end - at < 4:
            break
        length = _UNSIGNED.unpack_from(plain, at)[0]
        at += 4
        texts.append(plain[at : at + length])
        at += length
    if at != end or len(texts) != 2 * count:
        raise SpdyError("a header block whose lengths do not fit")
    decoded = [text.decode(errors="replace") for text in texts]
    return {name.lower(): value.partition("\0")[0] for name, value in zip(reversed(decoded[::2]), reversed(decoded[1::2]), strict=True)}


# --- Reading --------------------------------------------------------------------------------------------------------------------------


class FrameParser:
    """Parser of bytes in any chunks to frames. Data is passed on as it arrives, so that a long frame needs no memory."""

    def __init__(self) -> None:
        self._headers = HeaderDecompressor()
        self._begun = bytearray()
        self._needed = _HEAD
        self._left = 0
        self._data: tuple[int, bool] | None = None

    @property
    def buffered(self) -> int:
        """Bytes buffered until the rest of their frame arrives."""
        return len(self._begun)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames in `data`, and in what was buffered before it; must be exhausted before the next call. Raises SpdyError."""
        view = memoryview(data)
        at, end = 0, len(view)
        while at < end:
            if self._left:
                part = view[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                if self._data is not None:
                    stream, fin = self._data
                    yield Data(stream, bytes(part), fin and not self._left)
                continue
            part = view[at : at + self._needed - len(self._begun)]
            at += len(part)
            self._begun += part
            if len(self._begun) == self._needed:
                frame = self._complete()
                if frame is not None:
                    yield frame

    def _complete(self) -> Frame | None:
        """Handles `_needed` bytes; returns a frame, or None while it is incomplete."""
        if self._needed == _HEAD:
            first, second = _PAIR.unpack(self._begun)
            flags, length = second >> 24, second & MAX_LENGTH
            if not first >> 31:
                return self._begin_data(first, length, fin=bool(flags & FIN))
            self._begin_control(first, length)
            return None
        frame = self._control()
        self._expect_head()
        return frame

    def _expect_head(self) -> None:
        # A new one: a bytearray that is cleared or cut keeps its memory.
        self._begun = bytearray()
        self._needed = _HEAD

    def _begin_data(self, stream: int, length: int, *, fin: bool) -> Frame | None:
        self._expect_head()
        self._data, self._left = (stream, fin), length
        return None if length else Data(stream, b"", fin)

    def _begin_control(self, first: int, length: int) -> None:
        """Starts to buffer the payload, or to skip it."""
        version, kind = first >> 16 & 0x7FFF, first & 0xFFFF
        if version != _VERSION:
            raise SpdyError(f"a control frame of version {version}")
        if kind not in _FIXED and kind not in _AT_LEAST:
            self._expect_head()
            self._data, self._left = None, length
            return
        if length != _FIXED.get(kind, length) or length < _AT_LEAST.get(kind, 0):
            raise SpdyError(f"a control frame of kind {kind} with {length} bytes")
        if length > MAX_CONTROL:
            raise SpdyError(f"a control frame of more than {MAX_CONTROL} bytes")
        self._needed = _HEAD + length

    def _control(self) -> Frame:
        frame = bytes(self._begun)
        kind, flags = frame[3], frame[4]
        number = _UNSIGNED.unpack_from(frame, _HEAD)[0]
        if kind == PING:
            return Ping(number)
        stream, fin = number & _STREAM_ID, bool(flags & FIN)
        if kind in (RST_STREAM, GOAWAY):
            status = _UNSIGNED.unpack_from(frame, _HEAD + 4)[0]
            return Reset(stream, status) if kind == RST_STREAM else GoAway(stream, status)
        headers = self._headers.decompress(memoryview(frame)[_HEAD + _AT_LEAST[kind] :])
        if kind == SYN_STREAM:
            return SynStream(stream, headers, fin, bool(flags & UNIDIRECTIONAL))
        return SynReply(stream, headers, fin) if kind == SYN_REPLY else LaterHeaders(stream, headers, fin)


# --- Writing --------------------------------------------------------------------------------------------------------------------------


def control_frame(kind: int, payload: bytes, *, flags: int = 0) -> bytes:
    return _PAIR.pack((0x8000 | _VERSION) << 16 | kind, flags << 24 | len(payload)) + payload


def syn_reply(stream: int, block: bytes, *, fin: bool = False) -> bytes:
    """Builds a SYN_REPLY; `block` comes from the connection's HeaderCompressor, and is sent before any later block."""
    return control_frame(SYN_REPLY, _UNSIGNED.pack(stream) + block, flags=FIN if fin else 0)


def rst_stream(stream: int, status: int) -> bytes:
    return control_frame(RST_STREAM, _PAIR.pack(stream, status))


def ping(number: int) -> bytes:
    return control_frame(PING, _UNSIGNED.pack(number))


def goaway(last: int, status: int = 0) -> bytes:
    return control_frame(GOAWAY, _PAIR.pack(last, status))


def data_head(stream: int, length: int, *, fin: bool = False) -> bytes:
    """Builds the head of `length` bytes of data."""
    return _PAIR.pack(stream, (FIN if fin else 0) << 24 | length)
