"""Engine for all pods of a ContainerProvider: passes events to the pure decisions, and their actions to the workers.

Invariant: a decision uses everything that is known, and is made again after each change; nothing here waits for a container.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from attrs import evolve

from vkubelet.api.objects import Pod, PodRef
from vkubelet.client.resources import PODS
from vkubelet.clock import parse_rfc3339
from vkubelet.containers.adopt import UNSEEN, adopt, orphan
from vkubelet.containers.checks import Checks, Outcome
from vkubelet.containers.decide import Action, Begin, Decision, Finish, Kill, Overdue, Remove, Start, decide, start_time
from vkubelet.containers.held import Held
from vkubelet.containers.hooks import full_name, hook_failure, hooks_of
from vkubelet.containers.life import ContainerLife, PodLife, Stage, Stop
from vkubelet.containers.plan import Kind, PodPlan
from vkubelet.containers.prober import Prober, ProberParts
from vkubelet.containers.reporting import report_of
from vkubelet.containers.resizer import Resizer
from vkubelet.containers.tail import wants_log
from vkubelet.containers.work import Job, Verb, Work, WorkParts
from vkubelet.control.answered import answered
from vkubelet.control.controller import Controller
from vkubelet.control.recorder import ObjectReference
from vkubelet.provider import ContainerProvider, Host, NodeDescription, PodFailure, PodReport, Sandbox, Terminated, Waiting

_WORKERS = 200

_FIELDS = {Kind.INIT: "initContainers", Kind.SIDECAR: "initContainers", Kind.APP: "containers", Kind.EPHEMERAL: "ephemeralContainers"}

_OVERDUE = PodFailure("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class Engine:
    """Engine for one run of the provider. `host` is the runtime's."""

    def __init__(self, provider: ContainerProvider, host: Host) -> None:
        self._provider = provider
        self._host = host
        self._clock = host.clock
        self._lives: dict[str, PodLife] = {}
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, NodeDescription] = {}
        self._held = Held(provider, host.clock)
        self._listed: dict[str, float] = {}
        """When the last completed list was requested, by node."""
        self._list_locks: dict[str, asyncio.Lock] = {}
        self._checks = Checks(provider, clock=host.clock)
        self._decisions: Controller[str] = Controller("containers", self._decide, workers=_WORKERS, clock=host.clock, metrics=host.metrics)
        self._prober = Prober(self._prober_parts())
        self._work = Work(self._work_parts())
        self._resizer = Resizer(provider, host, lives=self._lives, nodes=self._nodes)

    def _prober_parts(self) -> ProberParts:
        return ProberParts(
            lives=self._lives,
            checks=self._checks,
            clock=self._clock,
            metrics=self._host.metrics,
            warn=lambda life, container, reason, message: self._emit(life, container, reason, message, warning=True),
            decided=self._enqueue,
        )

    def _work_parts(self) -> WorkParts:
        return WorkParts(
            provider=self._provider,
            host=self._host,
            checks=self._checks,
            life=self._lives.get,
            pod=self._pods.get,
            say=self._emit,
            decided=self._enqueue,
            removed=self._removed,
            begun=self._prober.wake,
            interrupt=self._interrupt,
            list_since=self._list_since,
            vanished=self._vanished,
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        async with self._checks, asyncio.TaskGroup() as group:
            for controller in (self._decisions, self._work.controller, self._prober.controller):
                group.create_task(controller.run(), name=controller.name)

    # --- requests of the runtime ---

    async def sync(self, pod: Pod) -> None:
        """Adopts the pod, or its changed spec. Raises PodRejected, Unavailable."""
        uid = pod.ref.uid
        life = self._lives.get(uid)
        if life is None:
            life = await self._begin(pod)
        life.generation = pod.metadata.generation
        self._pods[uid] = pod
        life.take(PodPlan.of(pod))
        for container in life.containers.values():
            if container.changed and container.stage is Stage.STARTING and container.failures:
                # Another image had failed.
                container.failures = 0
                self._work.add(Job(uid, Verb.START, container.plan.name))
        self._set_deadline(life, pod)
        self._resizer.look(life, pod)
        self._enqueue(uid)

    async def delete(self, ref: PodRef, grace: float) -> None:
        """Terminates the pod, whether it was ever synced or not."""
        life = self._lives.get(ref.uid)
        if life is None:
            life = await self._take_over(ref)
        if life is None:
            await self._provider.remove_pod(ref)
            self._host.pod_gone(ref)
            return
        life.end(self._clock.monotonic() + grace, remove=True)
        self._interrupt(life)
        self._enqueue(ref.uid)

    async def reports(self, node: str) -> Iterable[PodReport]:
        """Lists everything that the backend has, with the runtime's state of known pods. Raises when the list is not complete."""
        asked = self._clock.monotonic()
        held = {report.pod.uid: report for report in await self._provider.list_containers(node)}
        for report in held.values():
            self.hear(report)
        self._listed[node] = asked
        known = {uid: life for uid, life in self._lives.items() if life.ref.node == node}
        for uid, life in known.items():
            self._miss(life, held.get(uid), asked)
        now = self._clock.monotonic()
        return [*(report_of(life, now) for life in known.values()), *(report for uid, report in held.items() if uid not in known)]

    async def _list_since(self, node: str, moment: float) -> None:
        """Waits until a list requested after `moment` has been processed; callers share one. Raises Unavailable."""
        async with self._list_locks.setdefault(node, asyncio.Lock()):
            if self._listed.get(node, -math.inf) <= moment:
                await answered(self.reports(node), f"list_containers of node {node}", clock=self._clock)

    def _miss(self, life: PodLife, held: PodReport | None, asked: float) -> None:
        """Handles containers missing from a list: one that ran before the request has terminated without being observed."""
        there = {c.name for c in held.containers} if held is not None else set[str]()
        for name, container in life.containers.items():
            if name not in there and container.since < asked and not container.with_provider:
                self._vanished(life, container)

    def _vanished(self, life: PodLife, container: ContainerLife) -> None:
        """Handles a container that the backend does not have: if it ran it has terminated without being observed."""
        if not container.running:
            return
        end = Terminated(UNSEEN, "ContainerStatusUnknown", "The container could not be located when the pod was looked at")
        hooks = hooks_of(container)
        container.end_run(evolve(end, finished_at=self._clock.now()), now=self._clock.monotonic())
        self._follow(life, container, hooks)
        self._enqueue(life.ref.uid)

    def probe_metrics(self, node: str) -> bytes:
        return self._prober.metrics(node)

    # --- reports of the provider ---

    def set_node(self, node: NodeDescription) -> None:
        self._nodes[node.name] = node
        for uid, life in self._lives.items():
            if life.ref.node == node.name and uid in self._pods:
                self._resizer.look(life, self._pods[uid])
                self._enqueue(uid)

    def hear(self, report: PodReport) -> None:
        """Handles a report of container states."""
        life = self._lives.get(report.pod.uid)
        if life is None:
            self._held.hear(report)
            return
        moved = bool(report.ips) and tuple(report.ips) != tuple(life.sandbox.ips)
        if moved:
            life.sandbox = evolve(life.sandbox, ips=tuple(report.ips))
        now, wall = self._clock.monotonic(), self._clock.now()
        news = []
        for told in report.containers:
            container = life.containers.get(told.name)
            hooks = hooks_of(container) if container is not None else ()
            if container is not None and container.hear(told, now=now, wall=wall):
                news.append(container)
                if container.begun:
                    self._work.note_report(life, container)
                self._follow(life, container, hooks)
        if news or moved:
            self._enqueue(life.ref.uid)

    def _follow(self, life: PodLife, container: ContainerLife, hooks: Collection[str]) -> None:
        """Follows up on a state change; `hooks` ran until now."""
        name, uid = container.plan.name, life.ref.uid
        if container.running:
            self._prober.wake(life, container)
            return
        self._work.cancel(Job(uid, Verb.POST_START, name))
        self._work.cancel(Job(uid, Verb.PRE_STOP, name))
        if not isinstance(container.state, Terminated):
            return
        self._cut(life, container, hooks)
        if wants_log(container.plan.spec, container.state):
            container.reading = True
            self._work.add(Job(uid, Verb.MESSAGE, name))
        if life.goes_on(container) and start_time(container) > container.ended_at and life.ending is None:
            self._emit(
                life, container, "BackOff", f"Back-off restarting failed container {name} in pod {full_name(life.ref)}", warning=True
            )

    def _cut(self, life: PodLife, container: ContainerLife, hooks: Collection[str]) -> None:
        """Handles a container that has terminated before its hooks, which have failed by that."""
        if "postStart" in hooks:
            container.hook_error = hook_failure(life.ref, container.plan, Outcome(None, "the container has ended"))
            self._emit(life, container, "FailedPostStartHook", "PostStartHook failed", warning=True)
            self._emit(life, container, "Killing", "FailedPostStartHook")
        if "preStop" in hooks:
            self._emit(life, container, "FailedPreStopHook", "PreStopHook failed", warning=True)

    def lost(self, ref: PodRef) -> None:
        """Handles the report that the backend has nothing left of the pod."""
        life = self._lives.get(ref.uid)
        if life is not None:
            self._drop(life)
        self._host.pod_gone(ref)

    # --- start and termination ---

    async def _begin(self, pod: Pod) -> PodLife:
        await self._held.of(pod.ref)
        sandbox = await self._provider.prepare_pod(pod)
        # Containers may have terminated while the pod was prepared.
        held = await self._held.of(pod.ref)
        life = PodLife(pod.ref, PodPlan.of(pod), sandbox, began=self._clock.now())
        self._adopt(life, pod, held)
        return life

    async def _take_over(self, ref: PodRef) -> PodLife | None:
        """Adopts a pod that has only to be terminated."""
        held = await self._held.of(ref)
        if held is None:
            return None
        pod = self._host.pods.get(ref)
        life = PodLife(ref, PodPlan.of(pod) if pod is not None else orphan(held), Sandbox(tuple(held.ips)))
        self._adopt(life, pod, held)
        return life

    def _adopt(self, life: PodLife, pod: Pod | None, held: PodReport | None) -> None:
        uid = life.ref.uid
        life.take(life.plan)
        self._held.forget(life.ref)
        status = pod.status if pod is not None else {}
        adopt(life, status, held, now=self._clock.monotonic(), wall=self._clock.now())
        self._lives[uid] = life
        if pod is not None:
            self._pods[uid] = pod
        for container in life.containers.values():
            self._prober.wake(life, container)

    def _set_deadline(self, life: PodLife, pod: Pod) -> None:
        seconds = life.plan.active_deadline
        if seconds is None:
            life.deadline_at = None
            return
        published = pod.status.get("startTime")
        began = parse_rfc3339(published) if published else life.began or self._clock.now()
        left = began + timedelta(seconds=seconds) - self._clock.now()
        life.deadline_at = self._clock.monotonic() + left.total_seconds()

    def _removed(self, life: PodLife) -> None:
        node = life.ref.node
        self._drop(life)
        self._host.pod_gone(life.ref)
        for uid, other in self._lives.items():
            if other.ref.node == node and other.resize.pending and uid in self._pods:
                self._resizer.look(other, self._pods[uid])
                self._enqueue(uid)

    def _drop(self, life: PodLife) -> None:
        uid = life.ref.uid
        self._lives.pop(uid, None)
        self._pods.pop(uid, None)
        self._prober.forget(life)
        self._work.forget(life)
        self._decisions.discard(uid)

    # --- decisions ---

    def _enqueue(self, uid: str) -> None:
        if uid in self._lives:
            self._decisions.add(uid)

    async def _decide(self, uid: str) -> float | None:
        life = self._lives.get(uid)
        if life is None:
            return None
        now = self._clock.monotonic()
        if life.deadline_at is not None and now >= life.deadline_at and (pod := self._host.pods.get(life.ref)) is not None:
            # The deadline counts from the published start time, which may have been later than the sync.
            self._set_deadline(life, pod)
        decision = decide(life, now)
        for action in decision.actions:
            self._apply(life, action, now)
        if self._resizer.follow(life):
            self._work.add(Job(uid, Verb.RESIZE))
        if not any(c.reading for c in life.containers.values()):
            # A terminal phase is not corrected any more: everything about the termination is reported with it.
            self._host.report(report_of(life, now))
        if decision.actions:
            self._enqueue(uid)
        return self._next_check(life, decision, now)

    def _next_check(self, life: PodLife, decision: Decision, now: float) -> float | None:
        due = min(decision.due, self._resizer.next_look(life, self._pods.get(life.ref.uid), now))
        return None if math.isinf(due) else max(0.0, due - now)

    def _apply(self, life: PodLife, action: Action, now: float) -> None:
        uid = life.ref.uid
        match action:
            case Start(name):
                self._start(life, life.containers[name], now)
            case Begin(name, message, grace, again):
                self._stop(life, life.containers[name], message, until=now + max(0.0, grace), again=again)
            case Kill(name, grace):
                stop = life.containers[name].stop
                assert stop is not None
                self._work.cancel(Job(uid, Verb.PRE_STOP, name))
                stop.hook_cut = stop.hook_cut or stop.hook_runs
                stop.hook_runs, stop.killed_by = False, now + grace
                self._work.add(Job(uid, Verb.KILL, name))
            case Finish():
                life.end(now + life.plan.grace)
                self._interrupt(life)
            case Overdue():
                life.failure = _OVERDUE
                self._emit(life, None, _OVERDUE.reason, _OVERDUE.message)
                life.end(now + life.plan.grace)
                self._interrupt(life)
            case Remove():
                life.removing = True
                self._work.add(Job(uid, Verb.REMOVE))

    def _start(self, life: PodLife, container: ContainerLife, now: float) -> None:
        container.begin_start(now=now)
        self._work.add(Job(life.ref.uid, Verb.START, container.plan.name))

    def _stop(self, life: PodLife, container: ContainerLife, message: str, *, until: float, again: bool) -> None:
        name, uid = container.plan.name, life.ref.uid
        self._work.cancel(Job(uid, Verb.POST_START, name))
        container.stage = Stage.IDLE if container.stage is Stage.HOOKING else container.stage
        hook = container.plan.pre_stop is not None and until > self._clock.monotonic()
        container.stop = Stop(until, hook_runs=hook, again=again)
        self._emit(life, container, "Killing", message)
        if hook:
            self._work.add(Job(uid, Verb.PRE_STOP, name))

    def _interrupt(self, life: PodLife) -> None:
        """Interrupts starts in progress because the pod terminates."""
        for container in life.containers.values():
            if container.stage is not Stage.STARTING:
                continue
            self._work.cancel(Job(life.ref.uid, Verb.START, container.plan.name))
            if container.begun:
                # It is known to run: it is terminated like the others.
                container.end_start()
                continue
            container.stage = Stage.IDLE
            if isinstance(container.state, Waiting) and container.last is not None and container.created:
                container.state, container.last = container.last, None
            self._work.add(Job(life.ref.uid, Verb.KILL, container.plan.name))

    # --- events ---

    def _emit(self, life: PodLife, container: ContainerLife | None, reason: str, message: str, *, warning: bool = False) -> None:
        """Emits an event about the pod, or about one of its containers."""
        pod = self._pods.get(life.ref.uid)
        ref = life.ref
        known = ObjectReference("v1", "Pod", ref.name, ref.namespace, ref.uid) if pod is None else ObjectReference.of(PODS, pod)
        if container is not None:
            known = evolve(known, field_path=f"spec.{_FIELDS[container.plan.kind]}{{{container.plan.name}}}")
        self._host.events.event(known, reason, message, warning=warning)

    @property
    def lives(self) -> Mapping[str, PodLife]:
        """All pods by UID."""
        return self._lives
