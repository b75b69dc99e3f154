"""Every value that parts of one object had, in their order, by an independent watch.

Invariant: no value of an object that was watched is left out; a watch that ends, as when its API server is stopped, goes on by a list.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from attrs import field, frozen
from kubernetes import client as k8s
from urllib3.exceptions import HTTPError

from tests.support.moments import STREAM_SECONDS, stream
from tests.support.program import eventually
from tests.support.witness import api_client

Body = dict[str, Any]
Parts = Mapping[str, Callable[[Body], Any]]
"""Reads of parts of an object, by the name of the part."""

_PAUSE = 0.2


@frozen
class Trace:
    """The values of each part, each with the moment (monotonic) at which it was seen first; None while the object does not exist."""

    parts: Parts
    seen: dict[str, list[tuple[Any, float]]] = field(factory=dict)

    def values(self, part: str) -> list[Any]:
        return [value for value, _ in self.seen.get(part, [])]

    def at(self, part: str, value: Any) -> float:
        """The moment at which a part had a value for the first time."""
        return next(moment for found, moment in self.seen[part] if found == value)

    def note(self, body: Body | None) -> None:
        now = time.monotonic()
        for name, read in self.parts.items():
            value = None if body is None else read(body)
            listed = self.seen.setdefault(name, [])
            if not listed or listed[-1][0] != value:
                listed.append((value, now))


@asynccontextmanager
async def tracing(kubeconfig: Path, objects: Mapping[str, Parts]) -> AsyncIterator[dict[str, Trace]]:
    """Records parts of the objects at these paths while the block runs; the traces by their paths. Other tasks go on while its watches
    begin and end."""
    traces, stop = {path: Trace(parts) for path, parts in objects.items()}, threading.Event()
    ready = [threading.Event() for _ in traces]
    threads = [
        threading.Thread(target=_follow, args=(api_client(kubeconfig), path, trace, stop, begun), daemon=True)
        for (path, trace), begun in zip(traces.items(), ready, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        await eventually(lambda: all(begun.is_set() for begun in ready), "all objects are watched")
        yield traces
    finally:
        stop.set()
        await eventually(lambda: not any(thread.is_alive() for thread in threads), "all watches end", seconds=STREAM_SECONDS + 10)


def _follow(api: k8s.ApiClient, path: str, trace: Trace, stop: threading.Event, ready: threading.Event) -> None:
    collection, _, name = path.rpartition("/")
    pool, url, query = api.rest_client.pool_manager, api.configuration.host + collection, {"fieldSelector": f"metadata.name={name}"}
    version = ""
    while not stop.is_set():
        try:
            if not version:
                listed = json.loads(pool.request("GET", f"{url}?{urlencode(query)}", retries=False).data)
                trace.note(next(iter(listed["items"]), None))
                version = listed["metadata"]["resourceVersion"]
                ready.set()
            for _, event in stream(api, collection, query, version):
                version = str(event["object"]["metadata"]["resourceVersion"])
                if event["type"] != "BOOKMARK":
                    trace.note(None if event["type"] == "DELETED" else event["object"])
        except (HTTPError, OSError, ValueError, KeyError):
            # The API server is stopped, is not ready yet, or no longer knows the version.
            version = ""
            stop.wait(_PAUSE)
