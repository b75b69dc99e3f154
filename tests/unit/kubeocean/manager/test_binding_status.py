"""Whether the process of a binding runs, what the manager writes of the binding, and what it leaves to the process."""

from __future__ import annotations

from typing import Any

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, VALIDATION_FAILED, Failure
from kubeocean.manager.binding_status import (
    STARTING,
    ProcessHealth,
    first_status,
    process_health,
    rights_text,
    status_patch,
)
from kubeocean.manager.binding_status import (
    ObservedBinding as Seen,
)
from tests.unit.kubeocean.builders import at, pod, unknown
from vkubelet.api.objects import Json, Pod, Unknown
from vkubelet.api.rbac import Check

NOW, LATER = at("2026-01-05 09:00"), at("2026-01-05 10:00")
STARTS = Failure(STARTING, "starts")


def check(verb: str, *, essential: bool = True) -> Check:
    return Check(group="", resource="pods", subresource="", verb=verb, namespace="mnt", essential=essential)


def patched(view: Seen, status: Json | None = None, **more: Any) -> Json:
    """The status after the patch."""
    options: Json = {"generation": 1, "now": NOW, "serving": True, **more}
    change = status_patch(status or {}, view, **options)
    return {**(status or {}), **(change or {}).get("status", {})}


def told(status: Json) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def test_first_words_are_pending_and_initializing() -> None:
    status = first_status(generation=3, now=NOW)["status"]
    assert status["phase"] == "Pending" and told(status) == {"Ready": ("False", "Initializing")}
    assert status["conditions"][0]["observedGeneration"] == 3


def test_a_message_has_at_most_the_characters_that_the_definition_permits() -> None:
    status = patched(Seen(problem=Failure(VALIDATION_FAILED, "x" * 40_000), connected=True, syncer=STARTS))
    assert max(len(each["message"]) for each in status["conditions"]) == 32_768


def test_an_unreachable_worker_is_failed_and_not_stalled() -> None:
    status = patched(Seen(problem=Failure(CONNECTIVITY_FAILED, "silent"), connected=False, syncer=STARTS))
    assert status["phase"] == "Failed" and "Stalled" not in told(status)
    assert told(status)["Ready"] == told(status)["Connected"] == ("False", CONNECTIVITY_FAILED)


def test_a_wrong_binding_is_failed_and_stalled_and_no_more_when_it_is_mended() -> None:
    status = patched(Seen(problem=Failure(VALIDATION_FAILED, "wrong"), syncer=STARTS))
    assert status["phase"] == "Failed" and told(status)["Stalled"] == ("True", VALIDATION_FAILED)
    assert told(status)["Ready"] == ("False", VALIDATION_FAILED) and told(status)["Connected"][0] == "Unknown"
    mended = patched(Seen(connected=True, missing=(), syncer=STARTS), status)
    assert told(mended)["Stalled"][0] == "False" and mended["phase"] == "Pending"


def test_a_process_that_starts_is_pending_and_one_that_can_not_is_failed() -> None:
    assert patched(Seen(connected=True, missing=(), syncer=STARTS))["phase"] == "Pending"
    failed = patched(Seen(connected=True, missing=(), syncer=Failure("SyncerFailed", "ImagePullBackOff")))
    assert failed["phase"] == "Failed"
    assert {told(failed)[kind] for kind in ("Ready", "SyncerReady", "ProxierReady")} == {("False", "SyncerFailed")}
    assert told(failed)["Connected"] == ("True", "ConnectivityPassed")


