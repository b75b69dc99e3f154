"""Whether the process of a binding runs, by its Deployment and pods."""

from __future__ import annotations

from kubeocean.manager.deployment_health import STARTING, ProcessHealth, process_health
from tests.unit.kubeocean.builders import pod, unknown
from vkubelet.api.objects import Json, Pod, Unknown

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
