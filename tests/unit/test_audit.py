"""Audit logs are read while API servers write them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit import end_of, entries, whole_entries


class Growing(io.RawIOBase):
    """A file that gets the next part when its end was read."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = [each for part in parts for each in (part, b"")]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        part = self._parts.pop(0) if self._parts else b""
        memoryview(buffer)[: len(part)] = part
        return len(part)


def test_the_rest_of_a_line_that_is_written_meanwhile_is_no_entry() -> None:
    with io.BufferedReader(Growing(b'{"a": 1}\n{"b"', b': "c"}\n')) as log:
        assert list(whole_entries(log)) == [{"a": 1}]


def test_entries_since_the_last_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_bytes(b'{"a": 1}\n{"b"')
    since = end_of(log)
    with log.open("ab") as more:
        more.write(b': "c"}\n{"d": "e"}\n{"f"')
    assert list(entries(log, since=since)) == [{"b": "c"}, {"d": "e"}]
    assert list(entries(log, about=b'"d"')) == [{"d": "e"}]


@pytest.mark.parametrize("text", [b"", b'{"a"'])
def test_a_log_without_a_whole_line_has_no_entries(tmp_path: Path, text: bytes) -> None:
    log = tmp_path / "audit.log"
    log.write_bytes(text)
    assert end_of(log) == 0
    assert list(entries(log)) == []
