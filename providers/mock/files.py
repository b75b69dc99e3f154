"""Files of a mock container, in memory; they come and go as tar archives, the format of `kubectl cp`.

Invariant: paths are absolute and normal, and every entry is in an existing directory.
"""

import errno
import io
import os
import posixpath
import tarfile

LIMIT = 256 << 20
"""Bytes of the largest archive that is accepted."""


class Files:
    """Files of one container; raises OSError like a real file system."""

    def __init__(self, hostname: str) -> None:
        self._entries: dict[str, bytes | None] = {
            "/": None,
            "/etc": None,
            "/etc/hostname": f"{hostname}\n".encode(),
            "/tmp": None,
        }
        """Content by path; None is a directory."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(data) for data in self._entries.values() if data is not None)

    def is_directory(self, path: str) -> bool:
        return self._entries.get(path, b"") is None

    def read(self, path: str) -> bytes:
        """Returns the content of a file. Raises FileNotFoundError, IsADirectoryError."""
        if path not in self._entries:
            raise _error(errno.ENOENT)
        data = self._entries[path]
        if data is None:
            raise _error(errno.EISDIR)
        return data

    def pack(self, path: str, *, mtime: float) -> bytes:
        """Returns a tar archive of the path and everything under it; members are named without the leading slash.

        Raises FileNotFoundError.
        """
        if path not in self._entries:
            raise _error(errno.ENOENT)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name in sorted(self._entries):
                if name != "/" and (name == path or name.startswith(path.rstrip("/") + "/")):
                    archive.addfile(*_member(name, self._entries[name], mtime=mtime))
        return packed.getvalue()

    def unpack(self, archive: bytes, directory: str) -> None:
        """Adds the members of a tar archive below a directory. Raises tarfile.TarError when it is none."""
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for member in members:
                path = absolute(member.name, directory)
                content = members.extractfile(member) if member.isfile() else None
                if member.isdir() or content is not None:
                    self._make_directory(posixpath.dirname(path))
                    self._entries[path] = content.read() if content is not None else None

    def _make_directory(self, path: str) -> None:
        while path not in self._entries:
            self._entries[path] = None
            path = posixpath.dirname(path)


def absolute(name: str, directory: str = "/") -> str:
    """Returns the absolute path of `name` relative to `directory`; it cannot leave the root."""
    return posixpath.normpath("/" + posixpath.join(directory, name).lstrip("/"))


def _member(path: str, data: bytes | None, *, mtime: float) -> tuple[tarfile.TarInfo, io.BytesIO]:
    member = tarfile.TarInfo(path.lstrip("/"))
    member.mtime = int(mtime)
    if data is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    member.size = len(data or b"")
    return member, io.BytesIO(data or b"")


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
