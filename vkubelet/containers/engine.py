"""Engine for all pods of a ContainerProvider: passes events to the pure decisions, and their actions to the workers.

Invariant: a decision uses everything that is known, and is made again after each change; nothing here waits for a container.
"""

import asyncio
import math
from collections.abc import Collection, Iterable
from datetime import timedelta

from attrs import evolve

from vkubelet.api.objects import PODS, Pod, PodRef
from vkubelet.clock import parse_rfc3339
from vkubelet.containers.adopt import UNSEEN, RetainedReports, adopt, orphan
from vkubelet.containers.checks import CheckResult, Checks
from vkubelet.containers.decide import Action, Decision, ExceedDeadline, Kill, Remove, Start, Terminate, TerminatePod, decide, start_time
from vkubelet.containers.managed import ManagedContainer, ManagedPod, Stage, Stop
from vkubelet.containers.plan import ContainerKind, PodPlan
from vkubelet.containers.prober import Prober
from vkubelet.containers.reporting import full_name, hook_failure, hooks_of, report_of
from vkubelet.containers.resize import Resizer
from vkubelet.containers.work import ContainerWork, Job, Verb, wants_log
from vkubelet.control.backoff import with_timeout
from vkubelet.control.controller import Controller
from vkubelet.control.recorder import ObjectReference
from vkubelet.provider import ContainerProvider, Host, NodeDescription, PodFailure, PodReport, Sandbox, Terminated, Waiting

_WORKERS = 200

_FIELDS = {
    ContainerKind.INIT: "initContainers",
    ContainerKind.SIDECAR: "initContainers",
    ContainerKind.APP: "containers",
    ContainerKind.EPHEMERAL: "ephemeralContainers",
}

