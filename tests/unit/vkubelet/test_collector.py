"""Which objects passes of the garbage collector look at. It is that of the test process, and as before afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from vkubelet import collector
from vkubelet.collector import Collector, full_pass_is_due


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def made() -> Iterator[Collector]:
    before = gc.get_threshold()
    gc.unfreeze()
    made = Collector()
    made.start()
    yield made
    gc.set_threshold(*before)
    gc.unfreeze()


def old_objects(count: int) -> list[list[int]]:
    """Survivors of two passes."""
    out: list[list[int]] = [[] for _ in range(count)]
    gc.collect(1)
    return out


@pytest.mark.parametrize(
    ("objects", "after_last", "due"),
    [(20_000, 0, False), (320_000, 150_000, False), (410_000, 150_000, True), (100_001, 0, True)],
)
def test_a_full_pass_is_due_when_the_frozen_objects_have_doubled(objects: int, after_last: int, due: bool) -> None:
    assert full_pass_is_due(objects, after_last) is due


def test_what_is_loaded_at_the_start_is_looked_at_by_no_pass(made: Collector) -> None:
    assert len(gc.get_objects(2)) < collector.OLD < gc.get_freeze_count()


def test_old_objects_are_frozen_once_they_are_many(made: Collector) -> None:
    few = old_objects(100)
    made.check()
    assert any(each is few[0] for each in gc.get_objects(2))
    many = old_objects(collector.OLD)
    made.check()
    assert len(gc.get_objects(2)) < collector.OLD and gc.get_freeze_count() > len(few) + len(many)


def test_garbage_is_not_frozen_and_frozen_garbage_ends_with_the_next_full_pass(made: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = old_objects(collector.OLD)
    gone, frozen = Cycle(), Cycle()
    gone_ref, frozen_ref = weakref.ref(gone), weakref.ref(frozen)
    del gone
    made.check()
    assert gone_ref() is None
    del frozen
    kept += old_objects(collector.OLD)
    made.check()
    assert frozen_ref() is not None
    monkeypatch.setattr(collector, "SMALL", -(2**40))
    kept += old_objects(collector.OLD)
    made.check()
    assert frozen_ref() is None and len(kept) == 3 * collector.OLD
