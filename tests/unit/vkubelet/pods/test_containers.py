"""Container statuses from reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from vkubelet.api.objects import Json, JsonView, PodRef
from vkubelet.pods.containers import container_statuses, ended
from vkubelet.provider import ContainerReport, PodReport, Running, Terminated, Waiting

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
REF = PodRef("default", "web", "uid", "node")


def spec(policy: str = "Always", **more: object) -> Json:
    return {"restartPolicy": policy, "containers": [{"name": "main", "image": "image"}], **more}


def report(state: Waiting | Running | Terminated, *, restarts: int = 0, last: Terminated | None = None, id: str = "") -> PodReport:
    return PodReport(REF, [ContainerReport("main", state, restarts=restarts, last=last, id=id)])


def statuses(told: PodReport | None, previous: JsonView, *, policy: str = "Always", now: datetime = NOW, **more: object) -> Json:
    return container_statuses(spec(policy), told, previous=previous, now=now, **more)  # type: ignore[arg-type]


def main(told: PodReport | None, previous: JsonView, *, policy: str = "Always", now: datetime = NOW, **more: object) -> Json:
    only: Json = statuses(told, previous, policy=policy, now=now, **more)["containerStatuses"][0]
    return only


RUNNING = statuses(report(Running()), {})
EXITED = statuses(report(Terminated(3)), {})


def test_container_nobody_spoke_of_waits_with_the_kubelets_reason() -> None:
    status = main(None, {})
    assert status["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert (status["ready"], status["started"], status["restartCount"], status["imageID"]) == (False, False, 0, "")


def test_with_init_containers_the_first_reason_is_pod_initializing() -> None:
    body = spec(initContainers=[{"name": "first", "image": "image"}])
    status = container_statuses(body, None, previous={}, now=NOW)
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"


def test_start_time_of_a_running_container_is_told_once_and_stays() -> None:
    assert RUNNING["containerStatuses"][0]["state"] == {"running": {"startedAt": "2026-01-01T12:00:00Z"}}
    assert statuses(report(Running()), RUNNING, now=LATER) == RUNNING


def test_ids_are_kept_when_a_later_report_leaves_them_out() -> None:
    told = PodReport(REF, [ContainerReport("main", Running(), id="made-up://1", image_id="image@sha256:1")])
    first = statuses(told, {})
    again = main(report(Running()), first, now=LATER)
    assert (again["containerID"], again["imageID"]) == ("made-up://1", "image@sha256:1")


def test_end_keeps_the_start_time_and_its_own_time_stays() -> None:
    status = main(report(Terminated(0)), RUNNING, now=LATER)
    times = {"startedAt": "2026-01-01T12:00:00Z", "finishedAt": "2026-01-01T13:00:00Z"}
    assert status["state"] == {"terminated": {"exitCode": 0, "reason": "Completed", **times}}
    assert main(report(Terminated(0)), {"containerStatuses": [status]}, now=LATER + timedelta(hours=1)) == status


def test_restart_moves_the_last_exit_and_starts_a_new_clock() -> None:
    status = main(report(Running(), restarts=1), EXITED, now=LATER)
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert status["state"] == {"running": {"startedAt": "2026-01-01T13:00:00Z"}}
    assert status["restartCount"] == 1


def test_crash_loop_shows_the_last_exit() -> None:
    status = main(report(Waiting("CrashLoopBackOff")), EXITED)
    assert status["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
    assert status["lastState"]["terminated"]["reason"] == "Error"


def test_restart_count_never_falls_when_the_provider_forgot_it() -> None:
    before = statuses(report(Running(), restarts=4), {})
    assert main(report(Running(), restarts=0), before)["restartCount"] == 4


@pytest.mark.parametrize(("policy", "code"), [("Never", 1), ("Never", 0), ("OnFailure", 0)])
def test_container_that_may_not_restart_stays_terminated(policy: str, code: int) -> None:
    before = statuses(report(Terminated(code)), {}, policy=policy)
    assert statuses(report(Running()), before, policy=policy) == before


def test_container_that_vanishes_while_it_ran_ended_with_137() -> None:
    status = main(PodReport(REF), RUNNING, now=LATER)
    assert status["state"]["terminated"]["exitCode"] == 137
    assert status["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert status["restartCount"] == 1


def test_vanished_container_of_a_terminating_pod_is_no_restart() -> None:
    assert main(PodReport(REF), RUNNING, terminating=True)["restartCount"] == 0


def test_without_any_report_what_is_published_stays() -> None:
    assert statuses(None, RUNNING, now=LATER) == RUNNING


def test_reason_why_a_pod_can_not_start_is_shown_until_something_ran() -> None:
    waiting = Waiting("ProviderFailed", "no machine")
    assert main(None, {}, waiting=waiting)["state"] == {"waiting": {"reason": "ProviderFailed", "message": "no machine"}}
    assert main(None, RUNNING, waiting=waiting)["state"] == RUNNING["containerStatuses"][0]["state"]


def test_termination_message_is_cut_to_its_share() -> None:
    status = main(report(Terminated(1, message="ä" * 20_000)), {})
    assert len(status["state"]["terminated"]["message"].encode()) == 12 * 1024


def test_app_statuses_are_sorted_and_init_statuses_keep_their_order() -> None:
    body = spec(initContainers=[{"name": "z"}, {"name": "a"}], containers=[{"name": "z1"}, {"name": "a1"}])
    status = container_statuses(body, None, previous={}, now=NOW)
    assert [s["name"] for s in status["initContainerStatuses"]] == ["z", "a"]
    assert [s["name"] for s in status["containerStatuses"]] == ["a1", "z1"]


def test_init_container_is_ready_when_it_succeeded() -> None:
    body = spec(initContainers=[{"name": "first"}, {"name": "side", "restartPolicy": "Always"}])
    told = PodReport(REF, [ContainerReport("first", Terminated(0)), ContainerReport("side", Running())])
    status = container_statuses(body, told, previous={}, now=NOW)
    assert [s["ready"] for s in status["initContainerStatuses"]] == [True, True]


def test_ephemeral_container_appears_when_it_is_reported() -> None:
    body = spec(ephemeralContainers=[{"name": "debug", "image": "tools"}])
    assert "ephemeralContainerStatuses" not in container_statuses(body, None, previous={}, now=NOW)
    told = PodReport(REF, [ContainerReport("debug", Running())])
    assert container_statuses(body, told, previous={}, now=NOW)["ephemeralContainerStatuses"][0]["name"] == "debug"


def test_container_id_of_the_last_run_is_not_that_of_the_next() -> None:
    before = statuses(report(Terminated(1), id="x://1"), {})
    assert before["containerStatuses"][0]["state"]["terminated"]["containerID"] == "x://1"
    after = main(report(Running(), restarts=1, id="x://2"), before)
    assert (after["containerID"], after["lastState"]["terminated"]["containerID"]) == ("x://2", "x://1")


def test_end_that_nobody_saw_is_137_and_one_that_was_seen_stays() -> None:
    assert ended(RUNNING["containerStatuses"][0], now=LATER)["state"]["terminated"]["exitCode"] == 137
    assert ended(EXITED["containerStatuses"][0], now=LATER) == EXITED["containerStatuses"][0]


def test_container_that_runs_may_not_be_started_yet() -> None:
    told = PodReport(REF, [ContainerReport("main", Running(), started=False, ready=False)])
    status = main(told, {})
    assert (status["started"], status["ready"]) == (False, False)
    assert main(report(Running()), {})["started"] is True


def test_mounts_are_those_of_the_spec_from_the_start() -> None:
    body = spec()
    token = {"name": "token", "mountPath": "/run", "readOnly": True}
    body["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data", "subPath": "x"}, token]
    wanted = [{"name": "data", "mountPath": "/data"}, {**token, "recursiveReadOnly": "Disabled"}]
    for told in (None, report(Waiting("ContainerCreating")), report(Running()), report(Terminated(0))):
        (status,) = container_statuses(body, told, previous={}, now=NOW)["containerStatuses"]
        assert status["volumeMounts"] == wanted
    assert "volumeMounts" not in main(report(Running()), {})


def test_resources_are_shown_as_they_are_told() -> None:
    told = PodReport(REF, [ContainerReport("main", Running(), resources={"requests": {"cpu": "1"}}, allocated={"cpu": "2"})])
    status = main(told, {})
    assert (status["resources"], status["allocatedResources"]) == ({"requests": {"cpu": "1"}}, {"cpu": "2"})
    assert not {"resources", "allocatedResources"} & main(report(Running()), {}).keys()
