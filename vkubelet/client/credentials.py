"""Credentials for an API server: a fixed token, a token file, a credential plugin, or an OIDC token.

Invariant: their values are never logged, printed by `repr`, or put into an error.
"""

import asyncio
import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol, Self

from attrs import field, frozen

from vkubelet.api.codec import decode_json, encode_json
from vkubelet.api.objects import Json, JsonView
from vkubelet.client.tls import ClientCertificate
from vkubelet.clock import Clock, parse_rfc3339
from vkubelet.errors import Unauthorized

_REREAD_EVERY = 60.0
_PLUGIN_TIMEOUT = 60.0
_EARLY = timedelta(seconds=30)


class Credentials(Protocol):
    """Credentials that are read before every call; must be cheap when nothing changed."""

    async def authorization(self, clock: Clock) -> str:
        """Returns the value of the Authorization header, "" for none. Raises Unauthorized when it is not available."""
        ...

    def certificate(self) -> ClientCertificate | None:
        """Returns a client certificate that came with the credentials; valid after `authorization`."""
        ...

    def expires(self) -> datetime | None:
        """Returns when they expire; None for credentials that are renewed, and for those without an expiry."""
        ...

    def invalidate(self, header: str) -> bool:
        """Invalidates the credentials after `header` got a 401, unless they were fetched meanwhile. Returns False when that changes
        nothing."""
        ...


class Fixed:
    """A header that does not change; "" for connections without one, such as those with a client certificate."""

    def __init__(self, header: str = "") -> None:
        self._header = header

    @classmethod
    def basic(cls, user: str, password: str) -> Self:
        return cls("Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())

    async def authorization(self, clock: Clock) -> str:
        return self._header

    def certificate(self) -> ClientCertificate | None:
        return None

    def expires(self) -> datetime | None:
        return token_expiry(self._header.removeprefix("Bearer "))

    def invalidate(self, header: str) -> bool:
        return False


class TokenFile:
    """A bearer token in a file that is rotated; read at most once a minute (projected tokens are valid for ten minutes or more)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header = ""
        self._until: float | None = None

    async def authorization(self, clock: Clock) -> str:
        now = clock.monotonic()
        if self._until is None or now >= self._until:
            self._read()
            self._until = now + _REREAD_EVERY
        return self._header

    def _read(self) -> None:
        try:
            token = self.path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            if not self._header:
                raise Unauthorized(
                    "authenticate", f"cannot read the token file {self.path}; create it, or correct tokenFile in the kubeconfig"
                ) from error
            return  # the file is being replaced; the old token is still valid for a while
        self._header = f"Bearer {token}" if token else ""

    def certificate(self) -> ClientCertificate | None:
        return None

    def expires(self) -> datetime | None:
        return None

    def invalidate(self, header: str) -> bool:
        if header == self._header:
            self._until = None
        return True


@frozen(kw_only=True)
class PluginCommand:
    """Value of `user.exec` in a kubeconfig (client.authentication.k8s.io); `cluster` is what `provideClusterInfo` passes on."""

    api_version: str
    command: str
    args: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(factory=dict, repr=False)
    hint: str = ""
    cluster: JsonView | None = field(default=None, repr=False)


class Plugin:
    """Credentials from a program, cached until 30 s before they expire, or until a 401."""

    def __init__(self, command: PluginCommand) -> None:
        self.command = command
        self._lock = asyncio.Lock()
        self._header: str | None = None
        self._pair: ClientCertificate | None = None
        self._expires: datetime | None = None

    async def authorization(self, clock: Clock) -> str:
        async with self._lock:
            if self._header is None or (self._expires is not None and clock.now() >= self._expires - _EARLY):
                self._take(await self._run())
            assert self._header is not None
            return self._header

    def certificate(self) -> ClientCertificate | None:
        return self._pair

    def expires(self) -> datetime | None:
        return None

    def invalidate(self, header: str) -> bool:
        if header == self._header:
            self._header = None
        return True

    def _take(self, answer: Json) -> None:
        status = answer.get("status")
        if answer.get("apiVersion") != self.command.api_version or not isinstance(status, dict):
            raise self._failed(f"its output is not an ExecCredential of {self.command.api_version}; set the apiVersion that it prints")
        token, certificate, key = (str(status.get(k) or "") for k in ("token", "clientCertificateData", "clientKeyData"))
        if not token and not (certificate and key):
            raise self._failed("its ExecCredential has neither a token nor a client certificate with its key; log in with it")
        try:
            expires = parse_rfc3339(status["expirationTimestamp"]) if status.get("expirationTimestamp") else None
        except (ValueError, TypeError, AttributeError) as error:
            raise self._failed("the expirationTimestamp of its ExecCredential is not an RFC 3339 time") from error
        self._header = f"Bearer {token}" if token else ""
        self._pair = ClientCertificate(certificate.encode(), key.encode()) if certificate and key else None
        self._expires = expires

    async def _run(self) -> Json:
        spec: Json = {"interactive": False}
        if self.command.cluster is not None:
            spec["cluster"] = dict(self.command.cluster)
        info = {"apiVersion": self.command.api_version, "kind": "ExecCredential", "spec": spec}
        env = {**os.environ, **self.command.env, "KUBERNETES_EXEC_INFO": encode_json(info).decode()}
        try:
            process = await asyncio.create_subprocess_exec(
                self.command.command,
                *self.command.args,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise self._failed(f"it cannot be started: {error.strerror}. {self.command.hint}".rstrip()) from error
        return await self._answer(process)

    async def _answer(self, process: asyncio.subprocess.Process) -> Json:
        try:
            async with asyncio.timeout(_PLUGIN_TIMEOUT):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise self._failed(f"it did not end within {_PLUGIN_TIMEOUT:.0f} s; it must not wait for input") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise self._failed(f"it ended with exit code {process.returncode}; run it on a terminal to see why")
        try:
            return decode_json(output)
        except ValueError as error:
            raise self._failed("its output is not a JSON object") from error

    def _failed(self, why: str) -> Unauthorized:
        return Unauthorized("authenticate", f"credential plugin {self.command.command}: {why}")


def token_expiry(token: str) -> datetime | None:
    """Returns `exp` of a JWT, None when it has none or is no JWT; the API server judges such a token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = decode_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    expires = claims.get("exp")
    return datetime.fromtimestamp(expires, UTC) if isinstance(expires, int | float) else None
