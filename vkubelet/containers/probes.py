"""Decides when the results of a probe change the verdict on its container. Pure.

Invariant: only consecutive results count, those of one run of the container; an errored probe counts as none.
"""

from __future__ import annotations

from attrs import define

from vkubelet.containers.life import ContainerLife, PodLife
from vkubelet.containers.plan import ProbeKind, ProbeSpec


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


def wait(life: PodLife, container: ContainerLife, *, spec: ProbeSpec, now: float) -> float | None:
    """Returns the seconds until the probe may run; None: not before another event."""
    if not container.running or not container.hooked:
        return None
    if spec.kind is not ProbeKind.READINESS and (life.ending is not None or container.stop is not None):
        return None
    if (spec.kind is ProbeKind.STARTUP) is container.started:
        return None
    return max(0.0, container.since + spec.initial_delay - now)
