"""What a release publishes: the same bytes from the same sources, a changelog of the fragments, and a kubectl plugin.

Invariant: the packages are built by the function that `make release` calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import runpy
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.installed import image
from vkubelet.api.codec import decode_yaml
from vkubelet.clock import SystemClock
from vkubelet.testing.cluster.binaries import Binaries
from vkubelet.testing.fixtures import run_apart

ROOT = Path(__file__).parents[3]
RELEASE: dict[str, Any] = runpy.run_path(str(ROOT / "deploy" / "dev" / "release.py"))
EPOCH = 1_700_000_000
DISTRIBUTION = re.compile(r"opt/kubeocean/lib/python3[^/]*/site-packages/([^/]+)-([^/-]+)\.dist-info/METADATA")


@pytest.fixture
def another_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of this tree."""
    sdist, wheel = RELEASE["distributions"](ROOT, tmp_path_factory.mktemp("dist"), EPOCH)
    return sdist, wheel


def test_sdist_and_wheel_are_the_same_bytes_when_they_are_built_again(
    distributions: tuple[Path, Path], tmp_path: Path, another_umask: None
) -> None:
    """The second time from the files of the sdist, which are new and only readable by their owner; a checkout has no PKG-INFO."""
    first = distributions
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
    (tmp_path / "README.md").write_text("# Release notes\n\nThe list of the fragments.\n")
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
    assert absent.returncode == 127 and "install the wheel of the same release" in absent.stderr
    command = tmp_path / "bin" / "kubeocean"
    command.write_text('#!/bin/sh\necho "called with $*"\n')
    command.chmod(0o755)
    called = subprocess.run([plugin, "status"], env={"PATH": str(command.parent)}, capture_output=True, text=True, check=False)
    assert called.stdout == "called with status\n"


# --- The image ----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archive() -> Path:
    """The image of these sources, as `make image` builds it."""
    return asyncio.run(image())


@contextmanager
def image_config(archive: Path) -> Iterator[tuple[tarfile.TarFile, Mapping[str, Any], Mapping[str, Any]]]:
    """The open archive, its manifest, and the configuration of the image."""
    with tarfile.open(archive) as opened:

        def read(name: str) -> Any:
            content = opened.extractfile(name)
            assert content is not None
            return json.load(content)

        (manifest,) = read("manifest.json")
        yield opened, manifest, read(manifest["Config"])["config"]


def distributions_of(archive: Path) -> dict[str, str]:
    """Versions of the Python distributions in an image, by their normalized names."""
    found: dict[str, str] = {}
    with image_config(archive) as (opened, manifest, _):
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=opened.extractfile(layer)) as tree:
                found |= {normalized(match[1]): match[2] for name in tree.getnames() if (match := DISTRIBUTION.fullmatch(name))}
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.timeout(900)
def test_the_sbom_has_every_distribution_of_the_image_with_its_version(
    archive: Path, distributions: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = distributions_of(archive)
    assert inside["vkubelet"] == RELEASE["CHARTS"]["project_version"]() and {"aiohttp", "msgspec", "uvloop"} <= inside.keys()
    # The newest versions of this day, which a release gets, may be newer than those of a cached image.
    pinned = tmp_path / "constraints.txt"
    pinned.write_text("".join(f"{name}=={version}\n" for name, version in inside.items() if name != "vkubelet"))
    monkeypatch.setenv("PIP_CONSTRAINT", str(pinned))
    RELEASE["write_sbom"](distributions[1], tmp_path / "sbom.json")
    sbom = json.loads((tmp_path / "sbom.json").read_text())
    listed = {normalized(each["name"]): each["version"] for each in (sbom["metadata"]["component"], *sbom["components"])}
    assert {name: listed.get(name) for name in inside} == inside
    assert not {"pip", "setuptools"} & (inside.keys() | listed.keys())


def test_labels_of_the_image_name_the_project_and_its_version(archive: Path) -> None:
    prefix = "org.opencontainers.image."
    with image_config(archive) as (_, _, config):
        labels = {name.removeprefix(prefix): text for name, text in config["Labels"].items() if name.startswith(prefix)}
    assert labels == {
        "title": "kubeocean",
        "version": RELEASE["CHARTS"]["project_version"](),
        "vendor": "The vkubelet authors",
        "description": "The nodes of worker clusters as virtual nodes of a computing cluster",
        "licenses": "Apache-2.0",
        # Only a release has a commit: the image of a cache is that of its sources, whichever commits contain them.
        "revision": "",
    }
    assert config["User"] == "65532:65532"
