"""The same workloads on a real node and on a node of ours, at the same time: what became of them, in words that can be compared.

Invariant: both get the same manifests, but for the node they are sent to; names, addresses and uids, which must differ, are made alike.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, TypeVar

from attrs import define, field, frozen

from tests.support.bound import Body, apply, vacate
from tests.support.moments import moments_of
from tests.support.program import KUBECTL_TIMEOUT, PATIENCE, eventually
from tests.support.witness import Record, Seen, watching
from vkubelet.testing.cluster import ControlPlane, images

T = TypeVar("T")

LABEL = "side"
BEARABLE = ({"key": "virtual-kubelet.io/provider", "operator": "Exists"},)
REST = "sleep 1000 & wait $!"
"""The end of a script that goes on until it is told to end: a shell takes no signal while it waits otherwise."""

CALM = f"trap 'exit 0' TERM; {REST}"
QUICK = {"periodSeconds": 2, "failureThreshold": 1, "timeoutSeconds": 5}
"""A probe, on a machine that may be loaded: commands in containers are what costs most of all here."""

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ADDRESS = re.compile(r"\b(\d{1,3}\.){3}\d{1,3}\b")
_TOKEN = re.compile(r"kube-api-access-\w+")
_BACK_OFF = re.compile(r"back-off \w+")
_OWN_WORDS = frozenset({"Pulled", "Pulling", "Scheduled", "MissingClusterDNS", "MandatoryConfigMapNotFound", "FailedMount"})
"""Reasons of events that only an engine with images has, or a kubelet that is configured so; of what is not the node's; of one that a
node of ours tells beside the kubelet's own; and of a kubelet whose caches are not filled yet on a loaded machine.
"""
_ENGINE_FAILED = frozenset({"Failed", "FailedCreatePodSandBox", "SandboxChanged"})
_DIFFERS = frozenset({"image", "podIP", "podIPs", "hostIP", "hostIPs", "imageID", "containerID", "user"})
_TIMES = frozenset({"startTime", "lastTransitionTime", "lastProbeTime", "startedAt", "finishedAt"})


def pod(
    name: str, script: str, *, container: Mapping[str, Any] | None = None, labels: Mapping[str, str] | None = None, **spec: Any
) -> Body:
    """One container, `main`, and a directory /state that outlives it. The programs are those of one busybox on either node."""
    whole = {
        "containers": [{**busy("main", script), **(container or {})}],
        "volumes": [{"name": "state", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 5,
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(labels or {})}, "spec": whole}


def busy(name: str, script: str, **more: Any) -> Body:
    """A container."""
    mounts = [{"name": "state", "mountPath": "/state"}]
    return {"name": name, "image": images.BUSYBOX, "command": ["busybox", "sh", "-c", script], "volumeMounts": mounts, **more}


def shell(script: str) -> Body:
    """The action of a probe or hook."""
    return {"exec": {"command": ["busybox", "sh", "-c", script]}}


def workload(
    kind: str, name: str, spec: Mapping[str, Any], template: Mapping[str, Any], *, labels: Mapping[str, str] | None = None
) -> Body:
    """Of one of the controllers; `template` is a pod."""
    inner = {"metadata": {"labels": dict(labels or {})}, "spec": template["spec"]}
    whole = {**spec, "template": inner, **({"selector": {"matchLabels": labels}} if labels else {})}
    if kind == "CronJob":
        whole = {**spec, "jobTemplate": {"spec": {"template": inner}}}
    group = "batch/v1" if kind in ("Job", "CronJob") else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": whole}


def _template(body: Body) -> Body | None:
    """Where the pods of a manifest are described."""
    if body["kind"] == "Pod":
        return body
    spec = body["spec"]["jobTemplate"]["spec"] if body["kind"] == "CronJob" else body["spec"]
    found: Body | None = spec.get("template")
    return found


@define
class Told:
    """What the API server told of all namespaces while the block of `listening` ran."""

    pods: Record
    """Those of either side."""
    events: list[Body] = field(factory=list)
    """As they were written or counted up."""
    slices: list[Body] = field(factory=list)
    """EndpointSlices; `seen` is when, by the monotonic clock."""


@contextmanager
def listening(plane: ControlPlane) -> Iterator[Told]:
    with watching(plane.kubeconfig, labels=LABEL) as pods:
        told = Told(pods)
        events = moments_of(plane.kubeconfig, "/api/v1/events", when=_keeping(told.events))
        slices = moments_of(plane.kubeconfig, "/apis/discovery.k8s.io/v1/endpointslices", when=_keeping(told.slices))
        with events, slices:
            yield told


def _keeping(bodies: list[Body]) -> Callable[[Body], bool]:
    def note(body: Body) -> bool:
        bodies.append({**body, "seen": time.monotonic()})
        return True

    return note


@frozen(kw_only=True)
class Side:
    """One of the nodes, and a namespace whose pods go there."""

    name: str
    plane: ControlPlane
    node: str
    namespace: str
    told: Told

    async def kubectl(self, *args: str, stdin: str | None = None) -> str:
        return await self.plane.kubectl("-n", self.namespace, *args, stdin=stdin)

    async def apply(self, *bodies: Mapping[str, Any]) -> None:
        """With all pods sent to this node."""
        made = [copy.deepcopy(dict(body)) for body in bodies]
        for body in made:
            body["metadata"]["namespace"] = self.namespace
            template = _template(body) if "spec" in body else None
            if template is not None:
                template["metadata"].setdefault("labels", {})[LABEL] = self.name
                template["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": self.node}, "tolerations": [*BEARABLE]}
        await apply(self.plane, *made)

    # --- pods, as the watch told of them ---

    def history(self, name: str) -> list[Seen]:
        """Of all pods of that name, or whose generated name begins so when it ends with a dash."""
        mine = self.told.pods.where(lambda seen: seen.object["metadata"]["namespace"] == self.namespace)
        return [each for each in mine if (own := each.object["metadata"]["name"]) == name or (name.endswith("-") and own.startswith(name))]

    def latest(self, name: str) -> Body | None:
        """None: it is not there, or not any more."""
        seen = self.history(name)
        return seen[-1].object if seen and seen[-1].kind != "DELETED" else None

    async def until(self, name: str, wanted: Callable[[Body], Any], what: str, *, seconds: float = 0.0) -> Body:
        """The pod as it was when it was first like that; at least as long as for anything here."""

        def check() -> Body | None:
            return next((seen.object for seen in self.history(name) if wanted(seen.object)), None)

        try:
            out: Body = await eventually(check, f"{self.name}: {name}: {what}", seconds=max(seconds, PATIENCE), every=0.25)
        except AssertionError as error:
            found = {"status": (self.latest(name) or {}).get("status"), "events": self.events(name)}
            raise AssertionError(f"{error}\n{json.dumps(found)}") from None
        return out

    async def gone(self, name: str) -> float:
        """When."""
        what = f"{self.name}: {name} is gone"
        await eventually(lambda: self.history(name)[-1].kind == "DELETED", what, seconds=PATIENCE, every=0.25)
        return self.history(name)[-1].at

    # --- in words that can be compared ---

    def plain(self, text: str) -> str:
        for own, word in ((self.namespace, "NAMESPACE"), (self.node, "NODE")):
            text = text.replace(own, word)
        for pattern, word in ((_UID, "UID"), (_ADDRESS, "ADDRESS"), (_TOKEN, "TOKEN")):
            text = pattern.sub(word, text)
        return text

    def view(self, value: Any) -> Any:
        """A status without what must differ."""
        if isinstance(value, dict):
            return {key: self.view(each) for key, each in value.items() if key not in _DIFFERS | _TIMES}
        if isinstance(value, list):
            return [self.view(each) for each in value]
        return self.plain(value) if isinstance(value, str) else value

    def course(self, name: str, container: str = "main") -> list[str]:
        """The states of a container that last: phase, readiness, restarts, and what it does."""
        steps: list[str] = []
        for seen in self.history(name):
            step = _step(seen.object, container)
            if step and step != (steps[-1] if steps else ""):
                steps.append(step)
        return [self.plain(step) for step in steps]

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """Where, reason and text of each event about a pod, once, in the order in which they were written first."""
        about = [each for each in self.all_events() if each["involvedObject"]["name"] == name]
        said = [(each["involvedObject"].get("fieldPath", ""), each["reason"], self.plain(each["message"])) for each in about]
        return list(dict.fromkeys(each for each in said if each[1] not in _OWN_WORDS))

    def all_events(self) -> list[Body]:
        """About its pods."""
        mine = {"kind": "Pod", "namespace": self.namespace}
        return [each for each in list(self.told.events) if mine.items() <= each["involvedObject"].items()]

    def forgotten(self) -> set[str]:
        """Containers that run again, of which it is not told how they ended."""
        mine = self.told.pods.where(lambda seen: seen.object["metadata"]["namespace"] == self.namespace)
        found = ((seen.key, status) for seen in mine for status in seen.object["status"].get("containerStatuses") or ())
        return {
            f"{key}: no last state of {status['name']}"
            for key, status in found
            if status["restartCount"] and "running" in status["state"] and not status.get("lastState")
        }

    async def event(self, name: str, reason: str) -> str:
        """The text of one, once it is written."""
        found = await eventually(
            lambda: [each for each in self.events(name) if each[1] == reason],
            f"{self.name}: event {reason} of {name}",
            seconds=PATIENCE,
            every=0.25,
        )
        text: str = found[0][2]
        return text


def _step(body: Body, container: str) -> str:
    """Empty where it only passes: it is being made, or was just ended and goes on at once."""
    status, phase = status_of(body, container), body["status"].get("phase", "")
    for state, more in (status.get("state") or {}).items():
        if state == "waiting" and more.get("reason") not in ("ContainerCreating", "PodInitializing"):
            text = _BACK_OFF.search(more.get("message", ""))
            what = f"waits: {more.get('reason')} {text[0] if text else more.get('message', '')}"
        elif state == "running":
            what = "runs"
        elif state == "terminated" and phase in ("Succeeded", "Failed"):
            what = f"ended: {more.get('reason')} {more['exitCode']}"
        else:
            return ""
        return f"{phase}, ready {condition(body, 'Ready').get('status')}, {status['restartCount']} restarts, {what}"
    return ""


def status_of(body: Mapping[str, Any], container: str = "main") -> Body:
    """Of a container of any kind; empty while there is none."""
    lists = ("initContainerStatuses", "containerStatuses")
    found: Body = next((s for name in lists for s in body["status"].get(name) or () if s["name"] == container), {})
    return found


def condition(body: Mapping[str, Any], kind: str) -> Body:
    found: Body = next((c for c in body["status"].get("conditions") or () if c["type"] == kind), {})
    return found


def ready(body: Mapping[str, Any]) -> bool:
    return bool(condition(body, "Ready").get("status") == "True")


def seconds(start: str, end: str) -> float:
    """Between two times of the API, which tells whole seconds."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


