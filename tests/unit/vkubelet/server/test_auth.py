"""Who a caller is, and what is asked about them."""

from __future__ import annotations

import base64
import hashlib

import pytest
from aiohttp import web

from vkubelet.server.auth import (
    Question,
    User,
    access_review,
    bearer_token,
    is_debug,
    needed,
    subresources,
    user_of_certificate,
    user_of_review,
)


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


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/stats/summary", ("stats",)),
        ("/stats", ("stats",)),
        ("/statsx", ("proxy",)),
        ("/metrics", ("metrics",)),
        ("/metrics/resource", ("metrics",)),
        ("/logs/", ("log",)),
        ("/checkpoint/a/b/c", ("checkpoint",)),
        ("/statusz", ("proxy",)),
        ("/flagz", ("proxy",)),
        ("/pods", ("pods", "proxy")),
        ("/runningpods/", ("pods", "proxy")),
        ("/healthz", ("healthz", "proxy")),
        ("/healthz/ping", ("healthz", "proxy")),
        ("/configz", ("configz", "proxy")),
        ("/containerLogs/a/b/c", ("proxy",)),
        ("/exec/a/b/c", ("proxy",)),
        ("/%73tats/summary", ("proxy",)),
        ("//stats", ("proxy",)),
        ("/", ("proxy",)),
        ("*", ("proxy",)),
        ("", ("proxy",)),
    ],
)
def test_each_path_asks_for_its_subresource_and_the_fine_one_first(path: str, expected: tuple[str, ...]) -> None:
    assert subresources(path) == expected


@pytest.mark.parametrize(
    ("method", "verb"),
    [("GET", "get"), ("POST", "create"), ("PUT", "update"), ("PATCH", "patch"), ("DELETE", "delete"), ("HEAD", "get"), ("OPTIONS", "get")],
)
def test_methods_are_verbs(method: str, verb: str) -> None:
    assert needed(method, "/pods").verb == verb


@pytest.mark.parametrize("path", ["/exec/a/b/c", "/attach/a/b/c", "/portForward/a/b", "/run/a/b/c"])
def test_in_the_strict_mode_what_works_inside_containers_is_a_create_by_any_method(path: str) -> None:
    assert needed("GET", path).verb == "get"
    assert needed("GET", path, strict=True).verb == "create"
    assert needed("GET", "/containerLogs/a/b/c", strict=True).verb == "get"
    assert needed("DELETE", "/pods", strict=True).verb == "delete"


@pytest.mark.parametrize(
    "path",
    [
        "/run/a/b/c",
        "/exec/a/b/c",
        "/attach/a/b/c",
        "/portForward/a/b",
        "/containerLogs/a/b/c",
        "/runningpods/",
        "/runningpods",
        "/logs/",
        "/logs/x",
        "/debug/pprof",
        "/debug/pprof/heap",
    ],
)
def test_paths_that_need_the_debug_handlers(path: str) -> None:
    assert is_debug(path)


@pytest.mark.parametrize(
    "path", ["/pods", "/metrics", "/stats/summary", "/healthz", "/configz", "/debug/flags/v", "/debug", "/", "", "*", "/logsx"]
)
def test_paths_that_do_not(path: str) -> None:
    assert not is_debug(path)
