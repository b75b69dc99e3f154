"""What the debug handlers decide without a server."""

from __future__ import annotations

import pytest

from vkubelet.server.debug import debug_path, flat


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
    assert debug_path(path)


@pytest.mark.parametrize(
    "path", ["/pods", "/metrics", "/stats/summary", "/healthz", "/configz", "/debug/flags/v", "/debug", "/", "", "*", "/logsx"]
)
def test_paths_that_do_not(path: str) -> None:
    assert not debug_path(path)


def test_settings_are_flattened_to_their_paths() -> None:
    assert flat({"a": 1, "b": {"c": {"d": "x"}, "e": []}}) == {"a": 1, "b.c.d": "x", "b.e": []}
