"""Directories of pods: how they are made, found again and removed."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.interleave import interleaved
from vkubelet import PodRef
from vkubelet.testing.clock import ManualClock
from vkubelet_providers.process.cgroups import Cgroups
from vkubelet_providers.process.keeper.mounts import mount_tmpfs
from vkubelet_providers.process.local_pods import LocalPods, erase
from vkubelet_providers.process.machine import mount_points

REF = PodRef(namespace="default", name="web", uid="uid-web", node="node")


def pods(directory: Path) -> LocalPods:
    return LocalPods(
        directory, cgroups=Cgroups.find("", cpu=1000), clock=ManualClock(), address="127.0.0.1", on_terminated=lambda report: None
    )


def test_a_removal_leaves_what_a_link_put_in_its_way_leads_to(tmp_path: Path) -> None:
    """Processes of a pod that left its session may live on where there are no control groups."""
    outside, volume = tmp_path / "outside", tmp_path / "pod/files/volumes/v"
    (outside / "deep/er").mkdir(parents=True)
    outside.chmod(0o711)

    def restore() -> None:
        for each in tmp_path.iterdir():
            if each != outside:
                erase(each)
        (volume / "d/deep/er").mkdir(parents=True)

    def change() -> None:
        found = next((each for each in tmp_path.rglob("volumes/v/d") if (each / "deep").exists()), None)
        if found is not None:
            # What is about to be removed is missing then, and its path leads elsewhere.
            os.rename(found / "deep", found.with_name("kept"))
            os.rename(found, found.with_name("aside"))
            os.symlink(outside, found)

    restore()
    assert interleaved(lambda: erase(tmp_path / "pod"), change, undo=restore) > 5
    assert (outside / "deep/er").is_dir() and stat.S_IMODE(outside.stat().st_mode) == 0o711


def test_a_deep_tree_of_a_pod_does_not_keep_it_from_being_removed(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    here = os.open(tmp_path / "pod", os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("deep", dir_fd=here)
        above, here = here, os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(above)
    os.close(here)
    before = len(os.listdir("/proc/self/fd"))
    try:
        erase(tmp_path / "pod")
        assert not list(tmp_path.iterdir()) and len(os.listdir("/proc/self/fd")) == before
    finally:
        # Python's own functions, pytest's too, do not get to the end of such a tree.
        subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


async def test_a_removal_that_was_cut_off_is_finished_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = await pods(tmp_path).hold(REF)
    (held.directory / "containers/main/0").mkdir(parents=True)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            erase(held.directory)
    assert not held.directory.exists() and len(list(tmp_path.iterdir())) == 1
    again = pods(tmp_path)
    await again.load()
    assert not list(again) and not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
async def test_mounts_that_a_start_finds_without_a_pod_are_removed(tmp_path: Path) -> None:
    place = tmp_path / "uid-gone/files/memory"
    place.mkdir(parents=True)
    mount_tmpfs(str(place), "mode=0700")
    (place / "token").write_text("secret")
    await pods(tmp_path).load()
    assert not list(tmp_path.iterdir()) and not [point for point in mount_points() if point.startswith(str(tmp_path))]


async def test_a_pod_is_on_the_disk_before_anything_of_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, synced = os.fsync, list[bytes]()

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").read_bytes())
        usual(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    held = await pods(tmp_path).hold(REF)
    assert synced == [(held.directory / "pod.json").read_bytes()]
    again = pods(tmp_path)
    await again.load()
    assert [each.ref for each in again] == [REF]
