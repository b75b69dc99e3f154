"""One case of an attack as bytes: which certificate the client has, and what it does: requests, frames, raw bytes, pauses, its end.

Invariant: every sequence of bytes is a case, and the same bytes are the same case; so a coverage-guided fuzzer may change any of them.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field

from tests.faults.attack.port import CERTIFICATES, TOKENS, Caller, Port
from tests.support.spdy_client import data_frame, syn_stream
from tests.unit.vkubelet.server.test_app import HEADERS, INSERTED, PATHS, PREFIXES
from vkubelet.server import spdy_frames as spdy

LONGEST = 4096
"""Bytes of a case; the rest is not read."""
_AHEAD = 64
"""Steps of a case."""
_MOST_AGAIN = 1 << 20
"""Bytes that a step repeats: steps that each repeat what the last one has repeated would send any number of them."""

METHODS = (b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"CONNECT")
BEARERS = (*(token.encode() for token in TOKENS), b"", b"\xff\xfe", b"t0ken-of-somebody")
STREAMS = (
    b"/exec/ns/pod/app?command=cat&input=1&output=1&error=1",
    b"/exec/ns/pod/app?command=sh&input=1&output=1&tty=1",
    b"/exec/ns/pod/app?command=seq&command=99999&output=1",
    b"/exec/ns/pod/app?command=sleep&command=900&output=1",
    b"/attach/ns/pod/app?input=1&output=1",
    b"/portForward/ns/pod?port=80&port=81",
    b"/portForward/ns/pod",
    b"/exec/ns/pod/uid-pod/app?command=tar&command=xf&command=-&input=1&output=1",
)
VERSIONS = (
    b"v4.channel.k8s.io",
    b"v5.channel.k8s.io",
    b"channel.k8s.io",
    b"portforward.k8s.io",
    b"v4.base64.channel.k8s.io",
    b"",
    b"v9",
    b"a,b",
)
KINDS = ("error", "stdin", "stdout", "stderr", "resize", "data", "", "\0")
FRAMING = (
    b"",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
)
PAUSES = (0.01, 0.6, 2.5, 4.0, 6.0, 11.0, 31.0, 70.0)
LENGTHS = (0, 1, 125, 126, 127, 65535, 65536, 2**24 - 1, 2**31, 2**63, 2**64 - 1)


class Bytes:
    """The bytes of a case, read from the front; zeros follow the last one."""

    def __init__(self, data: bytes) -> None:
        self._data = data[:LONGEST]
        self._at = 0

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def number(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def some(self) -> bytes:
        """Up to 255 bytes, after their number."""
        size = self.number()
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def one_of(self, choices: Sequence[bytes]) -> bytes:
        return choices[self.number() % len(choices)]


@define
class Case:
    """What the client of a case does, step by step."""

    port: Port
    caller: Caller
    bytes: Bytes
    compressor: spdy.HeaderCompressor = field(factory=spdy.HeaderCompressor)
    last: bytes = b""

    async def step(self) -> None:
        do = self.bytes.number()
        match do % 12:
            case 0:
                self._send(self.bytes.some())
            case 1 | 2 | 3 | 4 | 5 | 6:
                self._send(SENDING[do % 12](self))
            case 7:
                self.caller.line.stuck = True
            case 8:
                self.caller.line.read_all()
            case 9:
                await self.port.advance(PAUSES[self.bytes.number() % len(PAUSES)])
            case 10:
                await self.port.settle()
            case 11:
                self._send(self._again())

    def _send(self, data: bytes) -> None:
        self.last = data
        self.caller.send(data)

    def _again(self) -> bytes:
        """The last bytes, with one changed, in part, or many times."""
        data, how, at = self.last, self.bytes.number(), self.bytes.number()
        if not data:
            return b""
        at %= len(data)
        if how % 4 == 0:
            return (data * (how % 64))[:_MOST_AGAIN]
        if how % 4 == 1:
            return data[:at]
        if how % 4 == 2:
            return data[at:]
        return data[:at] + bytes((data[at] ^ 1 << how // 4 % 8,)) + data[at + 1 :]

    # --- What it sends ------------------------------------------------------------------------------------------------------------------

    def request(self) -> bytes:
        """A request in any spelling."""
        take = self.bytes
        path = take.one_of(_PATHS)
        method, form = take.one_of(METHODS), take.number()
        if form & 1:
            path = take.one_of(PREFIXES) + path
        if form & 2:
            at = take.number() % (len(path) + 1)
            path = path[:at] + take.one_of(INSERTED) + path[at:]
        head = method + b" " + path + b" HTTP/1.1\r\nHost: n\r\n"
        head += take.one_of(HEADERS) + take.one_of(FRAMING) if form & 4 else b""
        head += b"Authorization: Bearer " + take.one_of(BEARERS) + b"\r\n" if form & 8 else b""
        head += b"X-%d: %b\r\n" % (form, b"y" * (take.number() << 9)) if form & 16 else b""
        head += take.some() if form & 32 else b""
        return head + b"\r\n"

    def upgrade(self) -> bytes:
        """The request for a session over SPDY."""
        take = self.bytes
        path, form = take.one_of(STREAMS), take.number()
        version = b"portforward.k8s.io" if b"portForward" in path else b"v4.channel.k8s.io"
        version = take.one_of(VERSIONS) if form & 1 else version
        head = b"POST " + path + b" HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        head += b"X-Stream-Protocol-Version: " + version + b"\r\n"
        return head + self._token(form) + b"\r\n"

    def websocket(self) -> bytes:
        """The request for a session over WebSocket; a token may be in the subprotocol."""
        take = self.bytes
        path, form = take.one_of(STREAMS), take.number()
        offered = [take.one_of(VERSIONS) if form & 1 else b"v4.channel.k8s.io"]
        if form & 2:
            offered.append(b"base64url.bearer.authorization.k8s.io." + base64.urlsafe_b64encode(take.one_of(BEARERS)).rstrip(b"="))
        head = b"GET " + path + b" HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        head += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: " + b", ".join(offered) + b"\r\n"
        return head + self._token(form) + b"\r\n"

    def _token(self, form: int) -> bytes:
        return b"Authorization: Bearer " + self.bytes.one_of(BEARERS) + b"\r\n" if form & 128 else b""

    def stream(self) -> bytes:
        """A frame of SPDY that opens a stream, or carries headers."""
        take = self.bytes
        number, form = take.number(), take.number()
        headers: Mapping[str, str] = (
            {"streamtype": KINDS[form % 8], "port": str(take.number() - 1)} if form & 8 else {"streamtype": KINDS[form % 8]}
        )
        if form & 16:
            headers = {**headers, "requestid": str(take.number() % 4)}
        if form & 32:
            headers = {**headers, "port": "9" * (take.number() << 8)}
        block = self.compressor.compress(headers)
        if form & 64:
            return spdy.control_frame(spdy.HEADERS, struct.pack(">I", number) + block, flags=form >> 7)
        return syn_stream(number, block, flags=take.number() & 3 if form & 128 else 0)

    def frame(self) -> bytes:
        """Any other frame of SPDY."""
        take = self.bytes
        number, form = take.number(), take.number()
        match form % 8:
            case 0 | 1 | 2:
                return data_frame(number, take.some(), fin=bool(form & 8))
            case 3:
                return spdy.rst_stream(number, form >> 4)
            case 4:
                return spdy.ping(number)
            case 5:
                return spdy.goaway(number)
            case 6:
                return spdy.control_frame(form >> 3, take.some(), flags=number)
            case _:
                return struct.pack(">II", number, min(LENGTHS[form // 8 % len(LENGTHS)], 2**32 - 1)) + take.some()

    def message(self) -> bytes:
        """A frame of WebSocket; its length may be another one than it says, its mask missing."""
        take = self.bytes
        first, form = take.number(), take.number()
        if form & 1:
            first = 0x80 | (0x2, 0x1, 0x8, 0x9, 0xA, 0x2, 0x2, 0x2)[first % 8]
        data = bytes((take.number() % 6,)) + take.some()
        size = LENGTHS[form // 16 % len(LENGTHS)] if form & 8 else len(data)
        masked = 0 if form & 4 else 0x80
        if size < 126:
            head = struct.pack(">BB", first, masked | size)
        elif size < 65536:
            head = struct.pack(">BBH", first, masked | 126, size)
        else:
            head = struct.pack(">BBQ", first, masked | 127, size)
        return head + (b"\0\0\0\0" if masked else b"") + data


_PATHS = tuple(path.encode() for path in PATHS)
SENDING: Mapping[int, Callable[[Case], bytes]] = {
    1: Case.request,
    2: Case.upgrade,
    3: Case.websocket,
    4: Case.stream,
    5: Case.frame,
    6: Case.message,
}


async def play(port: Port, data: bytes) -> None:
    """Plays a case to the end of its client, and judges what it has left. Raises AssertionError."""
    take = Bytes(data)
    caller = port.connect(CERTIFICATES[take.number() % len(CERTIFICATES)])
    case = Case(port, caller, take)
    for _ in range(_AHEAD):
        if not take.left:
            break
        await case.step()
    await port.settle()
    caller.leave()
    await port.check()
