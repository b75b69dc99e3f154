"""The `oidc` auth provider of older kubeconfigs: an ID token, renewed with a refresh token.

Invariant: the token endpoint is only contacted over verified TLS; nothing is written back to the kubeconfig.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import aiohttp
from attrs import define, field

from vkubelet.client.credentials import token_expiry
from vkubelet.client.tls import ClientCertificate, Pem, TlsSource
from vkubelet.clock import Clock
from vkubelet.errors import Unauthorized

_EARLY = timedelta(seconds=30)


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

    def forget(self, header: str) -> bool:
        if self.refresh_token and header == f"Bearer {self.id_token}":
            self.id_token = ""
        return bool(self.refresh_token)

    async def _renew(self) -> None:
        if not self.refresh_token:
            raise Unauthorized("authenticate", "the OIDC token of the kubeconfig has expired and there is no refresh token; log in again")
        # Imported late: this package costs 63 MiB.
        from kubernetes_asyncio.config.config_exception import ConfigException
        from kubernetes_asyncio.config.openid import OpenIDRequestor

        context = TlsSource(self.authority).build()
        try:
            answer = await OpenIDRequestor(self.client_id, self.client_secret, self.issuer, context).refresh_token(self.refresh_token)
        except (ConfigException, aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unauthorized("authenticate", f"the OIDC issuer {self.issuer} did not renew the token") from error
        self.id_token = str(answer.get("id_token") or "")
        self.refresh_token = str(answer.get("refresh_token") or self.refresh_token)
        if not self.id_token:
            raise Unauthorized("authenticate", f"the OIDC issuer {self.issuer} answered without an id_token")
