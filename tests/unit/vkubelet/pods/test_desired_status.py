"""What is thought of one pod."""

from __future__ import annotations

from datetime import UTC, datetime

from vkubelet.api.objects import Json
from vkubelet.pods.desired_status import StatusInputs, desired_status, gates
from vkubelet.pods.status import End
from vkubelet.provider import ContainerReport, PodFailure, PodReport, Running, Terminated, Waiting, all_running
from vkubelet.testing.host import make_pod, with_status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POD = make_pod()
RUNNING: Json = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}, {"type": "Mine", "status": "True"}]}


def test_nobody_has_an_opinion_of_a_pod_that_was_only_synced() -> None:
    assert desired_status(POD, StatusInputs(generation=1), now=NOW) is None


def test_terminal_pod_is_left_alone_whatever_is_said() -> None:
    done = with_status(POD, {"phase": "Succeeded"})
    assert desired_status(done, StatusInputs().with_report(all_running(POD)), now=NOW) is None
    assert desired_status(done, StatusInputs(end=End("X", failed=True)), now=NOW) is None


def test_latest_word_of_the_provider_wins() -> None:
    inputs = StatusInputs().with_status({"phase": "Failed"}, None).with_report(all_running(POD))
    status = desired_status(POD, inputs, now=NOW)
    assert status is not None and status["phase"] == "Running"
    status = desired_status(POD, inputs.with_status({"phase": "Failed"}, None), now=NOW)
    assert status is not None and status["phase"] == "Failed"


def test_word_of_the_provider_ends_the_reason_why_the_pod_waited() -> None:
    assert StatusInputs(waiting=Waiting("ProviderFailed")).with_report(all_running(POD)).waiting is None


def test_equal_status_is_the_same_opinion() -> None:
    inputs = StatusInputs().with_status(RUNNING, {"a": "b"})
    assert inputs.with_status(dict(RUNNING), {"a": "b"}) is inputs
    assert inputs.with_status(dict(RUNNING), None) is inputs
    assert inputs.with_status(dict(RUNNING), {"c": "d"}).annotations == {"a": "b", "c": "d"}


def test_conditions_that_the_provider_dropped_are_kept_until_it_sets_them_again() -> None:
    inputs = StatusInputs().with_status(RUNNING, None)
    without = inputs.with_status({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, None)
    assert without.dropped == {"Mine"}
    assert without.with_status(RUNNING, None).dropped == frozenset()


def test_end_is_not_taken_back_by_a_later_report() -> None:
    inputs = StatusInputs(end=End("ProviderLost", "gone", failed=True)).with_report(all_running(POD))
    status = desired_status(POD, inputs, now=NOW)
    assert status is not None and (status["phase"], status["reason"]) == ("Failed", "ProviderLost")


def test_provider_that_said_how_the_pod_ended_is_believed() -> None:
    inputs = StatusInputs(end=End()).with_status({"phase": "Succeeded", "reason": "Done"}, None)
    status = desired_status(POD, inputs, now=NOW)
    assert status is not None and (status["phase"], status["reason"]) == ("Succeeded", "Done")


def test_only_what_may_end_a_pod_is_urgent() -> None:
    ended = ContainerReport("main", Terminated(0))
    assert StatusInputs().with_report(PodReport(POD.ref, [ended])).urgent
    assert not StatusInputs().with_report(PodReport(POD.ref, [ended, ContainerReport("other", Running())])).urgent
    assert not StatusInputs().with_report(PodReport(POD.ref)).urgent
    assert StatusInputs().with_status({"phase": "Failed"}, None).urgent
    assert not StatusInputs().with_status(RUNNING, None).urgent
    assert StatusInputs(end=End()).urgent


def test_gates_are_the_conditions_of_others() -> None:
    pod = with_status(POD, {"conditions": [{"type": "Ready", "status": "True"}, {"type": "a/b", "status": "False"}]})
    assert gates(pod) == [("a/b", "False")]


def test_pod_that_failed_as_a_whole_has_failed_however_its_containers_ended() -> None:
    never = make_pod(spec={"restartPolicy": "Never", "containers": [{"name": "main"}]})
    late = PodFailure("DeadlineExceeded", "too long")
    status = desired_status(
        never, StatusInputs().with_report(PodReport(never.ref, [ContainerReport("main", Terminated(0))], failure=late)), now=NOW
    )
    assert status is not None and (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert {c["type"]: c.get("reason", "") for c in status["conditions"]} == {
        "PodReadyToStartContainers": "",
        "Initialized": "",
        "Ready": "PodFailed",
        "ContainersReady": "PodFailed",
        "PodScheduled": "",
    }
