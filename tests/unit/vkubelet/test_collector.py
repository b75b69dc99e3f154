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
    [(5_000, 0, False), (1_320_000, 500_000, False), (1_410_000, 500_000, True), (700_000, 0, True)],
)
def test_a_full_pass_is_due_when_the_memory_blocks_have_doubled(blocks: int, after_last: int, due: bool) -> None:
    assert full_pass_is_due(blocks, after_last) is due


@pytest.mark.parametrize(
    ("blocks", "after_last", "due"),
    [(512_000, 500_000, False), (530_000, 500_000, True), (600_000, 500_000, True), (610_000, 500_000, False), (20_000, 0, True)],
)
def test_a_short_full_pass_is_due_when_few_memory_blocks_have_grown_a_little(blocks: int, after_last: int, due: bool) -> None:
    assert full_pass_is_due(blocks, after_last) is due


def test_garbage_that_was_frozen_does_not_add_up_in_a_small_process(made: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    # The test process may be none.
    monkeypatch.setattr(collector, "FEW", sys.maxsize)

    def blocks_after(rounds: int) -> int:
        for number in range(rounds * collector.GROWTH_CHECKED):
            kept = [Cycle() for _ in range(200)]
            made.check()
            assert kept and number >= 0
        return sys.getallocatedblocks()

    before = blocks_after(10)
    assert blocks_after(20) < 1.05 * before + collector.LITTLE


_BUFFERS = """
import ctypes
from vkubelet.collector import return_large_blocks

class Heap(ctypes.Structure):
    _fields_ = [(f"field_{number}", ctypes.c_size_t) for number in range(10)]  # The fourth one counts the blocks outside of the heap.

libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype, libc.free.argtypes = Heap, ctypes.c_void_p, [ctypes.c_void_p]
return_large_blocks()
before, found = libc.mallinfo2().field_3, []
for _ in range(3):
    buffers = [libc.malloc(256 * 1024) for _ in range(100)]
    found.append(libc.mallinfo2().field_3 - before)
    for buffer in buffers:
        libc.free(buffer)
print(*found)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no threshold")
def test_buffers_of_closed_connections_are_returned_to_the_kernel() -> None:
    ended = subprocess.run([sys.executable, "-c", _BUFFERS], capture_output=True, text=True, check=True)
    first, *later = map(int, ended.stdout.split())
    # What is free in the heap is used first. Once a large block was freed, glibc would take all of its size from the heap.
    assert first > 50 and later == [first, first]


def test_what_is_loaded_at_the_start_is_looked_at_by_no_pass(made: Collector) -> None:
    assert len(gc.get_objects(2)) < 1000 < gc.get_freeze_count()


def test_new_objects_are_frozen_at_each_check_also_where_python_starts_no_pass(made: Collector) -> None:
    cache = [[number] for number in range(50)]
    for number in range(100_000):
        # As many are freed as allocated.
        cache[number % 50] = [number]
    new = cache[0]
    assert any(each is new for each in gc.get_objects())
    made.check()
    assert not any(each is new for each in gc.get_objects())


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


def test_garbage_is_not_frozen_and_frozen_garbage_ends_with_the_next_full_pass(made: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, frozen = Cycle(), Cycle()
    gone_ref, frozen_ref = weakref.ref(gone), weakref.ref(frozen)
    del gone
    made.check()
    assert gone_ref() is None
    del frozen
    made.check()
    assert frozen_ref() is not None
    monkeypatch.setattr(collector, "SMALL", -(2**40))
    for _ in range(collector.GROWTH_CHECKED - 3):
        made.check()
    assert frozen_ref() is not None
    made.check()
    assert frozen_ref() is None
