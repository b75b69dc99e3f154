"""The token of a worker that is a member of a hub with KubeFleet's API: from a file, a Secret of the worker, or a token provider.

Invariant: a token that was read is used until the hub refuses it, however long the Secret is missing meanwhile.
"""

from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Final

from fleet.agent.agent_settings import AgentSettings
from vkubelet.api.objects import Key
from vkubelet.client.credentials import Credentials, TokenFile, token_expiry
from vkubelet.client.rest import Client
from vkubelet.client.tls import ClientCertificate
from vkubelet.clock import Clock
from vkubelet.control.backoff import Backoff
from vkubelet.control.certificates import PairSecret
from vkubelet.errors import SettingsError, Unauthorized, VKubeletError

TOKEN: Final = "token"
PROVIDERS: Final = "fleet.token_providers"
"""Entry points of callables from the name of a cluster to its `vkubelet.client.credentials.Credentials`."""
_ASSUMED_LIFE: Final = timedelta(hours=24)
_RETRY_FIRST, _RETRY_LIMIT = 30.0, 300.0


def token_source(settings: AgentSettings, worker: Client) -> Credentials:
    """Returns the credentials that the settings choose; a provider is called with the name of the cluster. Raises SettingsError."""
    token = settings.token
    if token.file:
        return TokenFile(Path(token.file))
    if token.secret:
        return SecretToken(worker, Key(settings.namespace, token.secret))
    for entry in metadata.entry_points(group=PROVIDERS, name=token.provider):
        made: Credentials = entry.load()(settings.cluster)
        return made
    known = ", ".join(sorted(each.name for each in metadata.entry_points(group=PROVIDERS))) or "none"
    raise SettingsError("agent.token.provider", f"{token.provider} is not installed; installed are: {known}")


class SecretToken:
    """Credentials from the key `token` of a Secret, which is read again at half of the token's validity, and after a 401."""

    def __init__(self, worker: Client, key: Key) -> None:
        self._secret = PairSecret(worker, key)
        self._header = ""
        self._problem = ""
        self._until: float | None = None
        self._backoff = Backoff(first=_RETRY_FIRST, limit=_RETRY_LIMIT)

    async def authorization(self, clock: Clock) -> str:
        if self._until is None or clock.monotonic() >= self._until:
            await self._read(clock)
        if not self._header:
            raise Unauthorized("authenticate", self._problem)
        return self._header

    async def _read(self, clock: Clock) -> None:
        try:
            token = (await self._secret.load()).get(TOKEN, b"").decode("ascii", "replace").strip()
            problem = "" if token else f"Secret {self._secret.key} does not exist, or has no key {TOKEN}; create it in the worker"
        except VKubeletError as error:
            token, problem = "", f"cannot read Secret {self._secret.key} in the worker: {error}"
        if not token:
            self._problem, self._until = problem, clock.monotonic() + self._backoff.next()
            return
        self._backoff.reset()
        life = (token_expiry(token) or clock.now() + _ASSUMED_LIFE) - clock.now()
        self._header, self._until = f"Bearer {token}", clock.monotonic() + max(life.total_seconds() / 2, _RETRY_FIRST)

    def certificate(self) -> ClientCertificate | None:
        return None

    def expires(self) -> datetime | None:
        return None

    def invalidate(self, header: str) -> bool:
        if header == self._header:
            self._until = None
        return True
