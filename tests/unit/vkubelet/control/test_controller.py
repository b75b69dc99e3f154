"""What a controller does with the outcomes of its reconciler."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry

from vkubelet.control.controller import Controller, Isolation, Reconcile
from vkubelet.control.workqueue import Priority
from vkubelet.errors import Conflict, Fenced, Forbidden, LeadershipLost, NotFound, ServerError, SettingsError, TooManyRequests, Unavailable
from vkubelet.metrics import Metrics
from vkubelet.testing.clock import ManualClock


class Recorded:
    """A reconciler that plays a script of outcomes per key, then succeeds; it notes when it was called."""

    def __init__(self, clock: ManualClock, *script: Exception | float | None) -> None:
        self.clock = clock
        self.script = list(script)
        self.calls: list[float] = []

    async def __call__(self, key: str) -> float | None:
        self.calls.append(self.clock.monotonic())
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        return step


@asynccontextmanager
async def controller(reconcile: Reconcile[str], clock: ManualClock, *, workers: int = 4) -> AsyncIterator[Controller[str]]:
    made = Controller("test", reconcile, workers=workers, clock=clock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(made.run())
        yield made
        task.cancel()


async def test_success_is_final_until_the_key_is_added_again() -> None:
    clock = ManualClock()
    reconcile = Recorded(clock)
    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(1000)
        assert reconcile.calls == [0]
        made.add("a", after=5)
        await clock.advance(10)
        assert reconcile.calls == [0, 1005]


async def test_thousands_of_keys_are_queued_in_batches_and_each_is_reconciled_once() -> None:
    clock, seen = ManualClock(), Counter[str]()
    longest: list[int] = []
    taken = 0

    def keys() -> Iterator[str]:
        nonlocal taken
        for number in range(2000):
            taken += 1
            yield f"key-{number}"

    async def reconcile(key: str) -> None:
        seen[key] += 1

    async def others() -> None:
        before = taken
        while taken < 2000:
            await asyncio.sleep(0)
            longest.append(taken - before)
            before = taken

    async with controller(reconcile, clock, workers=50) as made:
        made.add_many(keys())
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(others())
        while len(seen) < 2000:
            await clock.settle()
    assert set(seen.values()) == {1} and max(longest) <= 100


async def test_returned_seconds_are_the_time_of_the_next_look() -> None:
    clock = ManualClock()
    reconcile = Recorded(clock, 30.0, 30.0)
    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(100)
        assert reconcile.calls == [0, 30, 60]


@pytest.mark.parametrize(
    "error",
    [ServerError("get x", "boom"), Conflict("put x", "changed"), NotFound("get x", "gone"), Forbidden("get x", "no"), ValueError("bug")],
    ids=lambda error: type(error).__name__,
)
async def test_every_error_is_retried_with_doubling_delays(error: Exception) -> None:
    clock = ManualClock()
    reconcile = Recorded(clock, *[error] * 4)
    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(60)
    waits = [later - earlier for earlier, later in zip(reconcile.calls, reconcile.calls[1:], strict=False)]
    assert len(waits) == 4
    assert all(0.9 * limit <= wait <= limit for wait, limit in zip(waits, (0.2, 0.4, 0.8, 1.6), strict=True))


async def test_success_forgets_the_failures() -> None:
    clock = ManualClock()
    boom = ServerError("get x", "boom")
    reconcile = Recorded(clock, boom, boom, boom, None, boom)
    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(60)
        made.add("a")
        await clock.advance(0.2)
        assert reconcile.calls[-2:] == [60, reconcile.calls[-1]]
        assert len(reconcile.calls) == 6


async def test_longer_wait_asked_for_by_the_server_is_respected() -> None:
    clock = ManualClock()
    reconcile = Recorded(clock, TooManyRequests("get x", "slow down", retry_after=7))
    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(60)
    assert reconcile.calls == [0, 7]


async def test_provider_that_is_unavailable_says_itself_when_to_ask_again() -> None:
    clock = ManualClock()
    reconcile = Recorded(clock, Unavailable("booting", retry_after=45), Unavailable("booting", retry_after=0.05))
    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(100)
    assert reconcile.calls == pytest.approx([0, 45, 45.05])


@pytest.mark.parametrize("error", [LeadershipLost("other"), SettingsError("a.b", "is wrong")])
@pytest.mark.parametrize("grouped", [False, True])
async def test_fatal_errors_end_the_controller(error: Exception, grouped: bool) -> None:
    clock = ManualClock()
    raised = ExceptionGroup("inner", [ServerError("get x", "boom"), error]) if grouped else error
    made = Controller("test", Recorded(clock, raised), workers=1, clock=clock)
    made.add("a")
    with pytest.raises(BaseExceptionGroup) as caught:
        await made.run()
    assert caught.group_contains(type(error))


async def test_group_of_expected_errors_is_no_surprise(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    reconcile = Recorded(clock, ExceptionGroup("two", [ServerError("get x", "boom"), Conflict("put y", "changed")]))
    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(10)
    assert len(reconcile.calls) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_unexpected_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with controller(Recorded(clock, ZeroDivisionError("oops")), clock) as made:
        made.add("a")
        await clock.advance(10)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("error", [Forbidden("get x", "no"), ValueError("odd")])
async def test_warnings_of_a_lasting_error_become_rare(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with controller(Recorded(clock, *[error] * 100), clock) as made:
        made.add("a")
        await clock.advance(6000)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert 4 <= len(warnings) <= 8


async def test_key_is_never_reconciled_twice_at_once_and_others_go_on() -> None:
    clock = ManualClock()
    running, overlaps, runs = Counter[str](), 0, Counter[str]()

    async def reconcile(key: str) -> None:
        nonlocal overlaps
        running[key] += 1
        overlaps += running[key] > 1
        runs[key] += 1
        await clock.sleep(10)
        running[key] -= 1

    async with controller(reconcile, clock) as made:
        made.add("slow")
        await clock.advance(1)
        made.add("slow")
        made.add("other")
        await clock.advance(1)
        assert runs == {"slow": 1, "other": 1}
        await clock.advance(30)
        assert runs == {"slow": 2, "other": 1}
    assert overlaps == 0


async def test_no_more_reconciles_at_once_than_workers() -> None:
    clock = ManualClock()
    now, most = 0, 0

    async def reconcile(key: str) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await clock.sleep(1)
        now -= 1

    async with controller(reconcile, clock, workers=3) as made:
        for number in range(10):
            made.add(str(number))
        await clock.advance(10)
        assert (now, most) == (0, 3)


async def test_cancelled_reconcile_ends_alone_and_its_key_runs_again_if_added() -> None:
    clock = ManualClock()
    log = list[str]()

    async def reconcile(key: str) -> None:
        log.append(f"begin {key}")
        try:
            await clock.sleep(60)
        except asyncio.CancelledError:
            log.append(f"cancelled {key}")
            raise
        log.append(f"end {key}")

    async with controller(reconcile, clock, workers=2) as made:
        made.add("a")
        made.add("b")
        await clock.advance(1)
        made.cancel_running("a")
        made.add("a")
        await clock.settle()
        assert log == ["begin a", "begin b", "cancelled a", "begin a"]
        await clock.advance(100)
        assert log[4:] == ["end b", "end a"]


async def test_reconcile_that_was_cancelled_by_nobody_is_repeated() -> None:
    clock = ManualClock()
    runs = Counter[str]()

    async def reconcile(key: str) -> None:
        runs[key] += 1
        if runs[key] == 1:
            # As when a provider awaits a future of its own that it has cancelled.
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(10)
    assert runs["a"] == 2


async def test_discarded_key_neither_runs_nor_counts_its_failures() -> None:
    clock = ManualClock()
    boom = ServerError("get x", "boom")
    reconcile = Recorded(clock, boom, boom, boom, boom)
    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(0.7)
        made.discard("a")
        await clock.advance(100)
        assert len(reconcile.calls) == 3
        made.add("a")
        await clock.advance(0.2)
        assert len(reconcile.calls) == 5


async def test_cancelled_key_that_is_not_added_stays_away_and_its_slot_is_free() -> None:
    clock = ManualClock()
    runs = Counter[str]()

    async def reconcile(key: str) -> None:
        runs[key] += 1
        await clock.sleep(60)

    async with controller(reconcile, clock, workers=1) as made:
        made.add("a")
        await clock.settle()
        made.cancel_running("a")
        made.cancel_running("unknown")
        made.add("b")
        await clock.settle()
        assert runs == {"a": 1, "b": 1}


async def test_cancel_in_the_moment_a_reconcile_is_handed_out_loses_no_slot() -> None:
    clock = ManualClock()
    runs = Counter[str]()

    async def reconcile(key: str) -> None:
        runs[key] += 1

    async with controller(reconcile, clock, workers=1) as made:
        await clock.settle()
        made.add("a")
        for _ in range(6):
            made.cancel_running("a")
            await asyncio.sleep(0)
        made.add("b")
        await clock.settle()
        assert runs["b"] == 1
        made.add("a")
        await clock.settle()
        assert runs["a"] >= 1


async def test_retry_keeps_the_priority_and_resync_takes_the_low_one() -> None:
    clock = ManualClock()
    order = list[str]()
    first = {"urgent": ServerError("get x", "boom")}

    async def reconcile(key: str) -> float | None:
        order.append(key)
        if key in first:
            raise first.pop(key)
        return 0.2 if key == "resync" and order.count(key) == 1 else None

    async with controller(reconcile, clock, workers=1) as made:
        made.add("resync", priority=Priority.HIGH)
        made.add("urgent", priority=Priority.HIGH)
        await clock.settle()
        made.queue.add("blocker", after=0.2)
        await clock.advance(1)
    assert order[:2] == ["resync", "urgent"]
    assert order.index("resync", 2) > order.index("urgent", 2)


async def test_forgiven_key_waits_for_its_next_failure_as_for_its_first() -> None:
    clock = ManualClock()
    reconcile = Recorded(clock, *(ServerError("get x", "boom") for _ in range(7)))
    async with controller(reconcile, clock) as made:
        made.add("a")
        await clock.advance(3.0)
        assert len(reconcile.calls) == 5
        made.reset_backoff("a")
        await clock.advance(10.0)
        waits = [after - before for before, after in pairwise(reconcile.calls)]
    assert waits[4] > 2.8
    assert waits[5] <= 0.2


async def test_results_are_counted_by_kind() -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    script = Recorded(clock, ServerError("get x", "boom"), Forbidden("get x", "no"), ValueError("bug"))
    made = Controller("pods", script, workers=1, clock=clock, metrics=Metrics(registry))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(made.run())
        made.add("a")
        await clock.advance(10)
        task.cancel()
    results = {
        result: registry.get_sample_value("vkubelet_reconcile_total", {"controller": "pods", "result": result})
        for result in ("success", "retry", "error", "unexpected")
    }
    assert set(results.values()) == {1.0}


def errors(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelno >= logging.ERROR for record in caplog.records)


@pytest.mark.parametrize("error", [ValueError("odd"), UnicodeError("odd"), KeyError("odd"), SettingsError("a", "odd"), Fenced("odd")])
def test_other_items_are_handled_after_one_that_failed(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    isolated, handled = Isolation("loop"), list[str]()
    for item in ("a", "bad", "b"):
        with isolated(item):
            if item == "bad":
                raise error
            handled.append(item)
    assert handled == ["a", "b"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_an_error_that_stays_is_logged_once_per_item_and_part(caplog: pytest.LogCaptureFixture) -> None:
    isolated = Isolation("loop")

    def fail(item: str, text: str) -> None:
        with isolated(item):
            raise ValueError(text)

    for _ in range(5):
        fail("a", "odd")
        fail("b", "odd")
        isolated.call(int, "odd", "b")
    assert errors(caplog) == 3
    fail("a", "other")
    assert errors(caplog) == 4
    with isolated("a"):
        pass
    fail("a", "other")
    assert errors(caplog) == 5, "after a success the next error is new"


@pytest.mark.parametrize("error", [LeadershipLost("other"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_ends_the_process_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), Isolation("loop")("a"):
        raise error


def test_memory_of_failed_items_is_bounded() -> None:
    isolated = Isolation("loop")
    for number in range(1010):
        with isolated(str(number)):
            raise ValueError("odd")
    assert len(isolated.failed) == 1000
