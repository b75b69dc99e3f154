"""Tests of fleet.core.requests."""

import base64
from typing import Any

import pytest
from attrs import evolve
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.requests import ClientRequest, obstacle
from tests.unit.fleet.builders import unknown
from vkubelet.control.certificates import Name, Request, certificate_request, new_key

KEY = new_key()
SIGNER, USAGES = "kubernetes.io/kube-apiserver-client", ("digital signature", "key encipherment", "client auth")
USER, GROUP, ALL = (
    "system:open-cluster-management:w1:a7",
    "system:open-cluster-management:w1",
    "system:open-cluster-management:managed-clusters",
)
OTHER_USER, OTHER_GROUP = "system:open-cluster-management:w2:a7", "system:open-cluster-management:w2"
BOOTSTRAP = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"


def stored(
    *, user: str = USER, organizations: tuple[str, ...] = (GROUP,), addresses: tuple[str, ...] = (), pem: bytes = b"", **more: Any
) -> ClientRequest:
    """A request as an API server stores it; `more` replaces fields of its spec, `cluster` and `status` those beside it."""
    made = pem or certificate_request(KEY, Name(user, organizations), addresses=addresses)
    cluster, status = more.pop("cluster", "w1"), more.pop("status", {})
    spec = {"request": base64.b64encode(made).decode(), "signerName": SIGNER, "usages": list(USAGES), "username": USER, **more}
    spec.setdefault("groups", [GROUP, "system:authenticated"])
    labels = {"open-cluster-management.io/cluster-name": cluster}
    return ClientRequest.parse(unknown({"metadata": {"name": "w1-x", "labels": labels}, "spec": spec, "status": status}))


def why_not(request: ClientRequest, *, accepted: tuple[str, ...] = ("w1", "w2"), others: int = 0) -> str:
    return obstacle(request, accepted=accepted, others=others)


def test_f_109_a_renewal_by_the_cluster_itself_is_approved_where_the_right_allows_it() -> None:
    request = stored()
    assert why_not(request) == "" and not request.decided
    assert request.review == {
        "spec": {
            "user": USER,
            "groups": [GROUP, "system:authenticated"],
            "resourceAttributes": {
                "group": "register.open-cluster-management.io",
                "resource": "managedclusters",
                "subresource": "clientcertificates",
                "verb": "renew",
            },
        }
    }


def test_f_103_the_group_of_all_clusters_may_be_asked_for_too() -> None:
    assert why_not(stored(organizations=(GROUP, ALL))) == why_not(stored(organizations=(ALL, GROUP))) == ""


def test_f_109_what_the_agent_posts_is_what_the_hub_approves() -> None:
    body = Request(name=Name(USER, (GROUP,)), signer=SIGNER, usages=USAGES, prefix="w1-", seconds=3600).body(KEY)
    labels = {"open-cluster-management.io/cluster-name": "w1"}
    spec = {**body["spec"], "username": USER, "groups": [GROUP]}
    assert why_not(ClientRequest.parse(unknown({"metadata": {"name": "w1-x", "labels": labels}, "spec": spec}))) == ""


def subject(*parts: tuple[Any, str]) -> bytes:
    """A request with this subject."""
    key = serialization.load_pem_private_key(KEY, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])
    made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


CN, ORG, UNIT = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME


@pytest.mark.parametrize(
    ("forged", "words"),
    [
        ({"cluster": "w2"}, "common name"),
        ({"cluster": "w3"}, "no accepted cluster"),
        ({"cluster": ""}, "no accepted cluster"),
        ({"user": OTHER_USER}, "common name"),
        ({"user": OTHER_USER, "organizations": (OTHER_GROUP,)}, "common name"),
        ({"user": OTHER_USER, "organizations": (OTHER_GROUP,), "cluster": "w2"}, "requester"),
        ({"user": OTHER_USER, "organizations": (OTHER_GROUP,), "cluster": "w2", "username": OTHER_USER}, "group of the cluster"),
        ({"user": "system:open-cluster-management:w1"}, "common name"),
        ({"user": "system:open-cluster-management:w1:"}, "common name"),
        ({"user": "system:open-cluster-management:w1:a7:b"}, "common name"),
        ({"user": "admin"}, "common name"),
        ({"organizations": ("system:masters",)}, "organizations"),
        ({"organizations": (GROUP, "system:masters")}, "organizations"),
        ({"organizations": (ALL,)}, "organizations"),
        ({"organizations": (GROUP, GROUP)}, "organizations"),
        ({"organizations": ()}, "organizations"),
        ({"addresses": ("192.0.2.1",)}, "beside its subject"),
        ({"addresses": ("w1.example",)}, "beside its subject"),
        ({"signerName": "kubernetes.io/kube-apiserver-client-kubelet"}, "signerName"),
        ({"signerName": ""}, "signerName"),
        ({"usages": ["digital signature", "client auth"]}, "usages"),
        ({"usages": [*USAGES, "server auth"]}, "usages"),
        ({"username": BOOTSTRAP, "groups": ["system:bootstrappers:managedcluster"]}, "requester"),
        ({"groups": ["system:authenticated"]}, "group of the cluster"),
        ({"groups": [OTHER_GROUP]}, "group of the cluster"),
        ({"pem": b"nonsense"}, "no valid request"),
        ({"pem": subject((CN, USER), (ORG, GROUP), (UNIT, "x"))}, "other parts"),
        ({"pem": subject((CN, USER), (CN, OTHER_USER), (ORG, GROUP))}, "other parts"),
        ({"pem": subject((ORG, GROUP))}, "other parts"),
    ],
)
def test_f_109_a_forged_request_is_left_to_a_person(forged: dict[str, Any], words: str) -> None:
    assert words in why_not(stored(**forged))


