"""Writes volumes to disk.

Invariant: who reads a volume sees all files of one moment: they lie in a directory of their own, to which `..data` leads, and an update
renames that one link. So does the kubelet, and programs watch for it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from vkubelet.resolve.volumes import Files, ProjectedFile

DATA: Final = "..data"
_NEXT: Final = "..data_tmp"
_DIRECTORY: Final = 0o755
ON_DISK, IN_MEMORY = 0o777, 0o1777
"""Modes of a volume's root, as the kubelet leaves them on a disk and in a tmpfs of its own."""

# What the kubelet adds to the modes of a read-only volume with an `fsGroup` (k8s.io/kubernetes pkg/volume, SetVolumeOwnership).
_FILE_OF_GROUP: Final = 0o440
_DIRECTORY_OF_GROUP: Final = 0o2550


def make_root(root: Path, mode: int, *, group: int | None = None) -> Path:
    """The directory of a volume, of `group` where we may give it away; one that is there stays as it is."""
    if not root.is_dir():
        _make(root.parent)
        root.mkdir()
        root.chmod(mode)
        if group is not None and _may_give(group):
            _give(root, group)
    return root


def is_written(root: Path) -> bool:
    """The volume has been complete at least once."""
    return (root / DATA).is_symlink()


def write_volume(root: Path, files: Files, *, group: int | None = None) -> bool:
    """Make the volume at `root` hold exactly `files`; whether something changed. `group` may read all of it, where we may give it away.

    Raises OSError, ValueError for a path that leads out.
    """
    for path in files:
        _check(path)
    data = root / DATA
    before = Path(os.readlink(data)).name if data.is_symlink() else ""
    changed = not before or _differs(root / before, files)
    if changed:
        _swap(root, files, group=group)
    _link(root, {PurePosixPath(path).parts[0] for path in files})
    for old in root.glob("..[0-9]*"):
        if old.name != Path(os.readlink(data)).name:
            shutil.rmtree(old, ignore_errors=True)
    return changed


def _check(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0].startswith(".."):
        raise ValueError(f"volumes: the path {path} must lie within the volume and must not begin with two dots")


def _differs(directory: Path, files: Files) -> bool:
    there = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if not path.is_dir()}
    if there.keys() != {PurePosixPath(path).as_posix() for path in files}:
        return True
    return any(there[PurePosixPath(path).as_posix()].read_bytes() != file.data for path, file in files.items())


def _swap(root: Path, files: Files, *, group: int | None) -> None:
    fresh = Path(tempfile.mkdtemp(prefix="..0", dir=root))
    try:
        fresh.chmod(_DIRECTORY)
        for path, file in files.items():
            _write(fresh / path, file, root=fresh)
        if group is not None and _may_give(group):
            for each in (root, fresh, *fresh.rglob("*")):
                _give(each, group)
        following = root / _NEXT
        following.unlink(missing_ok=True)
        following.symlink_to(fresh.name)
        following.replace(root / DATA)
    except OSError:
        # It is tried again and again, and what was written may be secret.
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _write(path: Path, file: ProjectedFile, *, root: Path) -> None:
    if path.parent != root:
        _make(path.parent)
    # Private until it has the mode that was asked for.
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
        out.write(file.data)
    path.chmod(file.mode)
    if file.user is not None and os.geteuid() == 0:
        os.chown(path, file.user, -1)


def _may_give(group: int) -> bool:
    return os.geteuid() == 0 or group in (os.getegid(), *os.getgroups())


def _give(path: Path, group: int) -> None:
    about = path.stat()
    os.chown(path, -1, group)
    path.chmod(stat.S_IMODE(about.st_mode) | (_DIRECTORY_OF_GROUP if stat.S_ISDIR(about.st_mode) else _FILE_OF_GROUP))


def _make(directory: Path, mode: int = _DIRECTORY) -> None:
    """With all that lead there, by default open to every user, whatever the umask; those that are there stay as they are."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    if not missing:
        return
    here = os.open(missing[-1].parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for each in reversed(missing):
            os.mkdir(each.name, dir_fd=here)
            # Not by its path: a program that may write there could have put a link in the place of what was made.
            above, here = here, os.open(each.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(above)
            os.fchmod(here, mode)
    finally:
        os.close(here)


def _link(root: Path, names: set[str]) -> None:
    """What users see of a volume: a link for the first part of each path."""
    for name in names:
        if not (root / name).is_symlink():
            (root / name).symlink_to(Path(DATA, name))
    for entry in list(root.iterdir()):
        if entry.is_symlink() and entry.name not in names and not entry.name.startswith(".."):
            entry.unlink()


def sub_path(root: Path, path: str, *, pins: Path | None) -> Path:
    """What a container mounts of a volume at `root`: the file or directory `path` in it, which is made if it is missing.

    With `pins` it is a copy below that directory, which no update reaches; the same content has the same place. Raises ValueError when the
    path leads out of the volume, by itself or by a link in it.
    """
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"subPath {path} must be relative and must not contain '..'")
    place, real = (root / path).resolve(), root.resolve()
    if not place.is_relative_to(real):
        raise ValueError(f"subPath {path} leads out of the volume")
    if pins is None or not place.exists():
        # Each part is as the volume itself: where that hands its group on, so do they.
        _make(place, stat.S_IMODE(root.stat().st_mode))
        return place
    pinned = pins / _digest(place) / PurePosixPath(path).name
    if not pinned.exists():
        _copy(place, pinned)
    return pinned


def _copy(source: Path, target: Path) -> None:
    _make(target.parent)
    draft = Path(tempfile.mkdtemp(dir=target.parent)) / target.name
    if source.is_dir():
        shutil.copytree(source, draft)
    else:
        shutil.copy2(source, draft)
    _own_alike(source, draft)
    draft.replace(target)
    draft.parent.rmdir()


def _own_alike(source: Path, copy: Path) -> None:
    if os.geteuid() == 0:
        for original in (source, *source.rglob("*")):
            stat = original.stat()
            os.chown(copy / original.relative_to(source), stat.st_uid, stat.st_gid)


def _digest(place: Path) -> str:
    whole = hashlib.sha256()
    for path in _files(place):
        name, data = str(path.relative_to(place)).encode(), path.read_bytes()
        whole.update(b"%d %o %d " % (len(name), path.stat().st_mode, len(data)) + name + data)
    return whole.hexdigest()[:16]


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    else:
        yield from sorted(path for path in place.rglob("*") if path.is_file())
