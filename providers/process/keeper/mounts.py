"""Mounts in a namespace of the container's own, so that its files lie where the pod says.

Invariant: the host's own tree is never written to; where a path does not exist, its parent is replaced, in this namespace alone, by an
empty directory in which everything that the host has there is bound. In a volume that may be written to, the path is made. What is mounted
is what was looked at: no link on the way to it is followed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import TypedDict

NEW_MOUNTS, NEW_HOSTNAME = 0x00020000, 0x04000000
_READ_ONLY, _NO_SUID, _NO_DEV, _REMOUNT, _BIND, _MOVE, _REC = 1, 2, 4, 32, 4096, 8192, 16384
_UNBINDABLE, _PRIVATE, _SLAVE = 1 << 17, 1 << 18, 1 << 19
_KEPT = 2 | 4 | 8
"""Not to be trusted with other users, with devices, with programs."""
_DETACH = 2
_OLD = ".vkubelet-old"
_SET_PDEATHSIG, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 36, 38


class Bind(TypedDict):
    """One mount: what lies at `source`, on the way to which there is no link, appears at `target`."""

    source: str
    target: str
    read_only: bool


_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: object) -> None:
    """Raises OSError."""
    if getattr(_libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, options: str = "") -> None:
    """Raises OSError."""
    try:
        _call("mount", source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from error


def mount_tmpfs(target: str, options: str) -> None:
    """Raises OSError."""
    mount("tmpfs", target, "tmpfs", flags=_NO_SUID | _NO_DEV, options=options)


def unmount(target: str) -> None:
    """At once, whoever still uses it. Raises OSError."""
    _call("umount2", os.fsencode(target), _DETACH)


def unshare(flags: int) -> None:
    """Raises OSError."""
    _call("unshare", flags)


def join(descriptor: int) -> None:
    """The namespace of an open `/proc/PID/ns/…`. Raises OSError."""
    _call("setns", descriptor, 0)


def adopt_orphans() -> None:
    """Processes below this one become its children when their parent ends. Raises OSError."""
    _call("prctl", _SET_SUBREAPER, ctypes.c_ulong(1), *(ctypes.c_ulong(0),) * 3)


def ends_with_parent(signal: int, parent: int) -> bool:
    """False when the parent has ended already: then no signal comes any more. Raises OSError."""
    _call("prctl", _SET_PDEATHSIG, ctypes.c_ulong(signal), *(ctypes.c_ulong(0),) * 3)
    return os.getppid() == parent


def no_new_privileges() -> None:
    """Raises OSError."""
    _call("prctl", _SET_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), *(ctypes.c_ulong(0),) * 3)


class Tree:
    """The tree that a container sees; `stage` is an empty directory of the host that nobody else uses."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._ours: set[int] = set()
        """Devices of the directories that were replaced."""
        self._home = -1
        self._old = ""
        self._volumes: dict[str, bool] = {}
        """Whether what was mounted here may be written to."""

    def enter(self) -> None:
        """What the host mounts later still appears; what is mounted here does not appear there. Raises OSError."""
        unshare(NEW_MOUNTS | NEW_HOSTNAME)
        mount("", "/", flags=_REC | _SLAVE)
        self._home = os.open(os.path.dirname(self._stage) or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def leave(self) -> None:
        """When all is mounted. Raises OSError."""
        os.chdir("/")
        os.close(self._home)
        if self._old:
            unmount(self._old)
            os.rmdir(self._old)

    def bind(self, one: Bind, source: int) -> None:
        """`source` is a descriptor of what lies there, from before the first mount, which may hide it. Raises OSError."""
        directory = stat.S_ISDIR(os.fstat(source).st_mode)
        target = self.place(one["target"], directory=directory)
        mount(f"/proc/self/fd/{source}", target, flags=_BIND | _REC)
        self._volumes[target] = directory and not one["read_only"]
        if one["read_only"]:
            # What else is said of it stays: the words of both are the same.
            mount("", target, flags=_BIND | _REMOUNT | _READ_ONLY | (os.statvfs(target).f_flag & _KEPT))

    def place(self, path: str, *, directory: bool) -> str:
        """Where `path` leads, which exists afterwards. Raises OSError."""
        here = "/"
        parts = [part for part in path.split("/") if part]
        for depth, part in enumerate(parts):
            at = os.path.join(here, part)
            if not os.path.lexists(at):
                self._make(at, directory=directory or depth < len(parts) - 1)
            here = os.path.realpath(at)
        return here

    def _make(self, path: str, *, directory: bool) -> None:
        parent, name = os.path.split(path)
        if os.stat(parent).st_dev not in self._ours and not self._in_volume(parent):
            self._replace(parent)
        above = held(parent)
        try:
            if directory:
                os.mkdir(name, 0o755, dir_fd=above)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=above))
        except FileExistsError:
            # Another container of the pod was faster.
            pass
        finally:
            os.close(above)

    def _in_volume(self, path: str) -> bool:
        """Whether it lies in one that may be written to, of those that are mounted already."""
        while path not in self._volumes and path != "/":
            path = os.path.dirname(path)
        return self._volumes.get(path, False)

    def _replace(self, parent: str) -> None:
        """By an empty directory with all that is there bound in it."""
        # From where it lies, it is also found when a volume has been mounted above it.
        os.fchdir(self._home)
        stage, about = os.path.basename(self._stage), os.stat(parent)
        options = f"mode={stat.S_IMODE(about.st_mode):o},uid={about.st_uid},gid={about.st_gid},size=16m"
        mount("tmpfs", stage, "tmpfs", options=options)
        mount("", stage, flags=_UNBINDABLE)
        for name in os.listdir(parent):
            try:
                _copy(os.path.join(parent, name), os.path.join(stage, name))
            except FileNotFoundError:
                # It has gone meanwhile.
                continue
        if parent == "/":
            # What it was stays until the end: descriptors of sources lie there.
            os.mkdir(os.path.join(stage, _OLD), 0o700)
            _call("pivot_root", os.fsencode(stage), os.fsencode(os.path.join(stage, _OLD)))
            self._old = f"/{_OLD}"
        else:
            mount(stage, parent, flags=_MOVE)
        mount("", parent, flags=_PRIVATE)
        self._ours.add(os.stat(parent).st_dev)


def held(path: str) -> int:
    """A descriptor of what lies there, which is no link, nor anything on the way to it; closed by the caller. Raises OSError."""
    here = os.open("/", os.O_PATH | os.O_CLOEXEC)
    for part in [part for part in path.split("/") if part]:
        above = here
        try:
            here = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        finally:
            os.close(above)
        if stat.S_ISLNK(os.fstat(here).st_mode):
            os.close(here)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return here


def _copy(source: str, target: str) -> None:
    kind = os.lstat(source)
    if stat.S_ISLNK(kind.st_mode):
        os.symlink(os.readlink(source), target)
        return
    if stat.S_ISDIR(kind.st_mode):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    mount(source, target, flags=_BIND | _REC)
