"""Mounts in a namespace of the container's own, so that its files lie where the pod says.

Invariant: the host's own tree is never written to; where a path does not exist, its parent is replaced, in this namespace alone, by an
empty directory in which everything that the host has there is bound. In a volume that may be written to, the path is made. Everything is
done through descriptors, so what is mounted, and where, is what was checked, whatever programs rename meanwhile.

Mounts are named `self/fd/N` below a /proc that was opened before the namespace was changed: that works with every kernel, and no mount of
the pod can cover it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypedDict

from . import kernel

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT = kernel.NO_SUID | kernel.NO_DEV | kernel.NO_EXEC
_OLD = ".vkubelet-old"
_DIRECTORY, _FILE = "directory", "file"
_MOST_LINKS = 40
_MOST_TRIES = 1000
_ACL = "system.posix_acl_access"


class Bind(TypedDict):
    """One mount: what lies at `source`, on the way to which there is no link, appears at `target`."""

    source: str
    target: str
    read_only: bool


def mount_tmpfs(target: str, options: str) -> None:
    """Raises OSError."""
    kernel.mount("tmpfs", target, "tmpfs", flags=kernel.NO_SUID | kernel.NO_DEV, options=options)


def unmount(target: str) -> None:
    """Detaches a mount at once, whoever still uses it. Raises OSError."""
    kernel.unmount(target)


class Way:
    """Descriptors from the root of this namespace down to where a path leads; links lead where they lead a process with this root."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self.opened = [os.open("/", _PATH)]
        self.missing: list[str] = []
        """Names that do not exist yet, below the last descriptor."""
        try:
            self._follow(path.split("/"))
        except OSError:
            self.close()
            raise

    def _follow(self, names: list[str]) -> None:
        links = 0
        while names:
            name, *names = names
            if name == "..":
                self._rise(max(1, len(self.opened) - 1))
            elif name not in ("", "."):
                try:
                    found = os.open(name, _PATH, dir_fd=self.end)
                except FileNotFoundError:
                    self.missing = [name, *names]
                    return
                self.opened.append(found)
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    links += 1
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
                    leads = os.readlink("", dir_fd=found)
                    self._rise(1 if leads.startswith("/") else len(self.opened) - 1)
                    names = leads.split("/") + names

    def _rise(self, kept: int) -> None:
        while len(self.opened) > kept:
            os.close(self.opened.pop())

    @property
    def end(self) -> int:
        """The last descriptor."""
        return self.opened[-1]

    def close(self) -> None:
        self._rise(0)


