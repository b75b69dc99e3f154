"""The gRPC health check of a container: one call over a dedicated plain HTTP/2 connection.

Invariant: only the message is read. It exists exactly when the call succeeded, so headers and trailers need no decoding.

Sources: RFC 9113, RFC 7541 (literals without indexing), gRPC over HTTP/2, grpc/health/v1.
"""

import asyncio
import struct
from asyncio import StreamReader, StreamWriter
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS, _PADDED = 1, 1, 4, 8
_SERVING: Final = 1
_LARGEST = 64 * 1024
_PATH: Final = "/grpc.health.v1.Health/Check"


class Refused(Exception):
    """The server responded without a message: it does not know the service, or supports no health checks at all."""


async def check(host: str, port: int, service: str) -> bool:
    """Checks whether the service is serving. Raises OSError, EOFError, Refused; the caller limits the time."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        around = f"[{host}]" if ":" in host else host
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _call(f"{around}:{port}", service))
        message = await _answer(reader, writer)
    finally:
        writer.close()
    return status_of(message) == _SERVING


def _call(authority: str, service: str) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": _PATH,
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
        "user-agent": "kube-probe/1.34",
    }
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers.items())
    request = b"\x0a" + _varint(len(service.encode())) + service.encode() if service else b""
    data = b"\x00" + struct.pack(">I", len(request)) + request
    return _frame(_HEADERS, _END_HEADERS, 1, block) + _frame(_DATA, _END_STREAM, 1, data)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _text(text: str) -> bytes:
    """Encodes an HPACK string without Huffman coding; ours are shorter than 127 bytes but for unusual names, which are cut."""
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    return b"\x7f" + _varint(len(data) - 127) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


async def _answer(reader: StreamReader, writer: StreamWriter) -> bytes:
    """Reads the one message of the response."""
    body = b""
    while True:
        size, kind, flags, stream = _head(await reader.readexactly(9))
        if size > _LARGEST:
            raise Refused("the response is not a HealthCheckResponse")
        payload = await reader.readexactly(size)
        if kind == _SETTINGS and not flags & _ACK:
            writer.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            writer.write(_frame(_PING, _ACK, 0, payload))
        elif kind in (_RST, _GOAWAY) and (stream == 1 or kind == _GOAWAY):
            raise Refused("the server closed the call")
        elif stream == 1 and kind == _DATA:
            body += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
        if len(body) >= 5 and len(body) >= 5 + struct.unpack(">I", body[1:5])[0]:
            return body[5 : 5 + struct.unpack(">I", body[1:5])[0]]
        if stream == 1 and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            raise Refused("the server does not implement the service, or does not know its health")


def _head(head: bytes) -> tuple[int, int, int, int]:
    return int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF


def status_of(message: bytes) -> int:
    """Returns the field `status` of a HealthCheckResponse: 0 unknown, 1 serving, 2 not serving, 3 no such service."""
    return message[1] if len(message) >= 2 and message[0] == 0x08 else 0
