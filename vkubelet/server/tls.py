"""TLS of all listeners: one context that gives each new connection the current certificate and client CA.

Invariant: TLS 1.2 is the minimum, only HTTP/1.1 is offered, and a client certificate counts only if it was verified in this handshake.

A kubelet requests a client certificate and judges it afterwards, with 401. Python's `ssl` can only judge within the handshake: OpenSSL's
callback for that is not exposed, and with `CERT_NONE` no certificate is requested at all. So a client whose certificate is not of the
client CA, or has expired, is rejected by an alert, also where anonymous callers are accepted; one without a certificate is accepted and
judged by its token (docs/decisions/0013-client-certificates.md).
"""

import os
import ssl
import tempfile
from asyncio import sslproto
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from vkubelet.control.certificates import Pair
from vkubelet.errors import SettingsError

_BUFFER = 32 * 1024


def bound_buffers() -> None:
    """Limits asyncio's buffer of a TLS connection to 32 KiB, two records, instead of 256 KiB, which cannot be set; uvloop uses less
    anyway."""
    sslproto.SSLProtocol.max_size = _BUFFER  # type: ignore[attr-defined,unused-ignore]


class ServingTls:
    """TLS of all listeners, with `context`; the arguments of `install` and `trust` apply to all connections made from then on."""

    def __init__(self) -> None:
        bound_buffers()
        self._pair: Pair | None = None
        self._client_ca = ""
        self._current = _context()
        self.context = _context()
        self.context.sni_callback = self._hand_over
        # As a kubelet does, take every certificate of the bundle as an anchor, also an intermediate one. A connection keeps the flags of
        # the context that it started with, whichever it is switched to.
        self.context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    @property
    def has_certificate(self) -> bool:
        return self._pair is not None

    @property
    def trusts_clients(self) -> bool:
        """Whether there is a client CA."""
        return bool(self._client_ca)

    def install(self, pair: Pair) -> None:
        """Installs this certificate. Raises SettingsError when it cannot be read or does not match its key; the old one stays."""
        self._current = _build(pair, self._client_ca)
        self._pair = pair

    def trust(self, client_ca: str) -> None:
        """Sets the PEM bundle that verifies client certificates, "" to request none. Raises SettingsError when it is invalid; the old
        one stays."""
        self._current = _build(self._pair, client_ca)
        self._client_ca = client_ca
        self.context.verify_mode = ssl.CERT_OPTIONAL if client_ca else ssl.CERT_NONE

    def is_current(self, connection: ssl.SSLObject) -> bool:
        """Checks whether the connection was made with the current certificate and client CA."""
        return connection.context is self._current

    def _hand_over(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        # OpenSSL calls this for every handshake, also without SNI; the assigned context brings certificate and trust store.
        connection.context = self._current


def peer_certificate(connection: ssl.SSLObject) -> tuple[dict[str, list[str]], bytes] | None:
    """Returns subject (short attribute names to values) and DER of the client's certificate; None without one.

    A resumed TLS 1.2 session brings the certificate of its first handshake, which the client CA of today may not accept: it is ignored.
    """
    if connection.session_reused:
        return None
    der = connection.getpeercert(binary_form=True)
    described = connection.getpeercert()
    if not der or not described:
        return None
    subject: dict[str, list[str]] = {}
    for relative in cast(tuple[tuple[tuple[str, str], ...], ...], described.get("subject", ())):
        for name, value in relative:
            subject.setdefault(name, []).append(value)
    return subject, der


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # A ticket would carry a client certificate past a change of the client CA.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def _build(pair: Pair | None, client_ca: str) -> ssl.SSLContext:
    context = _context()
    if client_ca:
        try:
            context.load_verify_locations(cadata=client_ca)
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError("server.client_ca_file", "is not a bundle of PEM certificates; name one") from error
        context.verify_mode = ssl.CERT_OPTIONAL
    if pair is not None:
        _load(context, pair)
    return context


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    with _as_file(pair.certificate) as certificate, _as_file(pair.key) as key:
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise SettingsError("server.certificate_file", "and its key are not a PEM pair that belongs together; set a pair") from error


def _no_password() -> str:
    """Returns no password: an encrypted key is refused instead of prompting on the terminal."""
    return ""


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yields a file name, as OpenSSL reads certificates only from files; where possible the file exists in memory alone."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("serving", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.name
