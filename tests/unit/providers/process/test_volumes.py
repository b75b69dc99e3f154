"""Tests of where a container's files lie."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.interleave import exchange, interleaved
from vkubelet import PodRejected, Unavailable
from vkubelet.provider import Mount, ResolvedContainer
from vkubelet_providers.process.keeper.mounts import Bind
from vkubelet_providers.process.local_pods import erase
from vkubelet_providers.process.machine import mount_points
from vkubelet_providers.process.volumes import Places, allows, binds, check, kind_of, link, make_empty_dirs, make_memory


@pytest.mark.parametrize(
    ("volume", "host_paths", "reason"),
    [
        ({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, ["/"], "UnsupportedVolume"),
        ({"name": "v", "hostPath": {"path": "/etc"}}, [], "HostPathNotAllowed"),
        ({"name": "v", "hostPath": {"path": "/srv-other"}}, ["/srv"], "HostPathNotAllowed"),
        ({"name": "v", "hostPath": {"path": "/srv/../etc"}}, ["/srv"], "HostPathNotAllowed"),
    ],
)
def test_volumes_that_can_not_be_are_refused(volume: dict[str, Any], host_paths: list[str], reason: str) -> None:
    with pytest.raises(PodRejected) as refused:
        check({"volumes": [volume]}, host_paths=host_paths)
    assert refused.value.reason == reason


def test_volumes_that_can_be_are_let_through() -> None:
    kinds = [
        {"configMap": {}},
        {"secret": {}},
        {"projected": {}},
        {"downwardAPI": {}},
        {"emptyDir": {}},
        {},
        {"hostPath": {"path": "/srv/a"}},
    ]
    check({"volumes": [{"name": "v", **kind} for kind in kinds]}, host_paths=["/srv"])
    assert kind_of({"name": "v"}) == "emptyDir" and allows(["/"], "/anything")


def test_a_link_does_not_lead_to_what_is_not_allowed(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open/link").symlink_to("/etc")
    assert not allows([str(tmp_path / "open")], str(tmp_path / "open/link"))


def test_empty_dirs_are_made_once_and_open_to_all(tmp_path: Path) -> None:
    spec = {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}]}
    make_empty_dirs(spec, tmp_path, group=None, root=False)
    (tmp_path / "a/file").touch()
    make_empty_dirs(spec, tmp_path, group=None, root=False)
    assert (tmp_path / "a/file").exists() and (tmp_path / "a").stat().st_mode & 0o777 == 0o777
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("part", ["/etc", "../other", "a/../../b"])
def test_a_sub_path_does_not_lead_out(tmp_path: Path, part: str) -> None:
    places = Places.of({"volumes": [{"name": "v", "hostPath": {"path": str(tmp_path)}}]}, tmp_path)
    with pytest.raises(Unavailable, match="subPath"):
        places.source(Mount(volume="v", path="/x", sub_path=part))


def test_a_sub_path_through_a_link_does_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v/link").symlink_to("/etc")
    places = Places.of({"volumes": [{"name": "v", "hostPath": {"path": str(tmp_path / "v")}}]}, tmp_path)
    with pytest.raises(Unavailable, match="leads out"):
        places.source(Mount(volume="v", path="/x", sub_path="link"))
    assert places.source(Mount(volume="v", path="/x", sub_path="new/deep")).is_dir()


def test_a_host_path_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    volume = {"name": "v", "hostPath": {"path": str(tmp_path / "none"), "type": "Directory"}}
    with pytest.raises(Unavailable, match="none") as waits:
        Places.of({"volumes": [volume]}, tmp_path).source(Mount(volume="v", path="/x"))
    assert (waits.value.event, waits.value.waiting) == ("FailedMount", "ContainerCreating")
    volume["hostPath"] = {"path": str(tmp_path / "none"), "type": "DirectoryOrCreate"}
    assert Places.of({"volumes": [volume]}, tmp_path).source(Mount(volume="v", path="/x")).is_dir()


def test_a_volume_wins_over_a_file_of_the_pod(tmp_path: Path) -> None:
    mounts = (Mount(volume="v", path="/etc/hosts", source=tmp_path / "own"),)
    made = binds(
        ResolvedContainer(name="main", image="", mounts=mounts),
        Places.of({}, tmp_path),
        extra={"/etc/hosts": tmp_path / "pods", "/etc/hostname": tmp_path / "name"},
    )
    assert [(each["target"], each["source"]) for each in made] == [
        ("/etc/hosts", str(tmp_path / "own")),
        ("/etc/hostname", str(tmp_path / "name")),
    ]


def test_links_stand_for_mounts(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    for name in ("data", "inner"):
        (tmp_path / name).mkdir()
    mounts = [Bind(source=str(tmp_path / name), target=target, read_only=False) for name, target in (("inner", "/d/x"), ("data", "/d"))]
    link(mounts, tmp_path / "root")
    assert (tmp_path / "root/d").resolve() == tmp_path / "data"
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.parametrize("target", ["/../../etc/cron.d/x", "../../etc/cron.d/x", "//etc/cron.d/x", "/a/../../etc/cron.d/./x/"])
def test_no_mount_lies_outside_of_the_containers_root(tmp_path: Path, target: str) -> None:
    container = ResolvedContainer(name="main", image="", mounts=(Mount(volume="v", path=target, source=tmp_path),))
    made = binds(container, Places.of({}, tmp_path), extra={})
    made += binds(ResolvedContainer(name="main", image=""), Places.of({}, tmp_path), extra={target: tmp_path})
    assert [each["target"] for each in made] == ["/etc/cron.d/x"] * 2
    (tmp_path / "deep/root").mkdir(parents=True)
    link(made, tmp_path / "deep/root")
    assert (tmp_path / "deep/root/etc/cron.d/x").is_symlink() and len(list(tmp_path.iterdir())) == 1


def test_a_directory_that_was_cut_off_while_it_was_made_is_finished(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o700)
    make_empty_dirs({"volumes": [{"name": "a", "emptyDir": {}}]}, tmp_path, group=None, root=False)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o777


def test_a_medium_that_is_not_there_is_refused() -> None:
    with pytest.raises(PodRejected, match="HugePages"):
        check({"volumes": [{"name": "v", "emptyDir": {"medium": "HugePages-2Mi"}}]}, host_paths=[])


def test_a_host_path_that_leads_elsewhere_after_it_was_looked_at_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open/dir").mkdir(parents=True)
    spec = {"volumes": [{"name": "v", "hostPath": {"path": str(tmp_path / "open/dir")}}]}
    places, mount = Places.of(spec, tmp_path, host_paths=[str(tmp_path / "open")]), Mount(volume="v", path="/x")
    assert places.source(mount) == tmp_path / "open/dir"
    (tmp_path / "open/dir").rmdir()
    (tmp_path / "open/dir").symlink_to("/etc")
    with pytest.raises(Unavailable, match="not allowed"):
        places.source(mount)


def test_a_sub_path_that_is_made_is_as_open_as_its_volume(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    places = Places.of({"volumes": [{"name": "v", "hostPath": {"path": str(tmp_path)}}]}, tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    assert places.source(Mount(volume="v", path="/x", sub_path="a/b")).stat().st_mode & 0o7777 == 0o2775
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_is_mounted_at_the_root(tmp_path: Path) -> None:
    container = ResolvedContainer(name="main", image="", mounts=(Mount(volume="v", path="/a/..", source=tmp_path),))
    with pytest.raises(Unavailable, match="mountPath /"):
        binds(container, Places.of({}, tmp_path), extra={})


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A directory that hostPath volumes may name and a program changes, beside one of the host."""
    (tmp_path / "outside/dir").mkdir(parents=True)
    (tmp_path / "outside/file").touch()
    (tmp_path / "scratch").mkdir()
    refill(tmp_path / "scratch")
    return tmp_path / "scratch"


