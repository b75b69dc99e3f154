"""The API server does not answer for a while."""

from __future__ import annotations

import asyncio
import json
import signal
import time

from tests.integration.runtime.fleet import Body, Fleet, stop_took
from tests.support.program import eventually
from vkubelet.client.connection import Timeouts


async def test_half_a_minute_without_answers_is_caught_up_with_and_fences_writes(fleet: Fleet) -> None:
    names = fleet.declare("a b")
    with fleet.program(leader={"enabled": True, "namespace": fleet.namespace}) as program:
        await fleet.ready(names, program=program)
        await fleet.create("p", "q", node=names[0], restartPolicy="Never")
        await fleet.running("p", "q")
        async with fleet.watched() as pods, fleet.watched("nodes") as nodes:
            fleet.plane.pause()
            began = time.monotonic()
            try:
                fleet.tell("end", "p")
                fenced = "leadership was last confirmed"
                # Ten seconds after the last renewal, and with the first write after that; the outage must not be longer than a Lease.
                await eventually(lambda: fenced in program.text(), "writes are refused by the fence", seconds=28, every=0.5)
                await _until(began + 30)
            finally:
                fleet.plane.resume()
            assert program.alive
            await fleet.until_pod("p", lambda body: body["status"]["phase"] == "Succeeded", "Succeeded")
            await fleet.create("r", node=names[1])
            await fleet.running("q", "r")
            await fleet.ready(names, program=program)
        assert not pods.where(lambda event: event.kind == "DELETED" or event.deleting)
        assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")
        assert fleet.calls("delete") == []
        assert program.terminate() == 0


async def test_what_the_cluster_thought_of_a_silent_node_is_put_right_when_it_speaks_again(fleet: Fleet) -> None:
    """The test writes what the node controller writes of a node that is silent for a minute."""
    (name,) = fleet.declare("a")
    with fleet.program(lease={"renew_every": 1.0}) as program:
        await fleet.ready([name], program=program)
        await fleet.create("p", "q", node=name)
        before = await fleet.running("p", "q")
        program.process.send_signal(signal.SIGSTOP)
        try:
            unknown = {
                "type": "Ready",
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
            }
            await fleet.kubectl("patch", "node", name, *_status({"conditions": [unknown]}), "--type=strategic")
            for pod in ("p", "q"):
                await fleet.kubectl("patch", "pod", pod, *_status({"conditions": [{"type": "Ready", "status": "False"}]}))
        finally:
            program.process.send_signal(signal.SIGCONT)
        await fleet.ready([name], program=program)
        after = await fleet.running("p", "q")
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]
    assert fleet.starts() == ["p", "q"]


def _status(status: Body) -> tuple[str, ...]:
    return "--subresource=status", "-p", json.dumps({"status": status})


async def test_api_server_that_is_restarted_is_caught_up_with(fleet: Fleet) -> None:
    names = fleet.declare("a b")
    with fleet.program() as program:
        await fleet.ready(names, program=program)
        await fleet.create("p", "q", node=names[0], restartPolicy="Never")
        await fleet.running("p", "q")
        await fleet.plane.stop_apiserver()
        fleet.tell("end", "p")
        await eventually(lambda: _ended(fleet), "the backend has noted the end that nobody could be told of")
        await fleet.plane.start_apiserver()
        async with fleet.watched() as pods:
            await fleet.until_pod("p", lambda body: body["status"]["phase"] == "Succeeded", "Succeeded")
            await fleet.create("r", node=names[1])
            await fleet.running("q", "r")
            await fleet.ready(names, program=program)
        assert not pods.where(lambda event: event.kind == "DELETED" or event.deleting)
        assert fleet.calls("delete") == []
        assert fleet.starts() == ["p", "q", "r"]
        assert program.terminate() == 0


async def test_process_started_while_the_api_server_is_away_waits_for_it(fleet: Fleet) -> None:
    names = fleet.declare("a")
    await fleet.plane.stop_apiserver()
    with fleet.program() as program:
        try:
            await eventually(lambda: program.text().count('"path": "/api/v1/pods"') >= 3, "it asks again and again")
            assert program.alive
        finally:
            await fleet.plane.start_apiserver()
        await fleet.ready(names, program=program)


async def test_stop_during_an_outage_is_no_longer_than_the_writes_in_flight(fleet: Fleet) -> None:
    names = fleet.declare("a")
    with fleet.program(leader={"enabled": True, "namespace": fleet.namespace}) as program:
        await fleet.ready(names, program=program)
        fleet.plane.pause()
        try:
            assert await asyncio.to_thread(program.terminate) == 0
        finally:
            fleet.plane.resume()
        print(f"ended {stop_took(program):.1f} s after SIGTERM in an outage")
        # Last words are given two seconds, writes five, and so is the election's Lease; a read waits for thirty.
        assert stop_took(program) < Timeouts().read - 5
        assert await fleet.node(names[0]) is not None


async def _until(moment: float) -> None:
    """The length of an outage is the point of its test."""
    await asyncio.sleep(moment - time.monotonic())


def _ended(fleet: Fleet) -> bool:
    return any('"ended": "2' in file.read_text() for file in (fleet.directory / "pods").iterdir())
