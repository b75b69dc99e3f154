"""Serving certificate and its rotation (requested from the cluster, read from files, or self-signed); and the client CA.

Invariant: a certificate is replaced while connections continue, and a failure to replace it keeps the old one.
"""

import asyncio
import logging
import random
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from attrs import define, field

from vkubelet.api.objects import CONFIGMAPS, Json, Key
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control import certificates
from vkubelet.errors import SettingsError, VKubeletError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.server.settings import ServerSettings

log = logging.getLogger(__name__)

Install = Callable[[certificates.Pair], None]

_FILES_EVERY = 10.0
_RETRY_FIRST, _RETRY_LAST = 2.0, 32.0
_LONGEST_SLEEP = 3600.0
_SETTLE = 2.0
_FILE = "kubelet-server-current.pem"
SIGNER = "kubernetes.io/kubelet-serving"
USAGES = ("digital signature", "server auth")
PUBLISHED = Key("kube-system", "extension-apiserver-authentication")
"""ConfigMap in which kube-apiserver publishes the bundle of `--client-ca-file`; the Role extension-apiserver-authentication-reader
allows reading it."""
_FILE_EVERY, _CLUSTER_EVERY, _UNKNOWN_EVERY = 10.0, 60.0, 5.0


def kubelet_name(node: str) -> certificates.Name:
    """Returns the only subject that the signer kubelet-serving accepts for a node; beside it, it requires at least one address."""
    return certificates.Name(f"system:node:{node}", ("system:nodes",))


@define(kw_only=True)
class Subject:
    """Subject of the certificate, and the IP addresses and DNS names for which it must be valid; owner "" is the process."""

    name: str
    is_node: bool = True
    """Whether it is that of a kubelet, as the signer kubelet-serving requires."""
    changed: asyncio.Event = field(factory=asyncio.Event, init=False)
    _wanted: dict[str, tuple[str, ...]] = field(factory=dict, init=False)

    @property
    def as_name(self) -> certificates.Name:
        """The subject as a certificate names it."""
        return kubelet_name(self.name) if self.is_node else certificates.Name(self.name)

    def want(self, owner: str, addresses: Collection[str]) -> None:
        """Sets the addresses of `owner`; an address that no certificate can contain is ignored."""
        usable = tuple(address for address in addresses if certificates.can_be_named(address))
        if usable != self._wanted.get(owner, ()):
            self._wanted[owner] = usable
            self.changed.set()

    def drop(self, owner: str) -> None:
        """Drops an owner: its addresses need not be in the next certificate."""
        self._wanted.pop(owner, None)

    @property
    def all(self) -> tuple[str, ...]:
        """Each address once, those of the process first."""
        return tuple(dict.fromkeys((*self._wanted.get("", ()), *(address for wanted in self._wanted.values() for address in wanted))))


