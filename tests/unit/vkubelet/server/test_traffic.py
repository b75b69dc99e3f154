"""How requests are counted."""

from __future__ import annotations

import pytest

from vkubelet.server.traffic import series


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/pods", ("GET", "pods", "false")),
        ("GET", "/metrics", ("GET", "metrics", "false")),
        ("GET", "/metrics/resource", ("GET", "metrics/resource", "false")),
        ("GET", "/metrics/invented", ("GET", "metrics", "false")),
        ("POST", "/exec/a/b/c", ("POST", "exec", "true")),
        ("GET", "/debug/pprof/profile", ("GET", "debug", "true")),
        ("GET", "/secret-name/x", ("GET", "other", "false")),
        ("GET", "/", ("GET", "other", "false")),
        ("GET", "*", ("GET", "other", "false")),
        ("INVENTED", "/pods", ("other", "pods", "false")),
    ],
)
def test_a_request_counts_by_method_and_first_part_of_its_path(method: str, path: str, expected: tuple[str, str, str]) -> None:
    told = series(method, path)
    assert (told[0], told[1], told[3]) == expected
    assert told[2] == "readwrite"
