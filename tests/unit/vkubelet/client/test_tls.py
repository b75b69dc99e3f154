"""TLS contexts follow their files, and never keep less than was asked for."""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from vkubelet.client.tls import ClientCertificate, Pem, Tls, TlsSource
from vkubelet.errors import SettingsError
from vkubelet.testing.clock import ManualClock


def pair(name: str) -> ClientCertificate:
    """A self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, start, start.replace(year=2120))
    certificate = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(key, hashes.SHA256())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ClientCertificate(certificate.public_bytes(serialization.Encoding.PEM), private)


def source(one: ClientCertificate) -> TlsSource:
    return TlsSource(Pem("ca", one.certificate), Pem("cert", one.certificate), Pem("key", one.key))


def authorities(context: ssl.SSLContext) -> list[str]:
    return [str(entry["subject"]) for entry in context.get_ca_certs()]


def test_authority_given_is_the_only_one_trusted() -> None:
    context = TlsSource(Pem("ca", pair("mine").certificate)).build()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(authorities(context)) == 1


def test_only_insecure_is_insecure() -> None:
    assert TlsSource().build().verify_mode is ssl.CERT_REQUIRED
    assert TlsSource(insecure=True).build().verify_mode is ssl.CERT_NONE


def test_key_of_another_certificate_is_refused() -> None:
    one, other = pair("a"), pair("b")
    with pytest.raises(SettingsError, match="cert: .*do not belong together"):
        source(ClientCertificate(one.certificate, other.key)).build()


def test_encrypted_key_is_refused_instead_of_asked_for() -> None:
    one = pair("a")
    key = serialization.load_pem_private_key(one.key, None)
    locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pw"))
    with pytest.raises(SettingsError, match="are invalid or do not belong together"):
        source(ClientCertificate(one.certificate, locked)).build()


def test_private_keys_do_not_show() -> None:
    one = pair("a")
    assert one.key.decode() not in repr(one) + repr(source(one))
    assert "PRIVATE" not in repr(source(one))


async def test_replaced_files_are_noticed_once_a_minute_and_broken_ones_ignored(tmp_path: Path) -> None:
    file, clock = tmp_path / "ca.pem", ManualClock()

    def put(content: bytes, age: int) -> None:
        file.write_bytes(content)
        os.utime(file, ns=(age, age))

    put(pair("first").certificate, 1)
    tls = Tls(TlsSource(Pem("ca", path=file)))
    first = tls.context(clock)
    put(pair("second").certificate, 2)
    assert tls.context(clock) is first
    await clock.advance(61)
    second = tls.context(clock)
    assert "second" in str(authorities(second))
    put(b"half a file", 3)
    await clock.advance(61)
    assert tls.context(clock) is second
    put(pair("third").certificate, 4)
    await clock.advance(61)
    assert "third" in str(authorities(tls.context(clock)))


def test_certificate_of_a_plugin_makes_a_new_context() -> None:
    clock, tls = ManualClock(), Tls(TlsSource())
    given = pair("plugin")
    first = tls.context(clock)
    second = tls.context(clock, given)
    assert second is not first
    assert tls.context(clock, given) is second
    with pytest.raises(SettingsError, match="client certificate"):
        tls.context(clock, ClientCertificate(given.certificate, b"nonsense"))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ca: cannot read"):
        TlsSource(Pem("ca", path=tmp_path / "missing")).build()