def test_f_109_a_request_of_another_key_is_not_approved() -> None:
    pem = certificate_request(KEY, Name(USER, (GROUP,)))
    der = bytearray(base64.b64decode(b"".join(pem.splitlines()[1:-1])))
    der[-1] ^= 1
    broken = b"-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(bytes(der)) + b"-----END CERTIFICATE REQUEST-----\n"
    assert why_not(stored(pem=broken)) != ""


def test_f_106_the_eleventh_request_of_a_cluster_is_not_approved() -> None:
    assert why_not(stored(), others=9) == "" and "10 other requests" in why_not(stored(), others=10)


def test_f_154_a_denied_cluster_gets_no_renewal() -> None:
    assert "no accepted cluster" in why_not(stored(), accepted=("w2",))


def test_f_109_a_decided_request_is_recognized() -> None:
    assert stored(status={"conditions": [{"type": "Denied", "status": "True"}]}).decided


BASE = stored()
VALUES = st.sampled_from(["", "admin", USER, OTHER_USER, GROUP, OTHER_GROUP, ALL, "system:masters", BOOTSTRAP, "w1", "w2", SIGNER, *USAGES])
TEXTS = st.lists(VALUES, max_size=3).map(tuple)


@settings(max_examples=200)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("cluster", "requester", "signer", "common_name", "flaw"), VALUES),
            **dict.fromkeys(("groups", "usages", "organizations"), TEXTS),
        },
    )
)
def test_f_109_no_made_up_request_is_approved_unless_it_renews_its_own_identity(changes: dict[str, Any]) -> None:
    request = evolve(BASE, **changes)
    if why_not(request):
        return
    user, group = (USER, GROUP) if request.cluster == "w1" else (OTHER_USER, OTHER_GROUP)
    assert (request.requester, request.common_name, request.signer, request.flaw) == (user, user, SIGNER, "")
    assert set(request.usages) == set(USAGES) and set(request.organizations) in ({group}, {group, ALL}) and group in request.groups


NAMED = st.sampled_from(["admin", USER, OTHER_USER, GROUP, OTHER_GROUP, ALL, "system:masters", f"{USER}:more"])
ADDRESSES = st.lists(st.sampled_from(["192.0.2.1", "w1.example"]), max_size=1).map(tuple)


@settings(max_examples=200)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "user": NAMED,
            "organizations": st.lists(NAMED, max_size=3).map(tuple),
            "addresses": ADDRESSES,
            "cluster": VALUES,
            "username": VALUES,
            "signerName": VALUES,
            **dict.fromkeys(("groups", "usages"), TEXTS.map(list)),
        },
    )
)
def test_f_109_no_forged_request_is_approved_whatever_it_was_made_of(changes: dict[str, Any]) -> None:
    request = stored(**changes)
    if why_not(request):
        return
    user, group = (USER, GROUP) if request.cluster == "w1" else (OTHER_USER, OTHER_GROUP)
    assert (request.requester, request.common_name, request.signer) == (user, user, SIGNER) and not changes.get("addresses")
    assert set(request.usages) == set(USAGES) and set(request.organizations) in ({group}, {group, ALL}) and group in request.groups


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner)
    )
)
def test_f_109_nothing_that_a_request_contains_makes_reading_it_fail(spec: object) -> None:
    request = ClientRequest.parse(unknown({"metadata": {"name": "x"}, "spec": spec, "status": spec}))
    assert why_not(request) != ""
