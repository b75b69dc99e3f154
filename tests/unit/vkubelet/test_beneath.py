"""File operations below a directory that other programs change."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.interleave import exchange, interleaved
from vkubelet import beneath
from vkubelet.beneath import Directory

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(params=["openat2", "part by part"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels do not have openat2."""
    if request.param != "openat2":
        monkeypatch.setattr(beneath, "_openat2", lambda top, path, flags: -1)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the host with a file in it."""
    (tmp_path / "outside/sub").mkdir(parents=True)
    (tmp_path / "outside/file").write_text("host")
    return tmp_path / "outside"


@pytest.fixture
def top(tmp_path: Path, outside: Path) -> Iterator[Directory]:
    """A volume: `d` is a directory like the one outside, `e` a link to that one."""
    (tmp_path / "volume").mkdir()
    with Directory.at(tmp_path / "volume") as opened:
        fill(opened.path, outside)
        yield opened


def fill(volume: Path, outside: Path) -> None:
    for each in ("d", "e"):
        with suppress(FileNotFoundError):
            (volume / each).unlink() if (volume / each).is_symlink() else shutil.rmtree(volume / each)
    (volume / "d/sub").mkdir(parents=True)
    (volume / "d/file").write_text("volume")
    (volume / "e").symlink_to(outside)


OPERATIONS: dict[str, Callable[[Directory, str], object]] = {
    "hold": lambda top, at: os.close(top.hold(f"{at}/file")),
    "enter": lambda top, at: top.enter(f"{at}/sub").close(),
    "status": lambda top, at: top.status(f"{at}/file"),
    "names": lambda top, at: top.names(at),
    "read": lambda top, at: top.read(f"{at}/file"),
    "make": lambda top, at: top.make(f"{at}/new/deep", 0o777).close(),
    "make the last part": lambda top, at: top.make(at, 0o777).close(),
    "part": lambda top, at: top.part(f"{at}/new", 0o777),
    "change": lambda top, at: top.change(f"{at}/file", mode=0o666),
    "change the last part": lambda top, at: top.change(at, mode=0o711),
    "create": lambda top, at: top.create(f"{at}/made", b"x", mode=0o644),
    "store": lambda top, at: top.store(f"{at}/file", b"x", mode=0o644),
    "link": lambda top, at: top.link("/", f"{at}/made"),
}


def seen(place: Path) -> list[tuple[str, int, str]]:
    found = [place, *sorted(place.rglob("*"))]
    return [(str(each), each.stat().st_mode, each.read_text() if each.is_file() else "") for each in found]


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_follows_a_link(top: Directory, outside: Path, name: str) -> None:
    before = seen(outside)
    with pytest.raises((OSError, ValueError)) as refused:
        OPERATIONS[name](top, "e")
    assert seen(outside) == before
    assert isinstance(refused.value, ValueError) or refused.value.errno == errno.ELOOP


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_directory_that_becomes_a_link_at_any_moment_leads_nowhere(top: Directory, outside: Path, name: str) -> None:
    before, swap = seen(outside), exchange(top.path / "d", top.path / "e")
    moments = interleaved(lambda: OPERATIONS[name](top, "d"), swap, undo=lambda: fill(top.path, outside))
    assert moments > 0 and seen(outside) == before


def test_a_link_in_the_place_of_a_file_is_neither_read_nor_written(top: Directory, outside: Path) -> None:
    (top.path / "key").symlink_to(outside / "file")
    for operation in (lambda: top.read("key"), lambda: top.write("key", b"x", mode=0o666), lambda: top.change("key", mode=0o666)):
        with pytest.raises(OSError) as refused:
            operation()
        assert refused.value.errno == errno.ELOOP
    top.store("key", b"x", mode=0o600)
    assert (outside / "file").read_text() == "host" and top.read("key") == b"x"


def test_a_removal_leaves_what_a_directory_is_exchanged_for(top: Directory, outside: Path) -> None:
    before, swap = seen(outside), exchange(top.path / "d/sub", top.path / "d/away")

    def restore() -> None:
        for name in top.names():
            top.remove(name)
        (top.path / "d/sub/deep").mkdir(parents=True)
        (top.path / "d/away").symlink_to(outside)

    def change() -> None:
        # What is removed already is not there to be exchanged.
        if (top.path / "d/sub").exists() and os.path.lexists(top.path / "d/away"):
            swap()

    restore()
    assert interleaved(lambda: top.remove("d"), change, undo=restore) > 5
    assert seen(outside) == before


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../x", "a\0b"])
def test_a_path_out_of_the_directory_is_refused(top: Directory, path: str) -> None:
    with pytest.raises(ValueError):
        top.make(path, 0o755)
    with pytest.raises(ValueError):
        top.lead(path)
    with pytest.raises(ValueError):
        top.remove(path)


def test_links_within_a_volume_are_followed_once(top: Directory) -> None:
    (top.path / "inner").symlink_to("d/sub")
    assert str(top.lead("inner/x")) == "d/sub/x"
    assert str(top.part("inner/x/y", 0o700)) == "d/sub/x/y" and (top.path / "d/sub/x/y").is_dir()
    assert str(top.part("d/file", 0o700)) == "d/file"
    with pytest.raises(ValueError, match="leads out"):
        top.part("e/file", 0o700)


def test_made_parts_have_the_mode_whatever_the_umask_and_others_stay(top: Directory) -> None:
    (top.path / "d").chmod(0o711)
    before = os.umask(0o077)
    try:
        top.make("d/a/b", 0o2775).close()
    finally:
        os.umask(before)
    assert [(top.path / path).stat().st_mode & 0o7777 for path in ("d", "d/a", "d/a/b")] == [0o711, 0o2775, 0o2775]


def test_only_what_was_just_made_gets_a_mode(top: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of another user may put that user's private directory in its place."""
    (top.path / "private").mkdir(mode=0o700)
    usual = os.mkdir

    def mkdir(name: str, mode: int, *, dir_fd: int) -> None:
        usual(name, mode, dir_fd=dir_fd)
        exchange(top.path / "new", top.path / "private")()

    monkeypatch.setattr(os, "mkdir", mkdir)
    top.make("new", 0o777).close()
    assert (top.path / "new").stat().st_mode & 0o777 == 0o700


