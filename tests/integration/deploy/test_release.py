"""What a release publishes: the same bytes from the same sources, a changelog of the fragments, and a kubectl plugin.

Invariant: the packages are built by the function that `make release` calls.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vkubelet.api.codec import decode_yaml
from vkubelet.clock import SystemClock
from vkubelet.testing.cluster.binaries import Binaries
from vkubelet.testing.fixtures import run_apart

ROOT = Path(__file__).parents[3]
RELEASE: dict[str, Any] = runpy.run_path(str(ROOT / "deploy" / "dev" / "release.py"))
EPOCH = 1_700_000_000


@pytest.fixture
def another_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_sdist_and_wheel_are_the_same_bytes_when_they_are_built_again(tmp_path: Path, another_umask: None) -> None:
    """The second time from the files of the sdist, which are new and only readable by their owner; a checkout has no PKG-INFO."""
    first = RELEASE["distributions"](ROOT, tmp_path / "first", EPOCH)
    with tarfile.open(first[0]) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    (source / "PKG-INFO").unlink()
    for path in source.rglob("*.py"):
        path.chmod(0o600)
        os.utime(path)
    second = RELEASE["distributions"](source, tmp_path / "second", EPOCH)
    for one, two in zip(first, second, strict=True):
        assert one.name == two.name and one.read_bytes() == two.read_bytes(), one.name
    version = RELEASE["CHARTS"]["project_version"]()
    assert [path.name for path in first] == [f"vkubelet-{version}.tar.gz", f"vkubelet-{version}-py3-none-any.whl"]


def test_packages_of_charts_are_reproducible_and_have_the_version_of_the_project(tmp_path: Path) -> None:
    helm = str(run_apart(Binaries(say=print, clock=SystemClock()).ensure(["helm"]))["helm"])
    version = RELEASE["CHARTS"]["project_version"]()
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(RELEASE["chart_package"](helm, ROOT / "deploy" / "charts" / "kubeocean", tmp_path / name, EPOCH))
    assert made[0].read_bytes() == made[1].read_bytes() and made[0].name == f"kubeocean-{version}.tgz"
    shown = decode_yaml(RELEASE["run"](helm, "show", "chart", str(made[0])))
    assert shown["version"] == shown["appVersion"] == version
    (definition,) = decode_yaml(shown["annotations"]["artifacthub.io/crds"])
    assert definition["name"] == "clusterbindings.cloud.tencent.com"


def test_the_changelog_has_the_fragments_above_the_earlier_versions(tmp_path: Path) -> None:
    (tmp_path / "worker-guards.md").write_text("A column.\n")
    (tmp_path / "bind.md").write_text("# The title\n\n- one\n")
    made = RELEASE["changelog"]("0.2.0", "2026-01-05", tmp_path.iterdir(), "# Changelog\n\n## 0.1.0 (2026-01-01)\n\n### Old\n")
    sections = [
        "# Changelog",
        "## 0.2.0 (2026-01-05)",
        "### The title",
        "- one",
        "### Worker guards",
        "A column.",
        "## 0.1.0 (2026-01-01)",
        "### Old",
    ]
    assert made.split("\n\n") == [*sections[:-1], "### Old\n"]


def test_the_plugin_of_krew_runs_the_command_and_has_the_checksum_of_its_archive(tmp_path: Path) -> None:
    packed = RELEASE["packed"]({"kubectl-kubeocean": RELEASE["_PLUGIN"]}, EPOCH, executable=["kubectl-kubeocean"])
    assert packed == RELEASE["packed"]({"kubectl-kubeocean": RELEASE["_PLUGIN"]}, EPOCH, executable=["kubectl-kubeocean"])
    archive = tmp_path / "kubectl-kubeocean-0.2.0.tar.gz"
    archive.write_bytes(packed)
    checksum = hashlib.sha256(packed).hexdigest()
    manifest = decode_yaml(RELEASE["krew_manifest"]("0.2.0", f"https://example.com/{archive.name}", checksum))
    (platform,) = manifest["spec"]["platforms"]
    assert manifest["spec"]["version"] == "v0.2.0" and platform["uri"].endswith(archive.name)
    assert RELEASE["checksums"](tmp_path) == f"{platform['sha256']}  {archive.name}\n"
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "bin", filter="data")
    plugin = tmp_path / "bin" / platform["bin"]
    absent = subprocess.run([plugin, "status"], env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert absent.returncode == 127 and "pip install vkubelet" in absent.stderr
    command = tmp_path / "bin" / "kubeocean"
    command.write_text('#!/bin/sh\necho "called with $*"\n')
    command.chmod(0o755)
    called = subprocess.run([plugin, "status"], env={"PATH": str(command.parent)}, capture_output=True, text=True, check=False)
    assert called.stdout == "called with status\n"
