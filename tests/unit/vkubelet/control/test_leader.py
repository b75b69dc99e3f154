"""The decisions of leader election: whose the Lease is, and whether writes may leave."""

import asyncio

import pytest

from tests.support.memory_api import MemoryApi
from vkubelet.api.objects import Lease, ObjectMeta
from vkubelet.control.leader import DURATION, FENCE, PERIOD, LeaderElection, LeaderFence, Observation, Record
from vkubelet.errors import Fenced, LeadershipLost
from vkubelet.testing.clock import ManualClock


def test_fence_is_closed_before_the_first_renewal() -> None:
    with pytest.raises(Fenced, match="is not the leader"):
        LeaderFence(ManualClock()).check()


async def test_fence_closes_by_itself_when_renewals_fail_to_come() -> None:
    clock = ManualClock()
    fence = LeaderFence(clock)
    fence.renewed(clock.monotonic())
    await clock.advance(FENCE)
    fence.check()
    await clock.advance(0.1)
    with pytest.raises(Fenced, match="10 s ago"):
        fence.check()
    fence.renewed(clock.monotonic())
    fence.check()


async def test_fence_counts_from_the_sending_of_a_renewal_that_was_answered_late() -> None:
    clock = ManualClock()
    fence = LeaderFence(clock)
    sent_at = clock.monotonic()
    await clock.advance(FENCE + 1)
    fence.renewed(sent_at)
    with pytest.raises(Fenced):
        fence.check()


def test_closed_fence_stays_closed() -> None:
    clock = ManualClock()
    fence = LeaderFence(clock)
    fence.renewed(clock.monotonic())
    fence.close()
    with pytest.raises(Fenced):
        fence.check()


def test_no_write_of_a_fenced_leader_can_meet_a_successor() -> None:
    longest_write = 5.0
    assert FENCE + longest_write <= DURATION


def test_lease_that_keeps_changing_is_never_free_for_others() -> None:
    seen = Observation()
    for second in range(0, 100, 10):
        seen.note(Record("other", 15, renewed=str(second)), float(second))
        assert not seen.free_for("me", float(second + 9))


def test_lease_is_free_when_it_did_not_change_for_its_duration_by_our_clock() -> None:
    seen = Observation()
    record = Record("other", 15, renewed="2020-01-01T00:00:00.000000Z")
    seen.note(record, 100.0)
    seen.note(record, 110.0)
    assert not seen.free_for("me", 114.9)
    assert seen.free_for("me", 115.0)


@pytest.mark.parametrize("holder", ["", "me"])
def test_released_or_own_lease_is_free_at_once(holder: str) -> None:
    seen = Observation()
    seen.note(Record(holder), 0.0)
    assert seen.free_for("me", 0.0)


def test_new_holder_is_noticed_once() -> None:
    seen = Observation()
    assert seen.note(Record("a", renewed="1"), 0)
    assert not seen.note(Record("a", renewed="2"), 1)
    assert seen.note(Record("b", renewed="3"), 2)


def test_record_of_a_lease_with_nothing_in_it_is_free() -> None:
    record = Record.of(Lease(ObjectMeta(name="l"), b'{"holderIdentity":null,"leaseDurationSeconds":null}'))
    assert record == Record("", DURATION, "", 0)


async def test_fence_is_closed_before_the_work_of_a_lost_leader_ends() -> None:
    api, clock, closed = MemoryApi(), ManualClock(), list[bool]()
    election = LeaderElection(api.client(), name="l", namespace="d", identity="me", clock=clock)

    async def body() -> None:
        election.fence.check()
        spec = {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 9}
        api.put("/apis/coordination.k8s.io/v1/namespaces/d/leases/l", {"metadata": {"name": "l", "namespace": "d"}, "spec": spec})
        try:
            await clock.sleep(60.0)
        finally:
            try:
                election.fence.check()
            except Fenced:
                closed.append(True)

    async def lead() -> None:
        with pytest.raises(LeadershipLost, match="was acquired by other"):
            await election.lead(body)

    async with asyncio.TaskGroup() as group:
        group.create_task(lead())
        await clock.advance(2 * PERIOD)
    assert closed == [True]
