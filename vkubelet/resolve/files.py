"""Writes volumes to disk.

Invariant: a reader of a volume sees the files of one moment: they are in a separate directory, to which `..data` points, and an update
renames that one link. The kubelet does the same, and programs watch for it. Containers write to some volumes meanwhile, so everything here
goes through `vkubelet.beneath`.
"""

import hashlib
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from vkubelet.beneath import Directory
from vkubelet.resolve.volumes import Files

DATA: Final = "..data"
_NEXT: Final = "..data_tmp"
_OLD: Final = re.compile(r"\.\.[0-9]")
_DIRECTORY: Final = 0o755
ON_DISK, IN_MEMORY = 0o777, 0o1777
"""Modes of a volume's root, as the kubelet sets them on a disk and in a separate tmpfs."""

# Bits that the kubelet adds to the modes of a read-only volume with an `fsGroup` (k8s.io/kubernetes pkg/volume, SetVolumeOwnership).
_FILE_OF_GROUP: Final = 0o440
_DIRECTORY_OF_GROUP: Final = 0o2550


def make_root(root: Path, mode: int, *, group: int | None = None) -> Path:
    """Creates the directory of a volume, with the owner `group` where we may set it; an existing one is not changed."""
    with Directory.at(root.parent, make=_DIRECTORY) as above:
        # Without any permissions its creation was interrupted.
        if not above.has(root.name) or not above.status(root.name).st_mode & 0o777:
            with above.make(root.name, mode) as made:
                made.change(mode=mode)
                if group is not None and _may_give(group):
                    _give(made, ".", group)
    return root


def is_written(root: Path) -> bool:
    """Checks whether the volume has been complete at least once."""
    try:
        with Directory.at(root) as top:
            return bool(_current(top))
    except OSError:
        return False


def _current(top: Directory) -> str:
    """Returns the directory that contains the files now; empty: there is none."""
    try:
        return PurePosixPath(top.target(DATA)).name
    except OSError:
        return ""


def write_volume(root: Path, files: Files, *, group: int | None = None) -> bool:
    """Makes the volume at `root` contain exactly `files`; returns whether something changed. `group` may read all of it, where we may set
    it.

    Raises OSError, ValueError for a path that leads outside.
    """
    for path in files:
        _check(path)
    with Directory.at(root) as top:
        before = _current(top)
        changed = not before or _differs(top, before, files)
        if changed:
            _swap(top, files, group=group)
        _link(top, {PurePosixPath(path).parts[0] for path in files})
        for old in top.names():
            if _OLD.match(old) and old != _current(top):
                with suppress(OSError):
                    top.remove(old)
    return changed


def _check(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0].startswith(".."):
        raise ValueError(f"volumes: the path {path} must lie within the volume and must not begin with two dots")


def _differs(top: Directory, before: str, files: Files) -> bool:
    try:
        with top.enter(before) as data:
            there = {path for path, about in data.walk() if not stat.S_ISDIR(about.st_mode)}
            if there != {PurePosixPath(path).as_posix() for path in files}:
                return True
            return any(data.read(path) != file.data for path, file in files.items())
    except FileNotFoundError:
        return True


def _swap(top: Directory, files: Files, *, group: int | None) -> None:
    name = f"..0{secrets.token_hex(4)}"
    try:
        with top.make(name, _DIRECTORY) as fresh:
            for path, file in files.items():
                with fresh.make(PurePosixPath(path).parent, _DIRECTORY) as above:
                    owner = file.user if os.geteuid() == 0 else None
                    above.create(PurePosixPath(path).name, file.data, mode=file.mode, user=owner)
            if group is not None and _may_give(group):
                _give(top, ".", group)
                for path in [".", *(path for path, _ in fresh.walk())]:
                    _give(fresh, path, group)
        top.remove(_NEXT)
        top.link(name, _NEXT)
        top.move(_NEXT, DATA)
    except OSError:
        # The write is retried, and what was written may be secret.
        top.remove(name)
        raise


def _may_give(group: int) -> bool:
    return os.geteuid() == 0 or group in (os.getegid(), *os.getgroups())


def _give(top: Directory, path: str, group: int) -> None:
    mode = top.status(path).st_mode
    top.change(path, group=group, mode=stat.S_IMODE(mode) | (_DIRECTORY_OF_GROUP if stat.S_ISDIR(mode) else _FILE_OF_GROUP))


def _link(top: Directory, names: set[str]) -> None:
    """Creates what users see of a volume: a link for the first part of each path."""
    links = {name for name in top.names() if stat.S_ISLNK(top.status(name).st_mode)}
    for name in sorted(names - links):
        top.link(f"{DATA}/{name}", name)
    for name in sorted(links - names):
        if not name.startswith(".."):
            top.remove(name)


def sub_path(root: Path, path: str, *, pins: Path | None) -> Path:
    """Returns what a container mounts of a volume at `root`: the file or directory `path` in it, which is created if it is missing.

    With `pins` it is a copy below that directory, which no update changes; the same content has the same path. Raises ValueError when the
    path leads out of the volume, by itself or by a link in it, OSError also when the path changes meanwhile.
    """
    with Directory.at(root) as top:
        try:
            place = top.lead(path)
            if pins is not None and place.parts and top.has(place):
                return pins / _pinned(top, place, pins, PurePosixPath(path).name)
            # Each part is created like the volume itself: if that has the setgid bit, so have they.
            return root / top.part(path, stat.S_IMODE(top.status().st_mode))
        except ValueError as error:
            raise ValueError(f"subPath {error}") from error


def _pinned(top: Directory, place: PurePosixPath, pins: Path, name: str) -> PurePosixPath:
    """Returns the copy of `place` among the pins, which is created unless it exists."""
    digest = _digest(top, place)
    with Directory.at(pins / digest, make=_DIRECTORY) as kept:
        if not kept.has(name):
            draft = f".{secrets.token_hex(8)}"
            try:
                _copy(top, place, kept, draft)
                kept.move(draft, name)
            except OSError:
                kept.remove(draft)
                # A concurrent start may have been faster.
                if not kept.has(name):
                    raise
    return PurePosixPath(digest, name)


def _copy(top: Directory, place: PurePosixPath, kept: Directory, name: str) -> None:
    """Copies with owners and modes."""
    for path, about in _tree(top, place):
        target = PurePosixPath(name, path)
        if stat.S_ISDIR(about.st_mode):
            kept.make(target, _DIRECTORY).close()
        else:
            kept.create(target, top.read(place / path), mode=0o600)
        owner = (about.st_uid, about.st_gid) if os.geteuid() == 0 else (-1, -1)
        kept.change(target, user=owner[0], group=owner[1], mode=stat.S_IMODE(about.st_mode))


def _digest(top: Directory, place: PurePosixPath) -> str:
    whole = hashlib.sha256()
    for path, about in _tree(top, place):
        if stat.S_ISREG(about.st_mode):
            name, data = path.encode(), top.read(place / path)
            whole.update(b"%d %o %d " % (len(name), about.st_mode, len(data)) + name + data)
    return whole.hexdigest()[:16]


def _tree(top: Directory, place: PurePosixPath) -> list[tuple[str, os.stat_result]]:
    """Returns what is at `place`, and all files and directories below it, by their relative paths."""
    about = top.status(place)
    if not stat.S_ISDIR(about.st_mode):
        return [("", about)]
    with top.enter(place) as below:
        return [("", about), *below.walk()]