def test_a_file_is_replaced_as_a_whole_or_not_at_all(top: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    top.store("d/file", b"new", mode=0o640, sync=True)
    assert top.read("d/file") == b"new" and top.status("d/file").st_mode & 0o777 == 0o640
    assert top.read("d/file", 2) == b"ne"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="full"):
        top.store("d/file", b"newer", mode=0o640)
    assert top.read("d/file") == b"new" and top.names("d") == ["file", "sub"]


def test_what_is_no_file_is_neither_read_nor_waited_for(top: Directory) -> None:
    os.mkfifo(top.path / "fifo")
    for name in ("fifo", "d"):
        with pytest.raises(OSError):
            top.read(name)


@root_only
def test_owners_change_before_modes_which_they_would_cut(top: Directory) -> None:
    top.create("made", b"x", mode=0o4755, user=1000)
    top.change("d", user=1000, group=2000, mode=0o2770)
    made, directory = top.status("made"), top.status("d")
    assert (made.st_uid, made.st_mode & 0o7777) == (1000, 0o4755)
    assert (directory.st_uid, directory.st_gid, directory.st_mode & 0o7777) == (1000, 2000, 0o2770)


def test_a_tree_without_rights_is_removed_and_a_missing_one_is_no_error(top: Directory) -> None:
    for path in ("d/sub", "d"):
        (top.path / path).chmod(0)
    top.remove("d")
    top.remove("d")
    top.remove("e")
    assert top.names() == []


def test_a_missing_directory_is_made_with_its_parents_only_where_asked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Directory.at(tmp_path / "a/b")
    with Directory.at(tmp_path / "a/b", make=0o711) as made:
        assert made.path == tmp_path / "a/b" and made.names() == []
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o711


def test_no_descriptor_is_left_open(top: Directory) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for operation in OPERATIONS.values():
        for place in ("d", "e"):
            try:
                operation(top, place)
            except (OSError, ValueError):
                continue
    assert len(os.listdir("/proc/self/fd")) == before
