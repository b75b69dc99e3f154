"""A provider that raises, fails its ping, or hangs in it."""

from __future__ import annotations

import pytest

from tests.integration.runtime.fleet import Body, Fleet, complaints, reason, renewed_at
from tests.support.bound import condition
from tests.support.program import eventually


async def test_crashed_provider_is_started_again_and_only_readiness_shows_it(fleet: Fleet) -> None:
    names = fleet.declare("a b")
    with fleet.program() as program:
        await fleet.ready(names, program=program)
        await fleet.create("p", "q", node=names[0])
        await fleet.running("p", "q")
        async with fleet.watched() as seen:
            fleet.tell("crash")
            for name in names:
                node = await fleet.until_node(name, lambda body: condition(body, "Ready") == "False", "NotReady")
                assert reason(node) == "ProviderFailed"
            await eventually(lambda: len(fleet.calls("run")) >= 4, "it is started again, and again")
            fleet.untell("crash")
            await fleet.ready(names, program=program)
            await fleet.running("p", "q")
        assert not [event for event in seen.events if event.kind == "DELETED" or event.deleting or event.phase != "Running"]
        assert fleet.starts() == ["p", "q"]
        assert fleet.calls("delete") == []
        await fleet.create("r", node=names[0])
        await fleet.running("r")
    assert program.process.returncode == 0


async def test_crashing_provider_is_not_started_without_pause(fleet: Fleet) -> None:
    fleet.declare("a")
    fleet.tell("crash")
    with fleet.program() as program:
        await eventually(lambda: len(fleet.calls("run")) >= 5, "it is started again, and again")
        assert program.terminate() == 0
    # One that runs is given five seconds, and then this is said.
    assert not any("did not stop in time" in each for each in complaints(program)), "nobody waits for a provider that does not run"


@pytest.mark.parametrize(("told", "shown"), [("fail", "PingFailed"), ("hang", "PingTimeout"), ("bug", "PingFailed")])
async def test_failing_ping_turns_ready_off_and_back(fleet: Fleet, told: str, shown: str) -> None:
    (name,) = fleet.declare("a")
    with fleet.program(ping={"every": 0.5, "timeout": 0.5}, lease={"renew_every": 0.5}) as program:
        await fleet.ready([name], program=program)
        await fleet.create("p", node=name)
        await fleet.running("p")
        async with fleet.watched() as seen:
            fleet.tell("ping", told)
            node = await fleet.until_node(name, lambda body: condition(body, "Ready") == "False", "NotReady")
            assert reason(node) == shown
            lease = await fleet.lease(name)
            assert lease is not None
            await eventually(lambda: renewed(fleet, name, lease), "the Lease goes on, so that nothing is evicted")
            fleet.untell("ping")
            await fleet.ready([name], program=program)
            await fleet.running("p")
        assert not [event for event in seen.events if event.kind == "DELETED" or event.deleting]
        assert program.alive


async def renewed(fleet: Fleet, name: str, before: Body) -> bool:
    lease = await fleet.lease(name)
    return lease is not None and renewed_at(lease) > renewed_at(before)


async def test_settings_error_of_the_provider_ends_the_process_with_2(fleet: Fleet) -> None:
    fleet.tell("refuse", "puppet.directory: is not to my liking")
    with fleet.program() as program:
        assert await eventually(lambda: program.process.poll(), "the process ends") == 2
    assert "is not to my liking" in program.text()
    assert "Traceback" not in program.text()


async def test_pod_that_ends_leaves_no_complaint(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program() as program:
        await fleet.ready([name], program=program)
        await fleet.create("p", node=name, restartPolicy="Never")
        await fleet.running("p")
        fleet.tell("end", "p")
        await fleet.until_pod("p", lambda body: body["status"]["phase"] == "Succeeded", "Succeeded")
        assert complaints(program) == []
