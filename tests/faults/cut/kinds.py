"""The troubles of an API server that a process may meet, and how one of them passes over a process.

Invariant: a trouble lasts from when something has met it; one that nothing meets is a failed test, not a trouble that was survived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial

from attrs import frozen

from tests.support.gate import Gate
from tests.support.program import Program, eventually
from tests.support.troubles import Asked, Edit, Trouble, bookmarks_only, delayed, dropped, expired, repeated

LASTS = 6.0
"""Seconds, from when a request or an event has met the trouble."""
EXPIRES = 1.0
MEETS_WITHIN = 120.0
"""Seconds: a watch whose connections were reset often waits up to 30 until it is repeated."""


@frozen(kw_only=True)
class Kind:
    """A trouble of the cluster `way` by name; `version` makes it one of reads as of the moment at which it begins."""

    way: str
    name: str
    trouble: Callable[[str], Trouble]
    reset: bool = False
    """Watches that are open meet it too; objects are changed as soon as one has."""
    request: str = ""
    """Part of the request that has to meet it after a reset."""
    events_of: str = ""
    """Kind of an object one of whose events it has to change."""
    beside: Callable[[], Sequence[Trouble]] = tuple
    """Troubles that cause requests for it."""
    expires: str = ""
    """Part of a watch. Watches expire at its end, as they do in an API server that has lost events: everything is listed again."""

    def __str__(self) -> str:
        return f"{self.way}: {self.name}"


@frozen
class Result:
    """Of one trouble: requests that met it, events of watches that it changed, seconds from its end until all is as it should be."""

    kind: Kind
    requests: int
    events: int
    took: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}: {self.requests} requests, {self.events} events, as it should be {self.took:.1f} s after its end"


def summary(results: Sequence[Result]) -> str:
    """For the log of a test."""
    least, slowest = min(results, key=lambda result: result.requests), max(results, key=lambda result: result.took)
    return f"{len(results)} troubles, each met by {least.requests} requests or more ({least.kind}); slowest: {slowest}"


async def passes(gate: Gate, kind: Kind, version: str, change: Callable[[], Awaitable[None]], by: Program) -> Result:
    """Lets a trouble pass over a process, and changes objects meanwhile."""

    async def met(check: Callable[[], object]) -> None:
        await eventually(check, f"{kind}: something meets it", seconds=MEETS_WITHIN, by=[by])

    trouble = kind.trouble(version)
    with ExitStack() as beside:
        for each in kind.beside():
            beside.enter_context(gate.trouble(each))
        with gate.trouble(trouble, reset=kind.reset) as active:
            if kind.reset:
                await met(lambda: any(kind.request in request for request in active.met))
            await change()
            await met(lambda: active.met and (trouble.events is None or any(kind.events_of in each for each in active.changed)))
            await asyncio.sleep(LASTS)
    if kind.expires:
        with gate.trouble(Trouble(when=_on(kind.way, _watch), status=410), reset=True) as expiry:
            await met(lambda: any(kind.expires in request for request in expiry.met))
            await asyncio.sleep(EXPIRES)
    return Result(kind, len(active.met), len(active.changed))


def kinds(way: str, path: str, object_kind: str) -> list[Kind]:
    """All troubles of one cluster, for a process that watches objects of this path and kind there."""
    request, resource = f"GET {path}?", path.rpartition("/")[2]

    def of_resource(asked: Asked) -> bool:
        return _cached(asked) and asked.resource == resource

    def of_kind(event: dict[str, object]) -> bool:
        found = event["object"]
        return isinstance(found, dict) and found.get("kind") == object_kind

    of_watches = partial(_of_watches, way, request, object_kind)
    made = partial(Kind, way=way, reset=True, request=request)
    return [
        *of_reads(way),
        *of_writes(way),
        made(name="expired watches", trouble=lambda _: Trouble(when=_on(way, _watch), status=410)),
        of_watches("expired in a stream", events=expired),
        made(
            name="expired pages",
            trouble=lambda _: Trouble(when=_on(way, lambda asked: asked.is_page), status=410),
            beside=partial(_lists_in_pages, way),
        ),
        made(name="stale caches", trouble=lambda version: Trouble(when=_on(way, _cached), version=version)),
        made(name=f"stale {resource}", trouble=lambda version: Trouble(when=_on(way, of_resource), version=version)),
        of_watches("dropped events", events=dropped(of_kind), lost=True),
        of_watches("repeated events", events=repeated(3)),
        of_watches("delayed events", events=delayed(0.2)),
        of_watches("bookmarks only", events=bookmarks_only, lost=True),
    ]


def of_reads(way: str) -> list[Kind]:
    """Troubles of a cluster in which a process reads. Of half the reads any may be the first, so it is not asked which one has met it."""
    return [
        *(
            Kind(way=way, name=f"{status} for reads", trouble=partial(_answered, _half(way, _read), status), reset=True)
            for status in (429, 500, 503)
        ),
        Kind(way=way, name="torn bodies", trouble=lambda _: Trouble(when=_half(way, _read), torn=True), reset=True),
        Kind(way=way, name="late answers", trouble=lambda _: Trouble(when=_on(way, lambda asked: not asked.is_watch), late=0.5)),
        Kind(way=way, name="slow bodies", trouble=lambda _: Trouble(when=_on(way, _read), rate=20_000), reset=True),
    ]


def of_writes(way: str) -> list[Kind]:
    """Troubles of a cluster in which a process writes."""
    return [
        *(
            Kind(way=way, name=f"{status} for writes", trouble=partial(_answered, _half(way, _write), status))
            for status in (409, 429, 500, 503)
        ),
        Kind(way=way, name="lost answers", trouble=lambda _: Trouble(when=_half(way, _write), lost=True)),
        Kind(way=way, name="unsent writes", trouble=lambda _: Trouble(when=_half(way, _write), unsent=True)),
        Kind(way=way, name="hanging writes", trouble=lambda _: Trouble(when=_half(way, _write), hangs=True)),
    ]


def _of_watches(way: str, request: str, object_kind: str, name: str, *, events: Edit, lost: bool = False) -> Kind:
    made = partial(Kind, way=way, name=name, reset=True, request=request, events_of=object_kind, expires=request if lost else "")
    return made(trouble=lambda _: Trouble(when=_on(way, _watch), events=events))


def _lists_in_pages(way: str) -> list[Trouble]:
    """Each watch expires once; then objects are listed in pages of one, because the watch cache cannot stream them."""
    expired_once: set[str] = set()

    def first_of_each(asked: Asked) -> bool:
        first = asked.way == way and asked.is_watch and asked.path not in expired_once
        expired_once.update({asked.path} if first else ())
        return first

    return [
        Trouble(when=_on(way, lambda asked: asked.is_list), page=1),
        Trouble(when=_on(way, lambda asked: asked.streams_list), status=504),
        Trouble(when=first_of_each, status=410),
    ]


def _answered(when: Callable[[Asked], bool], status: int, version: str) -> Trouble:
    return Trouble(when=when, status=status, retry_after=1 if status in (429, 503) else 0)


def _on(way: str, when: Callable[[Asked], bool]) -> Callable[[Asked], bool]:
    return lambda asked: asked.way == way and when(asked)


def _half(way: str, when: Callable[[Asked], bool]) -> Callable[[Asked], bool]:
    """Every other request, so that work goes on in between."""
    seen = iter(range(1 << 30))
    return lambda asked: asked.way == way and when(asked) and next(seen) % 2 == 0


def _watch(asked: Asked) -> bool:
    return asked.is_watch


def _read(asked: Asked) -> bool:
    return asked.method == "GET"


def _cached(asked: Asked) -> bool:
    """Reads of one object come from storage in every API server, never from a cache that lags."""
    return asked.is_watch or asked.is_list


def _write(asked: Asked) -> bool:
    return asked.is_write
