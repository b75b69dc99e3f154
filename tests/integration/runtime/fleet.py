"""Virtual nodes of the real program, led by the test and read back by the `kubernetes` package.

Invariant: names carry the fleet's own, so that fleets share a cluster without meeting; what a fleet made is gone after its test.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from attrs import define, field
from kubernetes import client as k8s

from tests.support.audit import entries
from tests.support.bound import condition
from tests.support.program import PATIENCE, Program, eventually
from tests.support.witness import Record, api_client, watching
from vkubelet.testing.cluster import ControlPlane

PUPPET = Path(__file__).with_name("puppet.py")
Body = dict[str, Any]

_numbers = itertools.count(1)
_NOT_READY, _TTL = "node.kubernetes.io/not-ready", "node.alpha.kubernetes.io/ttl"


@define(kw_only=True)
class Fleet:
    """The nodes of one instance in `plane`. `settings` lie over those every program of the fleet gets."""

    plane: ControlPlane
    directory: Path
    settings: Mapping[str, Any] = field(factory=dict)
    kubeconfig: Path | None = None
    instance: str = field(init=False)
    namespace: str = field(init=False, default="")
    _api: k8s.ApiClient = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.instance = f"fleet{os.getpid()}-{next(_numbers)}"
        self._api = api_client(self.plane.kubeconfig)

    @property
    def labels(self) -> str:
        return f"vkubelet.io/instance={self.instance}"

    def name(self, suffix: str) -> str:
        """A node name of this fleet."""
        return f"{self.instance}-{suffix}"

    def names(self, suffixes: str) -> list[str]:
        return [self.name(suffix) for suffix in suffixes.split()]

    # --- the program ---

    def program(self, provider: str = str(PUPPET), /, *, log: str = "a", **over: Any) -> Program:
        """`vkubelet run`, not started. `over` are whole sections of the settings."""
        settings: Body = {
            "instance": self.instance,
            "server": {"node_address": self.plane.host_address, "main_port": 0, "certificate": "self-signed"},
            "health": {"health_address": "", "metrics_address": ""},
            "log": {"level": "DEBUG"},
            "node": {"taint": ""},
            "provider": {"directory": str(self.directory)} if provider == str(PUPPET) else {},
            **self.settings,
            **over,
        }
        config = self.directory / f"{log}.yaml"
        config.write_text(yaml.safe_dump(settings))
        kubeconfig = self.kubeconfig or self.plane.kubeconfig
        arguments = ("run", "--provider", provider, "--config", str(config), "--kubeconfig", str(kubeconfig))
        return Program("vkubelet", *arguments, log=self.directory / f"{log}.log")

    def tell(self, what: str, text: str = "") -> None:
        """Lead the puppet."""
        draft = self.directory / f"{what}.draft"
        draft.write_text(text)
        draft.replace(self.directory / what)

    def untell(self, what: str) -> None:
        (self.directory / what).unlink()

    def declare(self, suffixes: str, *, complete: bool = True) -> list[str]:
        """What the puppet declares from now on; the nodes' names."""
        names = self.names(suffixes)
        self.tell("nodes", " ".join(names))
        if complete:
            self.tell("complete")
        return names

    def calls(self, verb: str = "") -> list[str]:
        """What the puppet was asked to do."""
        file = self.directory / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(verb)]

    def starts(self) -> list[str]:
        """The pods that the puppet was asked to start, by name: which of several new ones is first is nobody's promise."""
        return sorted(line.removeprefix("start ") for line in self.calls("start "))

    # --- what the cluster holds ---

    async def _read(self, call: Callable[..., Any], *args: str, **options: str) -> Body | None:
        def read() -> Body | None:
            try:
                # The client's own models take milliseconds per object.
                answer: Body = json.loads(call(*args, **options, _preload_content=False).data)
            except k8s.ApiException as error:
                if error.status == 404:
                    return None
                raise
            return answer

        return await asyncio.to_thread(read)

    async def _items(self, call: Callable[..., Any], *args: str, **options: str) -> list[Body]:
        found = await self._read(call, *args, **options)
        assert found is not None
        items: list[Body] = found["items"]
        return items

    @property
    def _core(self) -> k8s.CoreV1Api:
        return k8s.CoreV1Api(self._api)

    async def node(self, name: str) -> Body | None:
        return await self._read(self._core.read_node, name)

    async def nodes(self) -> list[Body]:
        return await self._items(self._core.list_node, label_selector=self.labels)

    async def lease(self, name: str) -> Body | None:
        return await self._read(k8s.CoordinationV1Api(self._api).read_namespaced_lease, name, "kube-node-lease")

    async def pod(self, name: str) -> Body | None:
        return await self._read(self._core.read_namespaced_pod, name, self.namespace)

    async def pods(self) -> list[Body]:
        return await self._items(self._core.list_namespaced_pod, self.namespace)

    async def create(self, *names: str, node: str = "", **spec: Any) -> None:
        """Pods that are bound from the beginning when `node` is given."""
        containers, bound = [{"name": "main", "image": "none"}], {"nodeName": node} if node else {}
        wanted = {"containers": containers, "terminationGracePeriodSeconds": 1, **bound, **spec}
        bodies = [{"metadata": {"name": name}, "spec": wanted} for name in names]

        def create() -> None:
            for body in bodies:
                self._core.create_namespaced_pod(self.namespace, body, _preload_content=False)

        await asyncio.to_thread(create)

    async def kubectl(self, *args: str, stdin: str | None = None) -> str:
        return await self.plane.kubectl("-n", self.namespace, *args, stdin=stdin)

    async def delete_nodes(self) -> None:
        """All Nodes of the fleet as they are now, ten at a time."""
        names = [node["metadata"]["name"] for node in await self.nodes()]
        for batch in (names[at : at + 10] for at in range(0, len(names), 10)):
            await asyncio.gather(*(self._read(self._core.delete_node, name) for name in batch))

    async def _remove_all(self, call: Callable[..., Any], *args: str, **options: Any) -> None:
        """One call, however many there are."""
        await asyncio.to_thread(call, *args, **options, _preload_content=False)

    # --- waiting ---

    async def ready(self, names: Sequence[str], *, seconds: float = PATIENCE, program: Program | None = None) -> list[Body]:
        """Wait until these nodes are Ready; them, in this order."""

        async def check() -> list[Body] | None:
            found = {body["metadata"]["name"]: body for body in await self.nodes()}
            ready = [found[name] for name in names if name in found and condition(found[name], "Ready") == "True"]
            return ready if len(ready) == len(names) else None

        try:
            out: list[Body] = await eventually(check, f"nodes Ready: {names[:5]}", seconds=seconds, every=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{program.tail() if program else ''}") from None
        return out

    async def until_node(self, name: str, holds: Callable[[Body], bool], what: str, *, seconds: float = PATIENCE) -> Body:
        async def check() -> Body | None:
            body = await self.node(name)
            return body if body is not None and holds(body) else None

        out: Body = await eventually(check, f"{name}: {what}", seconds=seconds, every=0.1)
        return out

    async def until_pod(self, name: str, holds: Callable[[Body], bool], what: str, *, seconds: float = PATIENCE) -> Body:
        async def check() -> Body | None:
            body = await self.pod(name)
            return body if body is not None and holds(body) else None

        out: Body = await eventually(check, f"pod {name}: {what}", seconds=seconds, every=0.1)
        return out

    async def running(self, *names: str, seconds: float = PATIENCE) -> list[Body]:
        """Wait until these pods run and are Ready."""
        return [await self.until_pod(name, _runs, "Running and Ready", seconds=seconds) for name in names]

    async def settled(self, *names: str) -> list[Body]:
        """Wait until the cluster's own controllers have done with these new nodes; them."""

        def done(body: Body) -> bool:
            untainted = not any(taint["key"] == _NOT_READY for taint in body["spec"].get("taints", ()))
            return untainted and _TTL in body["metadata"].get("annotations", {})

        return [await self.until_node(name, done, "the cluster's controllers have written what they write") for name in names]

    async def gone(self, name: str, *, seconds: float = PATIENCE) -> None:
        """Wait until Node and Lease are gone."""

        async def check() -> bool:
            return await self.node(name) is None and await self.lease(name) is None

        await eventually(check, f"Node and Lease {name} gone", seconds=seconds, every=0.2)

    @asynccontextmanager
    async def watched(self, kind: str = "pods") -> AsyncIterator[Record]:
        """Every event of our pods or nodes, by the other client."""
        where = {"labels": self.labels} if kind == "nodes" else {"namespace": self.namespace}
        manager = watching(self.plane.kubeconfig, kind, **where)
        record = await asyncio.to_thread(manager.__enter__)
        try:
            yield record
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)

    async def remove(self) -> None:
        await self._remove_all(self._core.delete_collection_namespaced_pod, self.namespace, grace_period_seconds=0)
        await self._remove_all(self._core.delete_collection_node, label_selector=self.labels)


