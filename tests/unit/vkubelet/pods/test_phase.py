"""Phase and conditions, state by state."""

from __future__ import annotations

import pytest

from vkubelet.api.objects import Json, JsonView
from vkubelet.pods.phase import by_name, pod_conditions, pod_phase

RUNNING: Json = {"state": {"running": {}}, "ready": True, "started": True}
UNREADY: Json = {"state": {"running": {}}, "ready": False, "started": True}
WAITING: Json = {"state": {"waiting": {}}, "ready": False, "started": False}
ABSENT: Json = {}


def exited(code: int) -> Json:
    return {"state": {"terminated": {"exitCode": code}}, "ready": False, "started": False}


def crashed(code: int) -> Json:
    return {"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": code}}, "ready": False, "started": False}


def spec(policy: str, *, init: int = 0, sidecars: int = 0, apps: int = 1, gates: tuple[str, ...] = ()) -> Json:
    starting = [{"name": f"init{n}"} for n in range(init)] + [{"name": f"side{n}", "restartPolicy": "Always"} for n in range(sidecars)]
    body: Json = {"restartPolicy": policy, "initContainers": starting, "containers": [{"name": f"app{n}"} for n in range(apps)]}
    body["readinessGates"] = [{"conditionType": gate} for gate in gates]
    return body


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        ("Always", [WAITING], "Pending"),
        ("Always", [ABSENT], "Pending"),
        ("Always", [RUNNING], "Running"),
        ("Always", [RUNNING, WAITING], "Pending"),
        ("Always", [RUNNING, exited(1)], "Running"),
        ("Always", [RUNNING, crashed(1)], "Running"),
        ("Always", [exited(0)], "Running"),
        ("Always", [exited(1)], "Running"),
        ("Always", [crashed(1)], "Running"),
        ("OnFailure", [exited(0)], "Succeeded"),
        ("OnFailure", [exited(0), exited(1)], "Running"),
        ("OnFailure", [crashed(1)], "Running"),
        ("Never", [exited(0)], "Succeeded"),
        ("Never", [exited(0), exited(1)], "Failed"),
        ("Never", [exited(0), RUNNING], "Running"),
        ("Never", [exited(1), ABSENT], "Pending"),
    ],
)
def test_phase_without_init_containers(policy: str, states: list[Json], phase: str) -> None:
    statuses = {f"app{n}": state for n, state in enumerate(states)}
    assert pod_phase(spec(policy, apps=len(states)), statuses, terminating=False) == phase


@pytest.mark.parametrize(
    ("policy", "init", "app", "phase"),
    [
        ("Always", RUNNING, WAITING, "Pending"),
        ("Always", WAITING, WAITING, "Pending"),
        ("Always", exited(1), WAITING, "Pending"),
        ("Always", crashed(1), WAITING, "Pending"),
        ("OnFailure", exited(1), WAITING, "Pending"),
        ("Never", exited(1), WAITING, "Failed"),
        ("Never", crashed(1), WAITING, "Failed"),
        ("Never", exited(0), WAITING, "Pending"),
        ("Never", exited(0), RUNNING, "Running"),
        ("Never", exited(0), exited(0), "Succeeded"),
        ("Always", ABSENT, RUNNING, "Running"),
    ],
)
def test_phase_with_an_init_container(policy: str, init: Json, app: Json, phase: str) -> None:
    assert pod_phase(spec(policy, init=1), {"init0": init, "app0": app}, terminating=False) == phase


@pytest.mark.parametrize(
    ("side", "app", "phase"),
    [
        ({**RUNNING, "started": False}, WAITING, "Pending"),
        ({**RUNNING, "started": False}, RUNNING, "Running"),
        (RUNNING, RUNNING, "Running"),
        (RUNNING, exited(0), "Running"),
        (exited(137), exited(0), "Succeeded"),
        (exited(1), exited(1), "Failed"),
    ],
)
def test_sidecar_counts_only_while_it_runs(side: Json, app: Json, phase: str) -> None:
    assert pod_phase(spec("Never", sidecars=1), {"side0": side, "app0": app}, terminating=False) == phase


@pytest.mark.parametrize(
    ("state", "phase"), [(exited(0), "Succeeded"), (exited(137), "Failed"), (crashed(1), "Failed"), (RUNNING, "Running")]
)
def test_pod_that_is_torn_down_is_not_restarted(state: Json, phase: str) -> None:
    assert pod_phase(spec("Always"), {"app0": state}, terminating=True) == phase


def conditions(body: JsonView, phase: str, *, foreign: tuple[Json, ...] = (), address: bool = True, **states: Json) -> dict[str, Json]:
    named = [{"name": name, **state} for name, state in states.items()]
    starting = [status for status in named if not status["name"].startswith("app")]
    apps = [status for status in named if status["name"].startswith("app")]
    status = {"phase": phase, "initContainerStatuses": starting, "containerStatuses": apps}
    return {c["type"]: c for c in pod_conditions(body, status, foreign=foreign, has_address=address)}


def test_all_five_conditions_are_true_for_a_running_pod() -> None:
    found = conditions(spec("Always"), "Running", app0=RUNNING)
    assert {kind: c["status"] for kind, c in found.items()} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }


def test_unready_containers_are_named() -> None:
    found = conditions(spec("Always", apps=3), "Running", app0=RUNNING, app1=UNREADY, address=False)
    for kind in ("Ready", "ContainersReady"):
        assert found[kind]["reason"] == "ContainersNotReady"
        assert found[kind]["message"] == "containers with unknown status: [app2], containers with unready status: [app1]"


def test_pod_without_address_and_containers_is_not_ready_to_start_containers() -> None:
    assert conditions(spec("Always"), "Pending", app0=WAITING, address=False)["PodReadyToStartContainers"]["status"] == "False"


def test_open_init_containers_are_named() -> None:
    found = conditions(spec("Always", init=2, sidecars=1), "Pending", init0={**exited(0), "ready": True}, init1=RUNNING, app0=WAITING)
    assert found["Initialized"]["reason"] == "ContainersNotInitialized"
    assert found["Initialized"]["message"] == "containers with incomplete status: [init1 side0]"


@pytest.mark.parametrize(("phase", "reason"), [("Succeeded", "PodCompleted"), ("Failed", "PodFailed")])
def test_terminal_pod_is_never_ready(phase: str, reason: str) -> None:
    found = conditions(spec("Never"), phase, app0=RUNNING)
    for kind in ("Ready", "ContainersReady"):
        assert (found[kind]["status"], found[kind]["reason"]) == ("False", reason)
    assert found["PodReadyToStartContainers"]["status"] == "False"


def test_readiness_gate_holds_ready_back_until_its_condition_is_true() -> None:
    body = spec("Always", gates=("a/b",))
    missing = conditions(body, "Running", app0=RUNNING)
    assert (missing["Ready"]["status"], missing["Ready"]["reason"]) == ("False", "ReadinessGatesNotReady")
    assert 'gate "a/b" does not exist' in missing["Ready"]["message"]
    assert missing["ContainersReady"]["status"] == "True"
    closed = conditions(body, "Running", foreign=({"type": "a/b", "status": "False"},), app0=RUNNING)
    assert 'is not "True", but False' in closed["Ready"]["message"]
    assert conditions(body, "Running", foreign=({"type": "a/b", "status": "True"},), app0=RUNNING)["Ready"]["status"] == "True"


def test_statuses_of_all_lists_are_found_by_name() -> None:
    assert set(by_name({"initContainerStatuses": [{"name": "a"}], "ephemeralContainerStatuses": [{"name": "b"}]})) == {"a", "b"}
