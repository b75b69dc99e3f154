"""More than one process for the same nodes, and one process after the other."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from attrs import frozen

from tests.integration.runtime.fleet import Body, Fleet, audited, complaints, listens, port, received, renewed_at, stop_took
from tests.support.bound import condition
from tests.support.program import Program, eventually
from tests.support.witness import Record
from vkubelet.control.leader import DURATION
from vkubelet.node.lease import DURATION as LEASE
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.fixtures import run_apart

IDLE = timedelta(seconds=55)
SETTLED = timedelta(seconds=3)
"""Until everything that follows from the last pod has been written."""
NOTICED = 35.0
"""Seconds: after forty without renewals the cluster would say that the nodes are not Ready."""
READS = ("get", "list", "watch")
pytestmark = pytest.mark.usefixtures("idle")


@frozen(kw_only=True)
class Idle:
    """A process that has had nothing to do since `since`."""

    fleet: Fleet
    program: Program
    names: list[str]
    user: str
    since: datetime


@pytest.fixture(scope="module")
def idle(hub: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Idle]:
    """Idles on a cluster of its own while the other tests of this file run."""
    fleet = Fleet(plane=hub, directory=tmp_path_factory.mktemp("idle"))
    fleet.namespace = run_apart(hub.namespace("idle"))
    user = f"{fleet.instance}-idle"
    fleet.kubeconfig = hub.client_config(user, ["system:masters"])
    names = fleet.declare("a b c")

    async def busy() -> None:
        await fleet.ready(names)
        await fleet.create("p", "q", node=names[0])
        await fleet.running("p", "q")
        await fleet.settled(*names)

    try:
        with fleet.program() as program:
            run_apart(busy())
            yield Idle(fleet=fleet, program=program, names=names, user=user, since=datetime.now(UTC) + SETTLED)
    finally:
        run_apart(fleet.remove())


async def test_newer_of_two_processes_without_election_stays_and_the_older_ends(fleet: Fleet) -> None:
    names = fleet.declare("a b")
    # The older one learns of the newer by its next renewal.
    fleet.settings = {"lease": {"renew_every": 2.0}}
    with fleet.program() as older:
        await fleet.ready(names, program=older)
        await fleet.create("p", node=names[0])
        await fleet.running("p")
        async with fleet.watched() as pods, fleet.watched("nodes") as nodes:
            with fleet.program(log="b") as newer:
                code = await eventually(lambda: older.process.poll(), "the older process ends")
                assert code == 1
                last = older.text().splitlines()[-1]
                assert last.startswith("error: the Lease of node ")
                assert "only one process may serve a node" in last
                assert "Traceback" not in older.text()
                await fleet.create("q", node=names[1])
                await fleet.running("p", "q")

                async def all_listen() -> bool:
                    return all(listens(node) for node in await fleet.ready(names, program=newer))

                # While both ran, each saw the other undo its write and slowed down.
                await eventually(all_listen, "the published ports are those of the process that stayed", seconds=60)
        _assert_untouched(pods, nodes)
        assert newer.process.returncode == 0


async def test_follower_takes_over_from_a_killed_or_frozen_leader_before_anybody_notices(fleet: Fleet, second_fleet: Fleet) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_killed_leader(fleet))
        group.create_task(_frozen_leader(second_fleet))


async def _killed_leader(fleet: Fleet) -> None:
    names = fleet.declare("a b")
    with fleet.program(leader=_election(fleet)) as first, fleet.program(log="b", leader=_election(fleet)) as second:
        leader, follower = await _leading(first, second)
        await fleet.ready(names, program=leader)
        await fleet.create("p", "q", node=names[0])
        before = await fleet.running("p", "q")
        async with fleet.watched() as pods, fleet.watched("nodes") as nodes:
            leader.kill()
            began = time.monotonic()
            await eventually(lambda: _leads(follower), "the follower leads", seconds=NOTICED)
            print(f"took over {time.monotonic() - began:.1f} s after the kill")
            await fleet.create("r", node=names[1])
            await fleet.running("r")
        _assert_untouched(pods, nodes)
        assert await fleet.running("p", "q") == before
        assert fleet.starts() == ["p", "q", "r"]
        assert complaints(follower) == []


async def _frozen_leader(fleet: Fleet) -> None:
    """Such as a machine that was suspended: when it goes on, it still believes that it leads."""
    (name,) = fleet.declare("a")
    user = f"{fleet.instance}-frozen"
    fleet.kubeconfig = fleet.plane.client_config(user, ["system:masters"])
    with fleet.program(leader=_election(fleet)) as leader:
        await eventually(lambda: _leads(leader), "it leads")
        await fleet.ready([name], program=leader)
        fleet.kubeconfig = None
        with fleet.program(log="b", leader=_election(fleet)) as follower:
            await eventually(lambda: _said(follower, "another process leads"), "the other follows")
            async with fleet.watched("nodes") as nodes:
                leader.process.send_signal(signal.SIGSTOP)
                try:
                    await eventually(lambda: _leads(follower), "the follower leads", seconds=NOTICED)
                    await fleet.create("p", node=name)
                    await fleet.running("p")
                finally:
                    thawed = datetime.now(UTC)
                    leader.process.send_signal(signal.SIGCONT)
                assert await eventually(lambda: leader.process.poll(), "the old leader ends") == 1
                assert "was acquired by" in leader.text().splitlines()[-1]
            assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")
            late = [event for event in audited(fleet.plane, user) if received(event) > thawed and event["verb"] not in READS]
            assert all(event["responseStatus"]["code"] == 409 for event in late), "only the election asked, and was refused"
            assert fleet.starts() == ["p"]


async def test_leader_that_stops_hands_over_at_once(fleet: Fleet) -> None:
    names = fleet.declare("a")
    with fleet.program(leader=_election(fleet)) as first, fleet.program(log="b", leader=_election(fleet)) as second:
        leader, follower = await _leading(first, second)
        await fleet.ready(names, program=leader)
        async with fleet.watched("nodes") as nodes:
            assert leader.terminate() == 0
            await eventually(lambda: _leads(follower), "the follower leads")
            took = (_said_at(follower, "leading") - _said_at(leader, "stopped")).total_seconds()
            print(f"took over {took:.1f} s after the end")
            # The Lease of one who says nothing runs out that long after its last renewal, which was some two seconds ago.
            assert took < DURATION - 3
            await fleet.create("p", node=names[0])
            await fleet.running("p")
        assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")
        # A follower ends as readily as a leader.
        with fleet.program(log="c", leader=_election(fleet)) as third:
            await eventually(lambda: _said(third, "another process leads"), "the third follows")
            assert third.terminate() == 0
        assert _leads(follower)


async def test_restart_is_invisible(fleet: Fleet) -> None:
    names = fleet.declare("a b")
    # A Lease that is renewed of itself meanwhile would tell nothing of the stop.
    fleet.settings = {"lease": {"renew_every": 30.0}}
    with fleet.program() as first:
        await fleet.ready(names, program=first)
        await fleet.create("p", "q", node=names[0])
        await fleet.running("p", "q")
        await fleet.settled(*names)
        # The second renewal comes anywhere in the interval, later ones almost a whole one apart: none may fall into the stop.
        await eventually(lambda: _newly_renewed(fleet, names[0]), "its Lease is not due soon", seconds=100)
        before = await _versions(fleet, names)
        ports = {node["metadata"]["name"]: port(node) for node in await fleet.nodes()}
        async with fleet.watched() as pods, fleet.watched("nodes") as nodes:
            assert first.terminate() == 0
            assert await _versions(fleet, names) == before
            with fleet.program(log="b") as second:
                await eventually(lambda: fleet.calls("sync p")[1:] and fleet.calls("sync q")[1:], "the second process knows the pods")
                await fleet.create("r", node=names[1])
                await fleet.running("r")
                now = await _versions(fleet, names)
                unleased = {key: version for key, version in before.items() if not key.startswith("lease")}
                assert {key: now[key] for key in unleased} == unleased
                assert {node["metadata"]["name"]: port(node) for node in await fleet.nodes()} == ports
                assert complaints(second) == []
        assert nodes.events == []
        assert {event.key.split("/")[1] for event in pods.events} == {"r"}
    assert complaints(first) == []
    stops = [stop_took(first), stop_took(second)]
    print(f"ended {stops} s after SIGTERM")
    # V126; a loaded machine may hold up one of them. A provider that does not end is given five seconds, and so are writes.
    assert min(stops) < 5


async def test_stop_waits_for_no_provider_that_lingers(fleet: Fleet) -> None:
    names = fleet.declare("a")
    fleet.tell("linger")
    with fleet.program() as program:
        await fleet.ready(names, program=program)
        # It is given five seconds, and would take for ever.
        assert program.terminate() == 0
    assert complaints(program) == ["vkubelet.runtime: the provider did not stop in time; it is cancelled"]


async def test_provider_that_ignores_its_cancellation_keeps_no_successor_waiting(fleet: Fleet) -> None:
    """Such as one whose disk does not respond: a file operation in a thread cannot be cancelled."""
    names = fleet.declare("a")
    fleet.tell("linger", "deaf")
    with fleet.program(leader=_election(fleet)) as first, fleet.program(log="b", leader=_election(fleet)) as second:
        leader, follower = await _leading(first, second)
        await fleet.ready(names, program=leader)
        async with fleet.watched("nodes") as nodes:
            leader.process.send_signal(signal.SIGTERM)
            assert await eventually(lambda: leader.process.poll(), "it ends", seconds=NOTICED) == 1
            (end,) = [line for line in leader.messages() if line["level"] == "ERROR"]
            assert "did not finish within" in end["message"] and "provider" in end["tasks"]
            await eventually(lambda: _leads(follower), "the follower leads", seconds=NOTICED)
            fleet.untell("linger")
            await fleet.create("p", node=names[0])
            await fleet.running("p")
        assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")


async def test_idle_process_writes_leases_every_ten_seconds_and_nothing_else(idle: Idle) -> None:
    await eventually(lambda: datetime.now(UTC) - idle.since > IDLE, "a minute has passed", seconds=IDLE.total_seconds() + 10, every=1)
    fleet = idle.fleet
    requests = [event for event in audited(fleet.plane, idle.user) if received(event) > idle.since]
    writes = {(event["verb"], event["objectRef"]["resource"]) for event in requests if event["verb"] not in READS}
    assert writes == {("update", "leases")}
    for name in idle.names:
        times = [received(event) for event in requests if event["objectRef"].get("name") == name and event["verb"] == "update"]
        pauses = [(after - before).total_seconds() for before, after in pairwise(times)]
        assert len(pauses) >= 3
        # Other tests take the machine's time meanwhile, which makes pauses longer: the shorter ones tell the interval. One that failed is
        # repeated soon, and none may be as long as a Lease lasts.
        assert 9.0 <= sorted(pauses)[1] <= 11.0 and all(5.0 <= pause < LEASE for pause in pauses), pauses
    assert complaints(idle.program) == []


def _election(fleet: Fleet) -> Body:
    return {"enabled": True, "namespace": fleet.namespace}


def _said(program: Any, text: str) -> bool:
    return any(line["message"] == text for line in program.messages())


def _said_at(program: Any, text: str) -> datetime:
    return next(datetime.fromisoformat(line["time"]) for line in program.messages() if line["message"] == text)


def _leads(program: Any) -> bool:
    return _said(program, "leading")


async def _leading(first: Any, second: Any) -> tuple[Any, Any]:
    """The one that leads, and the one that has seen that."""
    await eventually(lambda: _leads(first) or _leads(second), "one leads")
    leader, follower = (first, second) if _leads(first) else (second, first)
    await eventually(lambda: _said(follower, "another process leads"), "the other follows")
    assert not _leads(follower)
    return leader, follower


def _assert_untouched(pods: Record, nodes: Record) -> None:
    assert not pods.where(lambda event: event.kind == "DELETED" or event.deleting or event.restarts > 0)
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")


async def _newly_renewed(fleet: Fleet, name: str) -> bool:
    """Whether its Lease was renewed after its creation, and not long ago."""
    lease = await fleet.lease(name)
    if lease is None:
        return False
    made = datetime.fromisoformat(lease["metadata"]["creationTimestamp"])
    # The time of creation is cut to seconds, and the second renewal comes three seconds after it at the earliest.
    return renewed_at(lease) >= made + timedelta(seconds=2) and datetime.now(UTC) - renewed_at(lease) <= timedelta(seconds=6)


async def _versions(fleet: Fleet, names: list[str]) -> dict[str, str]:
    """The resourceVersion of everything that a stop and a start must not touch; of the Leases that of the first node."""
    out = {f"pod {pod['metadata']['name']}": pod["metadata"]["resourceVersion"] for pod in await fleet.pods()}
    for name in names:
        node = await fleet.node(name)
        assert node is not None
        assert condition(node, "Ready") == "True"
        out[f"node {name}"] = node["metadata"]["resourceVersion"]
    lease = await fleet.lease(names[0])
    assert lease is not None
    return {**out, f"lease {names[0]}": lease["metadata"]["resourceVersion"]}
