"""Which right a request needs."""

from __future__ import annotations

import pytest

from vkubelet.server.rights import is_debug, needed, subresources


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
        ("/statusz", ("statusz",)),
        ("/flagz", ("configz",)),
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
