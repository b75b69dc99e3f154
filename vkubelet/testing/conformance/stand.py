"""Test stand: the provider in the real runtime, against a real API server, with kubectl as the observer.

Invariant: at most one process of the provider is simulated at a time; everything a rule creates is in the namespace of the stand.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from vkubelet.api.objects import Json, JsonView, PodRef
from vkubelet.client.connection import load_connection
from vkubelet.clock import Clock
from vkubelet.containers.adapter import adapt
from vkubelet.provider import ContainerProvider, PodReport, Provider
from vkubelet.runtime import Runtime
from vkubelet.settings import Settings, convert, merged
from vkubelet.testing.conformance.blocking import BlockingWatch
from vkubelet.testing.conformance.faults import Faults, faulty
from vkubelet.testing.conformance.judge import Kubectl, PodWatch, condition, running
from vkubelet.testing.conformance.observed import CAPABILITIES, Recording, observed
from vkubelet.testing.conformance.rules import Broken, expect

RULE: ContextVar[str] = ContextVar("rule", default="")
"""Name of the rule that the current task tests."""

SCRIPT = "echo begins; trap 'exit 0' TERM; while true; do sleep 30 & wait $!; done"
"""Command of the containers where the backend runs any."""


@frozen(kw_only=True)
class Subject:
    """Subject of the test: `make` returns the provider as a new process would, `settings` are those of the runtime, the kubeconfigs
    those of the provider and of the observer."""

    make: Callable[[], Provider | ContainerProvider]
    settings: Settings
    kubeconfig: Path
    judge: Kubectl


@frozen(kw_only=True)
class Options:
    """Options of the test."""

    patience: float = 30.0
    """Seconds for everything the backend has to do."""
    image: str = "busybox"
    """Image of the pods' containers."""
    pod: JsonView = field(factory=dict)
    """Merged over each pod; the entries of `containers` over the container `main`."""
    port: int = 8080
    """Port of the pods that is forwarded."""
    echo: str = "nc -lk -p PORT -e cat"
    """Shell command that echoes what arrives at that port."""


def examination_settings(data: JsonView, *, address: str) -> Settings:
    """Returns the runtime's settings: `data` over those for a test, a certificate without approval and no port that may be in use.

    `address` is what nodes publish; empty: found by the runtime. Raises SettingsError.
    """
    ours: Json = {
        "instance": f"conformance-{uuid.uuid4().hex[:6]}",
        "server": {"certificate": "self-signed", "main_port": 0, **({"node_address": address} if address else {})},
        "health": {"health_address": "", "metrics_address": ""},
    }
    return convert(merged(ours, data), Settings)


@frozen
class Made:
    """A pod that was created."""

    name: str
    ref: PodRef

    @property
    def uid(self) -> str:
        return self.ref.uid


@frozen(kw_only=True)
class Seen:
    """Observers from start to stop."""

    pods: PodWatch
    recording: Recording
    blocking: BlockingWatch


