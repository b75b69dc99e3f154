"""What the program says to the outside: events while it runs, lines of its log, and everything that was under way when it is stopped."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import yaml

from tests.integration.runtime.fleet import Body, Fleet, port, stop_took
from tests.integration.runtime.talkative import EQUAL, LAST
from tests.support.program import Program, eventually
from tests.support.spdy_client import connected, upgrade_request
from vkubelet.api.codec import decode_yaml
from vkubelet.control.recorder import BURST
from vkubelet.server import spdy_frames as spdy
from vkubelet.server.ports import STREAMS_END
from vkubelet.testing.cluster import ControlPlane

TALKATIVE = str(Path(__file__).with_name("talkative.py"))


async def events_of(fleet: Fleet, pod: Body) -> list[Body]:
    """Those about this very pod, by its uid."""
    selector = f"involvedObject.uid={pod['metadata']['uid']}"
    items: list[Body] = json.loads(await fleet.kubectl("get", "events", "--field-selector", selector, "-o", "json"))["items"]
    return items


def talking(fleet: Fleet, name: str) -> Program:
    return fleet.program(TALKATIVE, provider={"node": name})


async def test_events_are_counted_limited_and_hold_up_nobody(fleet: Fleet) -> None:
    name = fleet.name("t")
    with talking(fleet, name) as program:
        await fleet.ready([name], program=program)
        await fleet.create("different", "equal", "quiet", node=name)
        different, equal, _ = await fleet.running("different", "equal", "quiet")

        async def counted() -> bool:
            return [event["count"] for event in await events_of(fleet, equal)] == [EQUAL]

        await eventually(counted, "equal events are one with a count")
        # Those of the other pod were said before.
        found = await eventually(lambda: all_written(fleet, different), "as many as one object gets")
    assert {event["reason"] for event in found} == {"Different"}
    assert len({event["message"] for event in found}) == BURST
    assert {event["involvedObject"]["name"] for event in found} == {"different"}


async def all_written(fleet: Fleet, pod: Body) -> list[Body] | None:
    found = await events_of(fleet, pod)
    return found if len(found) >= BURST else None


async def test_stop_writes_what_was_said_last_and_ends_streams_with_goaway(scheduled: Fleet) -> None:
    fleet, name = scheduled, scheduled.name("t")
    server = {"main_port": 0, "certificate": "self-signed", "node_address": fleet.plane.host_address}
    with fleet.program(TALKATIVE, provider={"node": name}, server=server) as program:
        (node,) = await fleet.ready([name], program=program)
        await fleet.create("a", "b", node=name, restartPolicy="Never")
        pods = await fleet.running("a", "b")
        path = f"/exec/{fleet.namespace}/a/main?input=1&output=1&command=cat"
        async with connected(fleet.plane.host_address, port(node), api_server(fleet.plane)) as client:
            assert await client.upgrade(upgrade_request(path, "v4.channel.k8s.io")) == 101, client.head
            for number, kind in ((1, "error"), (3, "stdin"), (5, "stdout")):
                await client.send(client.open_frame(number, {"streamtype": kind}))
                await client.next(spdy.SynReply)
            ending = asyncio.create_task(asyncio.to_thread(program.terminate))
            frames = await client.until_closed()
            assert await ending == 0
    print(f"ended {stop_took(program):.1f} s after SIGTERM with a session open")
    # Streams that nobody ends are given that long.
    assert stop_took(program) < STREAMS_END
    assert any(isinstance(frame, spdy.GoAway) and frame.status == 0 for frame in frames)
    for pod in pods:
        left = await fleet.pod(pod["metadata"]["name"])
        assert left is not None
        assert left["status"]["phase"] == "Failed"
        assert left["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
        assert len([event for event in await events_of(fleet, pod) if event["reason"] == "LastWords"]) == LAST


def api_server(plane: ControlPlane) -> ssl.SSLContext:
    """As the API server calls a kubelet whose certificate it does not verify."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(plane.kubelet_client.certificate, plane.kubelet_client.key)
    return context


async def test_log_level_follows_the_settings_file_without_a_restart(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    fleet.settings = {"log": {"level": "WARNING"}}
    with fleet.program() as program:
        await fleet.ready([name], program=program)
        assert program.messages() == []
        file = fleet.directory / "a.yaml"
        settings = decode_yaml(file.read_text())
        file.write_text(yaml.safe_dump({**settings, "log": {"level": "LOUD"}}))
        await eventually(lambda: any("log.level" in line["message"] for line in program.messages()), "what is wrong is told")
        file.write_text(yaml.safe_dump({**settings, "log": {"level": "DEBUG"}}))
        await eventually(lambda: any(line["message"] == "log level changed" for line in program.messages()), "the level is followed")
        await fleet.create("p", node=name)
        await fleet.running("p")
        # The call by which the pod runs is logged when it is answered.
        await eventually(lambda: any(line["level"] == "DEBUG" for line in program.messages()), "lines of this level")