_DEADLINE_EXCEEDED = PodFailure("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class Engine:
    """Engine for one run of the provider. `host` is the runtime's."""

    def __init__(self, provider: ContainerProvider, host: Host) -> None:
        self._provider = provider
        self._host = host
        self._clock = host.clock
        self._managed: dict[str, ManagedPod] = {}
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, NodeDescription] = {}
        self._retained = RetainedReports(provider, host.clock)
        self._listed: dict[str, float] = {}
        """When the last completed list was requested, by node."""
        self._list_locks: dict[str, asyncio.Lock] = {}
        self._checks = Checks(provider, clock=host.clock)
        self._decisions: Controller[str] = Controller("containers", self._decide, workers=_WORKERS, clock=host.clock, metrics=host.metrics)
        self._prober = Prober(
            managed_pods=self._managed,
            checks=self._checks,
            clock=self._clock,
            metrics=host.metrics,
            warn=lambda managed, container, reason, message: self._emit(managed, container, reason, message, warning=True),
            decided=self._enqueue,
        )
        self._work = ContainerWork(
            provider=provider,
            host=host,
            checks=self._checks,
            find=self._managed.get,
            pod=self._pods.get,
            emit=self._emit,
            decided=self._enqueue,
            removed=self._removed,
            begun=self._prober.wake,
            interrupt=self._interrupt,
            list_since=self._list_since,
            vanished=self._vanished,
        )
        self._resizer = Resizer(provider, host, managed_pods=self._managed, nodes=self._nodes)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with self._checks, asyncio.TaskGroup() as group:
            for controller in (self._decisions, self._work.controller, self._prober.controller):
                group.create_task(controller.run(), name=controller.name)

    # --- requests of the runtime ---

    async def sync(self, pod: Pod) -> None:
        """Adopts the pod, or its changed spec. Raises PodRejected, Unavailable."""
        uid = pod.ref.uid
        managed = self._managed.get(uid)
        if managed is None:
            managed = await self._begin(pod)
        managed.generation = pod.metadata.generation
        self._pods[uid] = pod
        managed.set_plan(PodPlan.of(pod))
        for container in managed.containers.values():
            if container.changed and container.stage is Stage.STARTING and container.failures:
                # Another image had failed.
                container.failures = 0
                self._work.add(Job(uid, Verb.START, container.plan.name))
        self._set_deadline(managed, pod)
        self._resizer.check(managed, pod)
        self._enqueue(uid)

    async def delete(self, ref: PodRef, grace: float) -> None:
        """Terminates the pod, whether it was ever synced or not."""
        managed = self._managed.get(ref.uid)
        if managed is None:
            managed = await self._adopt_for_removal(ref)
        if managed is None:
            await self._provider.remove_pod(ref)
            self._host.pod_gone(ref)
            return
        managed.end(self._clock.monotonic() + grace, remove=True)
        self._interrupt(managed)
        self._enqueue(ref.uid)

    async def reports(self, node: str) -> Iterable[PodReport]:
        """Lists everything that the backend has, with the runtime's state of known pods. Raises when the list is not complete."""
        asked = self._clock.monotonic()
        held = {report.pod.uid: report for report in await self._provider.list_containers(node)}
        for report in held.values():
            self.on_report(report)
        self._listed[node] = asked
        known = {uid: managed for uid, managed in self._managed.items() if managed.ref.node == node}
        for uid, managed in known.items():
            self._on_missing(managed, held.get(uid), asked)
        now = self._clock.monotonic()
        return [*(report_of(managed, now) for managed in known.values()), *(report for uid, report in held.items() if uid not in known)]

    async def _list_since(self, node: str, moment: float) -> None:
        """Waits until a list requested after `moment` has been processed; callers share one. Raises Unavailable."""
        async with self._list_locks.setdefault(node, asyncio.Lock()):
            if self._listed.get(node, -math.inf) <= moment:
                await with_timeout(self.reports(node), f"list_containers of node {node}", clock=self._clock)

    def _on_missing(self, managed: ManagedPod, held: PodReport | None, asked: float) -> None:
        """Handles containers missing from a list: one that ran before the request has terminated without being observed."""
        there = {c.name for c in held.containers} if held is not None else set[str]()
        for name, container in managed.containers.items():
            if name not in there and container.since < asked and not container.with_provider:
                self._vanished(managed, container)

    def _vanished(self, managed: ManagedPod, container: ManagedContainer) -> None:
        """Handles a container that the backend does not have: if it ran it has terminated without being observed."""
        if not container.running:
            return
        end = Terminated(UNSEEN, "ContainerStatusUnknown", "The container could not be located when the pod was looked at")
        hooks = hooks_of(container)
        container.end_run(evolve(end, finished_at=self._clock.now()), now=self._clock.monotonic())
        self._follow(managed, container, hooks)
        self._enqueue(managed.ref.uid)

    def probe_metrics(self, node: str) -> bytes:
        return self._prober.exposition(node)

    # --- reports of the provider ---

    def set_node(self, node: NodeDescription) -> None:
        self._nodes[node.name] = node
        for uid, managed in self._managed.items():
            if managed.ref.node == node.name and uid in self._pods:
                self._resizer.check(managed, self._pods[uid])
                self._enqueue(uid)

    def on_report(self, report: PodReport) -> None:
        """Handles a report of container states."""
        managed = self._managed.get(report.pod.uid)
        if managed is None:
            self._retained.on_report(report)
            return
        moved = bool(report.ips) and tuple(report.ips) != tuple(managed.sandbox.ips)
        if moved:
            managed.sandbox = evolve(managed.sandbox, ips=tuple(report.ips))
        now, wall = self._clock.monotonic(), self._clock.now()
        news = []
        for reported in report.containers:
            container = managed.containers.get(reported.name)
            hooks = hooks_of(container) if container is not None else ()
            if container is not None and container.on_report(reported, now=now, wall=wall):
                news.append(container)
                if container.begun:
                    self._work.note_report(managed, container)
                self._follow(managed, container, hooks)
        if news or moved:
            self._enqueue(managed.ref.uid)

    def _follow(self, managed: ManagedPod, container: ManagedContainer, hooks: Collection[str]) -> None:
        """Follows up on a state change; `hooks` ran until now."""
        name, uid = container.plan.name, managed.ref.uid
        if container.running:
            self._prober.wake(managed, container)
            return
        self._work.cancel(Job(uid, Verb.POST_START, name))
        self._work.cancel(Job(uid, Verb.PRE_STOP, name))
        if not isinstance(container.state, Terminated):
            return
        self._cut(managed, container, hooks)
        if wants_log(container.plan.spec, container.state):
            container.reading = True
            self._work.add(Job(uid, Verb.MESSAGE, name))
        if managed.is_restarted(container) and start_time(container) > container.ended_at and managed.termination is None:
            self._emit(
                managed, container, "BackOff", f"Back-off restarting failed container {name} in pod {full_name(managed.ref)}", warning=True
            )

    def _cut(self, managed: ManagedPod, container: ManagedContainer, hooks: Collection[str]) -> None:
        """Handles a container that has terminated before its hooks, which have failed by that."""
        if "postStart" in hooks:
            container.hook_error = hook_failure(managed.ref, container.plan, CheckResult(None, "the container has ended"))
            self._emit(managed, container, "FailedPostStartHook", "PostStartHook failed", warning=True)
            self._emit(managed, container, "Killing", "FailedPostStartHook")
        if "preStop" in hooks:
            self._emit(managed, container, "FailedPreStopHook", "PreStopHook failed", warning=True)

    def on_pod_gone(self, ref: PodRef) -> None:
        """Handles the report that the backend has nothing left of the pod."""
        managed = self._managed.get(ref.uid)
        if managed is not None:
            self._drop(managed)
        self._host.pod_gone(ref)

    # --- start and termination ---

    async def _begin(self, pod: Pod) -> ManagedPod:
        await self._retained.of(pod.ref)
        sandbox = await self._provider.prepare_pod(pod)
        # Containers may have terminated while the pod was prepared.
        held = await self._retained.of(pod.ref)
        managed = ManagedPod(pod.ref, PodPlan.of(pod), sandbox, began=self._clock.now())
        self._adopt(managed, pod, held)
        return managed

    async def _adopt_for_removal(self, ref: PodRef) -> ManagedPod | None:
        """Adopts a pod that has only to be terminated."""
        held = await self._retained.of(ref)
        if held is None:
            return None
        pod = self._host.pods.get(ref)
        managed = ManagedPod(ref, PodPlan.of(pod) if pod is not None else orphan(held), Sandbox(tuple(held.ips)))
        self._adopt(managed, pod, held)
        return managed

    def _adopt(self, managed: ManagedPod, pod: Pod | None, held: PodReport | None) -> None:
        uid = managed.ref.uid
        managed.set_plan(managed.plan)
        self._retained.remove(managed.ref)
        status = pod.status if pod is not None else {}
        adopt(managed, status, held, now=self._clock.monotonic(), wall=self._clock.now())
        self._managed[uid] = managed
        if pod is not None:
            self._pods[uid] = pod
        for container in managed.containers.values():
            self._prober.wake(managed, container)

    def _set_deadline(self, managed: ManagedPod, pod: Pod) -> None:
        seconds = managed.plan.active_deadline
        if seconds is None:
            managed.deadline_at = None
            return
        published = pod.status.get("startTime")
        began = parse_rfc3339(published) if published else managed.began or self._clock.now()
        left = began + timedelta(seconds=seconds) - self._clock.now()
        managed.deadline_at = self._clock.monotonic() + left.total_seconds()

    def _removed(self, managed: ManagedPod) -> None:
        node = managed.ref.node
        self._drop(managed)
        self._host.pod_gone(managed.ref)
        for uid, other in self._managed.items():
            if other.ref.node == node and other.resize.pending and uid in self._pods:
                self._resizer.check(other, self._pods[uid])
                self._enqueue(uid)

    def _drop(self, managed: ManagedPod) -> None:
        uid = managed.ref.uid
        self._managed.pop(uid, None)
        self._pods.pop(uid, None)
        self._prober.remove(managed)
        self._work.remove(managed)
        self._decisions.discard(uid)

    # --- decisions ---

    def _enqueue(self, uid: str) -> None:
        if uid in self._managed:
            self._decisions.add(uid)

    async def _decide(self, uid: str) -> float | None:
        managed = self._managed.get(uid)
        if managed is None:
            return None
        now = self._clock.monotonic()
        if managed.deadline_at is not None and now >= managed.deadline_at and (pod := self._host.pods.get(managed.ref)) is not None:
            # The deadline counts from the published start time, which may have been later than the sync.
            self._set_deadline(managed, pod)
        decision = decide(managed, now)
        for action in decision.actions:
            self._apply(managed, action, now)
        if self._resizer.follow(managed):
            self._work.add(Job(uid, Verb.RESIZE))
        if not any(c.reading for c in managed.containers.values()):
            # A terminal phase is not corrected any more: everything about the termination is reported with it.
            self._host.report(report_of(managed, now))
        if decision.actions:
            self._enqueue(uid)
        return self._next_check(managed, decision, now)

    def _next_check(self, managed: ManagedPod, decision: Decision, now: float) -> float | None:
        due = min(decision.due, self._resizer.next_check(managed, self._pods.get(managed.ref.uid), now))
        return None if math.isinf(due) else max(0.0, due - now)

    def _apply(self, managed: ManagedPod, action: Action, now: float) -> None:
        uid = managed.ref.uid
        match action:
            case Start(name):
                self._start(managed, managed.containers[name], now)
            case Terminate(name, message, grace, again):
                self._stop(managed, managed.containers[name], message, until=now + max(0.0, grace), again=again)
            case Kill(name, grace):
                stop = managed.containers[name].stop
                assert stop is not None
                self._work.cancel(Job(uid, Verb.PRE_STOP, name))
                stop.hook_cut = stop.hook_cut or stop.hook_runs
                stop.hook_runs, stop.killed_by = False, now + grace
                self._work.add(Job(uid, Verb.KILL, name))
            case TerminatePod():
                managed.end(now + managed.plan.grace)
                self._interrupt(managed)
            case ExceedDeadline():
                managed.failure = _DEADLINE_EXCEEDED
                self._emit(managed, None, _DEADLINE_EXCEEDED.reason, _DEADLINE_EXCEEDED.message)
                managed.end(now + managed.plan.grace)
                self._interrupt(managed)
            case Remove():
                managed.removing = True
                self._work.add(Job(uid, Verb.REMOVE))

    def _start(self, managed: ManagedPod, container: ManagedContainer, now: float) -> None:
        container.begin_start(now=now)
        self._work.add(Job(managed.ref.uid, Verb.START, container.plan.name))

    def _stop(self, managed: ManagedPod, container: ManagedContainer, message: str, *, until: float, again: bool) -> None:
        name, uid = container.plan.name, managed.ref.uid
        self._work.cancel(Job(uid, Verb.POST_START, name))
        container.stage = Stage.IDLE if container.stage is Stage.HOOKING else container.stage
        hook = container.plan.pre_stop is not None and until > self._clock.monotonic()
        container.stop = Stop(until, hook_runs=hook, again=again)
        self._emit(managed, container, "Killing", message)
        if hook:
            self._work.add(Job(uid, Verb.PRE_STOP, name))

    def _interrupt(self, managed: ManagedPod) -> None:
        """Interrupts starts in progress because the pod terminates."""
        for container in managed.containers.values():
            if container.stage is not Stage.STARTING:
                continue
            self._work.cancel(Job(managed.ref.uid, Verb.START, container.plan.name))
            if container.begun:
                # It is known to run: it is terminated like the others.
                container.end_start()
                continue
            container.stage = Stage.IDLE
            if isinstance(container.state, Waiting) and container.last is not None and container.created:
                container.state, container.last = container.last, None
            self._work.add(Job(managed.ref.uid, Verb.KILL, container.plan.name))

    # --- events ---

    def _emit(self, managed: ManagedPod, container: ManagedContainer | None, reason: str, message: str, *, warning: bool = False) -> None:
        """Emits an event about the pod, or about one of its containers."""
        pod = self._pods.get(managed.ref.uid)
        ref = managed.ref
        known = ObjectReference("v1", "Pod", ref.name, ref.namespace, ref.uid) if pod is None else ObjectReference.of(PODS, pod)
        if container is not None:
            known = evolve(known, field_path=f"spec.{_FIELDS[container.plan.kind]}{{{container.plan.name}}}")
        self._host.events.event(known, reason, message, warning=warning)