def refill(scratch: Path) -> None:
    for path in (scratch / "d", scratch / "e"):
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
    (scratch / "d/dir").mkdir(parents=True)
    (scratch / "d/file").touch()
    (scratch / "e").symlink_to(scratch.parent / "outside")


@pytest.mark.parametrize(
    ("kind", "path", "part"),
    [
        ("FileOrCreate", "d/new", ""),
        ("DirectoryOrCreate", "d/new/deep", ""),
        ("", "d/dir", ""),
        ("File", "d/file", ""),
        ("Directory", "d", "new/deep"),
        ("", "", "d/new"),
    ],
)
def test_a_link_put_in_the_way_of_a_host_path_at_any_moment_leads_nowhere(scratch: Path, kind: str, path: str, part: str) -> None:
    spec = {"volumes": [{"name": "v", "hostPath": {"path": str(scratch / path), "type": kind}}]}
    places, swap = Places.of(spec, scratch, host_paths=[str(scratch)]), exchange(scratch / "d", scratch / "e")
    found: list[Path] = []

    def work() -> None:
        # As a keeper opens it, which may be much later.
        with suppress(Unavailable):
            found.append(places.source(Mount(volume="v", path="/x", sub_path=part)))

    assert interleaved(work, swap, undo=lambda: refill(scratch)) > 5
    assert {each.name for each in (scratch.parent / "outside").rglob("*")} == {"dir", "file"}
    assert found and all(each.is_relative_to(scratch) for each in found)


