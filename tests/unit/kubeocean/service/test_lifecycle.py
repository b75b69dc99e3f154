"""The stages of a binding, as a table, and how what remains of it is compared and rendered."""

from __future__ import annotations

import pytest

from kubeocean.service.lifecycle import Awaited, BindingLifecycle, Done, Observed, Remaining, Stage, after, blocked, message, observed

SERVED = Observed("a")
WAITS = Observed("a", deleted=True, waits=True)
RELEASED = Observed("a", deleted=True)
SUCCESSOR = Observed("b")
DELETED_SUCCESSOR = Observed("b", deleted=True, waits=True)

TRANSITIONS: list[tuple[Stage, Observed | Done, Stage]] = [
    (Stage.SERVING, SERVED, Stage.SERVING),
    (Stage.SERVING, WAITS, Stage.UNBINDING),
    (Stage.SERVING, RELEASED, Stage.LEFT),
    (Stage.SERVING, SUCCESSOR, Stage.SERVING),
    (Stage.SERVING, DELETED_SUCCESSOR, Stage.UNBINDING),
    (Stage.SERVING, Done.GAVE_UP, Stage.SERVING),
    (Stage.SERVING, Done.UNDID, Stage.SERVING),
    (Stage.UNBINDING, WAITS, Stage.UNBINDING),
    (Stage.UNBINDING, RELEASED, Stage.LEFT),
    (Stage.UNBINDING, SUCCESSOR, Stage.SERVING),
    (Stage.UNBINDING, DELETED_SUCCESSOR, Stage.UNBINDING),
    (Stage.UNBINDING, Done.GAVE_UP, Stage.GIVEN_UP),
    (Stage.UNBINDING, Done.UNDID, Stage.UNDONE),
    (Stage.GIVEN_UP, WAITS, Stage.GIVEN_UP),
    (Stage.GIVEN_UP, RELEASED, Stage.UNDONE),
    (Stage.GIVEN_UP, SUCCESSOR, Stage.SERVING),
    # Another binding was not given up, only because one of the same name was.
    (Stage.GIVEN_UP, DELETED_SUCCESSOR, Stage.UNBINDING),
    (Stage.GIVEN_UP, Done.GAVE_UP, Stage.GIVEN_UP),
    (Stage.GIVEN_UP, Done.UNDID, Stage.UNDONE),
    # The cache may still have the finalizer that was just removed.
    (Stage.UNDONE, WAITS, Stage.UNDONE),
    (Stage.UNDONE, RELEASED, Stage.UNDONE),
    (Stage.UNDONE, SUCCESSOR, Stage.SERVING),
    (Stage.UNDONE, DELETED_SUCCESSOR, Stage.UNBINDING),
    (Stage.UNDONE, Done.GAVE_UP, Stage.UNDONE),
    (Stage.UNDONE, Done.UNDID, Stage.UNDONE),
    (Stage.LEFT, WAITS, Stage.UNBINDING),
    (Stage.LEFT, RELEASED, Stage.LEFT),
    (Stage.LEFT, SUCCESSOR, Stage.SERVING),
    (Stage.LEFT, DELETED_SUCCESSOR, Stage.UNBINDING),
    (Stage.LEFT, Done.GAVE_UP, Stage.UNDONE),
    # The finalizer of the last step is removed before the step has returned.
    (Stage.LEFT, Done.UNDID, Stage.UNDONE),
]


@pytest.mark.parametrize(("stage", "event", "expected"), TRANSITIONS)
def test_stage_follows_the_binding_and_what_was_done(stage: Stage, event: Observed | Done, expected: Stage) -> None:
    now = BindingLifecycle(stage, "a")
    new = observed(now, event) if isinstance(event, Observed) else after(now, event, uid="a")
    assert new == BindingLifecycle(expected, event.uid if isinstance(event, Observed) else "a")


def test_table_has_every_transition() -> None:
    events = [SERVED, WAITS, RELEASED, SUCCESSOR, DELETED_SUCCESSOR, *Done]
    missing = [
        (stage, event) for stage in Stage for event in events if not any((stage, event) == (one, other) for one, other, _ in TRANSITIONS)
    ]
    # A deletion is never taken back.
    assert missing == [(stage, SERVED) for stage in Stage if stage is not Stage.SERVING]


@pytest.mark.parametrize("done", Done)
@pytest.mark.parametrize("stage", Stage)
def test_what_was_done_about_an_earlier_binding_does_not_count(stage: Stage, done: Done) -> None:
    assert after(BindingLifecycle(stage, "b"), done, uid="a") == BindingLifecycle(stage, "b")


@pytest.mark.parametrize(
    ("stage", "unbinds", "connects", "has_pods"),
    [
        (Stage.SERVING, False, True, True),
        (Stage.UNBINDING, True, True, True),
        (Stage.GIVEN_UP, True, False, False),
        (Stage.UNDONE, False, False, False),
        (Stage.LEFT, False, False, True),
    ],
)
def test_each_stage_has_its_work(stage: Stage, unbinds: bool, connects: bool, has_pods: bool) -> None:
    now = BindingLifecycle(stage, "a")
    assert (now.unbinds, now.connects, now.has_pods) == (unbinds, connects, has_pods)


def test_failed_attempts_change_nothing_whatever_their_errors() -> None:
    left = Remaining(objects=(("pods", 2),))
    assert left.failed(ValueError("first")) == left.failed(ValueError("second")) == left != Remaining(objects=(("pods", 1),))
    assert Remaining().is_nothing and not Remaining().failed(ValueError("x")).is_nothing


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (Remaining(), "everything of this binding is removed"),
        (Remaining(nodes=2, pods=5), "2 virtual nodes with 5 pods"),
        (Remaining(objects=(("pods", 2), ("secrets", 1))), "2 pods, 1 secrets in namespace mnt of the worker cluster"),
        (
            Remaining(nodes=2, pods=5).failed(ValueError("x")),
            "the last attempt failed and is repeated: x; left: 2 virtual nodes with 5 pods",
        ),
        (Remaining(awaited=Awaited.CONNECTION), "the connection to the worker cluster is being opened"),
        (Remaining(awaited=Awaited.PERMISSION, problem="no list"), "cannot list the objects in the worker cluster: no list"),
    ],
)
def test_message_names_what_is_left(left: Remaining, text: str) -> None:
    assert message(left, namespace="mnt") == text


def test_message_names_the_remedy_when_the_worker_is_silent_or_nothing_changes() -> None:
    remedy = "annotate the ClusterBinding kubeocean.io/force-unbind=true"
    silent = Remaining(awaited=Awaited.WORKER, nodes=1, pods=0, problem="it does not respond")
    assert remedy in blocked(silent)
    assert message(silent, namespace="mnt") == f"{blocked(silent)}; left: 1 virtual nodes with 0 pods"
    assert remedy in message(Remaining(nodes=1, stuck=True), namespace="mnt")
    assert remedy not in message(Remaining(nodes=1), namespace="mnt")
