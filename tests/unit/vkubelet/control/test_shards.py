"""Which shard has a name, and which replica holds, asks for and hands over the Lease of a shard."""

from collections import Counter

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.control.shards import (
    MOST_SHARDS,
    RESERVED,
    Leases,
    Shard,
    ShardLease,
    held,
    may_acquire,
    other_count,
    shard_of,
    to_hand_over,
    wanted,
)

NAMES = [f"vnode-demo-node-{number}" for number in range(2000)]
REPLICAS = ("a", "b", "c", "d", "e")


def leases(*holders: str) -> dict[int, ShardLease]:
    return {index: ShardLease(holder=holder, count=len(holders)) for index, holder in enumerate(holders)}


# --- names ---


@given(st.text(), st.integers(1, MOST_SHARDS))
def test_every_name_belongs_to_exactly_one_shard(name: str, count: int) -> None:
    assert [Shard(index, count).owns(name) for index in range(count)].count(True) == 1


def test_the_only_shard_has_every_name_and_the_leader_lease() -> None:
    shard = Shard()
    assert shard.is_only and shard.is_first and all(map(shard.owns, NAMES))
    assert shard.lease("kubeocean-syncer-demo") == "kubeocean-syncer-demo"


def test_shards_have_separate_leases() -> None:
    names = [Shard(index, 4).lease("leader") for index in range(4)]
    assert names == ["leader", "leader.shard-1", "leader.shard-2", "leader.shard-3"]


def test_a_name_belongs_to_the_same_shard_in_every_process() -> None:
    # The hash of Python differs from process to process, and so may not decide.
    assert [shard_of(name, 4) for name in NAMES[:8]] == [3, 1, 3, 3, 2, 1, 2, 0]


@pytest.mark.parametrize("count", [2, 3, 4, 8, MOST_SHARDS])
def test_names_are_spread_evenly(count: int) -> None:
    sizes = Counter(shard_of(name, count) for name in NAMES)
    even = len(NAMES) / count
    assert len(sizes) == count
    assert max(sizes.values()) < 1.25 * even + 10 and min(sizes.values()) > 0.75 * even - 10


@pytest.mark.parametrize("count", range(1, MOST_SHARDS))
def test_with_one_more_shard_names_move_to_that_one_only(count: int) -> None:
    moved = [name for name in NAMES if shard_of(name, count) != shard_of(name, count + 1)]
    assert all(shard_of(name, count + 1) == count for name in moved)
    assert len(moved) < 1.4 * len(NAMES) / (count + 1) + 10


# --- who acquires a free Lease ---


def test_shard_of_a_dead_replica_is_acquired_at_once_whoever_asked_for_it() -> None:
    found = leases("a", "a", "")
    found[2] = evolve(found[2], died=True, wanted_by="b")
    assert may_acquire("a", found, 2) and may_acquire("c", found, 2)


def test_released_shard_goes_to_the_replica_that_asked_for_it() -> None:
    found = leases("a", "a", "")
    found[2] = evolve(found[2], wanted_by="b")
    assert may_acquire("b", found, 2)
    assert not may_acquire("c", found, 2) and not may_acquire("a", found, 2)


def test_released_shard_does_not_wait_for_ever_for_the_replica_that_asked() -> None:
    found = leases("a", "")
    found[1] = evolve(found[1], wanted_by="b", free_for=RESERVED)
    assert may_acquire("a", found, 1) and may_acquire("c", found, 1)


def test_released_shard_goes_first_to_the_replica_with_the_fewest() -> None:
    found = leases("a", "a", "b", "")
    assert may_acquire("c", found, 3)
    assert not may_acquire("b", found, 3) and not may_acquire("a", found, 3)
    found[3] = evolve(found[3], free_for=2.0)
    assert may_acquire("b", found, 3) and not may_acquire("a", found, 3)
    found[3] = evolve(found[3], free_for=4.0)
    assert may_acquire("a", found, 3)


# --- who asks, and who hands over ---


def test_a_new_replica_asks_the_one_with_most_shards() -> None:
    found = leases("a", "b", "a", "a")
    index = wanted("c", found)
    assert index is not None and found[index].holder == "a"


def test_nothing_is_asked_for_where_the_difference_would_only_be_swapped() -> None:
    assert wanted("b", leases("a", "a", "b")) is None
    assert wanted("c", leases("a", "b")) is None


def test_one_request_at_a_time_and_none_while_a_shard_is_free() -> None:
    found = leases("a", "a", "a", "a")
    found[1] = evolve(found[1], wanted_by="b")
    assert wanted("c", found) is None
    assert wanted("c", leases("a", "a", "a", "")) is None


def test_holder_hands_over_only_what_another_still_asks_for_with_reason() -> None:
    found = leases("a", "a", "a", "b")
    assert to_hand_over("a", found) is None
    found[1] = evolve(found[1], wanted_by="b")
    assert to_hand_over("a", found) == 1 and to_hand_over("b", found) is None
    found[0] = evolve(found[0], holder="c")
    assert to_hand_over("a", found) is None, "it holds only one more than the replica that asks"
    own = leases("a", "a")
    own[0] = evolve(own[0], wanted_by="a")
    assert to_hand_over("a", own) is None


def _unevenness(found: Leases) -> int:
    return sum(count**2 for count in held(found).values())


@given(st.lists(st.sampled_from(REPLICAS), min_size=1, max_size=MOST_SHARDS))
def test_requests_end_with_numbers_at_most_one_apart(holders: list[str]) -> None:
    found = leases(*holders)
    while (ask := next(((who, index) for who in REPLICAS if (index := wanted(who, found)) is not None), None)) is not None:
        who, index = ask
        found[index] = evolve(found[index], wanted_by=who)
        assert to_hand_over(found[index].holder, found) == index
        before = _unevenness(found)
        found[index] = ShardLease(holder=who, count=len(holders))
        # So the moves end.
        assert _unevenness(found) < before
    counts = [held(found)[who] for who in REPLICAS]
    assert max(counts) - min(counts) <= 1


# --- two counts ---


def test_holder_that_divides_by_another_count_is_found() -> None:
    found = {0: ShardLease(holder="old"), 1: ShardLease(holder="a", count=4), 2: ShardLease(count=2)}
    assert other_count(found, 4) is found[0]
    assert other_count({1: found[1], 2: found[2]}, 4) is None, "a free Lease has no owner of names"
