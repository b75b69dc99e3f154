"""File operations below a directory whose content other programs may change, such as a volume that a container writes to.

Invariant: no symbolic link below the directory is followed, and nothing is changed by a path that was only checked: each part of a path is
opened from the descriptor of the part above it, and every operation works on such a descriptor.
"""

import ctypes
import errno
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Final, Self

_REACH: Final = os.O_PATH | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A FIFO does not block the caller."""
_BLOCK: Final = 1 << 20

# linux/openat2.h; the number of the system call is the same on every architecture.
_OPENAT2: Final = 437
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x04, 0x08
_libc: Final = ctypes.CDLL(None, use_errno=True)

StrPath = str | os.PathLike[str]


def real(path: StrPath) -> Path:
    """Resolves all links of a path once. Judge the result, then open it below `/` by `Directory`, which fails when it has changed since."""
    return Path(os.path.realpath(path))


class Directory:
    """An open directory. Paths are relative to it and contain no `..`; every method raises OSError, for a link on the way with ELOOP."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor, self.path = descriptor, path

    @classmethod
    def at(cls, path: Path, *, make: int | None = None) -> Self:
        """Opens a directory by a path that no pod can change: links above its last part are the host's. `make`: mode of missing parts."""
        try:
            return cls(os.open(path, _REACH | os.O_DIRECTORY | os.O_NOFOLLOW), path)
        except FileNotFoundError:
            if make is None or path == path.parent:
                raise
        with cls.at(path.parent, make=make) as above:
            return above.make(path.name, make)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.descriptor)

    # --- opening and reading ---

    def hold(self, path: StrPath) -> int:
        """Returns a descriptor (O_PATH) of whatever exists at the path; the caller closes it."""
        return _reach(self.descriptor, _parts(path))

    def enter(self, path: StrPath) -> Self:
        return type(self)(_reach(self.descriptor, _parts(path), os.O_DIRECTORY), self.path / path)

    def status(self, path: StrPath = ".") -> os.stat_result:
        """Returns the status of a file, or of a link itself."""
        above, name = self._above(path)
        with above:
            return os.stat(name, dir_fd=above.descriptor, follow_symlinks=False)

    def has(self, path: StrPath) -> bool:
        """Checks whether anything exists at the path, including a dangling link."""
        try:
            self.status(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, path: StrPath = ".") -> list[str]:
        """Lists the names in order."""
        with self.enter(path) as found:
            listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found.descriptor)
        try:
            return sorted(os.listdir(listed))
        finally:
            os.close(listed)

    def walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yields everything below, a directory before its content. For trees that this process has written: recursive."""
        for name in self.names():
            about = self.status(name)
            yield name, about
            if stat.S_ISDIR(about.st_mode):
                with self.enter(name) as below:
                    yield from ((f"{name}/{path}", each) for path, each in below.walk())

    def file(self, path: StrPath, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """Returns a descriptor of a regular file; the caller closes it."""
        above, name = self._above(path)
        with above:
            found = os.open(name, flags | _FILE, mode, dir_fd=above.descriptor)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return found

    def read(self, path: StrPath, most: int = -1) -> bytes:
        """Returns the content of a regular file, or its first `most` bytes."""
        with open(self.file(path), "rb") as file:
            return file.read(most)

    def target(self, path: StrPath) -> str:
        """Returns the target of a link."""
        above, name = self._above(path)
        with above:
            return os.readlink(name, dir_fd=above.descriptor)

    def lead(self, path: StrPath) -> PurePosixPath:
        """Returns where `path` leads below this directory, its links followed once. Raises ValueError when that is outside."""
        parts, own = _parts(path), f"/proc/self/fd/{self.descriptor}"
        place, top = real(os.path.join(own, *parts)), real(own)
        if not place.is_relative_to(top):
            raise ValueError(f"{path} leads out of the volume")
        return PurePosixPath(place.relative_to(top))

    # --- writing ---

    def make(self, path: StrPath, mode: int) -> Self:
        """Creates missing directories of the path, with this mode whatever the umask; existing ones are not changed."""
        here = self.enter(".")
        for name in _parts(path):
            with here:
                here = here._made(name, mode)
        return here

    def _made(self, name: str, mode: int) -> Self:
        try:
            # Without any permissions, so that what is opened next is known to be what was created: a program may have put another directory
            # in its place.
            os.mkdir(name, 0, dir_fd=self.descriptor)
        except FileExistsError:
            return self.enter(name)
        with self.enter(name) as made:
            if not made.status().st_mode & 0o777:
                made.change(mode=mode)
            return made.enter(".")

    def part(self, path: StrPath, mode: int) -> PurePosixPath:
        """Resolves a `subPath`: where `path` leads, with directories created where nothing exists. Raises ValueError when that is
        outside."""
        place = self.lead(path)
        try:
            os.close(self.hold(place))
        except FileNotFoundError:
            self.make(place, mode).close()
        return place

    def change(self, path: StrPath = ".", *, mode: int | None = None, user: int = -1, group: int = -1) -> None:
        """Sets owner and mode, in this order: a new owner clears bits of the mode."""
        found = self.hold(path)
        try:
            # The kernel changes neither through such a descriptor; its name in /proc leads to what is open, and nowhere else.
            if (user, group) != (-1, -1):
                os.chown(f"/proc/self/fd/{found}", user, group)
            if mode is not None:
                os.chmod(f"/proc/self/fd/{found}", mode)
        finally:
            os.close(found)

    def create(self, path: StrPath, data: bytes = b"", *, mode: int, user: int | None = None, sync: bool = False) -> None:
        """Creates a file, private until it has its content, owner and mode. Raises FileExistsError."""
        with open(self.file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            if user is not None:
                os.fchown(file.fileno(), user, -1)
            os.fchmod(file.fileno(), mode)
            if sync:
                os.fsync(file.fileno())

    def store(self, path: StrPath, data: bytes, *, mode: int, sync: bool = False) -> None:
        """Replaces a file atomically. `sync`: also across a power failure."""
        above, name = self._above(path)
        with above:
            draft = f".{name}.{secrets.token_hex(4)}"
            try:
                above.create(draft, data, mode=mode, sync=sync)
                above.move(draft, name)
            except OSError:
                above.remove(draft)
                raise

    def write(self, path: StrPath, data: bytes, *, mode: int) -> None:
        """Writes a file in place unless it has this content: also processes that have it open or mounted see the change."""
        with open(self.file(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
            if file.read() != data:
                file.seek(0)
                file.truncate()
                file.write(data)
            os.fchmod(file.fileno(), mode)

    def link(self, target: StrPath, path: StrPath) -> None:
        """Creates a symbolic link. Raises FileExistsError."""
        above, name = self._above(path)
        with above:
            os.symlink(target, name, dir_fd=above.descriptor)

    def move(self, name: str, to: str) -> None:
        """Moves within this directory, replacing what was at the target."""
        os.rename(_single(name), _single(to), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Removes a file or directory with everything below it, whatever permissions programs have left on it; does nothing if it is
        missing.

        Directories below are moved up before they are emptied: a tree can be deeper than there are descriptors.
        """
        try:
            os.unlink(_single(name), dir_fd=self.descriptor)
            return
        except FileNotFoundError:
            return
        except IsADirectoryError:
            self._grant(name)
        left = [name]
        while left:
            with self.enter(left[-1]) as below:
                for each in [each for each in below.names() if below._is_kept(each)]:
                    below._grant(each)
                    left.insert(0, f".{secrets.token_hex(8)}")
                    os.rename(each, left[0], src_dir_fd=below.descriptor, dst_dir_fd=self.descriptor)
            os.rmdir(left.pop(), dir_fd=self.descriptor)

    def _is_kept(self, name: str) -> bool:
        """Checks whether it is a directory that is not empty; anything else is removed."""
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except IsADirectoryError:
            try:
                os.rmdir(name, dir_fd=self.descriptor)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return True
        except FileNotFoundError:
            return False
        return False

    def _grant(self, name: str) -> None:
        """Restores permissions that programs may have removed, from themselves too."""
        with self.enter(name) as found:
            if found.status().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                found.change(mode=stat.S_IRWXU)

    def _above(self, path: StrPath) -> tuple[Self, str]:
        """Returns the directory of the last part of a path, and that part."""
        *above, name = _parts(path) or ["."]
        return self.enter("/".join(above)), name


