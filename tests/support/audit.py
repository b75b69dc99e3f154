"""What a user did to a cluster, by the audit log of its API server.

Invariant: only answered requests count, and reviews and dry runs, which change nothing, are no writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from attrs import field, frozen

from vkubelet.clock import parse_rfc3339
from vkubelet.testing.cluster import ControlPlane

WRITES = ("create", "update", "patch", "delete", "deletecollection")
_REVIEWS = ("tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectreviews")
_LONGEST_LINE = 4 << 20
"""Bytes."""


@frozen
class Call:
    """One request. `code` is that of the answer; `what` is `resource` or `resource/subresource`."""

    verb: str
    what: str
    namespace: str
    name: str
    code: int
    at: datetime
    uri: str = field(repr=False)
    body: dict[str, Any] = field(repr=False, factory=dict)
    """What was sent; of deletions only: `gracePeriodSeconds`, `preconditions`."""

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES and self.what not in _REVIEWS and "dryRun=" not in self.uri

    def __str__(self) -> str:
        return f"{self.verb} {self.what} {self.namespace}/{self.name} {self.code}"


class Audit:
    """The calls of one user from now on. A line is written a moment after its answer, so what was asked before is told by its time."""

    def __init__(self, cluster: ControlPlane, user: str) -> None:
        self._log = cluster.audit_log
        self._user = user
        self._from, self._since = end_of(self._log), datetime.now(UTC)

    def calls(self) -> list[Call]:
        """All calls so far, watches when they end."""
        made = (_call(entry) for entry in self._entries() if entry.get("user", {}).get("username") == self._user)
        return [call for call in made if call.at >= self._since]

    def writes(self) -> list[Call]:
        return [call for call in self.calls() if call.is_write]

    def _entries(self) -> Iterator[dict[str, Any]]:
        return (entry for entry in entries(self._log, since=self._from) if entry["stage"] == "ResponseComplete")


def entries(log: Path, *, since: int = 0, about: bytes = b"") -> Iterator[dict[str, Any]]:
    """The entries of an audit log from an offset that `end_of` returned; `about` leaves out those whose text lacks it, which is fast."""
    with log.open("rb") as lines:
        lines.seek(since)
        yield from whole_entries(lines, about=about)


def whole_entries(lines: BinaryIO, *, about: bytes = b"") -> Iterator[dict[str, Any]]:
    """The entries up to the first that is not whole: were one to read on, the rest of it could be there by then, and look like a line."""
    for line in lines:
        if not line.endswith(b"\n"):
            return
        if about in line:
            yield json.loads(line)


def end_of(log: Path) -> int:
    """Where the last line begins that is not whole yet: the API server does not write them in one piece."""
    with log.open("rb") as lines:
        size = lines.seek(0, os.SEEK_END)
        begin = lines.seek(max(0, size - _LONGEST_LINE))
        return begin + lines.read(size - begin).rfind(b"\n") + 1


def _call(entry: dict[str, Any]) -> Call:
    subject = entry.get("objectRef", {})
    what = "/".join(part for part in (subject.get("resource", ""), subject.get("subresource", "")) if part)
    return Call(
        verb=entry["verb"],
        what=what,
        namespace=subject.get("namespace", ""),
        name=subject.get("name", ""),
        code=entry.get("responseStatus", {}).get("code", 0),
        at=parse_rfc3339(entry["requestReceivedTimestamp"]),
        uri=entry["requestURI"],
        body=entry.get("requestObject") or {},
    )
