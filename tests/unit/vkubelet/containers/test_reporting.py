"""Words of the kubelet in reports."""

from __future__ import annotations

import pytest

from vkubelet.api.objects import Json, PodRef
from vkubelet.containers.checks import CheckResult
from vkubelet.containers.managed import ManagedContainer, ManagedPod, Resize, Stage, Stop
from vkubelet.containers.plan import ContainerKind, ContainerPlan, PodPlan
from vkubelet.containers.reporting import duration, full_name, hook_failure, hooks_of, report_of, resize_conditions
from vkubelet.provider import Running


@pytest.mark.parametrize(("seconds", "text"), [(10, "10s"), (40, "40s"), (80, "1m20s"), (160, "2m40s"), (300, "5m0s")])
def test_durations_are_written_as_by_go(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("resize", "wanted"),
    [
        (Resize(), []),
        (Resize(running=True), [("PodResizeInProgress", "")]),
        (Resize(running=True, failed=True, message="busy"), [("PodResizeInProgress", "Error")]),
        (Resize(pending="Deferred", message="full"), [("PodResizePending", "Deferred")]),
        (Resize(pending="Deferred", running=True), [("PodResizePending", "Deferred"), ("PodResizeInProgress", "")]),
    ],
)
def test_conditions_of_a_resize(resize: Resize, wanted: list[tuple[str, str]]) -> None:
    found = resize_conditions(resize, 7)
    assert [(c["type"], c.get("reason", "")) for c in found] == wanted
    assert all((c["status"], c["observedGeneration"]) == ("True", 7) for c in found)


@pytest.mark.parametrize(
    ("kind", "created", "resources", "reported"),
    [
        (ContainerKind.APP, True, {}, ({}, None)),
        (ContainerKind.SIDECAR, True, {"requests": {"cpu": "1"}}, ({"requests": {"cpu": "1"}}, {"cpu": "1"})),
        (ContainerKind.APP, False, {"requests": {"cpu": "1"}}, (None, None)),
        (ContainerKind.INIT, True, {}, ({}, None)),
        (ContainerKind.EPHEMERAL, True, {"requests": {"cpu": "1"}}, (None, None)),
    ],
)
def test_amounts_are_told_of_what_has_begun(
    kind: ContainerKind, created: bool, resources: Json, reported: tuple[Json | None, Json | None]
) -> None:
    managed = ManagedPod(PodRef("space", "web", "123", "node"), PodPlan())
    plan = ContainerPlan(name="main", kind=kind, spec={"name": "main"})
    managed.containers["main"] = ManagedContainer(plan, state=Running(), created=created, resources=resources, actual=resources)
    (report,) = report_of(managed, 0.0).containers
    assert (report.resources, report.allocated) == reported


REF = PodRef("default", "web", "u", "node")
EXEC: Json = {"exec": {"command": ["sh", "-c", "x"]}}
SLEEP: Json = {"sleep": {"seconds": 3}}


def plan(post_start: Json | None = None, pre_stop: Json | None = None) -> ContainerPlan:
    return ContainerPlan(name="main", kind=ContainerKind.APP, spec={}, post_start=post_start, pre_stop=pre_stop)


def test_full_name_of_a_pod() -> None:
    assert full_name(PodRef("space", "web", "123", "node")) == "web_space(123)"


@pytest.mark.parametrize(
    ("action", "outcome", "text"),
    [
        (
            EXEC,
            CheckResult(False, 'no "way"\n', error="command 'sh -c x' exited with 3: no\n"),
            'Exec lifecycle hook ([sh -c x]) for Container "main" in Pod "web_default(u)" failed - '
            'error: command \'sh -c x\' exited with 3: no\n, message: "no \\"way\\"\\n"',
        ),
        (
            EXEC,
            CheckResult(None, "no such program"),
            'Exec lifecycle hook ([sh -c x]) for Container "main" in Pod "web_default(u)" failed - error: no such program, message: ""',
        ),
        (
            {"httpGet": {"path": "/up", "port": 80}},
            CheckResult(False, "EOF"),
            'HTTP lifecycle hook (/up) for Container "main" in Pod "web_default(u)" failed - error: EOF',
        ),
        ({}, CheckResult(None, "missing handler"), "Cannot run handler: missing handler"),
    ],
)
def test_failure_of_a_post_start_hook_is_told_as_by_a_kubelet(action: Json, outcome: CheckResult, text: str) -> None:
    assert hook_failure(REF, plan(action), outcome) == text


@pytest.mark.parametrize(
    ("stage", "stop", "post_start", "pre_stop", "wanted"),
    [
        (Stage.HOOKING, None, EXEC, EXEC, ["postStart"]),
        (Stage.HOOKING, None, SLEEP, None, []),
        (Stage.IDLE, Stop(0, hook_runs=True), EXEC, EXEC, ["preStop"]),
        (Stage.IDLE, Stop(0, hook_cut=True), EXEC, EXEC, ["preStop"]),
        (Stage.IDLE, Stop(0), EXEC, EXEC, []),
        (Stage.IDLE, Stop(0, hook_runs=True), None, SLEEP, []),
    ],
)
def test_hooks_that_need_their_container(
    stage: Stage, stop: Stop | None, post_start: Json | None, pre_stop: Json | None, wanted: list[str]
) -> None:
    assert hooks_of(ManagedContainer(plan(post_start, pre_stop), stage=stage, stop=stop)) == wanted
