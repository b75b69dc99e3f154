"""Keys, certificate requests and certificates as bytes; no I/O but for the randomness of keys.

Invariant: a request meets the requirements of the signer `kubernetes.io/kubelet-serving`.
"""

import ipaddress
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vkubelet.api.names import is_ip
from vkubelet.server.tls import Pair

SIGNER = "kubernetes.io/kubelet-serving"
USAGES = ("digital signature", "server auth")
_ORGANIZATION, _USER_PREFIX = "system:nodes", "system:node:"
_SELF_SIGNED_LIFE = timedelta(days=365)
_SKEW = timedelta(minutes=5)
_DNS_NAME = re.compile(
    r"(?:\*\.)?[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*", re.IGNORECASE | re.ASCII
)


def new_key() -> bytes:
    """Returns an ECDSA P-256 key as PEM (PKCS 8)."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def certificate_request(key: bytes, name: str, *, addresses: Sequence[str]) -> bytes:
    """Returns a PEM request for the node `name`, valid for `addresses`, IP addresses or DNS names.

    The kubelet-serving signer requires: O exactly system:nodes, CN system:node:<name>, at least one IP or DNS name, neither e-mail nor URI.
    """
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).add_extension(_alternatives(addresses), critical=False)
    return builder.sign(_load_key(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def self_signed(name: str, addresses: Sequence[str], *, now: datetime, is_node: bool = True) -> Pair:
    """Returns a self-signed certificate, valid for a year."""
    key = new_key()
    private = _load_key(key)
    subject = _subject(name) if is_node else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _SELF_SIGNED_LIFE)
        .add_extension(_alternatives(addresses), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return Pair(builder.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), key)


def rotation_due(certificate: bytes, share: float) -> datetime:
    """Returns the instant at which `share` (0 to 1) of the certificate's validity has passed. Raises ValueError when it is no PEM
    certificate."""
    leaf = x509.load_pem_x509_certificate(certificate)
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return begin + (end - begin) * share


def serves(pair: Pair, addresses: Sequence[str], *, now: datetime) -> bool:
    """Checks that key and certificate match, and are valid now, and for each of `addresses`."""
    try:
        leaf = x509.load_pem_x509_certificate(pair.certificate)
        same_key = leaf.public_key() == _load_key(pair.key).public_key()
    except (ValueError, TypeError):
        return False
    return same_key and leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc and covers(pair, addresses)


def covers(pair: Pair, addresses: Sequence[str]) -> bool:
    """Checks that the certificate names each of `addresses`. Raises ValueError when it is no PEM certificate."""
    leaf = x509.load_pem_x509_certificate(pair.certificate)
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    covered = {str(ip) for ip in names.get_values_for_type(x509.IPAddress)} | set(names.get_values_for_type(x509.DNSName))
    return {_canonical(a) for a in addresses} <= covered


def begin_of(pair: Pair) -> datetime:
    return x509.load_pem_x509_certificate(pair.certificate).not_valid_before_utc


def end_of(pair: Pair) -> datetime:
    return x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc


def can_be_named(address: str) -> bool:
    """Checks for an IP address or a DNS name (RFC 1123)."""
    return is_ip(address) or (len(address) <= 253 and _DNS_NAME.fullmatch(address) is not None)


def _subject(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, _USER_PREFIX + name),
        ]
    )


def _alternatives(addresses: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_general_name(address) for address in addresses])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _canonical(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address


def _load_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    loaded = serialization.load_pem_private_key(key, None)
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ValueError("not an ECDSA key")
    return loaded
