"""Only what is missing is installed, and only where that is possible.

Invariant: no package is installed here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import packages
from vkubelet.testing.cluster.processes import ClusterError


async def test_nothing_is_run_when_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    await packages.install([], say=said.append, clock=SystemClock())
    assert said == []


async def test_without_apt_the_error_names_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="install these packages first: containerd runc"):
        await packages.install(["containerd", "runc"], say=lambda line: None, clock=SystemClock())


def test_empty_machine_needs_the_bridge_tool_for_control_planes_and_more_for_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(packages, "PLUGIN_DIRECTORIES", (tmp_path,))
    assert packages.missing(nodes=False) == ["iproute2"]
    wanted = {"iproute2", "containerd", "runc", "procps", "containernetworking-plugins", "busybox-static"}
    assert set(packages.missing(nodes=True)) == wanted
    assert set(packages.missing(nodes=True, image=True)) == wanted | {"buildah"}
    assert set(packages.missing(nodes=True, services=True)) == wanted | {"nftables"}
    assert packages.missing(nodes=False, browser=True) == ["iproute2", "chromium"]


def test_prometheus_is_found_on_the_path_then_where_it_was_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert packages.prometheus() is None
    unpacked = tmp_path / "cache" / "vkubelet" / "prometheus" / "usr" / "bin"
    for place in (unpacked, tmp_path / "bin"):
        place.mkdir(parents=True)
        (place / "promtool").touch(mode=0o755)
        assert packages.prometheus() == place


async def test_without_apt_nothing_is_unpacked_and_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="install prometheus first"):
        await packages.unpack("prometheus", say=lambda line: None, clock=SystemClock())
