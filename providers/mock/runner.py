"""Runs the scripts of the mock provider's pods: one task for each, from its start to its termination.

Invariant: a pod has at most one task, which is a child of the provider's `run`; its state is kept in the `Backend`, so the next `run`
continues from it.
"""

import asyncio
import math
import shutil
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from attrs import define, field

from vkubelet.provider import Host, Pod, PodRef
from vkubelet_providers.mock.exec import KILLED
from vkubelet_providers.mock.pods import MockPod, Stage
from vkubelet_providers.mock.script import Script

LOG_LINES: Final = 1000


@define
class Backend:
    """State that outlives a run of the provider: the pods by UID, and for each node the CPU time of terminated containers and its log.

    The volumes of pods are in a temporary directory, which is created for the first pod that has any and deleted with this object.
    """

    pods: dict[str, MockPod] = field(factory=dict)
    spent: dict[str, float] = field(factory=dict)
    journals: dict[str, deque[bytes]] = field(factory=dict)
    _by_node: dict[str, dict[str, MockPod]] = field(factory=dict)
    _volumes: TemporaryDirectory[str] | None = None

    def add(self, pod: MockPod) -> None:
        self.pods[pod.ref.uid] = pod
        self._by_node.setdefault(pod.ref.node, {})[pod.ref.uid] = pod

    def remove(self, pod: MockPod) -> None:
        self.pods.pop(pod.ref.uid, None)
        self._by_node.get(pod.ref.node, {}).pop(pod.ref.uid, None)
        self.drop_directory(pod.ref.uid)

    def directory(self, pod: Pod) -> Path | None:
        """Returns the directory for the volumes of a pod; None for a pod without volumes."""
        if not pod.spec.get("volumes"):
            return None
        if self._volumes is None:
            self._volumes = TemporaryDirectory(prefix="vkubelet-mock-", ignore_cleanup_errors=True)
        return Path(self._volumes.name, pod.ref.uid)

    def drop_directory(self, uid: str) -> None:
        """Deletes the volumes of a terminated pod."""
        if self._volumes is not None:
            shutil.rmtree(Path(self._volumes.name, uid), ignore_errors=True)

    def on_node(self, node: str) -> list[MockPod]:
        return list(self._by_node.get(node, {}).values())


