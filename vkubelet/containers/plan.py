"""Lifecycle settings of the containers in a pod's spec. Pure.

Invariant: defaults of the API server are applied here too, so a spec that never passed one is understood.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from vkubelet.api.objects import JsonView, Pod

GRACE = 30.0
"""Seconds, where the spec has no terminationGracePeriodSeconds."""


class ContainerKind(enum.Enum):
    """Type of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    """An init container with restartPolicy Always."""
    APP = "app"
    EPHEMERAL = "ephemeral"


class ProbeKind(enum.Enum):
    """The three probes of a container; the values are those of the kubelet's events and metrics."""

    STARTUP = "Startup"
    LIVENESS = "Liveness"
    READINESS = "Readiness"


@frozen(kw_only=True)
class ProbeSpec:
    """One probe; `action` is the spec of the probe itself, with one of exec, httpGet, tcpSocket, grpc. Times are seconds."""

    kind: ProbeKind
    action: JsonView
    initial_delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    successes: int = 1
    failures: int = 3
    grace: float | None = None

    @classmethod
    def of(cls, kind: ProbeKind, body: JsonView) -> ProbeSpec:
        return cls(
            kind=kind,
            action=body,
            initial_delay=float(body.get("initialDelaySeconds") or 0),
            period=float(body.get("periodSeconds") or 10),
            timeout=float(body.get("timeoutSeconds") or 1),
            successes=int(body.get("successThreshold") or 1),
            failures=int(body.get("failureThreshold") or 3),
            grace=None if body.get("terminationGracePeriodSeconds") is None else float(body["terminationGracePeriodSeconds"]),
        )


@frozen(kw_only=True)
class ContainerPlan:
    """One container; `spec` is its entry in the pod's spec."""

    name: str
    kind: ContainerKind
    spec: JsonView
    probes: Mapping[ProbeKind, ProbeSpec] = field(factory=dict)
    post_start: JsonView | None = None
    pre_stop: JsonView | None = None

    @classmethod
    def of(cls, kind: ContainerKind, spec: JsonView) -> ContainerPlan:
        hooks = spec.get("lifecycle") or {}
        may_probe = kind in (ContainerKind.SIDECAR, ContainerKind.APP)
        found = {probe: spec.get(f"{probe.value.lower()}Probe") for probe in ProbeKind} if may_probe else {}
        return cls(
            name=spec["name"],
            kind=kind,
            spec=spec,
            probes={probe: ProbeSpec.of(probe, body) for probe, body in found.items() if body},
            post_start=hooks.get("postStart"),
            pre_stop=hooks.get("preStop"),
        )


@frozen(kw_only=True)
class PodPlan:
    """All containers in the order of the spec, first the init containers."""

    containers: Sequence[ContainerPlan] = ()
    restart_policy: str = "Always"
    grace: float = GRACE
    active_deadline: float | None = None

    @classmethod
    def of(cls, pod: Pod) -> PodPlan:
        spec = pod.spec
        starting = [
            (ContainerKind.SIDECAR if c.get("restartPolicy") == "Always" else ContainerKind.INIT, c)
            for c in spec.get("initContainers") or ()
        ]
        apps = [(ContainerKind.APP, c) for c in spec.get("containers") or ()]
        ephemeral = [(ContainerKind.EPHEMERAL, c) for c in spec.get("ephemeralContainers") or ()]
        grace, deadline = spec.get("terminationGracePeriodSeconds"), spec.get("activeDeadlineSeconds")
        return cls(
            containers=[ContainerPlan.of(kind, c) for kind, c in (*starting, *apps, *ephemeral)],
            restart_policy=spec.get("restartPolicy") or "Always",
            grace=GRACE if grace is None else float(grace),
            active_deadline=None if deadline is None else float(deadline),
        )

    def may_restart(self, container: ContainerPlan, code: int) -> bool:
        """Checks whether a container of this type is restarted after it exited with `code`."""
        if container.kind is ContainerKind.SIDECAR:
            return True
        if container.kind is ContainerKind.EPHEMERAL or self.restart_policy == "Never":
            return False
        if container.kind is ContainerKind.INIT:
            return code != 0
        return self.restart_policy == "Always" or code != 0
