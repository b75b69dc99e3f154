"""What a handshake gets: the certificate and client CA of the moment. The handshakes happen in memory."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509 as maker
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vkubelet.control import certificates
from vkubelet.control.certificates import Name, Pair
from vkubelet.errors import SettingsError
from vkubelet.server.tls import ServingTls, peer_certificate

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG = timedelta(days=36500)


class Authority:
    """A CA for clients."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = maker.Name([maker.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(self._name, self._key, ca=True)
        self.pem = certificate.public_bytes(serialization.Encoding.PEM).decode()

    def below(self, name: str) -> Authority:
        """An intermediate one, signed by this."""
        other = Authority(name)
        other.pem = self._sign(other._name, other._key, ca=True).public_bytes(serialization.Encoding.PEM).decode()
        return other

    def client(self, directory: Path) -> ssl.SSLContext:
        """A client with a certificate of this CA."""
        key = ec.generate_private_key(ec.SECP256R1())
        organizations = [maker.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in ("one", "two")]
        name = maker.Name([*organizations, maker.NameAttribute(NameOID.COMMON_NAME, "ann")])
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file = directory / "client.pem"
        file.write_bytes(self._sign(name, key, ca=False).public_bytes(serialization.Encoding.PEM) + private)
        context = client()
        context.load_cert_chain(file)
        return context

    def _sign(self, name: maker.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> maker.Certificate:
        builder = maker.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(maker.random_serial_number()).not_valid_before(NOW - timedelta(days=1)).not_valid_after(NOW + LONG)
        builder = builder.add_extension(maker.BasicConstraints(ca=ca, path_length=None), critical=True)
        if not ca:
            builder = builder.add_extension(maker.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def handshake(tls: ServingTls, theirs: ssl.SSLContext, *, session: ssl.SSLSession | None = None) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a new connection. Raises ssl.SSLError when it fails on either side."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.context.wrap_bio(up, down, server_side=True)
    caller = theirs.wrap_bio(down, up, session=session)
    waiting = {caller, server}
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.discard(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return server, caller


@pytest.fixture
def tls() -> ServingTls:
    found = ServingTls()
    found.install(certificates.self_signed(Name("edge"), ["192.0.2.7"], now=NOW))
    return found


def test_a_caller_without_certificate_gets_in_and_is_nobody(tls: ServingTls) -> None:
    tls.trust(Authority("ca").pem)
    server, _ = handshake(tls, client())
    assert peer_certificate(server) is None


def test_a_certificate_of_the_client_ca_tells_the_whole_subject(tls: ServingTls, tmp_path: Path) -> None:
    authority = Authority("ca")
    tls.trust(authority.pem)
    server, _ = handshake(tls, authority.client(tmp_path))
    found = peer_certificate(server)
    assert found is not None
    assert found[0] == {"organizationName": ["one", "two"], "commonName": ["ann"]}
    assert found[1] == server.getpeercert(binary_form=True)


def test_an_intermediate_certificate_of_the_bundle_is_an_anchor_of_its_own(tls: ServingTls, tmp_path: Path) -> None:
    middle = Authority("root").below("middle")
    tls.trust(middle.pem)
    server, _ = handshake(tls, middle.client(tmp_path))
    assert peer_certificate(server) is not None


def test_a_certificate_of_another_ca_is_refused(tls: ServingTls, tmp_path: Path) -> None:
    tls.trust(Authority("ca").pem)
    with pytest.raises(ssl.SSLError):
        handshake(tls, Authority("ca").client(tmp_path))


def test_a_changed_client_ca_counts_for_new_connections(tls: ServingTls, tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    (tmp_path / "old").mkdir()
    old_client, new_client = old.client(tmp_path / "old"), new.client(tmp_path)
    tls.trust(old.pem)
    before, _ = handshake(tls, old_client)
    assert tls.is_current(before)
    tls.trust(new.pem)
    assert not tls.is_current(before)
    with pytest.raises(ssl.SSLError):
        handshake(tls, old_client)
    server, _ = handshake(tls, new_client)
    assert peer_certificate(server) is not None
    tls.trust(old.pem + new.pem)
    assert peer_certificate(handshake(tls, old_client)[0]) is not None


def test_a_resumed_session_brings_no_certificate_past_a_change_of_the_client_ca(tls: ServingTls, tmp_path: Path) -> None:
    old = Authority("old")
    tls.trust(old.pem)
    theirs = old.client(tmp_path)
    theirs.maximum_version = ssl.TLSVersion.TLSv1_2
    server, caller = handshake(tls, theirs)
    assert peer_certificate(server) is not None
    tls.trust(Authority("new").pem)
    resumed, _ = handshake(tls, theirs, session=caller.session)
    assert resumed.session_reused
    assert peer_certificate(resumed) is None


def test_a_new_serving_certificate_is_shown_at_once(tls: ServingTls) -> None:
    shown = handshake(tls, client())[1].getpeercert(binary_form=True)
    tls.install(certificates.self_signed(Name("edge"), ["192.0.2.8"], now=NOW))
    assert handshake(tls, client())[1].getpeercert(binary_form=True) != shown


def test_only_http_1_1_is_offered_and_nothing_below_tls_1_2(tls: ServingTls) -> None:
    _, caller = handshake(tls, client())
    assert caller.selected_alpn_protocol() == "http/1.1"
    theirs = client()
    theirs.minimum_version = theirs.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(tls, theirs)[0].version() == "TLSv1.2"
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_without_a_certificate_no_handshake_succeeds() -> None:
    tls = ServingTls()
    assert not tls.has_certificate
    with pytest.raises(ssl.SSLError):
        handshake(tls, client())


def test_what_can_not_be_used_is_refused_and_changes_nothing(tls: ServingTls) -> None:
    authority = Authority("ca")
    tls.trust(authority.pem)
    shown = handshake(tls, client())[1].getpeercert(binary_form=True)
    good = certificates.self_signed(Name("edge"), ["192.0.2.7"], now=NOW)
    for bad in (Pair(b"", b""), Pair(good.certificate, certificates.new_key()), Pair(good.certificate, b"-----BEGIN nothing")):
        with pytest.raises(SettingsError, match="certificate_file"):
            tls.install(bad)
    for bundle in ("nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(SettingsError, match="client_ca_file"):
            tls.trust(bundle)
    assert handshake(tls, client())[1].getpeercert(binary_form=True) == shown
    assert tls.trusts_clients


def test_a_key_is_not_shown_by_its_representation() -> None:
    assert "PRIVATE" not in repr(certificates.self_signed(Name("edge"), ["192.0.2.7"], now=NOW))
