"""Which protocol a client gets, and the kubelet's words for those that get none."""

from __future__ import annotations

import pytest
from aiohttp import web
from multidict import CIMultiDict

from vkubelet.server.upgrade import ACCEPTED_HEADER, spdy_protocol, wants_websocket, websocket_protocol

OURS = ("v4.channel.k8s.io", "v2.channel.k8s.io")


def offering(*lines: str) -> CIMultiDict[str]:
    return CIMultiDict([("x-stream-protocol-version", line) for line in lines])


@pytest.mark.parametrize(
    ("headers", "websocket"),
    [
        ({"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}, False),
        ({"Connection": "keep-alive, Upgrade", "Upgrade": "websocket"}, True),
        ({"Connection": "upgrade", "Upgrade": "WebSocket"}, True),
    ],
)
def test_the_upgrade_header_tells(headers: dict[str, str], *, websocket: bool) -> None:
    assert wants_websocket("GET", CIMultiDict(headers)) is websocket


@pytest.mark.parametrize(
    ("method", "headers", "status", "text"),
    [
        ("POST", {}, 400, "Upgrade request required"),
        ("POST", {"Upgrade": "SPDY/3.1"}, 400, "Upgrade request required"),
        ("POST", {"Connection": "Upgrade", "Upgrade": "h2c"}, 400, "unable to upgrade: missing upgrade headers in request"),
        ("POST", {"Connection": "Upgrade", "Upgrade": "websocket"}, 405, "bad method"),
    ],
)
def test_other_requests_are_refused(method: str, headers: dict[str, str], status: int, text: str) -> None:
    with pytest.raises(web.HTTPException) as error:
        wants_websocket(method, CIMultiDict(headers))
    assert (error.value.status, error.value.text) == (status, text)


@pytest.mark.parametrize(
    ("lines", "chosen"),
    [
        (["v4.channel.k8s.io"], "v4.channel.k8s.io"),
        (["v5.channel.k8s.io", "v4.channel.k8s.io", "v2.channel.k8s.io"], "v4.channel.k8s.io"),
        (["v2.channel.k8s.io", "v4.channel.k8s.io"], "v2.channel.k8s.io"),
        (["v5.channel.k8s.io, v2.channel.k8s.io,v4.channel.k8s.io"], "v2.channel.k8s.io"),
    ],
)
def test_the_clients_first_choice_that_is_ours_wins(lines: list[str], chosen: str) -> None:
    assert spdy_protocol(offering(*lines), OURS) == chosen


def test_nothing_in_common_is_told_with_what_is_ours() -> None:
    with pytest.raises(web.HTTPForbidden) as error:
        spdy_protocol(offering("v9", "v8"), OURS)
    assert error.value.text == (
        "unable to upgrade: unable to negotiate protocol: client supports [v9 v8], server accepts [v4.channel.k8s.io v2.channel.k8s.io]"
    )
    assert error.value.headers.getall(ACCEPTED_HEADER) == list(OURS)


@pytest.mark.parametrize("lines", [[], [""], [" , "]])
def test_no_version_is_a_bad_request(lines: list[str]) -> None:
    with pytest.raises(web.HTTPBadRequest) as error:
        spdy_protocol(offering(*lines), OURS)
    assert error.value.text == "unable to upgrade: X-Stream-Protocol-Version is required"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (None, ""),
        ("v4.channel.k8s.io", "v4.channel.k8s.io"),
        ("nope, v2.channel.k8s.io", "v2.channel.k8s.io"),
        ("base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io", "v4.channel.k8s.io"),
    ],
)
def test_subprotocol_of_a_websocket(offered: str | None, chosen: str) -> None:
    headers = CIMultiDict({"Sec-WebSocket-Protocol": offered} if offered is not None else {})
    assert websocket_protocol(headers, OURS) == chosen


def test_a_refusal_never_repeats_a_token() -> None:
    with pytest.raises(web.HTTPForbidden) as error:
        websocket_protocol(CIMultiDict({"Sec-WebSocket-Protocol": "base64url.bearer.authorization.k8s.io.c2VjcmV0"}), OURS)
    assert "c2VjcmV0" not in str(error.value.text)
