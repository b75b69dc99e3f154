"""The TLS context of a connection, from files that may be replaced while we run or from inline material.

Invariant: inline private keys never reach a disk, and no context ever verifies less than the kubeconfig requires.
"""

import logging
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from attrs import field, frozen

from vkubelet.clock import Clock
from vkubelet.errors import SettingsError
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_CHECK_EVERY = 60.0


@frozen
class Pem:
    """PEM text, inline or in a file; `where` names it in messages."""

    where: str
    data: bytes = field(default=b"", repr=False)
    path: Path | None = None

    def read(self) -> bytes:
        """Returns the PEM text. Raises SettingsError when the file cannot be read."""
        if self.path is None:
            return self.data
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise SettingsError(self.where, f"cannot read {self.path}: {error.strerror}") from error

    def expires(self) -> datetime | None:
        """Returns when the first certificate expires; None when it contains no readable one."""
        # Imported late: it takes as long as the rest of a short command.
        from cryptography import x509

        try:
            return x509.load_pem_x509_certificate(self.read()).not_valid_after_utc
        except (ValueError, SettingsError):
            return None

    def version(self) -> int:
        """Returns a value that changes when the file is replaced."""
        if self.path is None:
            return 0
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return -1


@frozen
class ClientCertificate:
    """Certificate chain and key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@frozen
class TlsSource:
    """Material of a context; without `authority` the roots of the system are used."""

    authority: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    insecure: bool = False

    def versions(self) -> tuple[int, ...]:
        return tuple(pem.version() for pem in (self.authority, self.certificate, self.key) if pem)

    def build(self, given: ClientCertificate | None = None) -> ssl.SSLContext:
        """Builds a new context; `given` (from a credential plugin) takes precedence over the certificate of the kubeconfig.

        Raises SettingsError when the material is inconsistent.
        """
        context = self._verifying()
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        pair = given or self._pair()
        if pair is not None:
            where = self.certificate.where if self.certificate and not given else "client certificate"
            _load_pair(context, pair, where)
        return context

    def _verifying(self) -> ssl.SSLContext:
        if self.authority is None:
            context = ssl.create_default_context()
        else:
            try:
                context = ssl.create_default_context(cadata=self.authority.read().decode("ascii", "replace"))
            except (ssl.SSLError, ValueError) as error:
                raise SettingsError(
                    self.authority.where, "is not a PEM certificate; set the CA certificate that signed the API server's"
                ) from error
        # Cluster CAs often lack the extensions Python 3.13 started to require; Go and kubectl accept them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def _pair(self) -> ClientCertificate | None:
        if self.certificate is None or self.key is None:
            return None
        return ClientCertificate(self.certificate.read(), self.key.read())


class Tls:
    """Current context of a connection; a new one when a file or the given certificate changed, so pools do not mix old and new."""

    def __init__(self, source: TlsSource) -> None:
        self.source = source
        self._versions = source.versions()
        self._given: ClientCertificate | None = None
        self._context = source.build()
        self._next_check: float | None = None

    def context(self, clock: Clock, given: ClientCertificate | None = None) -> ssl.SSLContext:
        """Returns the context, checking the files once a minute; while a file is invalid, the old context is kept."""
        now = clock.monotonic()
        if given != self._given:
            self._context, self._given = self.source.build(given), given
        if self._next_check is None or now >= self._next_check:
            if self._next_check is not None:
                self._reload()
            self._next_check = now + _CHECK_EVERY
        return self._context

    def _reload(self) -> None:
        versions = self.source.versions()
        if versions == self._versions:
            return
        try:
            self._context = self.source.build(self._given)
        except SettingsError as error:
            with bind(error=str(error)):
                log.warning("changed TLS files are invalid, the previous ones stay in use")
            return
        self._versions = versions


def _load_pair(context: ssl.SSLContext, pair: ClientCertificate, where: str) -> None:
    with _private_file(pair.certificate + b"\n" + pair.key) as path:
        try:
            # An encrypted key would otherwise ask for its password on the terminal.
            context.load_cert_chain(path, password="")
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError(
                where, "certificate and private key are invalid or do not belong together; set a matching pair in PEM format"
            ) from error


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """Yields a path that only this process can read; in memory where the system supports that."""
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("pem"), "wb") as memory:
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name
