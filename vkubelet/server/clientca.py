"""The client CA that verifies client certificates, from a file or from the ConfigMap that the cluster publishes for this purpose.

Invariant: a bundle that cannot be read changes nothing; the last valid CA stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from attrs import define, field

from vkubelet.api.objects import Key
from vkubelet.api.shapes import Json
from vkubelet.client.resources import CONFIGMAPS
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.errors import SettingsError, VKubeletError
from vkubelet.logformat import bind
from vkubelet.server.certificates import read_file
from vkubelet.server.settings import ServerSettings

log = logging.getLogger(__name__)

PUBLISHED = Key("kube-system", "extension-apiserver-authentication")
"""ConfigMap in which kube-apiserver publishes the bundle of `--client-ca-file`; the Role extension-apiserver-authentication-reader
allows reading it."""

_FILE_EVERY, _CLUSTER_EVERY, _UNKNOWN_EVERY = 10.0, 60.0, 5.0


@define
class ClientCa:
    """Watch of the client CA; calls `trust` with the PEM bundle, and again whenever it changes."""

    settings: ServerSettings
    client: Client
    clock: Clock
    trust: Callable[[str], None]
    tried: asyncio.Event = field(factory=asyncio.Event)
    """Set after the first attempt, whatever its result: before it, callers with a certificate would be rejected."""
    _known: str = ""

    def load_file(self) -> None:
        """Trusts the file of the settings, if there is one. Raises SettingsError."""
        if self.settings.client_ca_file:
            self._accept(self._read_file())

    async def run(self) -> None:
        """Reads the bundle periodically, until cancelled."""
        from_file = bool(self.settings.client_ca_file)
        told = ""
        while True:
            try:
                self._accept(self._read_file() if from_file else await self._published())
                told = ""
            except VKubeletError as error:
                if str(error) != told:
                    with bind(error=str(error)):
                        log.warning("client CA not read")
                told = str(error)
            self.tried.set()
            await self.clock.sleep(_UNKNOWN_EVERY if not self._known else _FILE_EVERY if from_file else _CLUSTER_EVERY)

    def _accept(self, bundle: str) -> None:
        if bundle == self._known:
            return
        self.trust(bundle)
        if self._known:
            log.info("client CA reloaded")
        self._known = bundle

    def _read_file(self) -> str:
        try:
            return read_file(Path(self.settings.client_ca_file), "server.client_ca_file").decode()
        except UnicodeDecodeError as error:
            raise SettingsError("server.client_ca_file", "is not a bundle of PEM certificates") from error

    async def _published(self) -> str:
        found: Json = (await self.client.get(CONFIGMAPS, PUBLISHED)).body
        bundle = (found.get("data") or {}).get("client-ca-file", "")
        if not bundle:
            raise SettingsError("server.client_ca_file", "must be set, as the cluster publishes no client CA")
        return str(bundle)
