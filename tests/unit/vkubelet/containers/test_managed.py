"""What is kept of a container while it comes and goes."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from vkubelet.containers.managed import CrashLoop, ManagedContainer, ManagedPod, Stage
from vkubelet.containers.plan import ContainerKind, ContainerPlan, PodPlan
from vkubelet.provider import ContainerReport, Running, Terminated, Waiting
from vkubelet.testing.host import make_pod

WALL = datetime(2026, 1, 1, tzinfo=UTC)


def container() -> ManagedContainer:
    return ManagedContainer(ContainerPlan(name="a", kind=ContainerKind.APP, spec={"name": "a"}))


def started(restarts: int = 0) -> ManagedContainer:
    made = container()
    made.begin_start(now=0)
    made.attempt = restarts
    made.begin_run(WALL, now=0)
    made.stage = Stage.IDLE
    return made


def on_report(made: ManagedContainer, state: Running | Terminated | Waiting, restarts: int) -> bool:
    return made.on_report(ContainerReport("a", state, restarts=restarts), now=5, wall=WALL)


def test_back_off_doubles_up_to_its_limit() -> None:
    crashes, waits, now = CrashLoop(), [], 0.0
    for _ in range(8):
        now += 1
        waits.append(crashes.wait(now))
        crashes.note_restart(now, now=now + waits[-1])
        now += waits[-1]
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


@given(st.lists(st.floats(min_value=0, max_value=2000), max_size=20))
def test_back_off_is_never_longer_than_its_limit_and_none_after_a_long_run(runs: list[float]) -> None:
    crashes, now = CrashLoop(), 0.0
    for ran in runs:
        now += ran
        wait = crashes.wait(now)
        assert 0 <= wait <= 300
        if ran > 600.001:
            assert wait == 0
        crashes.note_restart(now, now=now + wait)
        now += wait


def test_report_of_an_earlier_run_changes_nothing() -> None:
    made = started(restarts=2)
    assert not on_report(made, Terminated(1), 1)
    assert made.running
    assert on_report(made, Terminated(1), 2)
    assert made.exit_code == 1


def test_report_may_be_faster_than_the_answer_to_the_start() -> None:
    made = started()
    on_report(made, Terminated(1), 0)
    made.begin_start(now=6)
    assert not on_report(made, Terminated(1), 0)
    assert isinstance(made.state, Waiting)
    assert on_report(made, Running(WALL), 1)
    assert (made.restarts, made.running, made.last) == (1, True, Terminated(1, started_at=WALL, finished_at=WALL))


def test_run_that_is_over_before_the_start_returned() -> None:
    made = container()
    made.begin_start(now=0)
    assert on_report(made, Terminated(4), 0)
    assert (made.exit_code, made.created, made.stage) == (4, True, Stage.STARTING)


def test_end_is_told_once() -> None:
    made = started()
    assert on_report(made, Terminated(1), 0)
    assert not on_report(made, Terminated(2), 0)
    assert made.exit_code == 1


def test_failed_start_counts_no_restart() -> None:
    made = started()
    on_report(made, Terminated(1), 0)
    made.begin_start(now=6)
    made.begin_start(now=7)
    assert (made.attempt, made.restarts) == (1, 0)


def test_new_spec_keeps_what_is_known_and_adds_ephemeral_containers() -> None:
    pod = make_pod(spec={"containers": [{"name": "a"}]})
    managed = ManagedPod(pod.ref, PodPlan.of(pod))
    managed.set_plan(managed.plan)
    managed.containers["a"].restarts = 4
    managed.set_plan(PodPlan.of(make_pod(spec={"containers": [{"name": "a", "image": "new"}], "ephemeralContainers": [{"name": "d"}]})))
    assert (managed.containers["a"].restarts, managed.containers["a"].plan.spec["image"]) == (4, "new")
    assert managed.containers["d"].plan.kind is ContainerKind.EPHEMERAL


def test_second_end_can_only_hasten() -> None:
    pod = make_pod()
    managed = ManagedPod(pod.ref, PodPlan.of(pod))
    for until, remove in ((30.0, False), (60.0, True), (10.0, False)):
        managed.end(until, remove=remove)
    assert managed.termination is not None
    assert (managed.termination.until, managed.termination.remove) == (10.0, True)
