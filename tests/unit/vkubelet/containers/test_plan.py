"""What a spec asks for, with the defaults of the API server."""

from __future__ import annotations

import pytest

from vkubelet.containers.plan import ContainerKind, PodPlan, ProbeKind, ProbeSpec
from vkubelet.testing.host import make_pod

SPEC = {
    "terminationGracePeriodSeconds": 5,
    "activeDeadlineSeconds": 60,
    "initContainers": [{"name": "i", "livenessProbe": {}}, {"name": "s", "restartPolicy": "Always", "livenessProbe": {"exec": {}}}],
    "containers": [{"name": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}],
    "ephemeralContainers": [{"name": "e"}],
}


def test_containers_by_kind_in_their_order() -> None:
    plan = PodPlan.of(make_pod(spec=SPEC))
    assert [(c.name, c.kind) for c in plan.containers] == [
        ("i", ContainerKind.INIT),
        ("s", ContainerKind.SIDECAR),
        ("a", ContainerKind.APP),
        ("e", ContainerKind.EPHEMERAL),
    ]
    assert (plan.grace, plan.active_deadline, plan.restart_policy) == (5.0, 60.0, "Always")
    assert [list(c.probes) for c in plan.containers] == [[], [ProbeKind.LIVENESS], [], []]
    assert plan.containers[2].pre_stop == {"sleep": {"seconds": 1}}


def test_grace_of_zero_is_not_the_default() -> None:
    assert PodPlan.of(make_pod(spec={"terminationGracePeriodSeconds": 0})).grace == 0
    assert PodPlan.of(make_pod()).grace == 30


def test_defaults_of_a_probe() -> None:
    probe = ProbeSpec.of(ProbeKind.READINESS, {"exec": {}})
    assert (probe.initial_delay, probe.period, probe.timeout, probe.successes, probe.failures, probe.grace) == (0, 10, 1, 1, 3, None)


@pytest.mark.parametrize(
    ("container", "policy", "code", "again"),
    [
        ("i", "Always", 0, False),
        ("i", "Always", 1, True),
        ("i", "OnFailure", 1, True),
        ("i", "Never", 1, False),
        ("s", "Never", 0, True),
        ("a", "Always", 0, True),
        ("a", "OnFailure", 0, False),
        ("a", "OnFailure", 1, True),
        ("a", "Never", 1, False),
        ("e", "Always", 1, False),
    ],
)
def test_who_is_restarted(container: str, policy: str, code: int, again: bool) -> None:
    plan = PodPlan.of(make_pod(spec={**SPEC, "restartPolicy": policy}))
    assert plan.may_restart(next(c for c in plan.containers if c.name == container), code) is again
