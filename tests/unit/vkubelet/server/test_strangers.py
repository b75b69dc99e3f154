"""Who gets a place before a request of his was allowed."""

from __future__ import annotations

import asyncio

import pytest

from vkubelet.server import strangers
from vkubelet.server.strangers import Strangers, kept_back, most_strangers


class Client:
    """A connection that ends when it is told to."""

    def __init__(self) -> None:
        self.cut = False

    def abort(self) -> None:
        self.cut = True


async def test_places_are_free_again_when_a_stranger_is_allowed_or_leaves() -> None:
    rung: list[int] = []
    held = Strangers(2, lambda: rung.append(1))
    first, second = Client(), Client()
    held.add(first)
    assert held.has_room()
    held.add(second)
    assert not held.has_room() and not rung
    held.settle(first)
    held.settle(first)
    assert (held.has_room(), rung, len(held)) == (True, [1], 1)


async def test_only_the_oldest_is_cut_and_only_once_it_had_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "_SPARED", 0.05)
    room = asyncio.Event()
    held = Strangers(2, room.set)
    first, second = Client(), Client()
    held.add(first)
    held.add(second)
    assert not held.has_room()
    assert not first.cut
    await room.wait()
    assert not held.has_room()
    assert (first.cut, second.cut) == (True, False)


@pytest.mark.parametrize(("limit", "kept"), [(200, 128), (1024, 128), (4096, 512)])
def test_half_of_what_is_kept_back_is_the_process_own(limit: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers.resource, "getrlimit", lambda kind: (limit, limit))
    assert kept_back(limit) == kept
    assert most_strangers(10_000) == kept // 2
    assert most_strangers(5) == 5
