"""Leader election on a real Lease, in time that passes as the tests let it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
from kubernetes import client as k8s

from tests.integration.client.proxy import Proxy
from tests.integration.control.conftest import CandidatesClock
from tests.support.program import eventually
from tests.support.witness import api_client
from vkubelet.api.objects import CONFIGMAPS, Key
from vkubelet.client.connection import Timeouts, load_connection
from vkubelet.client.rest import Client
from vkubelet.control.leader import DURATION, FENCE, PERIOD, LeaderElection
from vkubelet.errors import Fenced, LeadershipLost
from vkubelet.testing.cluster import ControlPlane

LOOKS_EVERY = 1.2 * PERIOD
"""Seconds, at most: by whom does not lead."""


class Candidate:
    """An election with a body that says whether it runs and ends when told."""

    def __init__(self, client: Client, namespace: str, clock: CandidatesClock, *, name: str = "leader") -> None:
        self.identity = f"candidate-{uuid.uuid4().hex[:6]}"
        self.election = LeaderElection(client, name=name, namespace=namespace, identity=self.identity, clock=clock)
        self._clock = clock
        self.leads = False
        self.end = asyncio.Event()

    async def run(self) -> None:
        self._clock.candidates += 1
        try:
            await self.election.lead(self._body)
        finally:
            self._clock.candidates -= 1

    async def _body(self) -> None:
        self.leads = True
        try:
            await self.end.wait()
        finally:
            self.leads = False

    @property
    def fenced(self) -> bool:
        try:
            self.election.fence.check()
        except Fenced:
            return True
        return False


@pytest.fixture
def leases(hub: ControlPlane) -> Any:
    """The official client."""
    return k8s.CoordinationV1Api(api_client(hub.kubeconfig))


@asynccontextmanager
async def group_of(*parts: Callable[[], Awaitable[None]]) -> AsyncIterator[list[asyncio.Task[None]]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part()) for part in parts]  # type: ignore[arg-type]
        yield tasks
        for task in tasks:
            task.cancel()


async def test_one_of_two_leads_and_the_other_follows_at_once_when_it_ends(
    client: Client, namespace: str, clock: CandidatesClock, leases: Any
) -> None:
    one, two = (Candidate(client, namespace, clock) for _ in range(2))
    async with group_of(one.run, two.run) as tasks:
        await eventually(lambda: one.leads or two.leads, "a leader")
        leader, follower, ending = (one, two, tasks[0]) if one.leads else (two, one, tasks[1])
        assert (leader.fenced, follower.fenced) == (False, True)
        await clock.advance(2 * DURATION)
        assert (leader.leads, follower.leads) == (True, False)
        leader.end.set()
        await asyncio.wait([ending])
        # With its next look, long before the Lease of one who says nothing would have run out.
        await clock.advance(LOOKS_EVERY)
        assert follower.leads
        assert leader.fenced
    lease = leases.read_namespaced_lease("leader", namespace)
    assert lease.spec.holder_identity == follower.identity
    assert lease.spec.lease_transitions == 1


async def test_lease_of_a_crashed_leader_is_taken_when_it_has_run_out_not_before(
    client: Client, namespace: str, clock: CandidatesClock, leases: Any
) -> None:
    one, two = (Candidate(client, namespace, clock) for _ in range(2))
    async with group_of(one.run) as (crashing,):
        await eventually(lambda: one.leads, "a leader")
        async with group_of(two.run):
            await clock.advance(5)
            crashing.cancel()
            await asyncio.wait([crashing])
            lease = leases.read_namespaced_lease("leader", namespace).spec
            assert (lease.holder_identity, two.leads) == (one.identity, False)
            while not two.leads:
                await clock.advance(0.5)
                # It counts from when it saw the last renewal, and looks again when that is over.
                assert (clock.now() - lease.renew_time).total_seconds() <= DURATION + 2 * LOOKS_EVERY + 0.5
            assert (clock.now() - lease.renew_time).total_seconds() >= DURATION


async def test_lease_is_kept_at_the_end_when_a_write_is_unresolved(
    client: Client, namespace: str, clock: CandidatesClock, leases: Any
) -> None:
    leader = Candidate(client, namespace, clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(leader.run())
        await eventually(lambda: leader.leads, "a leader")
        leader.election.release = False
        leader.end.set()
    assert leases.read_namespaced_lease("leader", namespace).spec.holder_identity == leader.identity


async def test_lease_is_handed_on_at_a_clean_end(client: Client, namespace: str, clock: CandidatesClock, leases: Any) -> None:
    leader = Candidate(client, namespace, clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(leader.run())
        await eventually(lambda: leader.leads, "a leader")
        leader.end.set()
    assert not leases.read_namespaced_lease("leader", namespace).spec.holder_identity


async def test_error_of_the_body_comes_out_and_the_lease_is_left_to_run_out(
    client: Client, namespace: str, clock: CandidatesClock, leases: Any
) -> None:
    election = LeaderElection(client, name="leader", namespace=namespace, identity="me", clock=clock)

    async def body() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await election.lead(body)
    assert caught.group_contains(ZeroDivisionError)
    assert leases.read_namespaced_lease("leader", namespace).spec.holder_identity == "me"


async def test_another_holder_ends_the_leader(client: Client, namespace: str, clock: CandidatesClock, leases: Any) -> None:
    leader = Candidate(client, namespace, clock)

    async def usurp() -> None:
        await eventually(lambda: leader.leads, "a leader")
        leases.patch_namespaced_lease("leader", namespace, {"spec": {"holderIdentity": "usurper", "leaseTransitions": 7}})
        await clock.advance(PERIOD)

    async with asyncio.TaskGroup() as group:
        group.create_task(usurp())
        with pytest.raises(LeadershipLost, match="usurper"):
            await leader.run()
    assert not leader.leads
    assert leader.fenced
    assert leases.read_namespaced_lease("leader", namespace).spec.holder_identity == "usurper"


async def test_holder_that_came_and_went_meanwhile_ends_the_leader_too(
    client: Client, namespace: str, clock: CandidatesClock, leases: Any
) -> None:
    leader = Candidate(client, namespace, clock)

    async def visit() -> None:
        await eventually(lambda: leader.leads, "a leader")
        leases.patch_namespaced_lease("leader", namespace, {"spec": {"holderIdentity": "", "leaseTransitions": 8}})
        await clock.advance(PERIOD)

    async with asyncio.TaskGroup() as group:
        group.create_task(visit())
        with pytest.raises(LeadershipLost, match="no process"):
            await leader.run()


async def test_edits_of_others_are_no_loss_and_are_kept(client: Client, namespace: str, clock: CandidatesClock, leases: Any) -> None:
    leader = Candidate(client, namespace, clock)
    async with group_of(leader.run):
        await eventually(lambda: leader.leads, "a leader")
        leases.patch_namespaced_lease("leader", namespace, {"metadata": {"annotations": {"note": "hello"}, "labels": {"team": "x"}}})
        await clock.advance(3 * DURATION)
        assert leader.leads
        assert not leader.fenced
    metadata = leases.read_namespaced_lease("leader", namespace).metadata
    assert (metadata.annotations, metadata.labels) == ({"note": "hello"}, {"team": "x"})


async def test_deleted_lease_is_made_again_by_its_holder(client: Client, namespace: str, clock: CandidatesClock, leases: Any) -> None:
    leader = Candidate(client, namespace, clock)
    async with group_of(leader.run):
        await eventually(lambda: leader.leads, "a leader")
        leases.delete_namespaced_lease("leader", namespace)
        await clock.advance(3 * DURATION)
        assert leader.leads
        assert not leader.fenced
    assert leases.read_namespaced_lease("leader", namespace).spec.holder_identity == leader.identity


async def test_outage_closes_the_fence_but_the_leader_goes_on_and_reopens_it(
    hub: ControlPlane, client: Client, namespace: str, clock: CandidatesClock
) -> None:
    """Renewals arrive during the outage and only their answers are lost, so that the first one afterwards meets a conflict."""
    timeouts = Timeouts(read=1.0, write=1.0, connect=1.0)
    async with Proxy() as proxy:
        connection = attrs.evolve(await load_connection(kubeconfig=hub.kubeconfig), proxy=proxy.url, timeouts=timeouts)
        async with Client(connection) as far:
            leader = Candidate(far, namespace, clock)
            guarded = client.fenced(leader.election.fence)
            async with group_of(leader.run):
                await eventually(lambda: leader.leads, "a leader")
                await guarded.create(CONFIGMAPS, {"metadata": {"name": "before"}}, namespace=namespace)
                proxy.stall()
                await clock.advance(FENCE + PERIOD)
                assert leader.fenced and leader.leads
                with pytest.raises(Fenced):
                    await guarded.delete(CONFIGMAPS, Key(namespace, "before"))
                await guarded.get(CONFIGMAPS, Key(namespace, "before"))
                proxy.cut()
                proxy.resume()

                async def reopened() -> bool:
                    await clock.advance(PERIOD)
                    return not leader.fenced

                await eventually(reopened, "the fence opens again")
                assert leader.leads
                await guarded.delete(CONFIGMAPS, Key(namespace, "before"))
