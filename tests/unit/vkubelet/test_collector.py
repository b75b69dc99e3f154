"""Which objects passes of the garbage collector look at. It is that of the test process, and as before afterwards."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import time
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


@pytest.mark.parametrize(
    ("blocks", "after_last", "due"),
    [(5_000, 0, False), (1_320_000, 500_000, False), (1_410_000, 500_000, True), (390_000, 0, False), (700_000, 0, True)],
)
def test_a_full_pass_is_due_when_the_memory_blocks_have_doubled(blocks: int, after_last: int, due: bool) -> None:
    assert full_pass_is_due(blocks, after_last) is due


def test_garbage_that_outlived_a_pass_over_new_objects_is_freed_within_a_minute(made: Collector) -> None:
    kept = Cycle()
    reference = weakref.ref(kept)
    for _ in range(collector.TIDIED - 2):
        made.check()
    del kept
    made.check()
    assert reference() is not None, "no pass over older objects was due"
    made.check()
    assert reference() is None


_BUFFERS = """
import ctypes
from vkubelet import collector

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
made = collector.Collector()
made.start()
# Once a large block was freed, glibc takes all of its size from the heap.
libc.free(libc.malloc(512 * 1024))
kept, before = [], resident()
buffers = [libc.malloc(256 * 1024) for _ in range(200)]
for buffer in buffers:
    libc.memset(buffer, 1, 256 * 1024)
    kept.append(libc.malloc(100_000))  # What remains between two buffers; a smaller one could have its place elsewhere.
for buffer in buffers:
    libc.free(buffer)
closed = resident() - before
for _ in range(collector.TIDIED):
    made.check()
print(closed, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep nothing of that size")
def test_buffers_of_closed_connections_are_returned_to_the_kernel() -> None:
    ended = subprocess.run([sys.executable, "-c", _BUFFERS], capture_output=True, text=True, check=True)
    closed, tidied = map(int, ended.stdout.split())
    assert closed > 40 * 2**20 and tidied < 4 * 2**20


def test_what_is_loaded_at_the_start_is_looked_at_by_no_pass(made: Collector) -> None:
    assert len(gc.get_objects(2)) < 1000 < gc.get_freeze_count()


def test_each_check_passes_over_new_objects_also_where_python_starts_no_pass(made: Collector) -> None:
    cache = [[number] for number in range(50)]
    for number in range(100_000):
        # As many are freed as allocated.
        cache[number % 50] = [number]
    new = cache[0]
    assert any(each is new for each in gc.get_objects(0))
    made.check()
    assert any(each is new for each in gc.get_objects(2))


@pytest.mark.parametrize(("more", "frozen"), [(-1_000, False), (1_000, True)])
def test_objects_are_frozen_when_a_pass_over_them_would_not_be_short(made: Collector, more: int, frozen: bool) -> None:
    cache = [[number] for number in range(collector.MANY - len(gc.get_objects(2)) + more)]
    for _ in range(collector.GROWTH_CHECKED):
        made.check()
    assert any(each is cache[0] for each in gc.get_objects()) is not frozen


def test_check_costs_the_same_however_many_objects_are_frozen(made: Collector) -> None:
    def cost() -> float:
        kept: list[list[int]] = [[] for _ in range(40)]
        began = time.thread_time()
        made.check()
        assert kept
        return time.thread_time() - began

    few = min(cost() for _ in range(5))
    many = [[number] for number in range(1_000_000)]
    gc.collect(1)
    gc.freeze()
    made.start()
    assert min(cost() for _ in range(5)) < 5 * few + 0.005 and len(many) == 1_000_000


def test_garbage_that_has_survived_before_is_not_frozen(made: Collector) -> None:
    kept = Cycle()
    reference = weakref.ref(kept)
    made.check()
    del kept
    cache = [[number] for number in range(collector.MANY)]
    for _ in range(collector.GROWTH_CHECKED):
        made.check()
    assert not any(each is cache[0] for each in gc.get_objects())
    assert reference() is None


def test_many_new_objects_are_frozen_without_being_counted(made: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = list[int]()
    monkeypatch.setattr(Collector, "_freeze_many", lambda self: counted.append(1))
    cache = [[number] for number in range(10 * collector.YOUNG * collector.MIDDLE)]
    made.check()
    assert not any(each is cache[-1] for each in gc.get_objects()) and not counted


def test_garbage_is_not_frozen_and_frozen_garbage_is_freed_by_the_next_full_pass(made: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, frozen = Cycle(), Cycle()
    gone_ref, frozen_ref = weakref.ref(gone), weakref.ref(frozen)
    del gone
    monkeypatch.setattr(collector, "MANY", 0)
    for _ in range(collector.GROWTH_CHECKED):
        made.check()
    assert gone_ref() is None
    del frozen
    for _ in range(2 * collector.TIDIED):
        made.check()
    assert frozen_ref() is not None
    monkeypatch.setattr(collector, "SMALL", -(2**40))
    for _ in range(collector.GROWTH_CHECKED - 1):
        made.check()
    assert frozen_ref() is not None, "it is due with the next check of the growth"
    made.check()
    assert frozen_ref() is None
