"""What is said of hooks."""

from __future__ import annotations

import pytest

from vkubelet.api.objects import PodRef
from vkubelet.api.shapes import Json
from vkubelet.containers.checks import Outcome
from vkubelet.containers.hooks import full_name, hook_failure, hooks_of
from vkubelet.containers.life import ContainerLife, Stage, Stop
from vkubelet.containers.plan import ContainerPlan, Kind

REF = PodRef("default", "web", "u", "node")
EXEC: Json = {"exec": {"command": ["sh", "-c", "x"]}}
SLEEP: Json = {"sleep": {"seconds": 3}}


def plan(post_start: Json | None = None, pre_stop: Json | None = None) -> ContainerPlan:
    return ContainerPlan(name="main", kind=Kind.APP, spec={}, post_start=post_start, pre_stop=pre_stop)


def test_full_name_of_a_pod() -> None:
    assert full_name(PodRef("space", "web", "123", "node")) == "web_space(123)"


@pytest.mark.parametrize(
    ("action", "outcome", "text"),
    [
        (
            EXEC,
            Outcome(False, 'no "way"\n', error="command 'sh -c x' exited with 3: no\n"),
            'Exec lifecycle hook ([sh -c x]) for Container "main" in Pod "web_default(u)" failed - '
            'error: command \'sh -c x\' exited with 3: no\n, message: "no \\"way\\"\\n"',
        ),
        (
            EXEC,
            Outcome(None, "no such program"),
            'Exec lifecycle hook ([sh -c x]) for Container "main" in Pod "web_default(u)" failed - error: no such program, message: ""',
        ),
        (
            {"httpGet": {"path": "/up", "port": 80}},
            Outcome(False, "EOF"),
            'HTTP lifecycle hook (/up) for Container "main" in Pod "web_default(u)" failed - error: EOF',
        ),
        ({}, Outcome(None, "missing handler"), "Cannot run handler: missing handler"),
    ],
)
def test_failure_of_a_post_start_hook_is_told_as_by_a_kubelet(action: Json, outcome: Outcome, text: str) -> None:
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
    assert hooks_of(ContainerLife(plan(post_start, pre_stop), stage=stage, stop=stop)) == wanted