@define(kw_only=True, eq=False)
class Stand:
    """Stand that rules use."""

    subject: Subject
    options: Options
    judge: Kubectl
    seen: Seen
    clock: Clock
    group: asyncio.TaskGroup
    node: str = ""
    faults: Faults = field(factory=Faults)
    """Faults of the backend."""
    pods_of: dict[str, list[str]] = field(factory=dict)
    """By rule, the UIDs of the pods that it created."""
    _provider: Provider | None = None
    _runtime: Runtime | None = None
    _running: asyncio.Task[None] | None = None

    @property
    def pods(self) -> PodWatch:
        return self.seen.pods

    @property
    def recording(self) -> Recording:
        return self.seen.recording

    @property
    def patience(self) -> float:
        return self.options.patience

    @property
    def provider(self) -> Provider:
        """Provider, recorded, as the runtime has it."""
        assert self._provider is not None
        return self._provider

    def capability(self, kind: type) -> Any:
        """Returns the provider, when it has this capability; rules declare what they need, so it has."""
        assert kind.__name__ in CAPABILITIES and isinstance(self.provider, kind)
        return self.provider

    # --- the process of the provider ---

    async def start(self) -> None:
        """Starts a new process, unless there is one: provider and runtime are created again. Returns at once."""
        if self._running is not None:
            return
        connection = await load_connection(kubeconfig=self.subject.kubeconfig, context=self.subject.judge.context)
        self.recording.nodes, self.recording.complete = {}, False
        self.recording.stop_told = self.recording.stop_heard = None
        self._provider = observed(adapt(faulty(self.subject.make(), self.faults)), self.recording)
        self._runtime = Runtime(self._provider, self.subject.settings, connection=connection)
        self._running = self.group.create_task(self._runtime.run(), name="runtime")

    async def stop(self) -> None:
        """Stops the process as by SIGTERM; waits until the runtime has stopped."""
        if self._runtime is None or self._running is None:
            return
        self.recording.stop_told = self.clock.monotonic()
        self._runtime.stop()
        await asyncio.wait({self._running}, timeout=self.patience)
        expect(self._running.done(), f"the process did not end within {self.patience:g} s")
        self._runtime = self._running = None

    async def close(self) -> None:
        """Stops the process, forcibly if necessary."""
        running = self._running
        if running is None or self._runtime is None:
            return
        self._runtime.stop()
        await asyncio.wait({running}, timeout=self.patience)
        running.cancel()
        await asyncio.wait({running})
        self._runtime = self._running = None

    async def declared(self) -> None:
        """Waits until the provider has declared a node and has completed the declarations."""
        recording = self.recording
        await recording.changes.until(lambda: bool(recording.nodes), "run() declares a node with host.set_node", seconds=self.patience)
        what = "run() calls host.nodes_complete()"
        await recording.changes.until(lambda: recording.complete, what, seconds=self.patience)

    async def nodes_ready(self) -> Mapping[str, Json]:
        """Waits until every declared node is Ready, by kubectl; returns the Nodes by name."""
        await self.declared()
        end = self.clock.monotonic() + self.patience
        while True:
            listed = await self.judge.items("get", "nodes")
            found = {node["metadata"]["name"]: node for node in listed if node["metadata"]["name"] in self.recording.nodes}
            late = [name for name in self.recording.nodes if name not in found or condition(found[name], "Ready") != "True"]
            if not late:
                return found
            if self.clock.monotonic() > end:
                raise Broken(f"not Ready within {self.patience:g} s: {', '.join(sorted(late))}")
            await self.clock.sleep(0.3)

    # --- pods ---

    def body(self, name: str, *, grace: int = 2, container: JsonView | None = None) -> Json:
        """Returns a pod bound to the node, with the options; `container` is what a rule needs of its only one."""
        main: Json = {"name": "main", "image": self.options.image, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", SCRIPT]}
        spec: Json = {"nodeName": self.node, "terminationGracePeriodSeconds": grace, "tolerations": [{"operator": "Exists"}]}
        over = dict(self.options.pod.get("spec") or {})
        (theirs, *_) = over.pop("containers", None) or [{}]
        meta = {"name": name, "labels": {"vkubelet.io/conformance": "true"}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**merged(self.options.pod.get("metadata") or {}, meta)},
            "spec": {**merged(spec, over), "containers": [{**main, **theirs, "name": "main", **(container or {})}]},
        }

    async def create(self, *names: str, **more: Any) -> list[Made]:
        """Creates pods of these names, which are known, but not more."""
        await self.judge.create(*(self.body(name, **more) for name in names))
        return [await self._made(name) for name in names]

    async def _made(self, name: str) -> Made:
        pod = await self.pods.until(name, lambda pod: not pod["metadata"].get("deletionTimestamp"), "is created", seconds=self.patience)
        meta = pod["metadata"]
        self.pods_of.setdefault(RULE.get(), []).append(meta["uid"])
        return Made(name, PodRef(meta["namespace"], name, meta["uid"], self.node))

    async def running(self, *names: str, **more: Any) -> list[Made]:
        """Creates pods of these names, and waits until they are Running and Ready."""
        made = await self.create(*names, **more)
        for each in made:
            await self.pods.until(each.name, running, "is Running and Ready", seconds=self.patience)
        return made

    async def shown(self, pod: Made) -> JsonView:
        """Returns the pod from the cluster when everything is written that the provider has reported so far."""
        if self._runtime is not None:
            await self._runtime.pods.published()
        return await self.judge.json("get", "pod", pod.name)

    async def delete(self, *names: str, grace: int | None = None) -> None:
        """Requests the deletion; does not wait for it."""
        how = [] if grace is None else [f"--grace-period={grace}", *(["--force"] if grace == 0 else [])]
        await self.judge.ok("delete", "pods", *names, "--wait=false", "--ignore-not-found", *how)

    async def ended(self, *pods: Made) -> None:
        """Waits until the provider has reported pod_gone of each, and each is deleted."""
        for pod in pods:
            await self.told_gone(pod.uid, f"host.pod_gone for {pod.name}")
            await self.pods.gone(pod.name, pod.uid, seconds=self.patience)

    def refusal(self, rule: str) -> str:
        """Returns why the provider does not support what the rule requested for one of its pods; empty: it refused nothing."""
        found = (self.recording.refusal(uid) for uid in self.pods_of.get(rule, ()))
        return next((text for text in found if text), "")

    async def told_gone(self, uid: str, what: str) -> None:
        """Waits until the provider has reported that it has nothing of this pod."""
        recording = self.recording
        await recording.changes.until(lambda: recording.gone_at(uid) is not None, what, seconds=self.patience)

    async def listed(self) -> Sequence[PodReport]:
        """Returns what list_pods contains for the node, in the namespace of the stand."""
        reports = list(await self.provider.list_pods(self.node))
        return [report for report in reports if report.pod.namespace == self.judge.namespace]

    async def not_listed(self, uid: str) -> None:
        """Waits until list_pods does not contain this pod any more."""
        end = self.clock.monotonic() + self.patience
        while any(report.pod.uid == uid for report in await self.listed()):
            expect(self.clock.monotonic() < end, f"list_pods still shows uid {uid}, for which host.pod_gone was called")
            await self.clock.sleep(0.2)
