"""An independent watch on the pods and nodes of a cluster, by the `kubernetes` package.

Invariant: it records everything from its start to its stop; a watch that breaks is resumed, and a gap fails the test.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from kubernetes import client as k8s
from kubernetes import config as k8s_config
from kubernetes import watch as k8s_watch

from tests.support.program import PATIENCE


def api_client(kubeconfig: Path) -> k8s.ApiClient:
    """A client of the official package for one kubeconfig."""
    return k8s_config.new_client_from_config(config_file=str(kubeconfig))


@frozen
class Seen:
    """One event as watched."""

    kind: str
    object: dict[str, Any]
    at: float = field(factory=time.monotonic)
    """When it was seen, by the monotonic clock."""

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])

    @property
    def key(self) -> str:
        return f"{self.object['metadata'].get('namespace', '')}/{self.object['metadata']['name']}"

    @property
    def phase(self) -> str:
        return str(self.object.get("status", {}).get("phase", ""))

    @property
    def deleting(self) -> bool:
        return bool(self.object["metadata"].get("deletionTimestamp"))

    def condition(self, kind: str) -> str:
        for condition in self.object.get("status", {}).get("conditions", None) or ():
            if condition["type"] == kind:
                return str(condition["status"])
        return ""

    @property
    def restarts(self) -> int:
        return sum(c.get("restartCount", 0) for c in self.object.get("status", {}).get("containerStatuses", None) or ())


@define
class Record:
    """Everything seen since the start."""

    events: list[Seen] = field(factory=list)
    problems: list[str] = field(factory=list)

    def by_uid(self) -> dict[str, list[Seen]]:
        out: dict[str, list[Seen]] = defaultdict(list)
        for event in list(self.events):
            out[event.uid].append(event)
        return out

    def where(self, keep: Callable[[Seen], bool]) -> list[Seen]:
        return [event for event in list(self.events) if keep(event)]


@contextmanager
def watching(kubeconfig: Path, kind: str = "pods", *, labels: str = "", namespace: str = "") -> Iterator[Record]:
    """Record all changes of `pods` or `nodes` while the block runs. What existed before is not recorded."""
    record, stop, ready = Record(), threading.Event(), threading.Event()
    thread = threading.Thread(target=_watch, args=(kubeconfig, kind, labels, namespace, record, stop, ready), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE), "the witness did not start"
    try:
        yield record
    finally:
        stop.set()
        thread.join(10)
    assert not record.problems, record.problems


def _watch(kubeconfig: Path, kind: str, labels: str, namespace: str, record: Record, stop: threading.Event, ready: threading.Event) -> None:
    api = k8s.CoreV1Api(api_client(kubeconfig))
    call: Any = api.list_node if kind == "nodes" else api.list_namespaced_pod if namespace else api.list_pod_for_all_namespaces
    args = (namespace,) if namespace and kind != "nodes" else ()
    version = call(*args, label_selector=labels, limit=1).metadata.resource_version
    heard = time.monotonic()
    ready.set()
    while not stop.is_set():
        try:
            # Where nothing happens the resourceVersion ages; the server sends a newer one two seconds before a stream ends.
            long = time.monotonic() > heard + 15
            options = {"label_selector": labels, "resource_version": version, "timeout_seconds": 4 if long else 1}
            for event in k8s_watch.Watch().stream(call, *args, allow_watch_bookmarks=long, **options):
                raw, heard = event["raw_object"], time.monotonic()
                version = raw["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    record.events.append(Seen(event["type"], raw))
        except k8s.ApiException as error:
            if error.status == 410:
                record.problems.append("the witness missed events")
                return
            stop.wait(0.2)
        except OSError:
            stop.wait(0.2)
