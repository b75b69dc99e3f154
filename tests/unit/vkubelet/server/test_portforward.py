"""Ports and pairs of streams, as clients of all ages name them."""

from __future__ import annotations

import errno
from typing import Any, cast

import pytest
from aiohttp import web
from attrs import define, field

from vkubelet.errors import NoSuchPod, PodRejected
from vkubelet.server.portforward import Forwarded, Pair, described, kind_of, parse_port, port_of, ports_asked_for, request_id_of, take
from vkubelet.server.spdy import StreamReset


@define
class Stream:
    """As far as sorting looks at one."""

    id: int
    headers: dict[str, str]
    written: list[bytes] = field(factory=list)
    was_reset: bool = False
    closed: bool = False

    async def read(self) -> bytes:
        if self.was_reset:
            raise StreamReset("reset")
        return b"data"

    async def write(self, data: bytes) -> None:
        if self.was_reset:
            raise StreamReset("reset")
        self.written.append(data)

    async def close(self) -> None:
        self.closed = True

    def discard(self) -> None:
        pass

    def reset(self) -> None:
        self.was_reset = True


def stream(number: int, kind: str = "data", port: str = "80", **headers: str) -> Any:
    return Stream(number, {"streamtype": kind, "port": port, **headers})


@pytest.mark.parametrize(("text", "port"), [("1", 1), ("80", 80), ("65535", 65535), ("0080", 80)])
def test_ports(text: str, port: int) -> None:
    assert parse_port(text) == port


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x", 'unable to parse "x" as a port: strconv.ParseUint: parsing "x": invalid syntax'),
        ("-1", 'unable to parse "-1" as a port: strconv.ParseUint: parsing "-1": invalid syntax'),
        ("", 'unable to parse "" as a port: strconv.ParseUint: parsing "": invalid syntax'),
        ("\u0661", 'unable to parse "\u0661" as a port: strconv.ParseUint: parsing "\u0661": invalid syntax'),
        ("65536", 'unable to parse "65536" as a port: strconv.ParseUint: parsing "65536": value out of range'),
        ("9" * 5000, "value out of range"),
        ("0", 'port "0" must be > 0'),
    ],
)
def test_what_is_no_port(text: str, complaint: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_port(text)
    assert str(error.value).endswith(complaint)


@pytest.mark.parametrize(
    ("values", "ports"), [(["1"], [1]), (["1,2"], [1, 2]), (["1", "2"], [1, 2]), (["1,2", "3"], [1, 2, 3]), (["1", "1"], [1, 1])]
)
def test_ports_of_a_query(values: list[str], ports: list[int]) -> None:
    assert ports_asked_for(values) == ports


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], 'query parameter "port" is required'),
        ([""], 'query parameter "port" is required'),
        (["1,"], 'unable to parse "" as a port: strconv.ParseUint: parsing "": invalid syntax'),
        (["1"] * 101, "at most 100 ports can be forwarded over one connection"),
    ],
)
def test_a_query_without_good_ports(values: list[str], text: str) -> None:
    with pytest.raises(web.HTTPBadRequest) as error:
        ports_asked_for(values)
    assert error.value.text == text


def test_headers_of_a_stream() -> None:
    assert port_of({"port": "80"}) == 80
    assert kind_of({"streamtype": "error"}) == "error"
    for wrong in ({}, {"port": ""}, {"port": "x"}):
        with pytest.raises(ValueError, match="port"):
            port_of(wrong)
    for wrong in ({}, {"streamtype": ""}, {"streamtype": "stdin"}):
        with pytest.raises(ValueError, match="streamType|stream type"):
            kind_of(wrong)


def test_without_a_request_id_the_pair_is_known_by_its_numbers() -> None:
    assert request_id_of({}, "error", 5) == request_id_of({}, "data", 7) == "5"
    assert request_id_of({"requestid": "9"}, "data", 7) == "9"


async def test_the_first_stream_makes_a_pair_and_the_second_completes_it() -> None:
    pairs: dict[str, Pair] = {}
    pair = await take(stream(3, "data", requestid="0"), pairs)
    assert pair is not None and pair.port == 80 and not pair.complete.is_set()
    assert await take(stream(1, "error", requestid="0"), pairs) is None
    assert pair.complete.is_set()
    other = await take(stream(5, "error", requestid="1"), pairs)
    assert other is not None and other is not pair


async def test_what_is_not_understood_is_refused_and_a_second_of_a_kind_told() -> None:
    pairs: dict[str, Pair] = {}
    for wrong in (stream(1, port="0"), stream(3, "stdin")):
        assert await take(wrong, pairs) is None
        assert wrong.was_reset
    error, again = stream(5, "error", requestid="7"), stream(7, "error", requestid="7")
    await take(error, pairs)
    await take(again, pairs)
    assert again.was_reset and not error.was_reset
    assert error.written == [b"error processing stream for request 7: error stream already assigned"]


async def test_a_client_that_gives_up_shows_as_a_reset_connection_unless_all_was_said() -> None:
    lost = stream(1)
    connection = Forwarded(cast(Any, lost))
    assert await connection.read() == b"data"
    lost.was_reset = True
    for call in (connection.read(), connection.write(b"x")):
        with pytest.raises(ConnectionResetError):
            await call
    assert connection.given_up
    finished = stream(3)
    connection = Forwarded(cast(Any, finished))
    await connection.close()
    finished.was_reset = True
    assert await connection.read() == b""
    assert finished.closed and not connection.given_up


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.7', 80)"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 80)"), "connection failed"),
        (NoSuchPod("it went away"), "it went away"),
        (PodRejected("Secret", "insides"), "internal error"),
        (NotImplementedError("insides"), "not implemented by the provider of this node"),
    ],
)
def test_errors_in_the_words_of_the_system_or_the_providers_own(problem: Exception, text: str) -> None:
    assert described(problem) == text
