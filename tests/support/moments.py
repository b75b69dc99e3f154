"""A light, independent watch, by the connections of the `kubernetes` package: when did the API server tell of each object?

Invariant: the package's models, which cost milliseconds per object, are not used, so thousands of events can be noted beside what they
measure; a watch that misses something fails the test.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from attrs import define, field
from kubernetes import client as k8s

from tests.support.witness import api_client

Body = dict[str, Any]

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
STREAM_SECONDS = 3


@define
class Moments:
    """Monotonic seconds at which each object was added to what is watched, or changed, by its name; only events for which `when` holds."""

    when: Callable[[Body], bool]
    times: dict[str, list[float]] = field(factory=dict)
    gone: dict[str, float] = field(factory=dict)
    """When each was deleted."""
    problems: list[str] = field(factory=list)

    def __len__(self) -> int:
        """Objects told of."""
        return len(self.times)

    def count(self, *, since: float = 0.0, until: float = float("inf")) -> int:
        """How often anything was told in a span."""
        return sum(since <= moment < until for moments in list(self.times.values()) for moment in moments)

    def since(self, moment: float, names: Collection[str]) -> list[float]:
        """When something was told of these objects, from a moment on."""
        return [at for name in names for at in self.times.get(name, ()) if at >= moment]

    def first(self, name: str) -> float:
        return self.times[name][0]

    def longest(self, names: Collection[str], *, since: float, until: float) -> float:
        """The longest time in which nothing was told of one of these objects; the edges of the span count as if something had been."""
        return max(_longest_gap([since, *(t for t in self.times.get(name, ()) if since < t < until), until]) for name in names)


def _longest_gap(moments: list[float]) -> float:
    return max(after - before for before, after in zip(moments, moments[1:], strict=False))


@contextmanager
def moments_of(kubeconfig: Path, path: str, *, fields: str = "", when: Callable[[Body], bool] = lambda body: True) -> Iterator[Moments]:
    """Note what happens to the objects of a path, such as LEASES, while the block runs."""
    record, stop, ready = Moments(when), threading.Event(), threading.Event()
    api = api_client(kubeconfig)
    query = {"fieldSelector": fields} if fields else {}
    thread = threading.Thread(target=_watch, args=(api, path, query, record, stop, ready), daemon=True)
    thread.start()
    assert ready.wait(30), "the watch did not start"
    try:
        yield record
    finally:
        stop.set()
        thread.join(STREAM_SECONDS + 10)
    assert not record.problems, record.problems


def stream(api: k8s.ApiClient, path: str, query: Mapping[str, str], version: str) -> Iterator[tuple[float, Body]]:
    """One watch of a few seconds from a resourceVersion on: its events, each with the moment (monotonic) at which it arrived.

    A bookmark with the latest version comes before the stream ends, also where nothing happens. A refusal is an event of type ERROR.
    """
    options = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": str(STREAM_SECONDS)}
    url = f"{api.configuration.host}{path}?{urlencode({**query, **options})}"
    answer, rest = api.rest_client.pool_manager.request("GET", url, preload_content=False), b""
    try:
        if answer.status != HTTPStatus.OK:
            yield time.monotonic(), {"type": "ERROR", "object": {"message": answer.read().decode(errors="replace")}}
        else:
            for chunk in answer.stream(1 << 16):
                now = time.monotonic()
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield now, json.loads(line)
    finally:
        answer.release_conn()


def _watch(api: k8s.ApiClient, path: str, query: dict[str, str], record: Moments, stop: threading.Event, ready: threading.Event) -> None:
    pool, url = api.rest_client.pool_manager, f"{api.configuration.host}{path}"
    version = json.loads(pool.request("GET", f"{url}?{urlencode({**query, 'limit': '1'})}").data)["metadata"]["resourceVersion"]
    ready.set()
    while not stop.is_set() and not record.problems:
        for now, event in stream(api, path, query, version):
            version = _note(event, record, now) or version


def _note(event: Body, record: Moments, now: float) -> str:
    """The resourceVersion of the event, "" when it is an error."""
    if event["type"] == "ERROR":
        record.problems.append(str(event["object"].get("message")))
        return ""
    metadata = event["object"]["metadata"]
    if event["type"] in ("ADDED", "MODIFIED") and record.when(event["object"]):
        record.times.setdefault(metadata["name"], []).append(now)
    elif event["type"] == "DELETED":
        record.gone[metadata["name"]] = now
    return str(metadata["resourceVersion"])