class Runner:
    """Tasks of all pods; `reports` is False for a backend that reports no changes and has to be polled."""

    def __init__(self, backend: Backend, host: Host, group: asyncio.TaskGroup, *, reports: bool) -> None:
        self._backend = backend
        self._host = host
        self._clock = host.clock
        self._group = group
        self._reports = reports
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, pod: MockPod) -> None:
        """Starts the task of a pod in its current stage."""
        self._replace(pod, self._run_script(pod))

    def update(self, pod: MockPod, script: Script, *, added: bool) -> None:
        """Updates a pod with another script, or a further ephemeral container."""
        pod.script = script
        if pod.stage is Stage.RUNNING:
            pod.meter.turn(script.cpu_usage, self._clock.monotonic())
        if added:
            pod.start_ephemeral(self._clock.now())
        self.report(pod)

    def stop(self, pod: MockPod, grace: float) -> None:
        """Starts to terminate the pod, or shortens its grace period."""
        pod.graces.append(grace)
        now = self._clock.monotonic()
        pod.stopping_since = now if pod.stopping_since is None else pod.stopping_since
        ends = pod.stopping_since + pod.script.stop_delay
        self._replace(pod, self._stop(pod, min(ends, now + grace), killed=ends > now + grace))

    def drop(self, pod: MockPod) -> None:
        """Removes a pod as if the backend had dropped it."""
        self._remove(pod)
        self.report_gone(pod.ref)

    def end_ephemeral(self, pod: MockPod, name: str, code: int) -> None:
        pod.end_ephemeral(name, code, self._clock.now())
        self._journal(pod, f"container {name} ended with {code}")
        self.report(pod)

    def cancel_all(self) -> None:
        """Cancels all tasks because the provider stops; the pods stay unchanged."""
        for task in self._tasks.values():
            task.cancel()

    def report(self, pod: MockPod) -> None:
        if self._reports:
            self._host.report(pod.report())

    def report_gone(self, ref: PodRef) -> None:
        if self._reports:
            self._host.pod_gone(ref)

    # --- the script ---

    def _replace(self, pod: MockPod, script: Coroutine[None, None, None]) -> None:
        before = self._tasks.pop(pod.ref.uid, None)
        if before is not None:
            before.cancel()
        self._tasks[pod.ref.uid] = self._group.create_task(script, name=f"mock pod {pod.ref.key}")

    async def _run_script(self, pod: MockPod) -> None:
        script = pod.script
        while pod.stage is not Stage.ENDED:
            if pod.stage is Stage.STARTING:
                await self._until(pod.since + script.start_delay)
                self._start_run(pod, script)
            elif pod.stage is Stage.BACKING_OFF:
                await self._until(pod.since + script.restart_delay)
                pod.restarts += 1
                self._start_run(pod, script)
            else:
                await self._run(pod, script)
                self._end_run(pod, script.exit_code)
                again = pod.restart_policy == "Always" or (pod.restart_policy == "OnFailure" and script.exit_code != 0)
                self._enter(pod, Stage.BACKING_OFF if again else Stage.ENDED)

    async def _run(self, pod: MockPod, script: Script) -> None:
        """Runs until the containers terminate by themselves."""
        written = (self._clock.monotonic() - pod.since) // script.log_interval
        while True:
            ready_at = math.inf if pod.ready else pod.since + script.ready_delay
            line_at = pod.since + (written + 1) * script.log_interval
            due = min(ready_at, line_at, pod.since + script.run_for)
            await self._until(due)
            if due >= pod.since + script.run_for:
                return
            if due == ready_at:
                pod.ready = True
                self.report(pod)
            else:
                written += 1
                pod.write(self._clock.now(), f"still runs, line {written:.0f}")

    def _start_run(self, pod: MockPod, script: Script) -> None:
        pod.start(self._clock.now(), lines=script.log_lines, ready=script.ready_delay <= 0)
        pod.meter.turn(pod.script.cpu_usage, self._clock.monotonic())
        self._journal(pod, "started")
        self._enter(pod, Stage.RUNNING)

    def _end_run(self, pod: MockPod, code: int) -> None:
        self._count_spent(pod)
        pod.end_run(code, self._clock.now())
        self._journal(pod, f"ended with {code}")

    def _enter(self, pod: MockPod, stage: Stage) -> None:
        pod.stage, pod.since = stage, self._clock.monotonic()
        if stage is Stage.ENDED:
            for name in pod.ephemeral:
                pod.end_ephemeral(name, KILLED, self._clock.now())
        pod.start_ephemeral(self._clock.now())
        self.report(pod)

    async def _stop(self, pod: MockPod, moment: float, *, killed: bool) -> None:
        await self._until(moment)
        if pod.stage is not Stage.ENDED:
            self._end_run(pod, KILLED if killed else pod.script.exit_code)
            self._enter(pod, Stage.ENDED)
        self._remove(pod)
        self.report_gone(pod.ref)

    def _remove(self, pod: MockPod) -> None:
        self._count_spent(pod)
        self._backend.remove(pod)
        task = self._tasks.pop(pod.ref.uid, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        pod.notify()

    def _count_spent(self, pod: MockPod) -> None:
        """Adds the CPU time of the containers to that of the node, and resets it."""
        used = pod.meter.read(self._clock.monotonic()) * len(pod.containers)
        self._backend.spent[pod.ref.node] = self._backend.spent.get(pod.ref.node, 0.0) + used
        pod.meter = type(pod.meter)()

    def _journal(self, pod: MockPod, text: str) -> None:
        line = f"{self._clock.now().isoformat()} pod {pod.ref.namespace}/{pod.ref.name} {text}\n".encode()
        self._backend.journals.setdefault(pod.ref.node, deque(maxlen=LOG_LINES)).append(line)

    async def _until(self, moment: float) -> None:
        if moment == math.inf:
            await asyncio.Event().wait()
        await self._clock.sleep(moment - self._clock.monotonic())
