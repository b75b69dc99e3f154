"""What is done next for a pod, in every situation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from vkubelet.api.objects import Pod
from vkubelet.clock import rfc3339
from vkubelet.pods.decisions import REPEAT, Content, PodRecord, Situation, Step, next_step
from vkubelet.pods.dispatch import DispatchMode
from vkubelet.testing.host import make_pod, with_status

WALL = datetime(2026, 1, 1, 12, tzinfo=UTC)
POD = make_pod()


def terminating(*, grace: int = 30, left: float | None = None) -> Pod:
    """Deleted so long ago that `left` seconds are left of the grace; by default just now."""
    end = WALL + timedelta(seconds=grace if left is None else left)
    return make_pod(metadata={"deletionTimestamp": rfc3339(end), "deletionGracePeriodSeconds": grace})


def record(*, may_exist: bool = True) -> PodRecord:
    return PodRecord(POD.ref, may_exist)


def step(
    of: PodRecord,
    pod: Pod | None,
    *,
    now: float = 100.0,
    mode: DispatchMode | None = DispatchMode.SYNC,
    terminal: bool | None = None,
    current: bool = False,
) -> tuple[Step, float | None]:
    terminal = (pod is not None and pod.terminal) if terminal is None else terminal
    return next_step(of, Situation(pod=pod, terminal=terminal, mode=mode, current=current), now=now)


def deleted(of: PodRecord, pod: Pod, *, now: float = 100.0) -> Pod:
    of.observe_deletion(pod, now=now, wall=WALL)
    return pod


# --- before a deletion ---


@pytest.mark.parametrize(
    ("mode", "current", "expected"),
    [
        (DispatchMode.SYNC, False, Step.SYNC),
        (DispatchMode.SYNC, True, Step.WAIT),
        (DispatchMode.HOLD, False, Step.WAIT),
        (DispatchMode.RETIRE, False, Step.WAIT),
        (None, False, Step.DROP_RECORD),
    ],
)
def test_pod_is_synced_only_on_a_declared_node_and_only_when_it_changed(mode: DispatchMode, current: bool, expected: Step) -> None:
    assert step(record(), POD, mode=mode, current=current)[0] is expected


def test_new_pods_of_a_node_that_will_be_drained_are_refused_and_others_run_on() -> None:
    for mode in (DispatchMode.REFUSE, DispatchMode.DRAIN):
        assert step(record(may_exist=False), POD, mode=mode)[0] is Step.FAIL_SHUTDOWN
    assert step(record(), POD, mode=DispatchMode.REFUSE)[0] is Step.WAIT
    assert step(record(), POD, mode=DispatchMode.DRAIN)[0] is Step.TERMINATE


def test_terminal_and_rejected_pods_are_not_synced() -> None:
    assert step(record(), with_status(POD, {"phase": "Failed"}))[0] is Step.WAIT
    rejected = record()
    rejected.made_terminal = True
    assert step(rejected, POD)[0] is Step.WAIT


def test_pod_that_the_backend_lost_is_not_synced_again() -> None:
    lost = record()
    lost.missing = True
    assert step(lost, POD)[0] is Step.FAIL_LOST
    assert step(lost, with_status(POD, {"phase": "Succeeded"}))[0] is Step.WAIT


# --- graceful deletion ---


def test_provider_is_called_with_the_whole_grace_once_and_then_with_zero_repeatedly() -> None:
    ending = record()
    ending.seen_undeleted = True
    pod = deleted(ending, terminating())
    assert step(ending, pod) == (Step.TERMINATE, 30.0)
    ending.sent_deadline = 130.0
    assert step(ending, pod, now=110.0) == (Step.WAIT, 20.0)
    assert step(ending, pod, now=130.0) == (Step.TERMINATE, 0.0)
    ending.forced_at = 130.0
    assert step(ending, pod, now=131.0) == (Step.WAIT, REPEAT - 1.0)
    assert step(ending, pod, now=130.0 + REPEAT) == (Step.TERMINATE, 0.0)


def test_shorter_grace_is_told_again_and_a_longer_one_is_not() -> None:
    ending = record()
    ending.seen_undeleted = True
    deleted(ending, terminating(grace=30))
    ending.sent_deadline = 130.0
    shorter = deleted(ending, terminating(grace=10), now=105.0)
    assert step(ending, shorter, now=105.0) == (Step.TERMINATE, 5.0)
    ending.sent_deadline = 110.0
    assert step(ending, deleted(ending, terminating(grace=30), now=106.0), now=106.0) == (Step.WAIT, 4.0)


def test_wrong_clock_does_not_shorten_the_grace_of_a_deletion_that_we_saw() -> None:
    ending = record()
    ending.seen_undeleted = True
    assert step(ending, deleted(ending, terminating(left=-3600))) == (Step.TERMINATE, 30.0)


@pytest.mark.parametrize(("left", "grace"), [(12.0, 12.0), (-5.0, 0.0), (3600.0, 30.0)])
def test_deletion_found_at_start_gets_what_is_left_of_its_grace(left: float, grace: float) -> None:
    ending = record()
    assert step(ending, deleted(ending, terminating(left=left))) == (Step.TERMINATE, grace)


def test_object_is_removed_after_the_end_was_reported() -> None:
    ending = record()
    pod = deleted(ending, terminating())
    ending.missing = True
    assert step(ending, pod)[0] is Step.DELETE_OBJECT


def test_terminal_status_removes_the_object_only_after_the_provider_was_told() -> None:
    ending = record()
    pod = with_status(deleted(ending, terminating()), {"phase": "Succeeded"})
    assert step(ending, pod)[0] is Step.TERMINATE
    ending.sent_deadline = 130.0
    assert step(ending, pod)[0] is Step.DELETE_OBJECT


def test_pod_that_was_never_handed_over_is_removed_without_asking_the_provider() -> None:
    new = record(may_exist=False)
    assert step(new, deleted(new, terminating()))[0] is Step.DELETE_OBJECT


def test_finalizer_keeps_the_object_and_nothing_loops() -> None:
    ending = record()
    pod = deleted(ending, terminating())
    ending.missing = ending.object_deleted = True
    assert step(ending, pod) == (Step.WAIT, None)


def test_deletion_waits_until_the_node_is_declared_and_continues_while_it_retires() -> None:
    ending = record()
    pod = deleted(ending, terminating())
    assert step(ending, pod, mode=DispatchMode.HOLD) == (Step.WAIT, None)
    assert step(ending, pod, mode=DispatchMode.RETIRE)[0] is Step.TERMINATE


# --- the object is gone ---


def test_force_delete_tells_the_provider_zero_until_the_pod_is_gone() -> None:
    ending = record()
    ending.shorten_deadline(100.0)
    assert step(ending, None) == (Step.TERMINATE, 0.0)
    ending.forced_at = 100.0
    assert step(ending, None, now=101.0)[0] is Step.WAIT
    ending.missing = True
    assert step(ending, None)[0] is Step.DROP_RECORD


def test_object_that_we_removed_leaves_the_provider_the_rest_of_the_grace() -> None:
    ending = record()
    ending.seen_undeleted = True
    deleted(ending, terminating())
    ending.sent_deadline, ending.object_deleted = 130.0, True
    assert step(ending, None, now=101.0) == (Step.WAIT, 29.0)


def test_pod_missing_in_a_list_is_confirmed_before_anything_is_ended() -> None:
    missing = record()
    missing.suspected = True
    assert step(missing, None)[0] is Step.CONFIRM


def test_nothing_is_ended_for_a_pod_that_was_never_handed_over() -> None:
    assert step(record(may_exist=False), None)[0] is Step.DROP_RECORD


def test_workload_of_an_undeclared_node_waits() -> None:
    assert step(record(), None, mode=DispatchMode.HOLD)[0] is Step.WAIT


# --- what makes a sync necessary ---


def test_status_is_no_content_but_spec_labels_and_annotations_are() -> None:
    synced = Content.of(POD)
    assert Content.of(with_status(POD, {"phase": "Running"})).same_as(synced, ours={})
    for changed in (
        make_pod(metadata={"labels": {"a": "b"}}),
        make_pod(metadata={"annotations": {"a": "b"}}),
        make_pod(spec={"activeDeadlineSeconds": 5}),
    ):
        assert not Content.of(changed).same_as(synced, ours={})


def test_annotation_written_by_us_is_no_change_and_an_edit_of_it_is_one() -> None:
    synced = Content.of(POD)
    assert Content.of(make_pod(metadata={"annotations": {"ours": "1"}})).same_as(synced, ours={"ours": "1"})
    assert not Content.of(make_pod(metadata={"annotations": {"ours": "2"}})).same_as(synced, ours={"ours": "1"})


def test_repeated_termination_is_due_in_spite_of_rounding() -> None:
    ending = record()
    ending.deadline = ending.forced_at = 10.473000000000003
    assert step(ending, None, now=ending.forced_at + REPEAT) == (Step.TERMINATE, 0.0)
