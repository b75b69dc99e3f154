"""A namespace of the hub whose pods go to the nodes of one binding, and hands in both clusters.

Invariant: names and marks are those the specification promises, computed here anew and not asked of the code under test.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from attrs import field, frozen

from tests.support.bound import Bound, pod
from tests.support.core import Body, Core
from tests.support.program import PATIENCE, Program, eventually
from vkubelet.testing.cluster import CommandFailed

MOCK = "mock.vkubelet.io/"
"""Annotations below it are the script of a pod on a simulated node."""


def physical_name(namespace: str, name: str) -> str:
    """Of a pod, ConfigMap or Secret."""
    return f"{name[:30]}-{hashlib.md5(f'{namespace}/{name}'.encode(), usedforsecurity=False).hexdigest()}"


@contextmanager
def away(program: Program) -> Iterator[None]:
    """Killed while the block runs, and started again."""
    program.kill()
    try:
        yield
    finally:
        program.start()


@frozen(kw_only=True)
class Stage:
    """`nodes` are the physical ones."""

    bound: Bound
    nodes: list[str]
    namespace: str
    home: Core = field(repr=False)
    there: Core = field(repr=False)

    @classmethod
    async def of(cls, bound: Bound, nodes: list[str], *, namespace: str = "") -> Self:
        """In a fresh namespace unless one is named."""
        name = namespace or await bound.hub.namespace("stage")
        return cls(bound=bound, nodes=nodes, namespace=name, home=Core(bound.hub), there=Core(bound.worker))

    @property
    def vnode(self) -> str:
        return self.bound.vnode(self.nodes[0])

    # --- at home ---

    def body(self, name: str, *, script: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None, **spec: Any) -> Body:
        """A pod bound to the first virtual node; `script` without its prefix."""
        made: Body = pod(name, self.namespace, node=self.vnode, **spec)
        made["metadata"]["annotations"] = {MOCK + key: value for key, value in (script or {}).items()}
        made["metadata"]["labels"] = dict(labels or {})
        return made

    async def create(self, name: str, *, script: Mapping[str, str] | None = None, **spec: Any) -> Body:
        return await self.home.create("pods", self.body(name, script=script, **spec))

    async def virtual(self, name: str) -> Body | None:
        return await self.home.get("pods", name, self.namespace)

    async def until(self, name: str, wanted: Callable[[Body], Any], what: str, *, seconds: float = PATIENCE) -> Body:
        """The virtual pod as soon as it is like that."""

        async def check() -> Body | None:
            found = await self.virtual(name)
            return found if found is not None and wanted(found) else None

        out: Body = await eventually(check, f"{name}: {what}", seconds=seconds)
        return out

    async def running(self, name: str, *, seconds: float = PATIENCE) -> Body:
        """Running, and known to be backed."""
        return await self.until(name, lambda p: p["status"]["phase"] == "Running" and p["status"].get("podIP"), "Running", seconds=seconds)

    async def absent(self, name: str) -> None:
        async def check() -> bool:
            return await self.virtual(name) is None

        await eventually(check, f"{name} is gone from the hub")

    async def event(self, name: str, reason: str, *, namespace: str | None = None, seconds: float = PATIENCE) -> Body:
        """An event about an object of that name, waited for."""
        fields = f"reason={reason},involvedObject.name={name}"

        async def check() -> Body | None:
            found = await self.home.list("events", self.namespace if namespace is None else namespace, fields=fields)
            return found[-1] if found else None

        out: Body = await eventually(check, f"event {reason} about {name}", seconds=seconds)
        return out

    # --- in the worker ---

    def physical_name(self, name: str) -> str:
        return physical_name(self.namespace, name)

    async def physical(self, name: str, kind: str = "pods") -> Body | None:
        return await self.there.get(kind, self.physical_name(name), self.bound.mount)

    async def until_physical(
        self, name: str, wanted: Callable[[Body], Any], what: str, *, kind: str = "pods", seconds: float = PATIENCE
    ) -> Body:
        async def check() -> Body | None:
            found = await self.physical(name, kind)
            return found if found is not None and wanted(found) else None

        out: Body = await eventually(check, f"{kind} of {name} in the worker: {what}", seconds=seconds)
        return out

    async def no_physical(self, name: str, kind: str = "pods", *, seconds: float = PATIENCE) -> None:
        async def check() -> bool:
            return await self.physical(name, kind) is None

        await eventually(check, f"{kind} of {name} is gone from the worker", seconds=seconds)

    async def until_refused_there(self, text: str, **spec: Any) -> None:
        """Wait until the worker refuses such a pod, saying `text`: what decides about it follows watches of its own. None is made."""
        body = pod("probe", self.bound.mount, **spec)

        async def check() -> bool:
            try:
                await self.bound.worker.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))
            except CommandFailed as error:
                return text in error.stderr
            return False

        await eventually(check, f"the worker refuses a pod: {text}")

    async def marks(self) -> tuple[dict[str, str], dict[str, str]]:
        """Labels and annotations that say that something in the worker is this binding's."""
        mount = await self.there.get("namespaces", self.bound.mount)
        system = await self.home.get("namespaces", "kube-system")
        assert mount is not None and system is not None
        labels = {
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/owner": mount["metadata"]["annotations"]["kubeocean.io/mount-owner"],
        }
        return labels, {"kubeocean.io/hub-uid": system["metadata"]["uid"], "kubeocean.io/cluster-id": self.bound.name}

    def twin(self, name: str, uid: str, *, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Body:
        """What the physical pod of a virtual one looks like, made by hand."""
        body = pod(self.physical_name(name), self.bound.mount, node=self.nodes[0])
        says = {
            "kubeocean.io/virtual-pod-namespace": self.namespace,
            "kubeocean.io/virtual-pod-name": name,
            "kubeocean.io/virtual-pod-uid": uid,
            "kubeocean.io/virtual-node-name": self.vnode,
        }
        body["metadata"] |= {"labels": dict(labels), "annotations": {**says, **annotations}}
        return body


def uid_of(body: Mapping[str, Any]) -> str:
    return str(body["metadata"]["uid"])


def virtual_uid(body: Mapping[str, Any]) -> str:
    """Which virtual pod a pod of the worker says it is."""
    return str(body["metadata"].get("annotations", {}).get("kubeocean.io/virtual-pod-uid", ""))
