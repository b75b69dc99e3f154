"""An OIDC token is renewed at an issuer that listens on this machine; no cluster.

Invariant: the issuer checks every part of the requests, and answers as its flags say.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from attrs import define, field

from vkubelet.client.oidc import Oidc
from vkubelet.client.tls import Pem
from vkubelet.clock import SystemClock
from vkubelet.errors import Unauthorized
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.cluster.pki import Authority

BASIC = "Basic bWU6cHc="


@define
class Issuer:
    """Its discovery document and its token endpoint; `answer` is the body of the latter."""

    authority: bytes
    url: str = ""
    endpoint: str = ""
    answer: Any = field(factory=lambda: {"id_token": "new", "refresh_token": "next"})
    status: int = 200
    forms: list[dict[str, str]] = field(factory=list)

    async def discovery(self, request: web.Request) -> web.Response:
        return web.json_response({"issuer": self.url, "token_endpoint": self.endpoint or f"{self.url}/token"})

    async def token(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == BASIC
        self.forms.append({key: str(value) for key, value in (await request.post()).items()})
        if self.status in (307, 308):
            return web.Response(status=self.status, headers={"Location": f"{self.url}/token"})
        return web.json_response(self.answer, status=self.status)

    def credentials(self, **more: Any) -> Oidc:
        given = {"id_token": "", "refresh_token": "first", "authority": Pem("here", self.authority), **more}
        return Oidc(issuer=self.url, client_id="me", client_secret="pw", **given)


@pytest.fixture
async def issuer(tmp_path: Path) -> AsyncIterator[Issuer]:
    authority = Authority.create("authority", SystemClock())
    pair = authority.server("issuer", ["127.0.0.1"]).write(tmp_path, "issuer")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    served = Issuer(authority=authority.pair.certificate)
    app = web.Application()
    app.add_routes([web.get("/.well-known/openid-configuration", served.discovery), web.post("/token", served.token)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        served.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        yield served
    finally:
        await runner.cleanup()


async def test_token_is_renewed_with_the_latest_refresh_token(issuer: Issuer) -> None:
    one, clock = issuer.credentials(), ManualClock()
    assert await one.authorization(clock) == "Bearer new"
    assert await one.authorization(clock) == "Bearer new"
    assert issuer.forms == [{"grant_type": "refresh_token", "refresh_token": "first"}]
    issuer.answer = {"id_token": "newer"}
    assert one.invalidate("Bearer new")
    assert await one.authorization(clock) == "Bearer newer"
    assert one.invalidate("Bearer newer")
    await one.authorization(clock)
    assert [form["refresh_token"] for form in issuer.forms] == ["first", "next", "next"]


@pytest.mark.parametrize("status", [400, 401, 500, 307, 308])
async def test_refusal_or_redirection_is_unauthorized_and_not_quoted(issuer: Issuer, status: int) -> None:
    issuer.status, issuer.answer = status, {"error": "s3cret"}
    with pytest.raises(Unauthorized, match="did not renew the token") as caught:
        await issuer.credentials().authorization(ManualClock())
    assert "s3cret" not in str(caught.value) and len(issuer.forms) == 1


@pytest.mark.parametrize(("answer", "says"), [({}, "without an id_token"), (["id_token"], "did not renew the token")])
async def test_answer_without_a_token_is_unauthorized(issuer: Issuer, answer: Any, says: str) -> None:
    issuer.answer = answer
    with pytest.raises(Unauthorized, match=says):
        await issuer.credentials().authorization(ManualClock())


async def test_issuer_of_another_authority_gets_no_secret(issuer: Issuer) -> None:
    other = Authority.create("other", SystemClock()).pair.certificate
    for authority in (Pem("here", other), None):
        with pytest.raises(Unauthorized, match="did not renew the token"):
            await issuer.credentials(authority=authority).authorization(ManualClock())
    assert not issuer.forms


async def test_token_endpoint_without_tls_gets_no_secret(issuer: Issuer) -> None:
    issuer.endpoint = issuer.url.replace("https", "http") + "/token"
    with pytest.raises(Unauthorized, match="did not renew the token"):
        await issuer.credentials().authorization(ManualClock())
    assert not issuer.forms
