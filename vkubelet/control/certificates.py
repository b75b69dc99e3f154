"""Certificates that an API server signs by CertificateSigningRequest: keys, requests, and the file that stores them for the next start.

Invariant: a private key leaves this process only to the store that its caller chooses.
"""

import base64
import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from attrs import field, frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vkubelet.api.names import is_ip
from vkubelet.api.objects import CSRS, Json, Unknown
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.backoff import with_retry
from vkubelet.errors import Unavailable

_ISSUE_WITHIN, _LOOK_EVERY = 900.0, 2.0
_SELF_SIGNED_LIFE = timedelta(days=365)
_SKEW = timedelta(minutes=5)
_BEGIN_OF_KEY = b"-----BEGIN PRIVATE KEY-----"
_DNS_NAME = re.compile(
    r"(?:\*\.)?[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*", re.IGNORECASE | re.ASCII
)


@frozen
class Pair:
    """A certificate chain and its private key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@frozen
class Name:
    """The subject of a certificate: user name and groups of a client."""

    common_name: str
    organizations: Sequence[str] = ()

    @property
    def encoded(self) -> x509.Name:
        groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in self.organizations]
        return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, self.common_name)])


# --- By an API server ---------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Request:
    """What a CertificateSigningRequest asks for. Without `addresses` it names none; without `seconds` the signer decides how long the
    certificate is valid."""

    name: Name
    signer: str
    usages: Sequence[str]
    addresses: Sequence[str] = ()
    prefix: str = "csr-"
    """Prefix of the name of the object."""
    labels: Mapping[str, str] = field(factory=dict)
    seconds: int | None = None

    def body(self, key: bytes) -> Json:
        """Returns the object that requests a certificate for the key."""
        encoded = base64.b64encode(certificate_request(key, self.name, addresses=self.addresses)).decode()
        life = {} if self.seconds is None else {"expirationSeconds": self.seconds}
        return {
            "metadata": {"generateName": self.prefix, **({"labels": dict(self.labels)} if self.labels else {})},
            "spec": {"request": encoded, "signerName": self.signer, "usages": list(self.usages), **life},
        }


@frozen(kw_only=True)
class Issuer:
    """Requests certificates; `waits(name of the request)` is called once for one that is not approved yet."""

    client: Client
    clock: Clock
    approval: str = ""
    """Message with which it approves its own requests; empty: another client approves them."""
    waits: Callable[[str], None]

    async def issue(self, request: Request, *, still_wanted: Callable[[], bool] = lambda: True) -> Pair:
        """Requests one certificate with a new key.

        Raises ApiError, and Unavailable when the request is denied, not signed within 15 minutes, or not wanted any more.
        """
        key = new_key()
        csr = await self.client.create(CSRS, request.body(key))
        if self.approval:
            await self._approve(csr)
        pair = Pair(await self._until_signed(csr.metadata.name, still_wanted), key)
        if not serves(pair, request.addresses, now=self.clock.now()):
            named = f" for {', '.join(request.addresses)}" if request.addresses else ""
            raise Unavailable(f"the certificate of {csr.metadata.name} is not valid now{named}")
        return pair

    async def _approve(self, csr: Unknown) -> None:
        body = csr.body
        conditions = body.setdefault("status", {}).setdefault("conditions", [])
        conditions.append({"type": "Approved", "status": "True", "reason": "AutoApproved", "message": self.approval})
        await self.client.replace(CSRS, body, subresource="approval")

    async def _until_signed(self, name: str, still_wanted: Callable[[], bool]) -> bytes:
        end = self.clock.monotonic() + _ISSUE_WITHIN
        reported = False
        while self.clock.monotonic() < end:
            if not still_wanted():
                raise Unavailable(f"certificate request {name} does not contain all addresses any more")
            found = await with_retry(lambda: self.client.get(CSRS, name), clock=self.clock)
            status: Json = found.body.get("status", {})
            types = {condition["type"] for condition in status.get("conditions", ())}
            if types & {"Denied", "Failed"}:
                raise Unavailable(f"certificate request {name} was {' and '.join(sorted(types)).lower()}")
            if status.get("certificate"):
                return base64.b64decode(status["certificate"])
            if not reported and "Approved" not in types:
                self.waits(name)
                reported = True
            await self.clock.sleep(_LOOK_EVERY)
        raise Unavailable(f"certificate request {name} was not signed within {_ISSUE_WITHIN:.0f} s; approve it")


@frozen
class PairFile:
    """A file with certificate and key, which only this user may read."""

    path: Path

    def load(self) -> Pair | None:
        """Returns the stored pair, or None when there is none."""
        try:
            certificate, marker, key = self.path.read_bytes().partition(_BEGIN_OF_KEY)
        except OSError:
            return None
        return Pair(certificate, marker + key)

    def save(self, pair: Pair) -> None:
        """Replaces the pair in one step. Raises OSError."""
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pair.certificate.rstrip() + b"\n" + pair.key)
        fresh.replace(self.path)


# --- As bytes -----------------------------------------------------------------------------------------------------------------------------


def new_key() -> bytes:
    """Returns an ECDSA P-256 key as PEM (PKCS 8)."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def certificate_request(key: bytes, name: Name, *, addresses: Sequence[str] = ()) -> bytes:
    """Returns a PEM request with this subject, valid for `addresses`, IP addresses or DNS names."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(name.encoded)
    if addresses:
        builder = builder.add_extension(_alternatives(addresses), critical=False)
    return builder.sign(_load_key(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def self_signed(name: Name, addresses: Sequence[str], *, now: datetime) -> Pair:
    """Returns a self-signed serving certificate, valid for a year."""
    key, subject = new_key(), name.encoded
    private = _load_key(key)
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
    if not addresses:
        return True
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
