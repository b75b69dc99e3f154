"""Who a caller is, and what is asked about them."""

from __future__ import annotations

import base64
import hashlib

import pytest
from aiohttp import web

from vkubelet.server.auth import Question, User, access_review, bearer_token, user_of_certificate, user_of_review


def test_a_certificate_names_user_groups_and_credential() -> None:
    user = user_of_certificate({"organizationName": ["system:masters", "ops"], "commonName": ["kube-apiserver"]}, b"der")
    assert user is not None
    assert user.name == "kube-apiserver"
    assert user.groups == ("system:masters", "ops", "system:authenticated")
    assert user.extra == (("authentication.kubernetes.io/credential-id", (f"X509SHA256={hashlib.sha256(b'der').hexdigest()}",)),)


def test_a_certificate_without_common_name_names_nobody() -> None:
    assert user_of_certificate({"organizationName": ["system:masters"]}, b"der") is None


def test_a_token_review_names_a_user_only_if_it_says_authenticated() -> None:
    named = {"user": {"username": "ann", "uid": "7", "groups": ["dev", "system:authenticated"], "extra": {"b": ["2"], "a": ["1"]}}}
    assert user_of_review(named) is None
    assert user_of_review({**named, "authenticated": False}) is None
    expected = User("ann", ("dev", "system:authenticated"), "7", (("a", ("1",)), ("b", ("2",))))
    assert user_of_review({**named, "authenticated": True}) == expected


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({}, ""),
        ({"Authorization": "Bearer abc"}, "abc"),
        ({"Authorization": "bearer  abc "}, "abc"),
        ({"Authorization": "Basic abc"}, ""),
        ({"Authorization": "Bearer"}, ""),
        (
            {
                "Sec-WebSocket-Protocol": "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io."
                + base64.urlsafe_b64encode(b"a.b-c?>").decode().rstrip("=")
            },
            "a.b-c?>",
        ),
    ],
)
def test_tokens_are_found(headers: dict[str, str], token: str) -> None:
    assert bearer_token(headers) == token


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer \udcff"},
        {"Authorization": "bearer abc\udc80"},
        {"Sec-WebSocket-Protocol": "base64url.bearer.authorization.k8s.io.%%%%%"},
        {"Sec-WebSocket-Protocol": "base64url.bearer.authorization.k8s.io.a"},
        {"Sec-WebSocket-Protocol": "base64url.bearer.authorization.k8s.io.\u00e4bc"},
        {"Sec-WebSocket-Protocol": "base64url.bearer.authorization.k8s.io._w"},
    ],
)
def test_bytes_that_can_be_no_token_are_unauthorized_and_never_no_token(headers: dict[str, str]) -> None:
    with pytest.raises(web.HTTPUnauthorized):
        bearer_token(headers)


def test_a_review_asks_about_the_node_by_name_and_about_all_nodes_by_none() -> None:
    user = User("ann", ("dev",), "7", (("scope", ("x", "y")),))
    review = access_review(Question(user, "get", "pods", "node-1"))
    assert review == {
        "user": "ann",
        "groups": ["dev"],
        "uid": "7",
        "extra": {"scope": ["x", "y"]},
        "resourceAttributes": {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "pods", "name": "node-1"},
    }
    assert "name" not in access_review(Question(user, "get", "pods", ""))["resourceAttributes"]