@define(kw_only=True)
class Certificates:
    """Installation of the certificate that the settings choose, and of its successors; `share` draws after which part of its validity
    one is replaced."""

    settings: ServerSettings
    client: Client
    clock: Clock
    install: Install
    metrics: Metrics | None = None
    share: Callable[[], float] = field(default=lambda: random.uniform(0.7, 0.9))
    _from_files: certificates.Pair | None = field(default=None, init=False)

    def prepare(self) -> None:
        """Installs the certificate files, or creates the certificate directory. Raises SettingsError."""
        match self.settings.certificate:
            case "files":
                self.load_files()
            case "csr" if self.settings.certificate_directory:
                make_directory(Path(self.settings.certificate_directory), "server.certificate_directory")

    async def run(self, subject: Subject) -> None:
        """Keeps a valid certificate installed, until cancelled."""
        match self.settings.certificate:
            case "files":
                await self._follow_files()
            case "self-signed":
                await self._sign_here(subject)
            case "csr":
                await self._request(subject)

    def _serve(self, pair: certificates.Pair) -> None:
        """Installs a certificate. Raises SettingsError when it cannot be used; then the old one stays."""
        self.install(pair)
        if self.metrics is not None:
            end = certificates.end_of(pair)
            self.metrics.certificate_ttl.set_function(lambda: (end - self.clock.now()).total_seconds())

    # --- From files ------------------------------------------------------------------------------------------------------------------

    def _read_files(self) -> certificates.Pair:
        certificate, key = (Path(name) for name in (self.settings.certificate_file, self.settings.key_file))
        return certificates.Pair(read_file(certificate, "server.certificate_file"), read_file(key, "server.key_file"))

    def load_files(self) -> bool:
        """Installs the certificate files; returns whether they differ from the installed ones. Raises SettingsError."""
        found = self._read_files()
        if found == self._from_files:
            return False
        self._serve(found)
        self._from_files = found
        return True

    async def _follow_files(self) -> None:
        while True:
            try:
                if self.load_files():
                    log.info("serving certificate reloaded")
            except SettingsError as error:
                # A replacement is only half written, or the new files are invalid: the old certificate stays.
                with bind(error=str(error)):
                    log.warning("serving certificate not reloaded")
            await self.clock.sleep(_FILES_EVERY)

    # --- Self-signed -----------------------------------------------------------------------------------------------------------------

    async def _sign_here(self, subject: Subject) -> None:
        while True:
            pair = certificates.self_signed(subject.as_name, subject.all, now=self.clock.now())
            self._serve(pair)
            await self._until_due(pair, subject)

    async def _until_due(self, pair: certificates.Pair, subject: Subject) -> None:
        """Waits until the certificate is old, or does not contain all addresses any more.

        The wall clock decides and is checked hourly, so that a machine that was suspended does not miss the rotation.
        """
        due = certificates.rotation_due(pair.certificate, self.share())
        while True:
            left = (due - self.clock.now()).total_seconds()
            if left <= 0 or not certificates.covers(pair, subject.all):
                return
            subject.changed.clear()
            if await self._changed_within(min(left, _LONGEST_SLEEP), subject):
                # Nodes come in groups; one certificate covers all of them.
                await self.clock.sleep(_SETTLE)

    async def _changed_within(self, seconds: float, subject: Subject) -> bool:
        async with asyncio.TaskGroup() as group:
            alarm = group.create_task(self._ring(seconds, subject))
            await subject.changed.wait()
            alarm.cancel()
        return alarm.cancelled()

    async def _ring(self, seconds: float, subject: Subject) -> None:
        await self.clock.sleep(seconds)
        subject.changed.set()

    # --- Signed by the cluster -------------------------------------------------------------------------------------------------------

    async def _request(self, subject: Subject) -> None:
        pair = self._kept(subject)
        if pair is None:
            if self.settings.self_signed_until_issued:
                self._serve(certificates.self_signed(subject.as_name, subject.all, now=self.clock.now()))
        else:
            self._serve(pair)
        while True:
            if pair is not None:
                await self._until_due(pair, subject)
            old, pair = pair, await self._until_issued(subject)
            self._serve(pair)
            self._keep(pair)
            if old is not None and self.metrics is not None:
                self.metrics.certificate_lived.observe((self.clock.now() - certificates.begin_of(old)).total_seconds())
            log.info("serving certificate issued")

    async def _until_issued(self, subject: Subject) -> certificates.Pair:
        delay = _RETRY_FIRST
        while True:
            try:
                return await self._issue(subject)
            except VKubeletError as error:
                if self.metrics is not None:
                    self.metrics.certificate_errors.inc()
                with bind(error=str(error)):
                    log.warning("serving certificate not issued yet")
            await self.clock.sleep(delay)
            delay = min(delay * 2, _RETRY_LAST)

    async def _issue(self, subject: Subject) -> certificates.Pair:
        """Requests one certificate. Raises ApiError, and Unavailable when the request is denied or not signed within 15 minutes."""
        addresses = subject.all
        request = certificates.Request(name=subject.as_name, signer=SIGNER, usages=USAGES, addresses=addresses)
        approval = "approved by the kubelet server that asks for it" if self.settings.approve_own_csr else ""
        issuer = certificates.Issuer(client=self.client, clock=self.clock, approval=approval, waits=_report_waiting)
        return await issuer.issue(request, still_wanted=lambda: set(subject.all) <= set(addresses))

    # --- Stored for the next start ---------------------------------------------------------------------------------------------------

    @property
    def _store(self) -> certificates.PairFile | None:
        directory = self.settings.certificate_directory
        return certificates.PairFile(Path(directory) / _FILE) if directory else None

    def _kept(self, subject: Subject) -> certificates.Pair | None:
        pair = self._store.load() if self._store else None
        return pair if pair and certificates.serves(pair, subject.all, now=self.clock.now()) else None

    def _keep(self, pair: certificates.Pair) -> None:
        try:
            if self._store:
                self._store.save(pair)
        except OSError as error:
            with bind(error=str(error)):
                log.warning("serving certificate not kept for the next start")


def _report_waiting(request: str) -> None:
    with bind(remedy=f"kubectl certificate approve {request}"):
        log.warning("serving certificate waits for approval")


def read_file(path: Path, setting: str) -> bytes:
    """Reads a file. Raises SettingsError that names the setting."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(setting, f"cannot read {path} ({error.strerror}); name a file that this user may read") from error


def make_directory(path: Path, setting: str) -> None:
    """Creates a directory for secrets, or checks that files can be created in it. Raises SettingsError that names the setting."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return
    except OSError as error:
        raise SettingsError(setting, f"cannot write to {path} ({error.strerror}); name a directory that this user may write to") from error


# --- Client CA ----------------------------------------------------------------------------------------------------------------------------


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
        last_reported = ""
        while True:
            try:
                self._accept(self._read_file() if from_file else await self._published())
                last_reported = ""
            except VKubeletError as error:
                if str(error) != last_reported:
                    with bind(error=str(error)):
                        log.warning("client CA not read")
                last_reported = str(error)
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
            raise SettingsError("server.client_ca_file", "is not a bundle of PEM certificates; name one") from error

    async def _published(self) -> str:
        found: Json = (await self.client.get(CONFIGMAPS, PUBLISHED)).body
        bundle = (found.get("data") or {}).get("client-ca-file", "")
        if not bundle:
            raise SettingsError("server.client_ca_file", "must be set, as the cluster publishes no client CA")
        return str(bundle)
