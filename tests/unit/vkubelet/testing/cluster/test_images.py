"""Image archives have the form container engines read, and the same bytes each time.

Invariant: every digest in an archive is computed again here from what it names.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from vkubelet.testing.cluster.images import AGNHOST, BUSYBOX, COREDNS, PAUSE, Image, Layer, busybox_layer, ensure_coredns, write_archive


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF not really")
    return path


@pytest.fixture
def layers(program: Path) -> list[Layer]:
    return [busybox_layer(program, ["busybox", "sh", "sleep"]), Layer(programs={"agnhost": program})]


IMAGES = [
    Image([BUSYBOX, "docker.io/library/busybox:1.36"], [0], command=["sh"]),
    Image([PAUSE], [0], entrypoint=["/bin/sleep", "9"]),
    Image([AGNHOST], [0, 1], entrypoint=["/agnhost"], command=["pause"]),
]


def read(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as stream:
        return {entry.name: stream.extractfile(entry).read() for entry in stream if entry.isfile()}  # type: ignore[union-attr]


def test_manifest_names_configs_and_layers_that_are_there(layers: list[Layer], tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar", layers, images=IMAGES)
    content = read(tmp_path / "a.tar")
    manifest = json.loads(content["manifest.json"])
    assert [entry["RepoTags"] for entry in manifest] == [list(image.tags) for image in IMAGES]
    for entry in manifest:
        config = content[entry["Config"]]
        assert entry["Config"] == hashlib.sha256(config).hexdigest() + ".json"
        digests = ["sha256:" + hashlib.sha256(content[layer]).hexdigest() for layer in entry["Layers"]]
        assert json.loads(config)["rootfs"]["diff_ids"] == digests


def test_layers_are_stored_once_although_images_share_them(layers: list[Layer], tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar", layers, images=IMAGES)
    assert sum(name.endswith("layer.tar") for name in read(tmp_path / "a.tar")) == 2


def test_entrypoint_and_command_are_kept_apart(layers: list[Layer], tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar", layers, images=IMAGES)
    content = read(tmp_path / "a.tar")
    configs = [json.loads(content[entry["Config"]])["config"] for entry in json.loads(content["manifest.json"])]
    assert [(c.get("Entrypoint"), c.get("Cmd")) for c in configs] == [
        (None, ["sh"]),
        (["/bin/sleep", "9"], None),
        (["/agnhost"], ["pause"]),
    ]


def test_archives_of_the_same_programs_have_the_same_bytes(layers: list[Layer], program: Path, tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar", layers, images=IMAGES)
    program.touch()
    write_archive(tmp_path / "b.tar", layers, images=IMAGES)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_nothing_but_the_archive_is_left(layers: list[Layer], program: Path, tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar", layers, images=IMAGES)
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", program.name}


def test_applets_are_links_to_an_executable_busybox(layers: list[Layer], tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar", layers[:1], images=IMAGES[:1])
    content = read(tmp_path / "a.tar")
    layer = tmp_path / "layer.tar"
    layer.write_bytes(next(data for name, data in content.items() if name.endswith("layer.tar")))
    with tarfile.open(layer) as stream:
        entries = {entry.name: entry for entry in stream}
    assert entries["bin/sh"].linkname == "/bin/busybox"
    assert entries["bin/busybox"].isfile()
    assert entries["bin/busybox"].mode == 0o755
    assert entries["tmp"].mode == 0o1777


def test_archive_of_coredns_is_built_once_for_each_program(program: Path, tmp_path: Path) -> None:
    archive = ensure_coredns(tmp_path / "cache", program)
    [image] = json.loads(read(archive)["manifest.json"])
    assert image["RepoTags"] == [COREDNS]
    built = archive.stat().st_mtime_ns
    assert ensure_coredns(tmp_path / "cache", program).stat().st_mtime_ns == built
    program.write_bytes(b"another")
    assert ensure_coredns(tmp_path / "cache", program) != archive
