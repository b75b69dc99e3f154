"""Tests of fleet.commands.accept."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from attrs import evolve

from fleet.commands.accept import fingerprint, is_bootstrap
from fleet.core.requests import ClientRequest, content_flaw
from tests.unit.fleet.builders import unknown
from vkubelet.control.certificates import Name, certificate_request, new_key

USER, GROUP = "system:open-cluster-management:w1:a7", "system:open-cluster-management:w1"
GOOD = ClientRequest(
    name="w1-x",
    cluster="w1",
    requester="system:serviceaccount:open-cluster-management:agent-registration-bootstrap",
    signer="kubernetes.io/kube-apiserver-client",
    usages=("digital signature", "key encipherment", "client auth"),
    common_name=USER,
    organizations=(GROUP,),
)


def test_f_14_the_request_of_an_agent_may_be_approved() -> None:
    every = (GROUP, "system:open-cluster-management:managed-clusters")
    assert content_flaw(GOOD) == "" and content_flaw(evolve(GOOD, organizations=every)) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"common_name": "system:open-cluster-management:w2:a7"},
        {"common_name": "admin"},
        {"organizations": ("system:masters",)},
        {"organizations": (GROUP, "system:masters")},
        {"organizations": ()},
        {"signer": "kubernetes.io/kubelet-serving"},
        {"usages": ("client auth",)},
        {"flaw": "the request asks for names beside its subject"},
    ],
)
def test_f_14_a_request_for_another_identity_is_never_approved(change: dict[str, Any]) -> None:
    assert content_flaw(evolve(GOOD, **change))


def test_f_14_bootstrap_identities_and_renewals_need_no_flag() -> None:
    assert is_bootstrap(GOOD) and is_bootstrap(evolve(GOOD, requester="any", groups=("system:bootstrappers:managedcluster",)))
    assert is_bootstrap(evolve(GOOD, requester=USER)) and not is_bootstrap(evolve(GOOD, requester="admin"))


def test_f_14_a_key_is_recognized_by_its_fingerprint() -> None:
    first, second = new_key(), new_key()
    requests = [certificate_request(key, Name(USER)) for key in (first, first, second)]
    found = [fingerprint(unknown({"metadata": {}, "spec": {"request": base64.b64encode(each).decode()}})) for each in requests]
    assert found[0] == found[1] != found[2] and found[0].startswith("sha256:")
    assert fingerprint(unknown({"metadata": {}, "spec": {"request": "QQ=="}})) == ""
