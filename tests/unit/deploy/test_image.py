"""The base of the image is what packages hold, at the places of a merged tree, without what only their set-up needs.

Invariant: nothing is downloaded or built here.
"""

from __future__ import annotations

import io
import re
import runpy
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
IMAGE = runpy.run_path(str(ROOT / "deploy" / "dev" / "image.py"))

GRAPH = """\
python3-venv
  Depends: python3.11-venv
 |Depends: debconf
  Depends: <debconf-2.0>
    cdebconf
    debconf
debconf
  Depends: perl-base
python3.11-venv
  PreDepends: libc6
  Depends: <python3.11-distutils>
    python3-distutils
unrelated
  Depends: libx11-6
libc6
python3-distutils
"""


def test_packages_are_followed_but_for_what_only_sets_others_up() -> None:
    assert IMAGE["needed"](GRAPH, ["python3-venv"]) == ["libc6", "python3-distutils", "python3-venv", "python3.11-venv"]


@pytest.mark.parametrize(
    ("name", "merged"),
    [
        ("./lib/x/libc.so.6", "usr/lib/x/libc.so.6"),
        ("./lib64/ld.so", "usr/lib64/ld.so"),
        ("./usr/lib/a", "usr/lib/a"),
        ("./etc/b", "etc/b"),
    ],
)
def test_files_lie_below_usr(name: str, merged: str) -> None:
    assert IMAGE["merged_name"](name) == merged


def package(files: dict[str, bytes]) -> tarfile.TarFile:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return tarfile.open(fileobj=io.BytesIO(out.getvalue()))


def test_the_tree_holds_programs_and_authorities_and_no_documentation(tmp_path: Path) -> None:
    files = {"./bin/python3": b"#!", "./usr/share/doc/x/copyright": b"text", "./usr/share/ca-certificates/mozilla/a.crt": b"A\n"}
    other = {"./usr/share/ca-certificates/mozilla/b.crt": b"B\n", "./usr/bin/sh": b"#!"}
    IMAGE["write_tree"]([package(files), package(other)], tmp_path / "tree.tar")
    with tarfile.open(tmp_path / "tree.tar") as tree:
        names = tree.getnames()
        bundle = tree.extractfile("etc/ssl/certs/ca-certificates.crt")
        assert bundle is not None and bundle.read() == b"A\nB\n"
        assert tree.getmember("bin").linkname == "usr/bin" and tree.getmember("tmp").mode == 0o1777
    assert "usr/bin/python3" in names and "usr/bin/sh" not in names
    assert not [name for name in names if "doc" in name] and len(names) == len(set(names))


def test_another_source_is_another_image() -> None:
    fingerprint: Any = IMAGE["fingerprint"]
    assert fingerprint("a", "b") == fingerprint("a", "b") != fingerprint("a", "c")
    assert re.fullmatch("[0-9a-f]{16}", fingerprint("a"))
    assert any(line.startswith("kubeocean/cli.py ") for line in IMAGE["sources"]())


def test_the_image_does_not_contain_the_test_kit() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for folder in IMAGE["NOT_IN_THE_IMAGE"]:
        assert ignored.index("!vkubelet") < ignored.index(folder.rstrip("/")), "the last pattern that matches decides"
        assert (ROOT / folder).is_dir() and not [line for line in IMAGE["sources"]() if line.startswith(folder)]


def test_every_package_of_the_project_is_in_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = re.findall(r"^COPY (\w+) /src/", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    allowed = re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert set(packages) == set(copied) <= set(IMAGE["SOURCES"]) and set(packages) <= set(allowed)
    assert "fleet" in packages and "fleet" in project["project"]["scripts"]
