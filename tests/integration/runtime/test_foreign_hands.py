"""Others write to our Nodes, or delete them."""

from __future__ import annotations

import asyncio
import json
import math
import time
from datetime import UTC, datetime, timedelta

from tests.integration.runtime.fleet import Body, Fleet, audited, complaints, port
from tests.support.bound import condition
from tests.support.core import Core
from tests.support.program import eventually
from vkubelet.control.backoff import REPAIR_FIRST

FOREIGN_CONDITION = {
    "type": "example.com/Disk",
    "status": "True",
    "reason": "Fine",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


async def test_node_deleted_by_hand_is_back_at_once_and_its_pods_live_on(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program() as program:
        (before,) = await fleet.ready([name], program=program)
        await fleet.create("p", "q", node=name)
        pods = await fleet.running("p", "q")
        async with fleet.watched() as seen:
            await fleet.kubectl("delete", "node", name, "--wait=false")
            deleted = datetime.now(UTC)
            await fleet.until_node(name, lambda node: node["metadata"]["uid"] != before["metadata"]["uid"], "is another")
            (new,) = await fleet.ready([name], program=program)
            # A lost Node would be put back by the report that is made every six minutes, too.
            assert datetime.fromisoformat(new["metadata"]["creationTimestamp"]) - deleted < timedelta(seconds=10)
            assert port(new) == port(before)

            async def owned() -> bool:
                lease = await fleet.lease(name)
                return bool(lease) and lease["metadata"]["ownerReferences"][0]["uid"] == new["metadata"]["uid"]

            await eventually(owned, "the Lease belongs to the new Node")
            await fleet.create("r", node=name)
            await fleet.running("r")
        old = {pod["metadata"]["uid"] for pod in pods}
        assert [event.kind for event in seen.events if event.uid in old and event.kind == "DELETED"] == []
        assert [pod["metadata"]["uid"] for pod in await fleet.running("p", "q")] == [pod["metadata"]["uid"] for pod in pods]
        assert fleet.starts() == ["p", "q", "r"]
        assert complaints(program) == []


async def test_marks_of_others_survive_our_writes_and_ours_come_back(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program(ping={"every": 0.5}) as program:
        (node,) = await fleet.ready([name], program=program)
        await fleet.kubectl("label", "node", name, "example.com/zone=7", "color-", "--overwrite")
        await fleet.kubectl("annotate", "node", name, "example.com/note=kept")
        await fleet.kubectl("taint", "node", name, "example.com/gpu=yes:NoSchedule")
        await fleet.kubectl("cordon", name)
        change = json.dumps({"status": {"conditions": [FOREIGN_CONDITION]}})
        await fleet.kubectl("patch", "node", name, "--subresource=status", "--type=strategic", "-p", change)
        await fleet.until_node(name, _color("red"), "has our label again")
        # Writes of every kind: labels and conditions, then a status that others made wrong.
        fleet.tell("ping", "fail")
        await fleet.kubectl("label", "node", name, "color=blue", "--overwrite")
        await fleet.until_node(name, _color("red"), "has our label again")
        node = await fleet.until_node(name, lambda body: condition(body, "Ready") == "False", "NotReady")
        _assert_foreign_kept(node)
    with fleet.program(log="b", node={"taint": "puppet.io/other:NoSchedule"}) as program:
        fleet.untell("ping")
        node = await fleet.until_node(name, lambda body: _has_taint(body, "puppet.io/other"), "has the taint of the second start")
        (node,) = await fleet.ready([name], program=program)
        _assert_foreign_kept(node)
    with fleet.program(log="c") as program:
        node = await fleet.until_node(
            name, lambda body: not _has_taint(body, "puppet.io/other"), "lost the taint that is not ours any more"
        )
        _assert_foreign_kept(node)


async def test_own_mark_removed_by_hand_comes_back(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program() as program:
        (before,) = await fleet.ready([name], program=program)
        await fleet.kubectl("label", "node", name, "vkubelet.io/instance-")
        node = await fleet.until_node(name, lambda body: "vkubelet.io/instance" in body["metadata"]["labels"], "is marked")
        assert node["metadata"]["uid"] == before["metadata"]["uid"]
        assert complaints(program) == []


async def test_other_writer_who_insists_does_not_make_us_write_at_full_speed(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    user = f"{fleet.instance}-patient"
    fleet.kubeconfig = fleet.plane.client_config(user, ["system:masters"])
    with fleet.program() as program:
        await fleet.ready([name], program=program)
        core, began, undone = Core(fleet.plane), time.monotonic(), 0
        # Either alone would tell nothing on a slow machine, or on a quick one.
        while undone < 30 or time.monotonic() - began < 6:
            await core.patch("nodes", name, {"metadata": {"labels": {"color": "blue"}}})
            undone += 1
            await asyncio.sleep(0.1)
        ours = [event for event in audited(fleet.plane, user) if event["objectRef"].get("subresource") == "status"]
        # Each wait is twice as long as the one before, less a tenth at most.
        waits = math.log2((time.monotonic() - began) / (0.9 * REPAIR_FIRST) + 1)
        assert len(ours) <= 2 + waits, "one to register, one repair at once, and others after 1, 2, 4 … seconds"
        assert undone > 2 * len(ours)
        await fleet.until_node(name, _color("red"), "has our label again")


async def test_node_of_another_instance_is_not_taken(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"vkubelet.io/instance": "other"}}}
    await fleet.kubectl("create", "-f", "-", stdin=json.dumps(other))
    try:
        with fleet.program() as program:
            await eventually(lambda: any("belongs to" in line for line in complaints(program)), "the log names the other instance")
            node = await fleet.node(name)
            assert node is not None
            assert node["metadata"]["labels"]["vkubelet.io/instance"] == "other"
            assert await fleet.lease(name) is None
    finally:
        await fleet.kubectl("delete", "node", name)


async def test_labels_changed_faster_than_we_write_settle_with_both_sides_kept(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program() as program:
        await fleet.ready([name], program=program)
        changes = [fleet.kubectl("label", "node", name, f"example.com/n{i}=x", "color=blue", "--overwrite") for i in range(5)]
        await asyncio.gather(*changes)
        node = await fleet.until_node(name, _color("red"), "has our label again")
        assert {f"example.com/n{i}" for i in range(5)} <= set(node["metadata"]["labels"])


def _color(color: str):  # type: ignore[no-untyped-def]
    return lambda body: body["metadata"]["labels"].get("color") == color


def _has_taint(node: Body, key: str) -> bool:
    return any(taint["key"] == key for taint in node["spec"].get("taints", ()))


def _assert_foreign_kept(node: Body) -> None:
    assert node["metadata"]["labels"]["example.com/zone"] == "7"
    assert node["metadata"]["annotations"]["example.com/note"] == "kept"
    assert _has_taint(node, "example.com/gpu")
    assert node["spec"]["unschedulable"] is True
    assert condition(node, "example.com/Disk") == "True"
