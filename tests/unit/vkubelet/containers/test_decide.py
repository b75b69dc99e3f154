"""Decisions, state by state."""

from __future__ import annotations

import math
from typing import Any

import pytest

from vkubelet.containers.decide import Action, ExceedDeadline, Kill, Remove, Start, Terminate, TerminatePod, decide
from vkubelet.containers.managed import ManagedContainer, ManagedPod, Stage, Stop
from vkubelet.containers.plan import PodPlan, ProbeKind
from vkubelet.provider import PodFailure, Running, Terminated
from vkubelet.testing.host import make_pod

NOW = 1000.0


def managed(names: str, policy: str = "Always", **states: Any) -> ManagedPod:
    """A pod with the containers `names`: "i:x" is an init container, "s:x" a sidecar, "e:x" ephemeral, all others apps."""
    found: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": [], "ephemeralContainers": []}
    for name in names.split():
        kind, _, bare = name.rpartition(":")
        where = {"i": "initContainers", "s": "initContainers", "e": "ephemeralContainers"}.get(kind, "containers")
        found[where].append({"name": bare, "image": "i", **({"restartPolicy": "Always"} if kind == "s" else {})})
    pod = make_pod(spec={"restartPolicy": policy, **found})
    made = ManagedPod(pod.ref, PodPlan.of(pod))
    made.set_plan(made.plan)
    for name, state in states.items():
        put(made.containers[name], state)
    return made


def put(container: ManagedContainer, state: Any) -> None:
    """A number is an exit code of just now."""
    if state == "runs":
        container.created, container.state, container.run, container.reached = True, Running(), 1, True
    elif state == "starting":
        container.stage = Stage.STARTING
    elif state == "failing":
        container.stage, container.failures = Stage.STARTING, 3
    elif state == "hooking":
        container.created, container.state, container.stage, container.hooked = True, Running(), Stage.HOOKING, False
    else:
        container.created, container.state, container.ended_at, container.reached = True, Terminated(state), NOW, True


def starts(made: ManagedPod) -> str:
    return " ".join(action.container for action in decide(made, NOW).actions if isinstance(action, Start))


@pytest.mark.parametrize(
    ("names", "policy", "states", "wanted"),
    [
        ("a", "Always", {}, "a"),
        ("a b", "Always", {}, "a"),
        ("a b", "Always", {"a": "starting"}, ""),
        ("a b", "Always", {"a": "hooking"}, ""),
        ("a b", "Always", {"a": "failing"}, "b"),
        ("i:x a", "Always", {"x": "failing"}, ""),
        ("s:x i:y a", "Always", {"x": "failing", "y": 0}, "a"),
        ("a b", "Always", {"a": "runs"}, "b"),
        ("a b", "Always", {"a": "runs", "b": "runs"}, ""),
        ("a b", "Always", {"a": 1, "b": "runs"}, "a"),
        ("a b", "Always", {"a": 1, "b": 1}, "a"),
        ("a b", "OnFailure", {"a": 0, "b": "runs"}, ""),
        ("a b", "OnFailure", {"a": 1, "b": "runs"}, "a"),
        ("a b", "Never", {"a": 1, "b": "runs"}, ""),
        ("i:x i:y a", "Always", {}, "x"),
        ("i:x i:y a", "Always", {"x": "runs"}, ""),
        ("i:x i:y a", "Always", {"x": 0}, "y"),
        ("i:x i:y a", "Always", {"x": 1}, "x"),
        ("i:x i:y a", "OnFailure", {"x": 0, "y": 1}, "y"),
        ("i:x i:y a", "Always", {"x": 0, "y": 0}, "a"),
        ("s:x i:y a", "Always", {}, "x"),
        ("s:x i:y a", "Always", {"x": "runs"}, "y"),
        ("s:x i:y a", "Always", {"x": 0, "y": "runs"}, "x"),
        ("s:x i:y a", "Never", {"x": 1, "y": 0}, "x"),
        ("s:x i:y a", "Never", {"x": "runs", "y": 0}, "a"),
        ("s:x a", "Never", {"x": 1, "a": "runs"}, "x"),
        ("i:x e:d a", "Always", {}, "d x"),
        ("e:d a", "Always", {"a": "starting"}, "d"),
        ("e:d a", "Always", {"a": "runs", "d": 0}, ""),
        ("e:d a", "Always", {"a": "runs", "d": "starting"}, ""),
    ],
)
def test_what_is_started_next(names: str, policy: str, states: dict[str, Any], wanted: str) -> None:
    assert starts(managed(names, policy, **states)) == wanted