def test_links_of_the_host_in_a_host_path_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "disk/a").mkdir(parents=True)
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    spec = {"volumes": [{"name": "v", "hostPath": {"path": str(tmp_path / "data/a"), "type": "Directory"}}]}
    places = Places.of(spec, tmp_path, host_paths=[str(tmp_path / "data")])
    assert places.source(Mount(volume="v", path="/x")) == tmp_path / "disk/a"


@pytest.mark.parametrize("kind", ["Directory", "File", "Socket", "CharDevice", "BlockDevice", "FileOrCreate", "DirectoryOrCreate"])
def test_a_host_path_of_another_type_is_waited_for(tmp_path: Path, kind: str) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    path = tmp_path / ("file" if kind in ("Directory", "DirectoryOrCreate") else "dir")
    spec = {"volumes": [{"name": "v", "hostPath": {"path": str(path), "type": kind}}]}
    with pytest.raises(Unavailable, match=f"is not a {kind}"):
        Places.of(spec, tmp_path).source(Mount(volume="v", path="/x"))


def test_a_link_put_in_the_way_of_a_link_at_any_moment_leads_nowhere(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()

    def restore() -> None:
        shutil.rmtree(root, ignore_errors=True)
        (root / "srv").mkdir(parents=True)
        (root / "x").symlink_to(outside)

    restore()
    mounts = [Bind(source="/volume", target="/srv/deep/evil", read_only=True)]
    assert interleaved(lambda: link(mounts, root), exchange(root / "srv", root / "x"), undo=restore) > 3
    assert not list(outside.iterdir())


SECRET = {"volumes": [{"name": "s", "secret": {"secretName": "s"}}]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_what_is_secret_has_one_tmpfs_which_stays_until_its_pod_goes(tmp_path: Path) -> None:
    files = tmp_path / "pod/files"
    files.mkdir(parents=True)
    make_memory({"volumes": [{"name": "c", "configMap": {"name": "c"}}]}, files)
    assert not list(files.iterdir())
    make_memory(SECRET, files)
    (files / "memory/token").write_text("secret")
    make_memory(SECRET, files)
    assert (files / "memory/token").read_text() == "secret" and (files / "memory").stat().st_mode & 0o7777 == 0o755
    assert [point for point in mount_points() if point.startswith(str(tmp_path))] == [str(files / "memory")]
    erase(tmp_path / "pod")
    assert not list(tmp_path.iterdir()) and not [point for point in mount_points() if point.startswith(str(tmp_path))]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user cannot be played")
def test_what_is_secret_lies_on_the_disk_of_a_host_that_cannot_mount(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_mode & 0o001 == 0:
            path.chmod(path.stat().st_mode | 0o011)
    os.chown(tmp_path, 65534, -1)
    os.seteuid(65534)
    try:
        make_memory(SECRET, tmp_path)
    finally:
        os.seteuid(0)
    assert (tmp_path / "memory").stat().st_dev == tmp_path.stat().st_dev and (tmp_path / "memory").stat().st_mode & 0o777 == 0o755
