"""Certificates of a development cluster say who may use them and for what.

Invariant: what is signed here is accepted by a verifier that knows only the CA.
"""

from __future__ import annotations

import base64
import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster.pki import Authority, KeyFiles, KeyPair, service_account_keys, write_kubeconfig

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class FixedClock:
    """The instant of the tests."""

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("certificates are made without waiting")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("test-ca", FixedClock())


def certificate(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def verifier(authority: Authority, at: datetime = NOW) -> PolicyBuilder:
    return PolicyBuilder().store(Store([certificate(authority.pair)])).time(at)


def test_server_is_valid_for_each_of_its_names_and_no_other(authority: Authority) -> None:
    pair = authority.server("kube-apiserver", ["localhost", "127.0.0.1", "10.96.0.1", "::1"])
    for name in (x509.DNSName("localhost"), *(x509.IPAddress(ip_address(a)) for a in ("127.0.0.1", "10.96.0.1", "::1"))):
        verifier(authority).build_server_verifier(name).verify(certificate(pair), [])
    with pytest.raises(x509.verification.VerificationError):
        verifier(authority).build_server_verifier(x509.DNSName("elsewhere")).verify(certificate(pair), [])


def test_client_carries_user_and_groups(authority: Authority) -> None:
    made = certificate(authority.client("jane", ["system:masters", "dev"]))
    assert [a.value for a in made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["jane"]
    assert [a.value for a in made.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["system:masters", "dev"]
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_server_certificate_can_not_be_used_as_client(authority: Authority) -> None:
    made = certificate(authority.server("kubelet", ["10.0.0.1"]))
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_certificates_of_another_authority_are_refused(authority: Authority) -> None:
    stranger = Authority.create("test-ca", FixedClock()).server("kubelet", ["localhost"])
    with pytest.raises(x509.verification.VerificationError):
        verifier(authority).build_server_verifier(x509.DNSName("localhost")).verify(certificate(stranger), [])


def test_certificates_end(authority: Authority) -> None:
    pair = authority.server("kubelet", ["localhost"])
    with pytest.raises(x509.verification.VerificationError):
        late = verifier(authority, NOW + timedelta(days=366))
        late.build_server_verifier(x509.DNSName("localhost")).verify(certificate(pair), [])


def test_private_keys_are_readable_by_their_owner_only(authority: Authority, tmp_path: Path) -> None:
    files = authority.client("jane").write(tmp_path / "pki", "jane")
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600


def test_authority_read_back_signs_what_the_first_one_verifies(authority: Authority, tmp_path: Path) -> None:
    again = Authority.load(authority.pair.write(tmp_path, "ca"), FixedClock())
    pair = again.server("kubelet", ["localhost"])
    verifier(authority).build_server_verifier(x509.DNSName("localhost")).verify(certificate(pair), [])


def test_authority_with_a_key_of_another_kind_is_refused(authority: Authority, tmp_path: Path) -> None:
    files = authority.pair.write(tmp_path, "ca")
    foreign = ec.generate_private_key(ec.SECP256R1())
    files.key.write_bytes(foreign.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ValueError, match="not an RSA key"):
        Authority.load(KeyFiles(files.certificate, files.key), FixedClock())


def test_service_account_keys_are_a_private_and_a_bare_public_key() -> None:
    pair = service_account_keys()
    assert pair.certificate.startswith(b"-----BEGIN PUBLIC KEY-----")
    assert pair.key.startswith(b"-----BEGIN EC PRIVATE KEY-----")


def test_kubeconfig_holds_everything_itself_and_is_private(tmp_path: Path) -> None:
    client = KeyPair(certificate=b"CERT", key=b"KEY")
    path = write_kubeconfig(tmp_path / "hub.kubeconfig", "hub", server="https://127.0.0.1:30001", ca=b"CA", client=client)
    config = decode_yaml(path.read_text(encoding="utf-8"))
    assert config["current-context"] == "hub"
    cluster = config["clusters"][0]["cluster"]
    assert cluster == {"server": "https://127.0.0.1:30001", "certificate-authority-data": base64.b64encode(b"CA").decode()}
    user = config["users"][0]["user"]
    assert base64.b64decode(user["client-certificate-data"]) == b"CERT"
    assert base64.b64decode(user["client-key-data"]) == b"KEY"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_client_may_be_a_token(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "hub.kubeconfig", "hub", server="https://127.0.0.1:30001", ca=b"CA", client="abc")
    assert decode_yaml(path.read_text(encoding="utf-8"))["users"][0]["user"] == {"token": "abc"}