def test_initialised_pod_looks_at_its_init_containers_no_more_but_at_its_sidecars() -> None:
    made = managed("i:x s:y a", x=1, y=0, a="runs")
    made.containers["y"].reached = False
    assert starts(made) == "x"
    made.initialized = True
    assert starts(made) == "y"


@pytest.mark.parametrize(
    ("names", "policy", "states", "ends"),
    [
        ("a", "Never", {"a": 0}, True),
        ("a", "Never", {"a": 5}, True),
        ("a", "OnFailure", {"a": 0}, True),
        ("a", "OnFailure", {"a": 1}, False),
        ("a", "Always", {"a": 0}, False),
        ("a b", "Never", {"a": 0, "b": "runs"}, False),
        ("s:x a", "Never", {"x": "runs", "a": 0}, True),
        ("i:x a", "Never", {"x": 1}, True),
        ("i:x a", "OnFailure", {"x": 1}, False),
    ],
)
def test_when_a_pod_has_ended_by_itself(names: str, policy: str, states: dict[str, Any], ends: bool) -> None:
    assert (TerminatePod() in decide(managed(names, policy, **states), NOW).actions) is ends


def test_back_off_is_waited_for() -> None:
    made = managed("a b", a=1, b="runs")
    made.containers["a"].crashes.delay, made.containers["a"].crashes.restarted_at = 40.0, NOW - 5
    decision = decide(made, NOW)
    assert (decision.actions, decision.due) == ([], NOW + 40)
    assert decide(made, NOW + 40).actions == [Start("a")]


def test_back_off_of_one_holds_nobody_else() -> None:
    made = managed("a b", a=1)
    made.containers["a"].crashes.delay, made.containers["a"].crashes.restarted_at = 40.0, NOW - 5
    assert starts(made) == "b"


def test_sidecar_that_backs_off_holds_up_nothing_that_comes_after_one_that_began() -> None:
    made = managed("s:x i:y a", x=1, y=0)
    made.containers["x"].crashes.delay, made.containers["x"].crashes.restarted_at = 40.0, NOW - 5
    assert starts(made) == "a"
    made.containers["y"].reached = False
    assert starts(made) == ""


def test_other_image_restarts_a_container_whatever_its_policy() -> None:
    for names, message in (("a", "Container a definition changed, will be restarted"), ("s:a b", "Init container a definition changed")):
        made = managed(names, "Never", a="runs", **({"b": "runs"} if "b" in names else {}))
        made.containers["a"].image = "i"
        assert decide(made, NOW).actions == []
        made.containers["a"].image = "older"
        assert decide(made, NOW).actions == [Terminate("a", message, 30.0, again=True)]


def test_nothing_to_do_waits_for_nothing() -> None:
    decision = decide(managed("a", a="runs"), NOW)
    assert (decision.actions, decision.due) == ([], math.inf)


def test_deadline_is_waited_for_and_told_once() -> None:
    made = managed("a", a="runs")
    made.deadline_at = NOW + 5
    assert decide(made, NOW).due == NOW + 5
    assert decide(made, NOW + 5).actions == [ExceedDeadline()]
    made.failure = PodFailure("DeadlineExceeded")
    assert ExceedDeadline() not in decide(made, NOW + 6).actions


# --- ending ---


def ending(names: str, *, until: float = NOW + 30, remove: bool = True, **states: Any) -> ManagedPod:
    made = managed(names, **states)
    made.end(until, remove=remove)
    return made


def test_every_running_container_begins_to_end_at_once() -> None:
    assert decide(ending("s:x a b", x="runs", a="runs", b=0), NOW).actions == [
        Terminate("x", "Stopping container x", 30.0),
        Terminate("a", "Stopping container a", 30.0),
    ]


