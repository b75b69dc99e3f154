"""When the end of a physical pod is its own, and what is said while the worker can not be asked."""

from __future__ import annotations

from typing import Any

from kubeocean.pods.physical import ended_by_itself, not_ready
from tests.unit.kubeocean.builders import pod
from vkubelet.api.conditions import get_condition
from vkubelet.api.objects import Pod

DELETED: dict[str, Any] = {"deletionTimestamp": "2026-01-05T09:00:30Z", "deletionGracePeriodSeconds": 30}
"""Asked for at nine o'clock."""


def finished(at: str, **metadata: Any) -> Pod:
    state = {"terminated": {"exitCode": 0, "finishedAt": at}}
    spec = {"terminationGracePeriodSeconds": 30}
    return pod(spec, status={"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": state}]}, **metadata)


def test_a_pod_that_nobody_deleted_ended_by_itself() -> None:
    assert ended_by_itself(finished("2026-01-05T08:00:00Z"))


def test_a_pod_that_ended_before_it_was_deleted_ended_by_itself() -> None:
    assert ended_by_itself(finished("2026-01-05T08:59:59Z", **DELETED))


def test_a_pod_that_ended_after_it_was_deleted_was_killed() -> None:
    assert not ended_by_itself(finished("2026-01-05T09:00:02Z", **DELETED))


def test_a_pod_that_ended_in_the_second_of_its_deletion_counts_as_killed() -> None:
    assert not ended_by_itself(finished("2026-01-05T09:00:00Z", **DELETED))


def test_the_last_call_of_the_kubelet_sets_the_grace_to_zero_and_the_pod_still_counts_as_killed() -> None:
    assert not ended_by_itself(finished("2026-01-05T09:00:02Z", **DELETED | {"deletionGracePeriodSeconds": 0}))


def test_while_the_worker_is_lost_a_pod_is_not_ready_and_otherwise_as_last_seen() -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}, {"type": "UsersOwn", "status": "True"}]
    status = not_ready(pod(status={"phase": "Running", "podIP": "10.0.0.9", "conditions": conditions}), "no answer")
    assert (status["phase"], status["podIP"]) == ("Running", "10.0.0.9")
    ready = get_condition(status["conditions"], "Ready")
    assert ready is not None and (ready["status"], ready["reason"]) == ("False", "WorkerUnreachable")
    assert get_condition(status["conditions"], "UsersOwn") is None, "it would count as ours and be removed with it"
