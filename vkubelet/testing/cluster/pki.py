"""Creates the certificates of a development cluster: one authority that signs servers and clients alike, and kubeconfigs with them.

Invariant: private keys are written with mode 0600 and never leave the cluster's own directory, kubeconfigs
apart; a kubeconfig contains the cluster's CA, and verification is never switched off.
"""

from __future__ import annotations

import base64
import ipaddress
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import yaml
from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vkubelet.clock import Clock

LIFETIME = timedelta(days=365)
# Clocks of other machines may be behind.
BACKDATED = timedelta(hours=1)

_YAML_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@frozen
class KeyPair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory: Path, name: str) -> KeyFiles:
        """Writes `<name>.crt` and `<name>.key`."""
        files = KeyFiles(certificate=directory / f"{name}.crt", key=directory / f"{name}.key")
        write_private(files.key, self.key)
        files.certificate.write_bytes(self.certificate)
        return files


@frozen
class KeyFiles:
    """Paths of a certificate and its private key."""

    certificate: Path
    key: Path


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
        stream.write(content)


class Authority:
    """A certificate authority; the same one signs the certificates of servers and clients of one cluster.

    Its key is RSA, as with kubeadm: an API server verifies the signature of a client certificate at every request, which takes 0.08 ms
    instead of the 0.18 ms of an elliptic curve. Keys of the issued certificates are used once for each connection and are elliptic curves.
    """

    def __init__(self, certificate: x509.Certificate, key: rsa.RSAPrivateKey, clock: Clock) -> None:
        self._certificate = certificate
        self._key = key
        self._clock = clock

    @classmethod
    def create(cls, name: str, clock: Clock) -> Authority:
        """Creates a new, self-signed authority."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = _key_usage(authority=True)
        certificate = (
            _builder(clock)
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key, clock)

    @classmethod
    def load(cls, files: KeyFiles, clock: Clock) -> Authority:
        """Loads the authority of a cluster that another process has started. Raises ValueError if the key is of another type."""
        key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
        if not isinstance(key, rsa.RSAPrivateKey):
            raise ValueError(f"{files.key} is not an RSA key")
        return cls(x509.load_pem_x509_certificate(files.certificate.read_bytes()), key, clock)

    @property
    def pair(self) -> KeyPair:
        return KeyPair(certificate=_pem(self._certificate), key=private_pem(self._key))

    def client(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """Issues a client certificate; Kubernetes reads the user from the common name and the groups from the organizations."""
        return self._issue(user, groups, hosts=())

    def server(self, name: str, hosts: Sequence[str], *, organizations: Sequence[str] = ()) -> KeyPair:
        """Issues a server certificate for these addresses and DNS names."""
        return self._issue(name, organizations, hosts=hosts)

    def _issue(self, common_name: str, organizations: Sequence[str], *, hosts: Sequence[str]) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
        names.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(self._clock)
            .subject_name(x509.Name(names))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(authority_id, critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        return KeyPair(certificate=_pem(builder.sign(self._key, hashes.SHA256())), key=private_pem(key))


def service_account_keys() -> KeyPair:
    """Creates the key pair that signs and verifies ServiceAccount tokens; `certificate` contains the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return KeyPair(certificate=public, key=private_pem(key))


def private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    """Returns the SEC1 or PKCS #1 form ("EC PRIVATE KEY", "RSA PRIVATE KEY"), which every Kubernetes component reads."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())


def _builder(clock: Clock) -> x509.CertificateBuilder:
    now = clock.now()
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFETIME)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=False,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def write_kubeconfig(path: Path, cluster: str, *, server: str, ca: bytes, client: KeyPair | str) -> Path:
    """Writes a kubeconfig whose only context is named like the cluster; `ca` is PEM, `server` a URL, a `client` that is text a token."""
    user = f"{cluster}-user"
    text = yaml.dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": cluster,
            "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": _base64(ca)}}],
            "users": [{"name": user, "user": _credentials(client)}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        },
        Dumper=_YAML_DUMPER,
        sort_keys=False,
    )
    write_private(path, text.encode())
    return path


def _credentials(client: KeyPair | str) -> dict[str, str]:
    if isinstance(client, str):
        return {"token": client}
    return {"client-certificate-data": _base64(client.certificate), "client-key-data": _base64(client.key)}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