@pytest.mark.parametrize(
    ("states", "reported"),
    [
        ({"x": "runs", "y": "runs", "a": "runs"}, ["a"]),
        ({"x": "runs", "y": "runs", "a": 0}, ["y"]),
        ({"x": "runs", "y": 0, "a": 0}, ["x"]),
        ({"x": 0, "y": 0, "a": "runs"}, ["a"]),
    ],
)
def test_turns_at_the_end(states: dict[str, Any], reported: list[str]) -> None:
    made = ending("s:x s:y a", **states)
    for container in made.containers.values():
        container.stop = Stop(NOW + 30)
    assert decide(made, NOW).actions == [Kill(name, 30.0) for name in reported]


@pytest.mark.parametrize(
    ("stop", "wanted"),
    [
        (Stop(NOW + 30, hook_runs=True), []),
        (Stop(NOW + 30), [Kill("a", 30.0)]),
        (Stop(NOW + 1), [Kill("a", 2.0)]),
        (Stop(NOW - 1, hook_runs=True), [Kill("a", 2.0)]),
        (Stop(NOW + 30, killed_by=NOW + 30), []),
        (Stop(NOW + 10, killed_by=NOW + 30), [Kill("a", 10.0)]),
        (Stop(NOW, killed_by=NOW + 30), [Kill("a", 2.0)]),
        (Stop(NOW, killed_by=NOW + 1), []),
        (Stop(NOW + 1, killed_by=NOW + 2), []),
        (Stop(NOW - 29, killed_by=NOW - 29), []),
        (Stop(NOW - 30, killed_by=NOW - 30), [Kill("a", 2.0)]),
    ],
)
def test_what_is_asked_of_the_provider_at_the_end(stop: Stop, wanted: list[Action]) -> None:
    made = ending("a", until=NOW + 60, a="runs")
    made.containers["a"].stop = stop
    assert decide(made, NOW).actions == wanted


def test_grace_of_the_pod_shortens_that_of_a_probe() -> None:
    made = ending("a", until=NOW + 5, a="runs")
    made.containers["a"].stop = Stop(NOW + 30)
    assert decide(made, NOW).actions == [Kill("a", 5.0)]


@pytest.mark.parametrize(
    ("state", "remove", "removed"), [("runs", True, False), (0, True, True), ("starting", True, False), (0, False, False)]
)
def test_pod_goes_when_nothing_runs_or_may_begin_to(state: Any, remove: bool, removed: bool) -> None:
    made = ending("a", remove=remove, a=state)
    assert (Remove() in decide(made, NOW).actions) is removed


def test_pod_does_not_go_while_the_provider_is_with_a_start() -> None:
    made = ending("a")
    made.containers["a"].with_provider = True
    assert decide(made, NOW).actions == []


def test_pod_that_ends_starts_nothing() -> None:
    assert starts(ending("i:x a e:d")) == ""


@pytest.mark.parametrize(
    ("kind", "grace", "policy", "message"),
    [
        (ProbeKind.LIVENESS, 7.0, "Always", "Container a failed liveness probe, will be restarted"),
        (ProbeKind.STARTUP, 30.0, "OnFailure", "Container a failed startup probe, will be restarted"),
        (ProbeKind.LIVENESS, 7.0, "Never", "Container a failed liveness probe"),
    ],
)
def test_failed_probes_end_a_run(kind: ProbeKind, grace: float, policy: str, message: str) -> None:
    probes = {"livenessProbe": {"terminationGracePeriodSeconds": 7}, "startupProbe": {"periodSeconds": 1}}
    pod = make_pod(spec={"restartPolicy": policy, "containers": [{"name": "a", **probes}]})
    made = ManagedPod(pod.ref, PodPlan.of(pod))
    made.set_plan(made.plan)
    put(made.containers["a"], "runs")
    assert decide(made, NOW).actions == []
    made.containers["a"].verdicts[kind] = False
    assert decide(made, NOW).actions == [Terminate("a", message, grace, again=policy != "Never")]
