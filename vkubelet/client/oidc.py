"""The `oidc` auth provider of older kubeconfigs: an ID token, renewed with a refresh token.

Invariant: secrets are sent over verified TLS only; nothing is written back to the kubeconfig.
"""

import asyncio
import base64
import ssl
from datetime import datetime, timedelta
from typing import Final

import aiohttp
from attrs import define, field

from vkubelet.api.codec import decode_json
from vkubelet.api.objects import Json
from vkubelet.client.credentials import token_expiry
from vkubelet.client.tls import ClientCertificate, Pem, TlsSource
from vkubelet.clock import Clock
from vkubelet.errors import Unauthorized

_EARLY: Final = timedelta(seconds=30)
_TIMEOUT: Final = aiohttp.ClientTimeout(total=60)


@define(kw_only=True, eq=False)
class Oidc:
    """A cached ID token; a new one is requested shortly before it expires, or after a 401."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    id_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    authority: Pem | None = None
    _lock: asyncio.Lock = field(factory=asyncio.Lock, init=False, repr=False)

    async def authorization(self, clock: Clock) -> str:
        async with self._lock:
            expiry = token_expiry(self.id_token)
            if not self.id_token or (expiry is not None and clock.now() >= expiry - _EARLY):
                await self._renew()
            return f"Bearer {self.id_token}"

    def certificate(self) -> ClientCertificate | None:
        return None

    def expires(self) -> datetime | None:
        return None if self.refresh_token else token_expiry(self.id_token)

    def invalidate(self, header: str) -> bool:
        if self.refresh_token and header == f"Bearer {self.id_token}":
            self.id_token = ""
        return bool(self.refresh_token)

    async def _renew(self) -> None:
        """Exchanges the refresh token for a new ID token (RFC 6749, section 6). Raises Unauthorized."""
        if not self.refresh_token:
            raise Unauthorized("authenticate", "the OIDC token of the kubeconfig has expired and there is no refresh token; log in again")
        try:
            answer = await self._exchange(TlsSource(self.authority).build())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Unauthorized("authenticate", f"the OIDC issuer {self.issuer} did not renew the token; log in again") from error
        self.id_token = str(answer.get("id_token") or "")
        self.refresh_token = str(answer.get("refresh_token") or self.refresh_token)
        if not self.id_token:
            raise Unauthorized("authenticate", f"the OIDC issuer {self.issuer} answered without an id_token; log in again")

    async def _exchange(self, context: ssl.SSLContext) -> Json:
        """Returns the answer of the token endpoint, which the issuer's discovery document names."""
        discovery = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        client = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        headers = {"Accept": "application/json", "Authorization": f"Basic {client}"}
        form = {"grant_type": "refresh_token", "refresh_token": self.refresh_token}
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, raise_for_status=True, trust_env=True) as session:
            async with session.get(_encrypted(discovery), headers={"Accept": "application/json"}) as response:
                endpoint = str(decode_json(await response.read()).get("token_endpoint") or "")
            # A redirection would take the secrets to where no one has checked the URL.
            async with session.post(_encrypted(endpoint), data=form, headers=headers, allow_redirects=False) as response:
                return decode_json(await response.read())


def _encrypted(url: str) -> str:
    """Returns `url`; raises ValueError unless it is an https URL."""
    if not url.startswith("https://"):
        raise ValueError(f"{url!r} is not an https URL")
    return url
