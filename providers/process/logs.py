"""Logs of containers, read from the files of keepers as the kubelet reads them; and vkubelet's own log as a file of the node.

Invariant: every line is returned once and in order, also when files are rotated meanwhile; of the node's files only those in the directory
of its logs are read.
"""

import html
import logging
import logging.handlers
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from vkubelet.beneath import Directory
from vkubelet.clock import Clock
from vkubelet.logformat import JsonFormatter
from vkubelet_providers.process.keeper.logfile import name_of, numbers

_BLOCK: Final = 128 * 1024
_WHOLE: Final = re.compile(rb"\S+ \S+ F ")
"""First bytes of a complete line, or of the last part of one; text may contain such a mark too."""
_LOOK_FIRST, _LOOK_LAST = 0.05, 0.5
NODE_LOG: Final = "vkubelet.log"
"""File of the log of vkubelet itself, which `/logs/` of the node serves."""
_NODE_LOG_LARGEST, _NODE_LOG_MORE = 10 << 20, 4
_NODE_LOG_BLOCK: Final = 64 * 1024


class Plain:
    """Converter of log file lines to lines of a time and the text; parts of one line are joined."""

    def __init__(self) -> None:
        self._within = False
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        *lines, self._rest = (self._rest + data).split(b"\n")
        out = []
        for line in lines:
            moment, _, other = line.partition(b" ")
            _, _, other = other.partition(b" ")
            tag, _, text = other.partition(b" ")
            out.append(text if self._within else moment + b" " + text)
            self._within = tag == b"P"
            if not self._within:
                out.append(b"\n")
        return b"".join(out)

    def skip(self) -> bytes:
        """Handles missing files: a partial line is completed, and its rest is not taken for another line's."""
        within, self._within, self._rest = self._within, False, b""
        return b"\n" if within else b""


def begin_of_tail(directory: Path, lines: int) -> int:
    """Returns the file from which on there are at least that many complete lines."""
    found, chosen = 0, 0
    for number in reversed(numbers(str(directory))):
        chosen = number
        try:
            # The first of them may have started in the file before.
            found += _whole_lines(directory, number, most=lines + 1 - found)
        except OSError:
            break
        if found > lines:
            break
    return chosen


def _whole_lines(directory: Path, number: int, *, most: int) -> int:
    """Counts the lines of a file, one by one up to `most`, so that no step blocks the interpreter for long."""
    with Directory.at(directory) as place, os.fdopen(place.file(name_of(number)), "rb") as file:
        return sum(1 for _ in islice(filter(_WHOLE.match, file), most))


async def read(directory: Path, *, begin: int, ended: Callable[[], bool] | None, clock: Clock) -> AsyncIterator[bytes]:
    """Reads from file `begin` on; with `ended` until it returns True and everything was read."""
    plain, number, wait = Plain(), begin, _LOOK_FIRST
    file = _open(directory, number)
    try:
        while True:
            over = ended is None or ended()
            data = os.read(file, _BLOCK) if file >= 0 else b""
            if data:
                wait = _LOOK_FIRST
                if text := plain.feed(data):
                    yield text
                # Long logs must not block other tasks.
                await clock.sleep(0)
                continue
            after = [each for each in numbers(str(directory)) if each > number]
            if after:
                # The file was complete before the next one was created, but perhaps not when it was read last.
                if file >= 0 and (data := os.read(file, _BLOCK)):
                    yield plain.feed(data)
                    continue
                _close(file)
                if after[0] != number + 1 and (text := plain.skip()):
                    yield text
                number = after[0]
                file = _open(directory, number)
            elif over or not directory.exists():
                return
            else:
                await clock.sleep(wait)
                wait = min(_LOOK_LAST, wait * 1.5)
    finally:
        _close(file)


def _open(directory: Path, number: int) -> int:
    try:
        with Directory.at(directory) as place:
            return place.file(name_of(number))
    except FileNotFoundError:
        return -1


def _close(file: int) -> None:
    if file >= 0:
        os.close(file)


# --- Log of vkubelet ----------------------------------------------------------------------------------------------------------------------


@contextmanager
def node_log_file(directory: Path) -> Iterator[None]:
    """Writes everything that is logged to a file as well, for the duration of the context."""
    Directory.at(directory, make=0o755).close()
    handler = logging.handlers.RotatingFileHandler(directory / NODE_LOG, maxBytes=_NODE_LOG_LARGEST, backupCount=_NODE_LOG_MORE, delay=True)
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


async def read_node_log(directory: Path, path: str) -> AsyncIterator[bytes]:
    """Serves a log file. Raises FileNotFoundError."""
    if not path or path.endswith("/"):
        if path.strip("/"):
            raise FileNotFoundError(path)
        with Directory.at(directory) as place:
            names = place.names()
        links = "".join(f'<a href="{html.escape(name)}">{html.escape(name)}</a>\n' for name in names)
        yield f"<pre>\n{links}</pre>\n".encode()
        return
    try:
        with Directory.at(directory) as place:
            found = place.file(path)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(path) from error
    try:
        while data := os.read(found, _NODE_LOG_BLOCK):
            yield data
    finally:
        os.close(found)
