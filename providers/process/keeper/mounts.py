"""Mounts in a separate namespace of the container, so that its files are at the paths in the pod's spec.

Invariant: the host's own tree is never written to; where a path does not exist, its parent is replaced, in this namespace alone, by an
empty directory in which everything that the host has in it is bound. In a writable volume, the path is created. Everything is done through
descriptors, so what is mounted, and where, is what was checked, whatever programs rename meanwhile.

Mounts are named `self/fd/N` below a /proc that was opened before the namespace was changed: that works with every kernel, and no mount of
the pod can cover it.
"""

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
    """One mount: what is at `source`, a path without links, appears at `target`."""

    source: str
    target: str
    read_only: bool


def mount_tmpfs(target: str, options: str) -> None:
    """Mounts a tmpfs. Raises OSError."""
    kernel.mount("tmpfs", target, "tmpfs", flags=kernel.NO_SUID | kernel.NO_DEV, options=options)


def unmount(target: str) -> None:
    """Detaches a mount at once, even while it is in use. Raises OSError."""
    kernel.unmount(target)


class Way:
    """Descriptors from the root of this namespace down to where a path leads; links are resolved as for a process with this root."""

    def __init__(self, path: str) -> None:
        """Opens the path. Raises OSError."""
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
    """Tree that a container sees; `stage` is an empty directory of the host that no other process uses."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._ours: set[int] = set()
        """Devices of the directories that were replaced."""
        self._hosts: set[int] = set()
        """Devices on which, and below which, nothing is mounted: those of /proc and /sys."""
        self._home = self._proc = -1
        self._pivoted = False
        self._volumes: dict[int, bool] = {}
        """Whether what was mounted here is writable, by the number of the mount."""

    def enter(self, *, no_suid: bool = True) -> None:
        """Enters a new mount namespace: later mounts of the host still appear in it; its own mounts do not appear on the host. Raises
        OSError."""
        kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_HOSTNAME)
        kernel.mount("", "/", flags=kernel.REC | kernel.SLAVE)
        if no_suid:
            # A second protection: before Linux 5.12, and for later mounts of the host, `no_new_privileges` is the only one.
            root = os.open("/", _PATH)
            kernel.restrict(root, kernel.NO_SUID)
            os.close(root)
        self._proc = os.open("/proc", _PATH)
        self._hosts = {os.stat(path).st_dev for path in ("/proc", "/sys") if os.path.ismount(path)}
        self._home = os.open(self._stage or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fchdir(self._proc)

    def leave(self) -> None:
        """Leaves the working directory when everything is mounted. Raises OSError."""
        os.chdir("/")
        os.close(self._home)
        os.close(self._proc)
        if self._pivoted:
            kernel.unmount(f"/{_OLD}")
            os.rmdir(f"/{_OLD}")

    def bind(self, one: Bind, source: int) -> None:
        """Binds a mount; `source` is a descriptor opened before the first mount, which may hide the path. Raises OSError."""
        kind = os.fstat(source).st_mode
        flags = kernel.NO_SUID | (0 if stat.S_ISCHR(kind) or stat.S_ISBLK(kind) else kernel.NO_DEV)
        with self._place(one["target"], directory=stat.S_ISDIR(kind)) as way:
            self._refuse_hosts(way, one["target"])
            mounted = self._staged(source, directory=stat.S_ISDIR(kind), flags=flags, read_only=one["read_only"])
            self._volumes[self._mount_of(mounted)] = stat.S_ISDIR(kind) and not one["read_only"]
            kernel.mount(_at(mounted), _at(way.end), flags=kernel.MOVE)
            os.close(mounted)

    def make(self, path: str) -> None:
        """Creates a directory, unless something exists at the path. Raises OSError."""
        with self._place(path, directory=True):
            pass

    def _staged(self, source: int, *, directory: bool, flags: int, read_only: bool) -> int:
        """Returns a mount that no program can reach before it is protected; closed by the caller."""
        name = _DIRECTORY if directory else _FILE
        where = self._spot(name)
        kernel.mount(_at(source), where, flags=kernel.BIND | kernel.REC)
        mounted = os.open(name, _PATH, dir_fd=self._home)
        kernel.restrict(mounted, flags)
        kept = os.fstatvfs(mounted).f_flag & _KEPT | (kernel.READ_ONLY if read_only else 0)
        kernel.mount("", where, flags=kernel.BIND | kernel.REMOUNT | flags | kept)
        return mounted

    def _spot(self, name: str) -> str:
        """Returns where to mount before the mount is moved to its target: below a directory that only root may enter."""
        with suppress(FileExistsError):
            if name == _DIRECTORY:
                os.mkdir(name, 0o700, dir_fd=self._home)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=self._home))
        return f"{_at(self._home)}/{name}"

    @contextmanager
    def _place(self, path: str, *, directory: bool) -> Iterator[Way]:
        """Yields the way to `path`, which is created if necessary. Raises OSError."""
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
        """Creates the first missing name, or makes room for it."""
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
        """Checks whether the deepest of its known mounts is writable."""
        known = (self._volumes.get(self._mount_of(each)) for each in reversed(way.opened))
        return next((writable for writable in known if writable is not None), False)

    def _mount_of(self, descriptor: int) -> int:
        """Returns the number of its mount."""
        with open(f"self/fdinfo/{descriptor}", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"mnt_id:"))

    def _replace(self, way: Way) -> None:
        """Replaces the last directory by an empty one with all its entries bound in it."""
        about = os.fstat(way.end)
        # With an ACL the mode's bits for the group are a mask: the group itself may have no permissions at all.
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
            # It may be deleted meanwhile.
            with suppress(FileNotFoundError):
                _copy(name, way.end, made)
        if len(way.opened) == 1:
            # The old directory stays until the last step: descriptors of sources refer to it.
            os.mkdir(_OLD, 0o700, dir_fd=made)
            kernel.pivot_root(_at(made), f"{_at(made)}/{_OLD}")
            self._pivoted = True
        else:
            kernel.mount(_at(made), _at(way.end), flags=kernel.MOVE)
        kernel.mount("", _at(made), flags=kernel.PRIVATE)
        self._ours.add(os.fstat(made).st_dev)
        os.close(made)


def held(path: str) -> int:
    """Returns a descriptor of a path without links; closed by the caller. Raises OSError."""
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
    """Returns the path by which a descriptor is mounted or listed, relative to the directory that `Tree.enter` has made the current one."""
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
