"""Runs the probes of all containers, each at its period.

Invariant: a probe never overlaps itself, and its result counts only for the run of the container that it probed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from attrs import frozen

from vkubelet.api.objects import PodRef
from vkubelet.clock import Clock
from vkubelet.containers.checks import Checks, Outcome, Target
from vkubelet.containers.life import ContainerLife, PodLife
from vkubelet.containers.plan import ProbeKind, ProbeSpec
from vkubelet.containers.probes import Streak, wait
from vkubelet.control.controller import Controller
from vkubelet.metrics import Metrics
from vkubelet.resolve.expansion import expand_probe
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


@frozen(kw_only=True)
class ProberParts:
    """Collaborators of the prober; `decided` is called when a verdict changed."""

    lives: Mapping[str, PodLife]
    checks: Checks
    clock: Clock
    metrics: Metrics | None
    warn: Callable[[PodLife, ContainerLife, str, str], None]
    decided: Callable[[str], None]


class Prober:
    """Prober of all containers; keeps their verdicts up to date while `controller` runs."""

    def __init__(self, parts: ProberParts) -> None:
        self._parts = parts
        self._streaks: dict[ProbeKey, Streak] = {}
        self._counts: dict[PodRef, Counter[tuple[str, ProbeKind, str]]] = {}
        self.controller: Controller[ProbeKey] = Controller(
            "probes", self._reconcile, workers=_WORKERS, clock=parts.clock, metrics=parts.metrics
        )

    def wake(self, life: PodLife, container: ContainerLife) -> None:
        """Wakes the probes of a container after an event that they may have waited for."""
        for kind in container.plan.probes:
            self.controller.add(ProbeKey(life.ref.uid, container.plan.name, kind))

    def forget(self, life: PodLife) -> None:
        """Drops the probes of a deleted pod."""
        for container in life.containers.values():
            for kind in container.plan.probes:
                key = ProbeKey(life.ref.uid, container.plan.name, kind)
                self._streaks.pop(key, None)
                self.controller.discard(key)
                self.controller.cancel_running(key)
        self._counts.pop(life.ref, None)

    def metrics(self, node: str) -> bytes:
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
        life = self._parts.lives.get(key.uid)
        container = life.containers.get(key.container) if life is not None else None
        spec = container.plan.probes.get(key.kind) if container is not None else None
        if life is None or container is None or spec is None:
            return None
        streak = self._streaks.get(key)
        if streak is None or streak.run != container.run:
            streak = self._streaks[key] = Streak(container.run)
        delay = None if streak.held else wait(life, container, spec=spec, now=self._parts.clock.monotonic())
        if delay is None or delay > 0:
            return delay
        began = self._parts.clock.monotonic()
        outcome = await self._probe(life, container, spec)
        if self._parts.lives.get(key.uid) is not life or container.run != streak.run or not container.running:
            return None
        self._note(life, container, spec, streak=streak, outcome=outcome)
        return max(0.0, began + spec.period - self._parts.clock.monotonic())

    async def _probe(self, life: PodLife, container: ContainerLife, spec: ProbeSpec) -> Outcome:
        address = life.sandbox.ips[0] if life.sandbox.ips else ""
        target = Target(life.ref, container.plan.name, container.plan.spec, address)
        outcome, action = Outcome(None), spec.action
        if action.get("exec") is not None:
            command = expand_probe(action["exec"].get("command") or (), container.plan.spec.get("env") or ())
            action = {"exec": {"command": command}}
        for _ in range(_TRIES):
            outcome = await self._parts.checks.run(target, action, timeout=spec.timeout)
            if outcome.ok is not None:
                break
        return outcome

    def _note(self, life: PodLife, container: ContainerLife, spec: ProbeSpec, *, streak: Streak, outcome: Outcome) -> None:
        kind = spec.kind.value
        if outcome.ok is None:
            text = f"{kind} probe errored and resulted in {_WORDS[None]} state: {outcome.output}"
            self._parts.warn(life, container, "Unhealthy", text)
            return
        self._counts.setdefault(life.ref, Counter())[container.plan.name, spec.kind, _RESULTS[outcome.ok]] += 1
        if not outcome.ok:
            self._parts.warn(life, container, "Unhealthy", f"{kind} probe failed: {outcome.output}")
        elif outcome.warning:
            self._parts.warn(life, container, "ProbeWarning", f"{kind} probe warning: {outcome.output}")
        verdict = streak.note(outcome.ok, spec)
        if verdict is None or container.verdicts.get(spec.kind) is verdict:
            return
        container.verdicts[spec.kind] = verdict
        if spec.kind is ProbeKind.STARTUP:
            self.wake(life, container)
        self._parts.decided(life.ref.uid)
