"""Tests of vkubelet.control.certificates; an API server signs for them in tests/integration/server/test_certificates.py."""

from __future__ import annotations

import base64
import ipaddress
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509 as reader
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.memory_api import MergingApi
from vkubelet.api.objects import Key
from vkubelet.control import certificates
from vkubelet.control.certificates import Issuer, Name, Pair, PairFile, PairSecret, Request, RequestDenied
from vkubelet.server.certificates import SIGNER, USAGES, kubelet_name
from vkubelet.testing.clock import ManualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CSR_PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def test_a_request_has_the_subject_and_names_the_signer_accepts() -> None:
    request = reader.load_pem_x509_csr(
        certificates.certificate_request(
            certificates.new_key(), kubelet_name("edge"), addresses=["192.0.2.7", "fd00::7", "kubelet.example"]
        )
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
    pair = certificates.self_signed(Name("edge"), ["192.0.2.7", "fd00::7"], now=NOW)
    assert certificates.serves(pair, ["192.0.2.7"], now=NOW)
    assert certificates.serves(pair, ["fd00:0::7"], now=NOW)
    assert not certificates.serves(pair, ["192.0.2.7", "192.0.2.8"], now=NOW)
    assert not certificates.serves(pair, ["192.0.2.7"], now=NOW + timedelta(days=366))
    assert not certificates.serves(pair, ["192.0.2.7"], now=NOW - timedelta(days=1))


def test_a_certificate_with_another_key_or_no_certificate_serves_nothing() -> None:
    pair = certificates.self_signed(Name("edge"), ["192.0.2.7"], now=NOW)
    assert not certificates.serves(Pair(pair.certificate, certificates.new_key()), ["192.0.2.7"], now=NOW)
    assert not certificates.serves(Pair(b"", b""), [], now=NOW)
    assert not certificates.serves(Pair(pair.certificate, b"garbage"), [], now=NOW)


def test_a_certificate_covers_the_addresses_it_names_whenever() -> None:
    pair = certificates.self_signed(Name("edge"), ["192.0.2.7", "Kubelet.example"], now=NOW)
    assert certificates.covers(pair, ["192.0.2.7", "Kubelet.example"])
    assert not certificates.covers(pair, ["192.0.2.7", "other.example"])
    assert certificates.begin_of(pair) < NOW < certificates.end_of(pair)


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_rotation_is_due_after_a_share_of_the_life(share: float) -> None:
    pair = certificates.self_signed(Name("edge"), ["192.0.2.7"], now=NOW)
    life = timedelta(days=365, minutes=5)
    assert abs(certificates.rotation_due(pair.certificate, share) - (NOW - timedelta(minutes=5) + life * share)) < timedelta(seconds=1)


def test_a_client_asks_for_a_user_and_groups_and_no_address() -> None:
    name = Name("system:open-cluster-management:w1:a", ("system:open-cluster-management:w1",))
    request = reader.load_pem_x509_csr(certificates.certificate_request(certificates.new_key(), name))
    assert request.subject.rfc4514_string() == "CN=system:open-cluster-management:w1:a,O=system:open-cluster-management:w1"
    assert not list(request.extensions)


def test_a_request_names_labels_and_its_life_only_where_they_are_chosen() -> None:
    key = certificates.new_key()
    usual = Request(name=kubelet_name("edge"), signer=SIGNER, usages=USAGES, addresses=["192.0.2.7"]).body(key)
    assert usual["metadata"] == {"generateName": "csr-"} and usual["spec"].keys() == {"request", "signerName", "usages"}
    chosen = Request(name=Name("u"), signer="example.com/s", usages=("client auth",), prefix="w1-", labels={"a": "b"}, seconds=3600)
    body = chosen.body(key)
    assert body["metadata"] == {"generateName": "w1-", "labels": {"a": "b"}}
    assert (body["spec"]["signerName"], body["spec"]["usages"], body["spec"]["expirationSeconds"]) == (
        "example.com/s",
        ["client auth"],
        3600,
    )
    request = reader.load_pem_x509_csr(base64.b64decode(body["spec"]["request"]))
    assert request.subject.rfc4514_string() == "CN=u" and "PRIVATE" not in str(body)


def test_a_pair_is_read_back_from_its_file_which_others_cannot_read(tmp_path: Path) -> None:
    store, pair = PairFile(tmp_path / "pair.pem"), certificates.self_signed(Name("edge"), ["192.0.2.7"], now=NOW)
    assert store.load() is None
    for _ in range(2):
        store.save(pair)
        found = store.load()
        assert found is not None and certificates.serves(found, ["192.0.2.7"], now=NOW)
    assert stat.S_IMODE((tmp_path / "pair.pem").stat().st_mode) == 0o600 and [each.name for each in tmp_path.iterdir()] == ["pair.pem"]


async def test_a_pair_is_read_back_from_its_secret_beside_other_entries() -> None:
    api, pair = MergingApi(), certificates.self_signed(Name("edge"), ["192.0.2.7"], now=NOW)
    store = PairSecret(api.client(), Key("fleet-system", "pair"))
    assert await store.load() == {}
    await store.save({"agent-name": b"a7", "request.key": b"pending"})
    assert certificates.pair_of(await store.load()) is None
    await store.save({**certificates.entries_of(pair), "request.key": None})
    found = await store.load()
    assert found.keys() == {"agent-name", "tls.crt", "tls.key"} and found["agent-name"] == b"a7"
    assert certificates.pair_of(found) == pair
    assert [write.method for write in api.writes] == ["POST", "PATCH"]


async def test_an_entry_of_a_secret_that_does_not_decode_is_left_out() -> None:
    api = MergingApi()
    meta = {"name": "pair", "namespace": "fleet-system"}
    api.put("/api/v1/namespaces/fleet-system/secrets/pair", {"metadata": meta, "data": {"tls.crt": "%", "tls.key": "YQ=="}})
    assert await PairSecret(api.client(), Key("fleet-system", "pair")).load() == {"tls.key": b"a"}


def test_a_request_is_recognized_by_its_key() -> None:
    key = certificates.new_key()
    request = certificates.certificate_request(key, Name("u"))
    assert certificates.is_request_of(request, key)
    assert not certificates.is_request_of(request, certificates.new_key())
    assert not certificates.is_request_of(b"garbage", key) and not certificates.is_request_of(request, b"garbage")


async def test_a_denied_request_is_reported_with_the_message_of_the_approver() -> None:
    api = MergingApi()
    denied = {"type": "Denied", "status": "True", "reason": "Other", "message": "unknown laptop"}
    api.put(f"{CSR_PATH}/w1-x", {"metadata": {"name": "w1-x"}, "status": {"conditions": [denied]}})
    issuer = Issuer(client=api.client(), clock=ManualClock(), waits=lambda name: None)
    with pytest.raises(RequestDenied, match="certificate request w1-x was denied: unknown laptop"):
        await issuer.collect("w1-x")
