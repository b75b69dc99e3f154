"""Runs the probes of all containers, each at its period.

Invariant: a probe never overlaps itself, and its result counts only for the run of the container that it probed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from attrs import define, field, frozen

from vkubelet.api.objects import PodRef
from vkubelet.clock import Clock
from vkubelet.containers.checks import CheckResult, Checks, CheckTarget
from vkubelet.containers.managed import ManagedContainer, ManagedPod
from vkubelet.containers.plan import ProbeKind, ProbeSpec
from vkubelet.control.controller import Controller
from vkubelet.metrics import Metrics
from vkubelet.resolve.environment import expand_probe
from vkubelet.stats import Sample, family

_TRIES: Final = 3
"""Attempts at a probe that could not be executed."""

_WORKERS: Final = 2000
_RESULTS: Final = {True: "successful", False: "failed", None: "unknown"}
_WORDS: Final = {True: "success", False: "failure", None: "unknown"}


@frozen
class ProbeKey:
    """One probe of one container."""

    uid: str
    container: str
    kind: ProbeKind


@define(kw_only=True, eq=False)
class Prober:
    """Prober of all containers; keeps their verdicts up to date while `controller` runs. `decided` is called when a verdict changed."""

    managed_pods: Mapping[str, ManagedPod]
    checks: Checks
    clock: Clock
    metrics: Metrics | None
    warn: Callable[[ManagedPod, ManagedContainer, str, str], None]
    decided: Callable[[str], None]
    controller: Controller[ProbeKey] = field(init=False)
    _streaks: dict[ProbeKey, Streak] = field(init=False, factory=dict)
    _counts: dict[PodRef, Counter[tuple[str, ProbeKind, str]]] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.controller = Controller("probes", self._reconcile, workers=_WORKERS, clock=self.clock, metrics=self.metrics)

    def wake(self, managed: ManagedPod, container: ManagedContainer) -> None:
        """Wakes the probes of a container after an event that they may have waited for."""
        for kind in container.plan.probes:
            self.controller.add(ProbeKey(managed.ref.uid, container.plan.name, kind))

    def remove(self, managed: ManagedPod) -> None:
        """Drops the probes of a deleted pod."""
        for container in managed.containers.values():
            for kind in container.plan.probes:
                key = ProbeKey(managed.ref.uid, container.plan.name, kind)
                self._streaks.pop(key, None)
                self.controller.discard(key)
                self.controller.cancel_running(key)
        self._counts.pop(managed.ref, None)

    def exposition(self, node: str) -> bytes:
        """Renders `prober_probe_total` of the node's pods, as on a kubelet's `/metrics/probes`."""
        samples: list[Sample] = [
            (
                {
                    "container": container,
                    "namespace": ref.namespace,
                    "pod": ref.name,
                    "pod_uid": ref.uid,
                    "probe_type": kind.value,
                    "result": result,
                },
                count,
                None,
            )
            for ref, counts in self._counts.items()
            if ref.node == node
            for (container, kind, result), count in counts.items()
        ]
        text = "Cumulative number of a liveness, readiness or startup probe for a container by result."
        return family("prober_probe_total", "counter", text, samples=samples)

    async def _reconcile(self, key: ProbeKey) -> float | None:
        managed = self.managed_pods.get(key.uid)
        container = managed.containers.get(key.container) if managed is not None else None
        spec = container.plan.probes.get(key.kind) if container is not None else None
        if managed is None or container is None or spec is None:
            return None
        streak = self._streaks.get(key)
        if streak is None or streak.run != container.run:
            streak = self._streaks[key] = Streak(container.run)
        delay = None if streak.held else wait(managed, container, spec=spec, now=self.clock.monotonic())
        if delay is None or delay > 0:
            return delay
        began = self.clock.monotonic()
        outcome = await self._probe(managed, container, spec)
        if self.managed_pods.get(key.uid) is not managed or container.run != streak.run or not container.running:
            return None
        self._note(managed, container, spec, streak=streak, outcome=outcome)
        return max(0.0, began + spec.period - self.clock.monotonic())

    async def _probe(self, managed: ManagedPod, container: ManagedContainer, spec: ProbeSpec) -> CheckResult:
        address = managed.sandbox.ips[0] if managed.sandbox.ips else ""
        target = CheckTarget(managed.ref, container.plan.name, container.plan.spec, address)
        outcome, action = CheckResult(None), spec.action
        if action.get("exec") is not None:
            command = expand_probe(action["exec"].get("command") or (), container.plan.spec.get("env") or ())
            action = {"exec": {"command": command}}
        for _ in range(_TRIES):
            outcome = await self.checks.run(target, action, timeout=spec.timeout)
            if outcome.ok is not None:
                break
        return outcome

    def _note(self, managed: ManagedPod, container: ManagedContainer, spec: ProbeSpec, *, streak: Streak, outcome: CheckResult) -> None:
        kind = spec.kind.value
        if outcome.ok is None:
            text = f"{kind} probe errored and resulted in {_WORDS[None]} state: {outcome.output}"
            self.warn(managed, container, "Unhealthy", text)
            return
        self._counts.setdefault(managed.ref, Counter())[container.plan.name, spec.kind, _RESULTS[outcome.ok]] += 1
        if not outcome.ok:
            self.warn(managed, container, "Unhealthy", f"{kind} probe failed: {outcome.output}")
        elif outcome.warning:
            self.warn(managed, container, "ProbeWarning", f"{kind} probe warning: {outcome.output}")
        verdict = streak.note(outcome.ok, spec)
        if verdict is None or container.verdicts.get(spec.kind) is verdict:
            return
        container.verdicts[spec.kind] = verdict
        if spec.kind is ProbeKind.STARTUP:
            self.wake(managed, container)
        self.decided(managed.ref.uid)


@define
class Streak:
    """Consecutive equal results, of one run of a container. `held`: this run needs no more of them (prober/worker.go, onHold)."""

    run: int
    result: bool | None = None
    length: int = 0
    held: bool = False

    def note(self, result: bool, spec: ProbeSpec) -> bool | None:
        """Records a result; returns the verdict once enough consecutive ones are equal, else None."""
        self.length = self.length + 1 if self.result is result else 1
        self.result = result
        if self.length < (spec.successes if result else spec.failures):
            return None
        if spec.kind is ProbeKind.STARTUP or (spec.kind is ProbeKind.LIVENESS and not result):
            self.held, self.length = True, 0
        return result


def wait(managed: ManagedPod, container: ManagedContainer, *, spec: ProbeSpec, now: float) -> float | None:
    """Returns the seconds until the probe may run; None: not before another event."""
    if not container.running or not container.hooked:
        return None
    if spec.kind is not ProbeKind.READINESS and (managed.termination is not None or container.stop is not None):
        return None
    if (spec.kind is ProbeKind.STARTUP) is container.started:
        return None
    return max(0.0, container.since + spec.initial_delay - now)
