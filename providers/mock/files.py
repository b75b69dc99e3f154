"""Files of a mock container, in memory, and as tar archives, the format of `kubectl cp`.

Invariant: paths are absolute and normal, every file is in an existing directory, and all files together stay below a limit.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from typing import Final

LIMIT: Final = 1 << 30
"""Bytes that all files of one container may have."""
_BLOCK: Final = 512
_CHUNK: Final = 1 << 16


def _fail(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Files:
    """Files of one container; raises OSError like a real file system."""

    def __init__(self, contents: Mapping[str, bytes] | None = None) -> None:
        self._files: dict[str, bytes] = {}
        self._directories = {"/", "/tmp"}
        self._size = 0
        for path, data in (contents or {}).items():
            self.make_directory(posixpath.dirname(path))
            self.write(path, data)

    @staticmethod
    def path(directory: str, name: str) -> str:
        """Returns `name` relative to `directory`."""
        return posixpath.normpath("/" + posixpath.join(directory, name).lstrip("/"))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._size

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def is_file(self, path: str) -> bool:
        return path in self._files

    def read(self, path: str) -> bytes:
        if path in self._directories:
            raise _fail(errno.EISDIR)
        if path not in self._files:
            raise _fail(errno.ENOENT)
        return self._files[path]

    def write(self, path: str, data: bytes) -> None:
        if path in self._directories:
            raise _fail(errno.EISDIR)
        if posixpath.dirname(path) not in self._directories:
            raise _fail(errno.ENOENT)
        size = self._size - len(self._files.get(path, b"")) + len(data)
        if size > LIMIT:
            raise _fail(errno.ENOSPC)
        self._size, self._files[path] = size, data

    def make_directory(self, path: str) -> None:
        """Creates a directory and its parents; an existing one is not changed."""
        while path not in self._directories:
            if path in self._files:
                raise _fail(errno.ENOTDIR)
            self._directories.add(path)
            path = posixpath.dirname(path)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        if path in self._directories:
            if not recursive or path == "/":
                raise _fail(errno.EISDIR)
            inside = [one for one in self.below(path) if one != path]
            for one in inside:
                if one in self._files:
                    self._size -= len(self._files.pop(one))
            self._directories.difference_update({path, *inside})
        else:
            self._size -= len(self.read(path))
            del self._files[path]

    def below(self, path: str) -> list[str]:
        """Returns the path itself and everything under it, directories first. Raises FileNotFoundError."""
        if path not in self._directories and path not in self._files:
            raise _fail(errno.ENOENT)
        prefix = path.rstrip("/") + "/"
        return sorted(one for one in (*self._directories, *self._files) if one == path or one.startswith(prefix))

    def names(self, path: str) -> list[str]:
        """Returns the entries of a directory; for a file its name."""
        if path in self._files:
            return [posixpath.basename(path)]
        return [posixpath.basename(one) for one in self.below(path) if one != path and posixpath.dirname(one) == path]


def pack(files: Files, paths: list[str], *, mtime: float) -> Iterator[bytes]:
    """Yields a tar archive in chunks; members are named without the leading slash."""
    for path in paths:
        for one in files.below(path):
            name = one.lstrip("/")
            if not name:
                continue
            member = tarfile.TarInfo(name)
            member.mtime = int(mtime)
            data = b""
            if files.is_directory(one):
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            else:
                data = files.read(one)
                member.size = len(data)
            yield member.tobuf(tarfile.GNU_FORMAT)
            yield from (data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))
            yield bytes(-len(data) % _BLOCK)
    yield bytes(2 * _BLOCK)


def unpack(files: Files, archive: bytes, *, directory: str) -> list[str]:
    """Unpacks the members below a directory; returns their names.

    Raises tarfile.TarError when it is not an archive, OSError when it exceeds the limit.
    """
    names: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        for member in source:
            path = Files.path(directory, member.name)
            names.append(member.name)
            if member.isdir():
                files.make_directory(path)
            elif member.isfile():
                files.make_directory(posixpath.dirname(path))
                stream = source.extractfile(member)
                files.write(path, stream.read() if stream is not None else b"")
    return names
