"""Log lines as JSON, with fields that follow a task, and text for terminals.

Invariant: a line contains text and numbers only; an object without a `__str__` of its class appears as the name of its class.
"""

import json
import logging
import math
import re
import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import TextIO

from vkubelet.clock import rfc3339_micro
from vkubelet.errors import SettingsError

log = logging.getLogger(__name__)

Scalar = str | int | float | bool | None

_OURS = ("vkubelet", "kubeocean", "fleet", "vkubelet_providers")
_OF_EVERY_RECORD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})
"""Attributes that are not fields of `extra=`."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but tab and newline; ESC starts the commands of a terminal."""

_fields: ContextVar[Mapping[str, object]] = ContextVar("log_fields", default=MappingProxyType({}))


class bind:
    """Adds fields to every line that this task, and tasks it starts, log inside the `with`; inner ones win.

    Not across the `yield` of an async generator, which may be closed by another task. A class, as each reconcile binds its key, and a
    context made of a generator costs four times as much.
    """

    __slots__ = ("_bound", "_token")

    def __init__(self, **fields: object) -> None:
        self._bound = fields

    def __enter__(self) -> None:
        self._token = _fields.set({**_fields.get(), **self._bound})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _fields.reset(self._token)


def printable(text: str) -> str:
    """Returns text from elsewhere, such as an event of a pod, with control characters as `\\x1b`: a terminal would execute them."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object per line: time, level, logger, message, the fields of `extra=`, the bound fields, and a traceback as
    `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Scalar] = {
            "time": rfc3339_micro(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        for name, value in {**_fields.get(), **extra}.items():
            line.setdefault(name, _scalar(value))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def few(names: Iterable[str], most: int = 3, *, separator: str = ", ") -> str:
    """Joins some names for a message: `a, b, c and 4 more`."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return separator.join(found[:most]) + more


def configure(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Sends the logs of the process to `stream` (stderr), ours from `level` on, others' from INFO on.

    Other packages never log at DEBUG: some of them print complete bodies at that level. Raises SettingsError for an unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise SettingsError("log.level", f"{level!r} is no level; use DEBUG, INFO, WARNING or ERROR")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.INFO))
    set_level(level)
    # Our server writes its own access log.
    logging.getLogger("aiohttp.access").setLevel(max(number, logging.WARNING))


def set_level(level: str) -> None:
    """Sets the level of our log lines, one of logging's, from now on."""
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())


def change_level(level: str) -> None:
    """Sets the level as `set_level` does, and logs the change."""
    set_level(level)
    with bind(to=level):
        log.info("log level changed")


def _scalar(value: object) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    speaks = type(value).__str__ is not object.__str__ and not isinstance(value, bytes)
    return str(value) if speaks else type(value).__name__
