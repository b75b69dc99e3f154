"""Faults of an API server that a gate brings about: which requests meet one, and what becomes of them (pure).

Invariant: a trouble is data; what it does to a request is decided by the request alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from attrs import evolve, frozen

Body = dict[str, Any]
Edit = Callable[[Body], Iterable[Body | float]]
"""Of the events of a watch: what is handed on in place of one; a number is seconds to wait."""

_READS = ("GET", "HEAD")
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@frozen
class Asked:
    """One request, as far as troubles tell requests apart; `way` is the name of the cluster."""

    way: str
    method: str
    path: str
    query: Mapping[str, str]

    @property
    def parts(self) -> list[str]:
        """The path behind group, version and namespace: resource, name, subresource."""
        parts = self.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        return parts[2:] if parts[:1] == ["namespaces"] and len(parts) > 2 else parts

    @property
    def resource(self) -> str:
        return self.parts[0] if self.parts else ""

    @property
    def subresource(self) -> str:
        return self.parts[2] if len(self.parts) > 2 else ""

    @property
    def is_write(self) -> bool:
        """Reviews and dry runs change nothing."""
        return self.method not in _READS and not self.resource.endswith("reviews") and "dryRun" not in self.query

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch", "") in ("true", "1")

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and len(self.parts) == 1 and not self.is_watch

    @property
    def is_page(self) -> bool:
        """A page of a list that is not its first."""
        return self.is_list and bool(self.query.get("continue"))

    @property
    def streams_list(self) -> bool:
        """A watch that asks for the existing objects first."""
        return self.is_watch and self.query.get("sendInitialEvents") == "true"

    @property
    def is_read_of_one(self) -> bool:
        return self.method == "GET" and len(self.parts) == 2


def anything(asked: Asked) -> bool:
    return True


@frozen(kw_only=True)
class Trouble:
    """What becomes of requests for which `when` holds, `times` of them. What is left out goes on as usual."""

    when: Callable[[Asked], bool] = anything
    times: int | None = None
    status: int = 0
    """The gate answers with it; the server is not asked."""
    retry_after: int = 0
    unsent: bool = False
    """The connection is reset, and the server is not asked."""
    lost: bool = False
    """The server did what it was asked, and the connection is reset in place of the answer."""
    hangs: bool = False
    """Neither asked nor answered while the trouble lasts."""
    torn: bool = False
    """The connection is reset in the middle of the body of the answer."""
    late: float = 0.0
    """Seconds until the server is asked."""
    rate: float = 0.0
    """Bytes of the body per second."""
    version: str = ""
    """Reads are answered as of this resourceVersion. Watches say nothing newer while the trouble lasts."""
    events: Edit | None = None
    page: int = 0
    """Objects of a page, where more are asked for: an API server may return fewer than the limit."""

    def once(self) -> Self:
        return evolve(self, times=1)

    @property
    def spares_the_server(self) -> bool:
        return bool(self.status or self.unsent or self.hangs)


def status_body(code: int, message: str = "") -> Body:
    """The Status by which an API server refuses."""
    kind = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {
        **kind,
        "message": message or f"status {code}, brought about by a test",
        "reason": _REASONS.get(code, "InternalError"),
        "code": code,
    }


# --- Edits of the events of a watch -------------------------------------------------------------------------------------------------------


def is_bookmark(event: Body) -> bool:
    return bool(event["type"] == "BOOKMARK")


def bookmarks_only(event: Body) -> Iterator[Body]:
    """Everything but bookmarks is dropped, also the first objects of a watch."""
    if is_bookmark(event):
        yield event


def dropped(choose: Callable[[Body], bool]) -> Edit:
    """Events for which `choose` holds are never seen."""
    return lambda event: [] if not is_bookmark(event) and choose(event) else [event]


def repeated(times: int = 2) -> Edit:
    return lambda event: [event] if is_bookmark(event) else [event] * times


def delayed(seconds: float) -> Edit:
    """Each of them, so a burst comes one by one."""
    return lambda event: [event] if is_bookmark(event) else [seconds, event]


def expired(event: Body) -> Iterator[Body]:
    """The stream ends with 410 in place of its next event."""
    yield {"type": "ERROR", "object": status_body(410, "too old resource version")}


def edited(line: bytes, edit: Edit) -> Iterator[bytes | float]:
    """What is handed on in place of a line of a watch."""
    for each in edit(json.loads(line)):
        yield each if isinstance(each, float | int) else json.dumps(each).encode() + b"\n"


# --- Reads as of an earlier version ------------------------------------------------------------------------------------------------------


def listed_at(query: Mapping[str, str], version: str, *, name: str = "") -> dict[str, str]:
    """The query of a list, or of one object, as of a version; a page of a list that began earlier is of that version by its token."""
    kept = {key: value for key, value in query.items() if key in ("labelSelector", "fieldSelector", "limit", "continue")}
    if "continue" not in kept:
        kept |= {"resourceVersion": version, "resourceVersionMatch": "Exact"}
    return kept | ({"fieldSelector": f"metadata.name={name}"} if name else {})


def one_of(listed: Body) -> Body | None:
    """The object in the answer to a list that names one."""
    if not listed.get("items"):
        return None
    return {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List"), **listed["items"][0]}


def first_events(listed: Body) -> Iterator[Body]:
    """A list as a watch with initial events shows it, and the bookmark that ends it."""
    kind = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
    for item in listed.get("items") or ():
        yield {"type": "ADDED", "object": {**kind, **item}}
    metadata = {"resourceVersion": listed["metadata"]["resourceVersion"], "annotations": {"k8s.io/initial-events-end": "true"}}
    yield {"type": "BOOKMARK", "object": {**kind, "metadata": metadata}}
