"""Writes vkubelet's log also to files of the node, for clients that can only reach it over the network.

Invariant: only files in the directory of these logs are read.
"""

from __future__ import annotations

import html
import logging
import logging.handlers
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from vkubelet.beneath import Directory
from vkubelet.logformat import JsonFormatter

FILE: Final = "vkubelet.log"
_LARGEST, _MORE = 10 << 20, 4
_BLOCK: Final = 64 * 1024


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Writes everything that is logged to a file as well, for the duration of the context."""
    Directory.at(directory, make=0o755).close()
    handler = logging.handlers.RotatingFileHandler(directory / FILE, maxBytes=_LARGEST, backupCount=_MORE, delay=True)
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


async def read(directory: Path, path: str) -> AsyncIterator[bytes]:
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
        while data := os.read(found, _BLOCK):
            yield data
    finally:
        os.close(found)
