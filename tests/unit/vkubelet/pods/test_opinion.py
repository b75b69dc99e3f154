"""What is thought of one pod."""

from __future__ import annotations

from datetime import UTC, datetime

from vkubelet.api.shapes import Json
from vkubelet.pods.opinion import Opinion, gates, wanted_status
from vkubelet.pods.status import End
from vkubelet.provider import ContainerReport, PodFailure, PodReport, Running, Terminated, Waiting, all_running
from vkubelet.testing.host import make_pod, with_status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POD = make_pod()
RUNNING: Json = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}, {"type": "Mine", "status": "True"}]}


def test_nobody_has_an_opinion_of_a_pod_that_was_only_synced() -> None:
    assert wanted_status(POD, Opinion(generation=1), now=NOW) is None


def test_terminal_pod_is_left_alone_whatever_is_said() -> None:
    done = with_status(POD, {"phase": "Succeeded"})
    assert wanted_status(done, Opinion().reported(all_running(POD)), now=NOW) is None
    assert wanted_status(done, Opinion(end=End("X", failed=True)), now=NOW) is None


def test_latest_word_of_the_provider_wins() -> None:
    opinion = Opinion().adopted({"phase": "Failed"}, None).reported(all_running(POD))
    status = wanted_status(POD, opinion, now=NOW)
    assert status is not None and status["phase"] == "Running"
    status = wanted_status(POD, opinion.adopted({"phase": "Failed"}, None), now=NOW)
    assert status is not None and status["phase"] == "Failed"


def test_word_of_the_provider_ends_the_reason_why_the_pod_waited() -> None:
    assert Opinion(waiting=Waiting("ProviderFailed")).reported(all_running(POD)).waiting is None


def test_equal_status_is_the_same_opinion() -> None:
    opinion = Opinion().adopted(RUNNING, {"a": "b"})
    assert opinion.adopted(dict(RUNNING), {"a": "b"}) is opinion
    assert opinion.adopted(dict(RUNNING), None) is opinion
    assert opinion.adopted(dict(RUNNING), {"c": "d"}).annotations == {"a": "b", "c": "d"}


def test_conditions_that_the_provider_dropped_are_remembered_until_it_sets_them_again() -> None:
    opinion = Opinion().adopted(RUNNING, None)
    without = opinion.adopted({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, None)
    assert without.dropped == {"Mine"}
    assert without.adopted(RUNNING, None).dropped == frozenset()


def test_end_is_not_taken_back_by_a_later_report() -> None:
    opinion = Opinion(end=End("ProviderLost", "gone", failed=True)).reported(all_running(POD))
    status = wanted_status(POD, opinion, now=NOW)
    assert status is not None and (status["phase"], status["reason"]) == ("Failed", "ProviderLost")


def test_provider_that_said_how_the_pod_ended_is_believed() -> None:
    opinion = Opinion(end=End()).adopted({"phase": "Succeeded", "reason": "Done"}, None)
    status = wanted_status(POD, opinion, now=NOW)
    assert status is not None and (status["phase"], status["reason"]) == ("Succeeded", "Done")


def test_only_what_may_end_a_pod_is_urgent() -> None:
    ended = ContainerReport("main", Terminated(0))
    assert Opinion().reported(PodReport(POD.ref, [ended])).urgent
    assert not Opinion().reported(PodReport(POD.ref, [ended, ContainerReport("other", Running())])).urgent
    assert not Opinion().reported(PodReport(POD.ref)).urgent
    assert Opinion().adopted({"phase": "Failed"}, None).urgent
    assert not Opinion().adopted(RUNNING, None).urgent
    assert Opinion(end=End()).urgent


def test_gates_are_the_conditions_of_others() -> None:
    pod = with_status(POD, {"conditions": [{"type": "Ready", "status": "True"}, {"type": "a/b", "status": "False"}]})
    assert gates(pod) == [("a/b", "False")]


def test_pod_that_failed_as_a_whole_has_failed_however_its_containers_ended() -> None:
    never = make_pod(spec={"restartPolicy": "Never", "containers": [{"name": "main"}]})
    late = PodFailure("DeadlineExceeded", "too long")
    status = wanted_status(never, Opinion().reported(PodReport(never.ref, [ContainerReport("main", Terminated(0))], failure=late)), now=NOW)
    assert status is not None and (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert {c["type"]: c.get("reason", "") for c in status["conditions"]} == {
        "PodReadyToStartContainers": "",
        "Initialized": "",
        "Ready": "PodFailed",
        "ContainersReady": "PodFailed",
        "PodScheduled": "",
    }