def _runs(body: Body) -> bool:
    return body["status"].get("phase") == "Running" and condition(body, "Ready") == "True"


def port(node: Body) -> int:
    out: int = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    return out


def renewed_at(lease: Body) -> datetime:
    return datetime.fromisoformat(lease["spec"]["renewTime"])


def reason(body: Body, kind: str = "Ready") -> str:
    return next((str(c.get("reason", "")) for c in body["status"].get("conditions", ()) if c["type"] == kind), "")


def listens(node: Body) -> bool:
    address = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
    try:
        socket.create_connection((address, port(node)), timeout=2).close()
    except OSError:
        return False
    return True


def complaints(program: Program) -> list[str]:
    """Log lines of WARNING and above, with the error that they carry."""
    lines = [m for m in program.messages() if m["level"] in ("WARNING", "ERROR", "CRITICAL")]
    return [": ".join((m["logger"], m["message"], *([m["error"]] if "error" in m else []))) for m in lines]


def stop_took(program: Program) -> float:
    """Seconds, by its own log: what the machine needs to end a process, and to tell of it, is not part of a stop."""
    said = {line["message"]: datetime.fromisoformat(line["time"]) for line in program.messages()}
    return (said["stopped"] - said["stopping"]).total_seconds()


def audited(plane: ControlPlane, user: str) -> Iterator[Body]:
    """The completed requests of a user, from the audit log; a line of it may be written a moment after the answer is given."""
    for event in entries(plane.audit_log, about=f'"{user}"'.encode()):
        if event["user"]["username"] == user and event["stage"] == "ResponseComplete":
            yield event


def received(event: Body) -> datetime:
    """When a request of the audit log came."""
    return datetime.fromisoformat(event["requestReceivedTimestamp"])