@frozen
class Sides:
    """The two, always in this order."""

    real: Side
    ours: Side

    def __iter__(self) -> Any:
        return iter((self.real, self.ours))

    async def both(self, work: Callable[[Side], Awaitable[T]]) -> tuple[T, T]:
        """Do the same on both at the same time."""

        async def one(side: Side) -> T:
            return await work(side)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(side)) for side in self]
        return tasks[0].result(), tasks[1].result()

    async def apply(self, *bodies: Mapping[str, Any]) -> None:
        await self.both(lambda side: side.apply(*bodies))

    def engine_failed(self) -> list[str]:
        """What the real node alone told of starts that failed or had to be done again, as those of an engine on a loaded machine may.

        And of ends that it has forgotten: it restarts a container and keeps no last state, when the engine has removed the one before.
        """
        real, ours = ({side.plain(each["message"]) for each in side.all_events() if each["reason"] in _ENGINE_FAILED} for side in self)
        return sorted((real - ours) | self.real.forgotten())


Pair = tuple[Any, Any]
"""What was found on either."""

Scene = Callable[[Sides], Awaitable[Any]]


@asynccontextmanager
async def side_by_side(plane: ControlPlane, told: Told, *, real: str, ours: str) -> AsyncIterator[Sides]:
    """For nodes of these names; what runs in the namespaces ends with the block."""
    made = []
    try:
        for name, node in (("real", real), ("process", ours)):
            made.append(Side(name=name, plane=plane, node=node, namespace=await plane.namespace(name), told=told))
            # A kubelet that does not find it at first looks again only after seconds.
            await plane.kubectl("wait", "--for=create", "configmap/kube-root-ca.crt", "-n", made[-1].namespace, KUBECTL_TIMEOUT)
        yield Sides(*made)
    finally:
        for side in made:
            await vacate(plane, side.namespace, workloads=True)


def pretty(one: object, other: object) -> str:
    """For a message."""
    return f"\nreal:    {json.dumps(one, default=str)}\nprocess: {json.dumps(other, default=str)}"
