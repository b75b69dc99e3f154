"""Where the HTTP of a connection ends."""

from __future__ import annotations

import pytest

from vkubelet.server.takeover import LONGEST_HEAD, Heads

UPGRADE = b"POST /exec/ns/pod/c?command=ls HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
PLAIN = b"GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n"
BODY = b"POST /run HTTP/1.1\r\ncontent-LENGTH:  %d \r\n\r\n%s" % (len(UPGRADE), UPGRADE)
SPDY = b"\x80\x03\0\x01\r\n\r\nGET / HTTP/1.1\r\n\r\n"


def head(*lines: bytes) -> bytes:
    return b"\r\n".join((b"GET /exec HTTP/1.1", b"Host: n", *lines)) + b"\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("before", [b"", PLAIN, PLAIN + PLAIN, BODY, BODY + PLAIN + BODY], ids=["first", "second", "third", "body", "many"])
def test_bytes_behind_the_upgrade_are_not_https(before: bytes, size: int) -> None:
    heads, http, sent = Heads(), b"", before + UPGRADE + SPDY
    for at in range(0, len(sent), size):
        part = sent[at : at + size]
        taken = heads.feed(part)
        http += part[:taken]
        if heads.upgrade:
            assert sent == http + part[taken:] + sent[at + size :]
            break
    assert (http, heads.upgrade, heads.opaque) == (before + UPGRADE, True, False)


@pytest.mark.parametrize(
    "lines",
    [
        (b"connection: keep-alive, Upgrade", b"upgrade:SPDY/3.1"),
        (b"CONNECTION:upgrade", b"UPGRADE: \t spdy/3.1  "),
        (b"Connection: Upgrade", b"Upgrade: SPDY/3.1", b"Content-Length: 000"),
    ],
)
def test_upgrade_is_recognised_however_it_is_written(lines: tuple[bytes, ...]) -> None:
    heads = Heads()
    assert heads.feed(head(*lines) + b"rest") == len(head(*lines))
    assert heads.upgrade


@pytest.mark.parametrize(
    ("lines", "opaque"),
    [
        ((b"Connection: Upgrade", b"Upgrade: websocket"), True),
        ((b"Upgrade: SPDY/3.1",), True),
        ((b"Connection: Upgrade", b"Upgrade: SPDY/3.1", b"Transfer-Encoding: chunked"), True),
        ((b"Transfer-Encoding: chunked",), True),
        ((b"X-Upgrade: SPDY/3.1", b"Connection: Upgrade"), False),
        ((b"Connection: close",), False),
    ],
)
def test_other_requests_are_https_alone(lines: tuple[bytes, ...], opaque: bool) -> None:
    heads, sent = Heads(), head(*lines) + SPDY
    assert heads.feed(sent) == len(sent)
    assert (heads.upgrade, heads.opaque) == (False, opaque)


def test_upgrade_with_a_body_is_none() -> None:
    heads = Heads()
    sent = head(b"Connection: Upgrade", b"Upgrade: SPDY/3.1", b"Content-Length: 5") + b"hello" + SPDY
    assert heads.feed(sent) == len(sent)
    assert not heads.upgrade


def test_connect_is_no_business_of_ours() -> None:
    heads = Heads()
    heads.feed(b"CONNECT host:1 HTTP/1.1\r\n\r\n" + UPGRADE)
    assert heads.opaque


def test_endless_head_is_not_kept() -> None:
    heads, part, fed = Heads(), b"x" * 65536, 0
    while not heads.too_long:
        assert heads.feed(part) == len(part)
        fed += len(part)
    assert LONGEST_HEAD < fed <= LONGEST_HEAD + len(part)
    assert heads.feed(UPGRADE + SPDY) == len(UPGRADE + SPDY)


def test_head_of_more_bytes_than_allowed_is_too_long_also_when_it_comes_at_once() -> None:
    long, short = head(b"X: " + b"y" * 200), head(b"X: y")
    heads = Heads(len(short))
    heads.feed(short + short)
    assert (heads.too_long, heads.complete, heads.begun) == (False, 2, False)
    heads.feed(short[:5])
    assert heads.begun
    heads = Heads(len(long) - 1)
    heads.feed(short + long)
    assert (heads.too_long, heads.complete) == (True, 1)
