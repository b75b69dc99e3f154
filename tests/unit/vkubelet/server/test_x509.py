"""Requests and certificates say what the signer of kubelet certificates wants to read."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509 as reader
from cryptography.hazmat.primitives.asymmetric import ec

from vkubelet.server import x509
from vkubelet.server.tls import Pair

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_request_has_the_subject_and_names_the_signer_accepts() -> None:
    request = reader.load_pem_x509_csr(
        x509.certificate_request(x509.new_key(), "edge", addresses=["192.0.2.7", "fd00::7", "kubelet.example"])
    )
    assert request.subject.rfc4514_string() == "CN=system:node:edge,O=system:nodes"
    names = request.extensions.get_extension_for_class(reader.SubjectAlternativeName).value
    assert names.get_values_for_type(reader.IPAddress) == [ipaddress.ip_address("192.0.2.7"), ipaddress.ip_address("fd00::7")]
    assert names.get_values_for_type(reader.DNSName) == ["kubelet.example"]
    key = request.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert request.is_signature_valid


def test_a_certificate_serves_its_addresses_during_its_life() -> None:
    pair = x509.self_signed("edge", ["192.0.2.7", "fd00::7"], now=NOW)
    assert x509.serves(pair, ["192.0.2.7"], now=NOW)
    assert x509.serves(pair, ["fd00:0::7"], now=NOW)
    assert not x509.serves(pair, ["192.0.2.7", "192.0.2.8"], now=NOW)
    assert not x509.serves(pair, ["192.0.2.7"], now=NOW + timedelta(days=366))
    assert not x509.serves(pair, ["192.0.2.7"], now=NOW - timedelta(days=1))


def test_a_certificate_with_another_key_or_no_certificate_serves_nothing() -> None:
    pair = x509.self_signed("edge", ["192.0.2.7"], now=NOW)
    assert not x509.serves(Pair(pair.certificate, x509.new_key()), ["192.0.2.7"], now=NOW)
    assert not x509.serves(Pair(b"", b""), [], now=NOW)
    assert not x509.serves(Pair(pair.certificate, b"garbage"), [], now=NOW)


def test_a_certificate_covers_the_addresses_it_names_whenever() -> None:
    pair = x509.self_signed("edge", ["192.0.2.7", "Kubelet.example"], now=NOW)
    assert x509.covers(pair, ["192.0.2.7", "Kubelet.example"])
    assert not x509.covers(pair, ["192.0.2.7", "other.example"])
    assert x509.begin_of(pair) < NOW < x509.end_of(pair)


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_rotation_is_due_after_a_share_of_the_life(share: float) -> None:
    pair = x509.self_signed("edge", ["192.0.2.7"], now=NOW)
    life = timedelta(days=365, minutes=5)
    assert abs(x509.rotation_due(pair.certificate, share) - (NOW - timedelta(minutes=5) + life * share)) < timedelta(seconds=1)