def test_what_the_process_tells_is_left_to_it_while_it_speaks() -> None:
    theirs: Json = {"phase": "Ready", "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "y"}]}
    view = Seen(problem=Failure(CONNECTIVITY_FAILED, "silent"), connected=False, missing=(), syncer=None)
    status = patched(view, theirs, serving=False)
    assert status["phase"] == "Ready" and told(status)["Ready"] == ("True", "x")
    assert told(status)["Permitted"] == ("True", "RightsGranted") and status["observedGeneration"] == 1


def test_equal_views_write_nothing_and_flips_alone_move_the_time() -> None:
    view = Seen(connected=True, missing=(), syncer=STARTS)
    status = patched(view)
    assert status_patch(status, view, generation=1, now=LATER, serving=True) is None
    again = patched(Seen(connected=True, missing=(), syncer=Failure(STARTING, "other words")), status, now=LATER)
    assert {each["lastTransitionTime"] for each in again["conditions"]} == {"2026-01-05T09:00:00Z"}
    flipped = patched(Seen(problem=Failure(CONNECTIVITY_FAILED, "silent"), connected=False, missing=(), syncer=STARTS), status, now=LATER)
    moved = {each["type"] for each in flipped["conditions"] if each["lastTransitionTime"] == "2026-01-05T10:00:00Z"}
    assert moved == {"Connected"}


def test_missing_rights_are_named_essential_first_and_counted_when_there_are_many() -> None:
    text = rights_text([check("list", essential=False), check("create")])
    assert "may not create pods in namespace mnt, list pods in namespace mnt in the worker cluster; grant these" in text
    assert "and 8 more" in rights_text([check(f"verb{at}") for at in range(20)])


def test_rights_that_could_not_be_asked_for_stay_as_they_were_told() -> None:
    status = patched(Seen(connected=True, missing=(check("create"),), syncer=STARTS))
    assert told(status)["Permitted"] == ("False", "RightsMissing")
    lost = patched(Seen(problem=Failure(CONNECTIVITY_FAILED, "silent"), connected=False, syncer=STARTS), status)
    assert told(lost)["Permitted"] == ("False", "RightsMissing")


def test_what_the_worker_does_not_refuse_is_named_in_a_condition_until_it_does() -> None:
    gains = ["lease more than its policies allow", "create pods with any priority"]
    open_ = patched(Seen(connected=True, missing=(), unguarded=gains, syncer=STARTS))
    assert told(open_)["Guarded"] == ("False", "NotRefused")
    message = next(each["message"] for each in open_["conditions"] if each["type"] == "Guarded")
    assert all(gain in message for gain in gains) and "install the admission policies" in message
    unknown_now = patched(Seen(connected=True, missing=(), syncer=STARTS), open_)
    assert told(unknown_now)["Guarded"] == ("False", "NotRefused"), "a trial that could not be made changes nothing"
    assert told(patched(Seen(connected=True, missing=(), unguarded=(), syncer=STARTS), open_))["Guarded"] == ("True", "Refused")
    assert "Guarded" not in told(patched(Seen(connected=True, missing=(), syncer=STARTS)))


RUNNING: Json = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
OVERDUE = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]


def deployment(**status: object) -> Unknown:
    return unknown({"metadata": {"name": "kubeocean-syncer-demo", "uid": "u"}, "status": status})


def syncer(state: Json | None = None, **more: object) -> Pod:
    containers = [{"name": "syncer", "state": state, **more}] if state is not None else []
    return pod(status={"phase": "Pending", "containerStatuses": containers}, name="p", namespace="kubeocean-system")


def health_of(found: Unknown | None, pods: list[Pod]) -> ProcessHealth:
    return process_health("kubeocean-syncer-demo", found, pods)


def test_without_a_deployment_no_process_runs() -> None:
    found = health_of(None, [])
    assert not (found.exists or found.reports) and found.failure is not None and found.failure.reason == STARTING


def test_an_available_replica_reports_for_itself() -> None:
    found = health_of(deployment(availableReplicas=1), [])
    assert found.exists and found.available and found.reports and found.failure is None


def test_a_running_container_reports_although_it_is_not_ready_yet() -> None:
    found = health_of(deployment(), [syncer(RUNNING)])
    assert found.reports and not found.available


def test_one_that_runs_but_never_becomes_ready_counts_as_dead_in_the_end() -> None:
    found = health_of(deployment(conditions=OVERDUE), [syncer(RUNNING)])
    assert not found.reports and found.failure is not None and found.failure.reason == "SyncerFailed"
    assert health_of(deployment(availableReplicas=1, conditions=OVERDUE), [syncer(RUNNING)]).reports, "an older one still serves"


def test_the_pod_tells_why_its_container_does_not_start() -> None:
    for reason in ("ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"):
        found = health_of(deployment(), [syncer({"waiting": {"reason": reason}})])
        assert found.failure is not None and found.failure.reason == "SyncerFailed"
        assert found.failure.message == f"Pod p: {reason}"


def test_a_crash_loop_tells_the_exit_code() -> None:
    crashed = syncer({"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": {"exitCode": 2}})
    failure = health_of(deployment(), [crashed]).failure
    assert failure is not None and failure.message.endswith("exit code 2")


def test_what_merely_starts_is_no_failure() -> None:
    for pods in ([], [syncer()], [syncer({"waiting": {"reason": "ContainerCreating"}})]):
        failure = health_of(deployment(), pods).failure
        assert failure is not None and failure.reason == STARTING


def test_unschedulable_pods_and_refused_replicas_are_named() -> None:
    waiting = pod(status={"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]})
    failure = health_of(deployment(), [waiting]).failure
    assert failure is not None and "Unschedulable" in failure.message
    refused = [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}]
    failure = health_of(deployment(conditions=refused), []).failure
    assert failure is not None and "exceeded quota" in failure.message


def test_pods_that_have_ended_or_are_ending_do_not_report() -> None:
    ended = pod(status={"phase": "Failed", "containerStatuses": [{"name": "syncer", "state": RUNNING}]})
    leaving = pod(
        status={"phase": "Running", "containerStatuses": [{"name": "syncer", "state": RUNNING}]}, deletionTimestamp="2026-01-01T00:00:00Z"
    )
    assert not health_of(deployment(), [ended, leaving]).reports