def _parts(path: StrPath) -> list[str]:
    """Splits a path. Raises ValueError for a path that is absolute or goes up."""
    pure = PurePosixPath(path)
    if "\0" in str(pure):
        raise ValueError(f"{path!r} contains a null byte")
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"{path} must be relative and must not contain '..'")
    return list(pure.parts)


def _single(name: str) -> str:
    """Checks a name. Raises ValueError for more than one part."""
    if len(_parts(name)) != 1 or "/" in name:
        raise ValueError(f"{name!r} must be the name of a file")
    return name


def _reach(top: int, parts: list[str], flags: int = 0) -> int:
    """Returns a descriptor (O_PATH) without following links. Raises OSError."""
    found = _openat2(top, "/".join(parts) or ".", flags | _REACH)
    return found if found >= 0 else _walked(top, parts, flags)


def _openat2(top: int, path: str, flags: int) -> int:
    """Calls openat2; returns -1 where the kernel lacks it, a seccomp filter forbids it, or a signal interrupted it. Raises OSError."""
    how = struct.pack("QQQ", flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
    found = int(_libc.syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(top), os.fsencode(path), how, ctypes.c_size_t(len(how))))
    number = ctypes.get_errno()
    if found < 0 and number not in (errno.ENOSYS, errno.EPERM, errno.EAGAIN, errno.EINTR):
        raise OSError(number, os.strerror(number), path)
    return found


def _walked(top: int, parts: list[str], flags: int) -> int:
    """Walks the path as openat2 does it, one part after the other. Raises OSError."""
    here = os.open(".", _REACH | os.O_DIRECTORY, dir_fd=top)
    for depth, name in enumerate(parts):
        above = here
        try:
            here = os.open(name, _REACH | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
        mode = os.fstat(here).st_mode
        needs_directory = flags & os.O_DIRECTORY or depth < len(parts) - 1
        wrong = errno.ELOOP if stat.S_ISLNK(mode) else errno.ENOTDIR if needs_directory and not stat.S_ISDIR(mode) else 0
        if wrong:
            os.close(here)
            raise OSError(wrong, os.strerror(wrong), "/".join(parts))
    return here
