"""Which paths below `/logs/` a provider is asked for."""

from __future__ import annotations

import pytest

from vkubelet.server.node_logs import stays_inside


@pytest.mark.parametrize("path", ["", "kubelet.log", "pods/", "pods/a_b_c/app/0.log", "..data", "a..b", "...", "ä/ö.log"])
def test_paths_that_only_go_down_are_passed_on(path: str) -> None:
    assert stays_inside(path)


@pytest.mark.parametrize(
    "path",
    ["..", "../passwd", "a/../b", "a/..", "./a", "a/./b", "/etc/passwd", "a//b", "//", "/", "a\\..\\b", "a\x00b", "a\nb", "a/../", "a//"],
)
def test_paths_that_could_lead_elsewhere_are_refused(path: str) -> None:
    assert not stays_inside(path)
