"""The judges of `make bench SCENES="shards-killed shards-upgrade"` see what they are there to see."""

from __future__ import annotations

from tests.benchmarks.replicas import Follower, Holders, Probe, has_one_owner
from tests.benchmarks.shards import Ends


def holders(*changes: tuple[float, str], shard: int = 1) -> Holders:
    found = Holders("bench")
    found.changes[shard].extend(changes)
    return found


def follower(*ends: float) -> Follower:
    made = Follower(None, "web")  # type: ignore[arg-type]
    made.ends = [(at, at - 0.2) for at in ends]
    return made


def test_writers_in_the_order_of_the_holders_are_one_owner_at_a_time() -> None:
    assert has_one_owner(["a", "a", "b", "b"], ["a", "b"])
    assert has_one_owner(["b"], ["a", "b"])
    assert has_one_owner(["a", "b", "a"], ["a", "b", "a"])


def test_a_writer_that_comes_back_or_held_nothing_is_a_second_owner() -> None:
    assert not has_one_owner(["a", "b", "a"], ["a", "b"])
    assert not has_one_owner(["a", "c"], ["a", "b"])


def test_a_released_shard_and_one_whose_holder_died_have_moved_once() -> None:
    assert holders((1.0, "a"), (5.0, ""), (6.0, "b")).lost(1, since=2.0) == [5.0]
    assert holders((1.0, "a"), (5.0, "b")).lost(1, since=2.0) == [5.0]
    assert holders((1.0, "a"), (5.0, "b")).terms(1, since=2.0) == ["a", "b"]
    assert holders((1.0, "a"), (5.0, "b")).terms(1, since=7.0) == ["b"]


def test_a_stream_that_ends_without_a_move_of_its_shard_is_a_stray_one() -> None:
    moved = holders((1.0, "a"), (5.0, ""), (6.0, "b"))
    ends = Ends.of({1: [follower(15.0)], 2: [follower(15.0)]}, moved, since=2.0)
    assert ends.grace == [10.0]
    assert ends.stray == ["web"]
    assert not ends.missing


def test_a_stream_that_ended_before_the_first_move_is_none_of_its_ends() -> None:
    ends = Ends.of({1: [follower(1.5, 15.0)]}, holders((1.0, "a"), (5.0, "b")), since=2.0)
    assert (ends.early, ends.grace, ends.stray) == (1, [10.0], [])


def test_a_stream_that_outlives_the_move_of_its_shard_is_missing() -> None:
    assert Ends.of({1: [follower()]}, holders((1.0, "a"), (5.0, "b")), since=2.0).missing == 1


def test_the_gap_of_a_probe_lasts_until_the_next_answer() -> None:
    probe = Probe(None, "web")  # type: ignore[arg-type]
    probe.answers = [(0.0, True), (1.0, False), (2.0, False), (3.5, True), (4.0, False), (4.5, True)]
    assert probe.gap() == 2.5
    assert probe.refused(since=2.0) == 2
    probe.answers.append((5.0, False))
    assert probe.gap() == float("inf")
