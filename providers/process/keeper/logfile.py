"""Writes container output in the format of the kubelet and its container engines: `<time> <stream> <F|P> <text>`, in rotated files.

Invariant: a file contains complete lines and is never renamed; `000000.log` is followed by `000001.log`, and the oldest are deleted.
"""

import os
import time

LONGEST_LINE = 16 * 1024
"""Longest line in bytes; longer ones are written as parts, each but the last marked with P."""
SUFFIX = ".log"


def name_of(number: int) -> str:
    return f"{number:06d}{SUFFIX}"


def numbers(directory: str) -> list[int]:
    """Returns the numbers of the existing files, oldest first."""
    try:
        return sorted(int(name[: -len(SUFFIX)]) for name in os.listdir(directory) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return []


def stamp(nanos: int) -> bytes:
    """Formats RFC 3339 with nine digits."""
    seconds, rest = divmod(nanos, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode() + b".%09dZ" % rest


class Lines:
    """Splitter of one stream into log lines; an incomplete line is buffered."""

    def __init__(self, stream: bytes) -> None:
        self._stream = stream
        self._rest = b""

    def feed(self, data: bytes, moment: bytes) -> bytes:
        """Returns the log lines that are complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        out: list[bytes] = []
        for line in whole:
            self._cut(line, moment, out)
        while len(self._rest) > LONGEST_LINE:
            out.append(self._line(b"P", self._rest[:LONGEST_LINE], moment))
            self._rest = self._rest[LONGEST_LINE:]
        return b"".join(out)

    def end(self, moment: bytes) -> bytes:
        """Returns the rest when the stream is closed."""
        rest, self._rest = self._rest, b""
        return self._line(b"F", rest, moment) if rest else b""

    def _cut(self, line: bytes, moment: bytes, out: list[bytes]) -> None:
        while len(line) > LONGEST_LINE:
            out.append(self._line(b"P", line[:LONGEST_LINE], moment))
            line = line[LONGEST_LINE:]
        out.append(self._line(b"F", line, moment))

    def _line(self, tag: bytes, text: bytes, moment: bytes) -> bytes:
        return b"%b %b %b %b\n" % (moment, self._stream, tag, text)


class LogFiles:
    """Log files of one start of a container. A full disk loses lines, not the container."""

    def __init__(self, directory: str, *, largest: int, most: int) -> None:
        self._directory = directory
        self._largest = max(1, largest)
        self._most = max(1, most)
        self._number = 0
        self._file = -1
        self._size = 0
        self._streams = {b"stdout": Lines(b"stdout"), b"stderr": Lines(b"stderr")}
        os.makedirs(directory, exist_ok=True)
        self._open()

    def write(self, stream: bytes, data: bytes, *, nanos: int) -> None:
        self._write(self._streams[stream].feed(data, stamp(nanos)))

    def end(self, *, nanos: int) -> None:
        for stream in self._streams.values():
            self._write(stream.end(stamp(nanos)))
        if self._file >= 0:
            os.close(self._file)

    def _write(self, lines: bytes) -> None:
        while lines:
            cut = len(lines) if self._size + len(lines) <= self._largest else lines.rfind(b"\n", 0, max(0, self._largest - self._size)) + 1
            if not cut and not self._size:
                # A single line is larger than a file may be.
                cut = lines.index(b"\n") + 1
            self._append(lines[:cut])
            lines = lines[cut:]
            if lines:
                self._next()

    def _append(self, lines: bytes) -> None:
        if self._file < 0:
            self._open()
        if self._file < 0:
            return
        done = 0
        try:
            while done < len(lines):
                done += os.write(self._file, lines[done:])
        except OSError:
            # Half a line must not run into the next one.
            done = lines.rfind(b"\n", 0, done) + 1
            os.ftruncate(self._file, self._size + done)
        self._size += done

    def _next(self) -> None:
        """Opens the next file, after deleting the oldest ones: on a full disk this frees space."""
        if self._file >= 0:
            os.close(self._file)
        self._number += 1
        for number in numbers(self._directory)[: 1 - self._most or None]:
            try:
                os.unlink(os.path.join(self._directory, name_of(number)))
            except OSError:
                continue
        self._open()

    def _open(self) -> None:
        """Opens the file; while that fails, lines are dropped."""
        path = os.path.join(self._directory, name_of(self._number))
        self._size = 0
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._file).st_size
        except OSError:
            self._file = -1