class Tree:
    """The tree that a container sees; `stage` is an empty directory of the host that nobody else uses."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._ours: set[int] = set()
        """Devices of the directories that were replaced."""
        self._hosts: set[int] = set()
        """Devices on which, and below which, nothing is mounted: those of /proc and /sys."""
        self._home = self._proc = -1
        self._pivoted = False
        self._volumes: dict[int, bool] = {}
        """Whether what was mounted here may be written to, by the number of the mount."""

    def enter(self, *, no_suid: bool = True) -> None:
        """What the host mounts later still appears; what is mounted here does not appear there. Raises OSError."""
        kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_HOSTNAME)
        kernel.mount("", "/", flags=kernel.REC | kernel.SLAVE)
        if no_suid:
            # A second lock: before Linux 5.12, and for what the host mounts later, there is `no_new_privileges` alone.
            root = os.open("/", _PATH)
            kernel.restrict(root, kernel.NO_SUID)
            os.close(root)
        self._proc = os.open("/proc", _PATH)
        self._hosts = {os.stat(path).st_dev for path in ("/proc", "/sys") if os.path.ismount(path)}
        self._home = os.open(self._stage or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fchdir(self._proc)

    def leave(self) -> None:
        """When all is mounted. Raises OSError."""
        os.chdir("/")
        os.close(self._home)
        os.close(self._proc)
        if self._pivoted:
            kernel.unmount(f"/{_OLD}")
            os.rmdir(f"/{_OLD}")

    def bind(self, one: Bind, source: int) -> None:
        """`source` is a descriptor of what lies there, from before the first mount, which may hide it. Raises OSError."""
        kind = os.fstat(source).st_mode
        flags = kernel.NO_SUID | (0 if stat.S_ISCHR(kind) or stat.S_ISBLK(kind) else kernel.NO_DEV)
        with self._place(one["target"], directory=stat.S_ISDIR(kind)) as way:
            self._refuse_hosts(way, one["target"])
            mounted = self._staged(source, directory=stat.S_ISDIR(kind), flags=flags, read_only=one["read_only"])
            self._volumes[self._mount_of(mounted)] = stat.S_ISDIR(kind) and not one["read_only"]
            kernel.mount(_at(mounted), _at(way.end), flags=kernel.MOVE)
            os.close(mounted)

    def make(self, path: str) -> None:
        """A directory, where there is nothing yet. Raises OSError."""
        with self._place(path, directory=True):
            pass

    def _staged(self, source: int, *, directory: bool, flags: int, read_only: bool) -> int:
        """A mount that no program reaches before it is protected; closed by the caller."""
        name = _DIRECTORY if directory else _FILE
        where = self._spot(name)
        kernel.mount(_at(source), where, flags=kernel.BIND | kernel.REC)
        mounted = os.open(name, _PATH, dir_fd=self._home)
        kernel.restrict(mounted, flags)
        kept = os.fstatvfs(mounted).f_flag & _KEPT | (kernel.READ_ONLY if read_only else 0)
        kernel.mount("", where, flags=kernel.BIND | kernel.REMOUNT | flags | kept)
        return mounted

    def _spot(self, name: str) -> str:
        """Where to mount before it is moved to where it belongs: below a directory that only root may enter."""
        with suppress(FileExistsError):
            if name == _DIRECTORY:
                os.mkdir(name, 0o700, dir_fd=self._home)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=self._home))
        return f"{_at(self._home)}/{name}"

    @contextmanager
    def _place(self, path: str, *, directory: bool) -> Iterator[Way]:
        """The way to `path`, which exists then. Raises OSError."""
        for _ in range(_MOST_TRIES):
            way = Way(path)
            try:
                if not way.missing:
                    yield way
                    return
                self._refuse_hosts(way, path)
                self._make(way, directory=directory or len(way.missing) > 1)
            finally:
                way.close()
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def _refuse_hosts(self, way: Way, path: str) -> None:
        if any(os.fstat(each).st_dev in self._hosts for each in way.opened):
            raise ValueError(f"{path} leads into /proc or /sys of the host, where nothing can be mounted")
        if len(way.opened) == 1 and not way.missing:
            raise ValueError(f"{path} leads to /, where nothing can be mounted")

    def _make(self, way: Way, *, directory: bool) -> None:
        """The first name that is missing, or room for it."""
        if os.fstat(way.end).st_dev not in self._ours and not self._in_volume(way):
            self._replace(way)
            return
        # Another container of the pod may be faster.
        with suppress(FileExistsError):
            if directory:
                os.mkdir(way.missing[0], 0o755, dir_fd=way.end)
            else:
                os.close(os.open(way.missing[0], os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=way.end))

    def _in_volume(self, way: Way) -> bool:
        """Whether it ends in one that may be written to, of those that are mounted already."""
        known = (self._volumes.get(self._mount_of(each)) for each in reversed(way.opened))
        return next((writable for writable in known if writable is not None), False)

    def _mount_of(self, descriptor: int) -> int:
        """The number of its mount."""
        with open(f"self/fdinfo/{descriptor}", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"mnt_id:"))

    def _replace(self, way: Way) -> None:
        """The last directory, by an empty one with all that is there bound in it."""
        about = os.fstat(way.end)
        # With a list of access rights the mode's bits for the group are a mask: the group itself may have no rights at all.
        acl = _acl_of(way.end)
        mode = stat.S_IMODE(about.st_mode) & (~stat.S_IRWXG if acl else ~0)
        where = self._spot(_DIRECTORY)
        mount_tmpfs(where, f"mode={mode:o},uid={about.st_uid},gid={about.st_gid},size=16m")
        kernel.mount("", where, flags=kernel.UNBINDABLE)
        made = os.open(_DIRECTORY, _PATH, dir_fd=self._home)
        if acl:
            with suppress(OSError):
                os.setxattr(_at(made), _ACL, acl)
        for name in os.listdir(_at(way.end)):
            # It may go meanwhile.
            with suppress(FileNotFoundError):
                _copy(name, way.end, made)
        if len(way.opened) == 1:
            # What it was stays until the end: descriptors of sources lie there.
            os.mkdir(_OLD, 0o700, dir_fd=made)
            kernel.pivot_root(_at(made), f"{_at(made)}/{_OLD}")
            self._pivoted = True
        else:
            kernel.mount(_at(made), _at(way.end), flags=kernel.MOVE)
        kernel.mount("", _at(made), flags=kernel.PRIVATE)
        self._ours.add(os.fstat(made).st_dev)
        os.close(made)


def held(path: str) -> int:
    """A descriptor of what lies there, which is no link, nor anything on the way to it; closed by the caller. Raises OSError."""
    here = os.open("/", _PATH)
    for part in [part for part in path.split("/") if part]:
        above = here
        try:
            here = os.open(part, _PATH, dir_fd=above)
        finally:
            os.close(above)
        if stat.S_ISLNK(os.fstat(here).st_mode):
            os.close(here)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return here


def _at(descriptor: int) -> str:
    """The path by which a descriptor is mounted or listed, from the directory that `Tree.enter` has made the current one."""
    return f"self/fd/{descriptor}"


def _acl_of(descriptor: int) -> bytes:
    try:
        return os.getxattr(_at(descriptor), _ACL)
    except OSError:
        return b""


def _copy(name: str, above: int, made: int) -> None:
    source = os.open(name, _PATH, dir_fd=above)
    try:
        kind = os.fstat(source).st_mode
        if stat.S_ISLNK(kind):
            os.symlink(os.readlink("", dir_fd=source), name, dir_fd=made)
            return
        if stat.S_ISDIR(kind):
            os.mkdir(name, dir_fd=made)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, dir_fd=made))
        kernel.mount(_at(source), f"{_at(made)}/{name}", flags=kernel.BIND | kernel.REC)
    finally:
        os.close(source)
