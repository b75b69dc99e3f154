"""Volumes on disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.interleave import exchange, interleaved
from vkubelet.resolve.files import DATA, IN_MEMORY, ON_DISK, is_written, make_root, sub_path, write_volume
from vkubelet.resolve.volumes import Files, ProjectedFile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "volumes" / "v", ON_DISK)


def of(**texts: str) -> Files:
    return {name.replace("__", "/"): ProjectedFile(text.encode()) for name, text in texts.items()}


def read(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and not path.relative_to(root).parts[0].startswith("..")
    }


def test_files_are_seen_through_one_link_that_an_update_renames(root: Path) -> None:
    assert not is_written(root)
    assert write_volume(root, of(a="1", d__e="2"))
    first = os.readlink(root / DATA)
    assert is_written(root) and os.readlink(root / "a") == "..data/a" and (root / "d/e").read_text() == "2"
    assert write_volume(root, of(a="3", f="4"))
    assert read(root) == {"a": "3", "f": "4"}
    assert {path.name for path in root.iterdir()} == {DATA, os.readlink(root / DATA), "a", "f"}
    assert os.readlink(root / DATA) != first


def test_a_reader_that_holds_the_directory_sees_one_moment(root: Path) -> None:
    write_volume(root, of(a="1", b="1"))
    held = os.open(root / DATA, os.O_RDONLY)
    try:
        opened = os.open("a", os.O_RDONLY, dir_fd=held)
        write_volume(root, of(a="2", b="2"))
        assert os.read(opened, 9) == b"1"
        os.close(opened)
    finally:
        os.close(held)


def test_equal_content_is_not_written_again_and_links_are_repaired(root: Path) -> None:
    write_volume(root, of(a="1"))
    before = os.readlink(root / DATA)
    (root / "a").unlink()
    assert not write_volume(root, of(a="1"))
    assert os.readlink(root / DATA) == before and (root / "a").read_text() == "1"


@pytest.mark.parametrize("paths", [("a", "a/b"), ("a/b", "a")])
def test_what_can_not_be_written_leaves_nothing_and_the_files_before_stay(root: Path, paths: tuple[str, str]) -> None:
    write_volume(root, of(a="1"))
    before = {path.name for path in root.iterdir()}
    with pytest.raises(OSError):
        write_volume(root, {path: ProjectedFile(b"secret") for path in paths})
    assert {path.name for path in root.iterdir()} == before and (root / "a").read_text() == "1"


def test_what_a_broken_off_update_left_goes_with_the_next(root: Path) -> None:
    write_volume(root, of(a="1"))
    (root / "..0left").mkdir()
    (root / "..data_tmp").symlink_to("..0left")
    write_volume(root, of(a="2"))
    assert {path.name for path in root.iterdir()} == {DATA, os.readlink(root / DATA), "a"}


def test_an_empty_volume_is_complete(root: Path) -> None:
    assert write_volume(root, {})
    assert is_written(root) and read(root) == {}


def test_modes_are_as_asked_whatever_the_umask(root: Path) -> None:
    before = os.umask(0o077)
    try:
        write_volume(root, {"a": ProjectedFile(b"x", 0o444), "d/b": ProjectedFile(b"x", 0o777), "c": ProjectedFile(b"x", 0)})
    finally:
        os.umask(before)
    modes = {name: (root / name).stat().st_mode & 0o777 for name in ("a", "d", "d/b", "c", DATA)}
    assert modes == {"a": 0o444, "d": 0o755, "d/b": 0o777, "c": 0, DATA: 0o755}
    assert root.stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "..x", ""])
def test_a_path_out_of_the_volume_writes_nothing(root: Path, path: str) -> None:
    with pytest.raises(ValueError, match="must lie within the volume"):
        write_volume(root, {"a": ProjectedFile(b""), path: ProjectedFile(b"")})
    assert list(root.iterdir()) == []


def test_a_volume_whose_root_was_taken_away_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_volume(tmp_path / "gone", of(a="1"))
    assert list(tmp_path.iterdir()) == []


def test_a_pinned_file_keeps_its_content_and_an_update_has_another_place(root: Path, tmp_path: Path) -> None:
    write_volume(root, {"a": ProjectedFile(b"1", 0o640)})
    first = sub_path(root, "a", pins=tmp_path / "pins")
    assert (first.name, first.read_text(), first.stat().st_mode & 0o777) == ("a", "1", 0o640)
    assert sub_path(root, "a", pins=tmp_path / "pins") == first
    write_volume(root, of(a="2"))
    second = sub_path(root, "a", pins=tmp_path / "pins")
    assert (first.read_text(), second.read_text()) == ("1", "2")


def test_a_pinned_directory_is_copied_whole(root: Path, tmp_path: Path) -> None:
    write_volume(root, of(d__e="1", d__f__g="2"))
    pinned = sub_path(root, "d", pins=tmp_path / "pins")
    made = pinned.stat().st_ino
    assert sub_path(root, "d", pins=tmp_path / "pins") == pinned and pinned.stat().st_ino == made
    write_volume(root, of(d__e="3"))
    assert read(pinned) == {"e": "1", "f/g": "2"}


def test_a_sub_path_of_an_empty_directory_is_made_and_shared(root: Path) -> None:
    made = sub_path(root, "logs/web", pins=None)
    assert made == root / "logs/web" and made.is_dir() and made.stat().st_mode & 0o777 == 0o777
    (made / "x").write_text("1")
    assert sub_path(root, "logs/web", pins=None).joinpath("x").read_text() == "1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_each_part_of_a_sub_path_is_as_the_volume_and_of_its_group(root: Path) -> None:
    os.chown(root, -1, 2000)
    root.chmod(0o2777)
    sub_path(root, "a/b/c", pins=None)
    found = [(root / part).stat() for part in ("a", "a/b", "a/b/c")]
    assert [(each.st_mode & 0o7777, each.st_gid) for each in found] == [(0o2777, 2000)] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_group_may_read_all_of_a_volume_also_after_an_update(root: Path, tmp_path: Path) -> None:
    for text in (b"1", b"2"):
        write_volume(root, {"d/a": ProjectedFile(text, 0o400), "b": ProjectedFile(text, 0o600, 1000)}, group=2000)
        found = [(root / part).stat() for part in ("", "d", "d/a", "b")]
        assert [(each.st_mode & 0o7777, each.st_uid, each.st_gid) for each in found] == [
            (0o2777, 0, 2000),
            (0o2755, 0, 2000),
            (0o440, 0, 2000),
            (0o640, 1000, 2000),
        ]
        pinned = sub_path(root, "d", pins=tmp_path / "pins")
        copies = [path.stat() for path in (pinned, pinned / "a")]
        assert [(each.st_mode & 0o7777, each.st_gid) for each in copies] == [(0o2755, 2000), (0o440, 2000)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(("mode", "given"), [(ON_DISK, 0o2777), (IN_MEMORY, 0o3777)])
def test_an_empty_directory_hands_its_group_on(tmp_path: Path, mode: int, given: int) -> None:
    about = make_root(tmp_path / "v", mode, group=2000).stat()
    assert (about.st_mode & 0o7777, about.st_gid) == (given, 2000)


def test_a_group_that_we_can_not_give_to_is_left_to_the_provider(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert write_volume(root, of(a="1"), group=2000)
    assert (root / "a").stat().st_gid == root.stat().st_gid != 2000


def test_a_sub_path_does_not_lead_out_of_the_volume(root: Path) -> None:
    for path in ("/etc", "../x", "a/../../x"):
        with pytest.raises(ValueError, match="must be relative"):
            sub_path(root, path, pins=None)
    (root / "trap").symlink_to("/etc")
    with pytest.raises(ValueError, match="leads out"):
        sub_path(root, "trap/passwd", pins=None)


def test_every_user_can_get_to_a_volume_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        made = make_root(tmp_path / "pod" / "volumes" / "v", IN_MEMORY)
        write_volume(made, of(a="1"))
        pinned = sub_path(made, "a", pins=tmp_path / "pod" / "pins")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o7777 for path in (tmp_path / "pod", made.parent, made, pinned.parent)] == [0o755, 0o755, 0o1777, 0o755]


def test_a_link_put_in_the_way_of_a_sub_path_at_any_moment_leads_nowhere(root: Path) -> None:
    """A container that runs may write to the volume while another one's subPath is made in it."""
    outside, swap = root.parent / "outside", exchange(root / "d", root / "e")
    outside.mkdir(mode=0o700)

    def restore() -> None:
        for path in (root / "d", root / "e"):
            if path.is_symlink():
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)
        (root / "d").mkdir()
        (root / "e").symlink_to(outside)

    restore()
    assert interleaved(lambda: sub_path(root, "d/new/deep", pins=None), swap, undo=restore) > 5
    assert not list(outside.iterdir()) and outside.stat().st_mode & 0o777 == 0o700


def test_equal_content_has_a_pin_for_each_name(root: Path, tmp_path: Path) -> None:
    write_volume(root, of(a="1", b="1", d__x="1"))
    pins = [sub_path(root, name, pins=tmp_path / "pins") for name in ("a", "b", "d/x", "a")]
    assert [pin.name for pin in pins] == ["a", "b", "x", "a"] and {pin.read_text() for pin in pins} == {"1"}


def test_a_sub_path_that_is_the_volume_is_its_root(root: Path, tmp_path: Path) -> None:
    write_volume(root, of(a="1"))
    assert sub_path(root, "./", pins=tmp_path / "pins") == root
