"""Whether the process of a binding lives, by its Deployment and pods."""

from __future__ import annotations

from kubeocean.manager.deployment_health import STARTING, outlook
from tests.unit.kubeocean.builders import pod, unknown
from vkubelet.api.objects import Pod, Unknown
from vkubelet.api.shapes import Json

RUNNING: Json = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
OVERDUE = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]


def deployment(**status: object) -> Unknown:
    return unknown({"metadata": {"name": "kubeocean-syncer-demo", "uid": "u"}, "status": status})


def syncer(state: Json | None = None, **more: object) -> Pod:
    containers = [{"name": "syncer", "state": state, **more}] if state is not None else []
    return pod(status={"phase": "Pending", "containerStatuses": containers}, name="p", namespace="kubeocean-system")


def test_without_a_deployment_nothing_lives() -> None:
    found = outlook(None, [])
    assert not (found.exists or found.speaks) and found.failure is not None and found.failure.reason == STARTING


def test_an_available_replica_speaks_for_itself() -> None:
    found = outlook(deployment(availableReplicas=1), [])
    assert found.exists and found.available and found.speaks and found.failure is None


def test_a_container_that_runs_speaks_although_it_is_not_ready_yet() -> None:
    found = outlook(deployment(), [syncer(RUNNING)])
    assert found.speaks and not found.available


def test_one_that_runs_but_never_becomes_ready_counts_as_dead_in_the_end() -> None:
    found = outlook(deployment(conditions=OVERDUE), [syncer(RUNNING)])
    assert not found.speaks and found.failure is not None and found.failure.reason == "SyncerFailed"
    assert outlook(deployment(availableReplicas=1, conditions=OVERDUE), [syncer(RUNNING)]).speaks, "an older one still serves"


def test_the_pod_tells_why_its_container_does_not_start() -> None:
    for reason in ("ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"):
        found = outlook(deployment(), [syncer({"waiting": {"reason": reason}})])
        assert found.failure is not None and found.failure.reason == "SyncerFailed"
        assert found.failure.message == f"pod p: {reason}"


def test_a_crash_loop_tells_the_exit_code() -> None:
    crashed = syncer({"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": {"exitCode": 2}})
    failure = outlook(deployment(), [crashed]).failure
    assert failure is not None and failure.message.endswith("exit code 2")


def test_what_merely_starts_is_no_failure() -> None:
    for pods in ([], [syncer()], [syncer({"waiting": {"reason": "ContainerCreating"}})]):
        failure = outlook(deployment(), pods).failure
        assert failure is not None and failure.reason == STARTING


def test_pods_that_no_node_takes_and_replicas_that_are_refused_are_told() -> None:
    waiting = pod(status={"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]})
    failure = outlook(deployment(), [waiting]).failure
    assert failure is not None and "Unschedulable" in failure.message
    refused = [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}]
    failure = outlook(deployment(conditions=refused), []).failure
    assert failure is not None and "exceeded quota" in failure.message


def test_pods_that_have_ended_or_are_ending_do_not_speak() -> None:
    ended = pod(status={"phase": "Failed", "containerStatuses": [{"name": "syncer", "state": RUNNING}]})
    leaving = pod(
        status={"phase": "Running", "containerStatuses": [{"name": "syncer", "state": RUNNING}]}, deletionTimestamp="2026-01-01T00:00:00Z"
    )
    assert not outlook(deployment(), [ended, leaving]).speaks
