"""Certificates that an API server signs by CertificateSigningRequest: keys, requests, and the file or Secret that stores them for the next
start.

Invariant: a private key leaves this process only to the store that its caller chooses.
"""

import base64
import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from attrs import field, frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vkubelet.api.names import is_ip
from vkubelet.api.objects import CSRS, SECRETS, Json, JsonView, Key, Unknown
from vkubelet.client.rest import Client, PatchKind
from vkubelet.clock import Clock
from vkubelet.control.backoff import with_retry
from vkubelet.errors import AlreadyExists, NotFound, Unavailable

_ISSUE_WITHIN, _LOOK_EVERY = 900.0, 2.0
_SELF_SIGNED_LIFE = timedelta(days=365)
_SKEW = timedelta(minutes=5)
_BEGIN_OF_KEY = b"-----BEGIN PRIVATE KEY-----"
_DNS_NAME = re.compile(
    r"(?:\*\.)?[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*", re.IGNORECASE | re.ASCII
)


CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
"""Entries of a Secret with a pair, as in those of the type kubernetes.io/tls."""


class RequestDenied(Unavailable):
    """A CertificateSigningRequest was denied, or its signer failed; the message contains that of the approver."""


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
        name = await self.post(request, key)
        pair = Pair(await self.collect(name, still_wanted=still_wanted), key)
        if not serves(pair, request.addresses, now=self.clock.now()):
            named = f" for {', '.join(request.addresses)}" if request.addresses else ""
            raise Unavailable(f"the certificate of {name} is not valid now{named}")
        return pair

    async def post(self, request: Request, key: bytes) -> str:
        """Creates the object that requests a certificate for this key; returns its name. Raises ApiError."""
        csr = await self.client.create(CSRS, request.body(key))
        if self.approval:
            await approve(self.client, csr, reason="AutoApproved", message=self.approval)
        return csr.metadata.name

    async def collect(self, name: str, *, still_wanted: Callable[[], bool] = lambda: True) -> bytes:
        """Waits for the certificate of a request.

        Raises ApiError, RequestDenied, and Unavailable when it is not signed within 15 minutes, or not wanted any more.
        """
        end = self.clock.monotonic() + _ISSUE_WITHIN
        reported = False
        while self.clock.monotonic() < end:
            if not still_wanted():
                raise Unavailable(f"certificate request {name} does not contain all addresses any more")
            found = await with_retry(lambda: self.client.get(CSRS, name), clock=self.clock)
            status: Json = found.body.get("status", {})
            types = {condition["type"]: condition for condition in status.get("conditions", ())}
            refusals = [types[each] for each in ("Denied", "Failed") if each in types]
            if refusals:
                raise RequestDenied(_refusal(name, refusals))
            if status.get("certificate"):
                return base64.b64decode(status["certificate"])
            if not reported and "Approved" not in types:
                self.waits(name)
                reported = True
            await self.clock.sleep(_LOOK_EVERY)
        raise Unavailable(f"certificate request {name} was not signed within {_ISSUE_WITHIN:.0f} s; approve it")


async def approve(client: Client, csr: Unknown, *, reason: str, message: str) -> Unknown:
    """Approves a CertificateSigningRequest; returns it as it is then. Raises ApiError."""
    body = csr.body
    conditions = body.setdefault("status", {}).setdefault("conditions", [])
    conditions.append({"type": "Approved", "status": "True", "reason": reason, "message": message})
    return await client.replace(CSRS, body, subresource="approval")


def _refusal(name: str, conditions: Sequence[JsonView]) -> str:
    kinds = " and ".join(each["type"].lower() for each in conditions)
    messages = "; ".join(each["message"] for each in conditions if each.get("message"))
    return f"certificate request {name} was {kinds}" + (f": {messages}" if messages else "")


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


@frozen
class PairSecret:
    """A Secret with certificate and key, and with other entries that its owner stores beside them."""

    client: Client
    key: Key

    async def load(self) -> dict[str, bytes]:
        """Returns all entries, of which `pair_of` is the pair; none when there is no Secret. Raises ApiError."""
        try:
            found = await self.client.get(SECRETS, self.key)
        except NotFound:
            return {}
        entries = {}
        for name, value in (found.body.get("data") or {}).items():
            try:
                entries[name] = base64.b64decode(value, validate=True)
            except (ValueError, TypeError):
                continue
        return entries

    async def save(self, entries: Mapping[str, bytes | None]) -> None:
        """Stores entries in one step, None removes one, and others are preserved; creates the Secret when there is none. Raises
        ApiError."""
        data = {name: None if value is None else base64.b64encode(value).decode() for name, value in entries.items()}
        try:
            await self.client.patch(SECRETS, self.key, {"data": data}, kind=PatchKind.MERGE)
        except NotFound:
            present = {name: value for name, value in data.items() if value is not None}
            metadata = {"name": self.key.name, "namespace": self.key.namespace}
            try:
                await self.client.create(SECRETS, {"metadata": metadata, "type": "Opaque", "data": present})
            except AlreadyExists:
                await self.client.patch(SECRETS, self.key, {"data": data}, kind=PatchKind.MERGE)


def pair_of(entries: Mapping[str, bytes]) -> Pair | None:
    """Returns the pair in the entries of a Secret; None when one half is missing."""
    certificate, key = entries.get(CERTIFICATE), entries.get(KEY)
    return Pair(certificate, key) if certificate and key else None


def entries_of(pair: Pair) -> dict[str, bytes]:
    """Returns the entries that store a pair in a Secret."""
    return {CERTIFICATE: pair.certificate, KEY: pair.key}


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
    return belongs_together(pair) and begin_of(pair) <= now < end_of(pair) and covers(pair, addresses)


def belongs_together(pair: Pair) -> bool:
    """Checks that the certificate is one, and that of the key."""
    try:
        return x509.load_pem_x509_certificate(pair.certificate).public_key() == _load_key(pair.key).public_key()
    except (ValueError, TypeError):
        return False


def is_request_of(request: bytes, key: bytes) -> bool:
    """Checks that a PEM request was made with this key."""
    try:
        return x509.load_pem_x509_csr(request).public_key() == _load_key(key).public_key()
    except (ValueError, TypeError):
        return False


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


def common_name_of(pair: Pair) -> str:
    """Returns the user name in the certificate of a client; "" when it has not exactly one. Raises ValueError when it is no PEM
    certificate."""
    names = x509.load_pem_x509_certificate(pair.certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


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
