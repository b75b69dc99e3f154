"""Declared nodes and their retained form (rule `worker-unreachable`)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import evolve

from kubeocean.binding.virtual_nodes import HOLD_REASON, UNREACHABLE_TAINT, VirtualNodes, description_of, retained
from kubeocean.model import keys
from tests.support.stall import stall_meter
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Json, Node
from vkubelet.node.declared import HEALTHY
from vkubelet.node.render import Endpoint, new_node, wanted
from vkubelet.provider import NodeDescription, Taint
from vkubelet.testing.host import RecordingHost

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fine"}
DESCRIPTION = NodeDescription(
    "vnode-demo-a",
    {"cpu": "4"},
    labels={keys.PHYSICAL_NODE_NAME: "a", keys.PHYSICAL_NODE_UID: "uid-a", "zone": "z"},
    annotations={keys.PHYSICAL_NODE_NAME: "a"},
    taints=[Taint(key=keys.TAINT_VNODE, effect="NoSchedule")],
    conditions=[READY],
)


def ready(description: NodeDescription) -> Json:
    return next(dict(condition) for condition in description.conditions if condition["type"] == "Ready")


def live(description: NodeDescription) -> Node:
    """The Node as the runtime writes it, with what a user added to it."""
    node = wanted(description, Endpoint("10.0.0.1", 15000), instance="demo", health=HEALTHY)
    body = new_node(node)
    body["metadata"]["labels"]["user"] = "mine"
    body["metadata"]["annotations"]["user"] = "mine"
    body["spec"]["taints"].append({"key": "user", "effect": "NoSchedule"})
    body["status"] = {**node.status, "conditions": [*node.conditions, {"type": "UsersOwn", "status": "True"}]}
    body["metadata"]["uid"] = "hub-uid"
    return Node.decode(encode_json(body))


def test_a_held_node_stays_ready_and_takes_no_new_pods() -> None:
    node = retained(DESCRIPTION, "no answer")
    assert (ready(node)["status"], ready(node)["reason"]) == ("True", HOLD_REASON)
    assert Taint(key=keys.TAINT_WORKER_UNREACHABLE, effect="NoSchedule") in node.taints
    assert any(c["type"] == keys.CONDITION_WORKER_REACHABLE and c["status"] == "False" for c in node.conditions)


def test_a_node_that_was_not_ready_is_not_made_ready_by_holding_it() -> None:
    broken = NodeDescription("v", {"cpu": "4"}, conditions=[{**READY, "status": "False", "reason": "KubeletNotReady"}])
    assert (ready(retained(broken, "no answer"))["status"], ready(retained(broken, "no answer"))["reason"]) == ("False", "KubeletNotReady")


@asynccontextmanager
async def published(nodes: VirtualNodes) -> AsyncIterator[None]:
    """While nodes whose form has changed are published."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(nodes.run())
        yield
        running.cancel()


async def test_holding_and_releasing_shows_what_was_described_last() -> None:
    host = RecordingHost()
    nodes = VirtualNodes(host)
    nodes.declare(DESCRIPTION, physical_name="a", physical_uid="uid-a")
    async with published(nodes):
        nodes.hold("no answer")
        await host.manual_clock.settle()
        assert ready(host.nodes["vnode-demo-a"])["reason"] == HOLD_REASON
        nodes.declare(DESCRIPTION, physical_name="a", physical_uid="uid-a")
        assert ready(host.nodes["vnode-demo-a"])["reason"] == HOLD_REASON
        nodes.release()
        await host.manual_clock.settle()
        assert host.nodes["vnode-demo-a"] == DESCRIPTION


async def test_many_nodes_take_another_form_in_batches_and_are_published_once() -> None:
    host = RecordingHost()
    nodes = VirtualNodes(host)
    for number in range(100):
        nodes.declare(evolve(DESCRIPTION, name=f"n-{number}"), physical_name="a", physical_uid="uid-a")
    async with published(nodes):
        with stall_meter() as stall:
            nodes.hold("no answer")
            await host.manual_clock.settle()
            before = dict(host.nodes)
            nodes.hold("no answer")
            await host.manual_clock.settle()
    assert {ready(node)["reason"] for node in host.nodes.values()} == {HOLD_REASON}
    assert stall.turns >= 4, "20 nodes a turn, without the turn that began outside"
    assert all(host.nodes[name] is node for name, node in before.items()), "the same form is not published again"


def test_a_node_found_in_the_hub_is_read_back_without_what_others_put_on_it() -> None:
    found = description_of(live(DESCRIPTION))
    assert "user" not in found.labels and "user" not in found.annotations
    assert [taint.key for taint in found.taints] == [keys.TAINT_VNODE]
    assert [condition["type"] for condition in found.conditions] == ["Ready"]
    assert (found.labels["zone"], found.capacity) == ("z", {"cpu": "4"})


def test_a_node_that_was_held_is_read_back_as_it_was_before() -> None:
    found = description_of(live(retained(DESCRIPTION, "no answer")))
    assert [taint.key for taint in found.taints] == [keys.TAINT_VNODE]
    assert [condition["type"] for condition in found.conditions] == ["Ready"]


def test_a_node_of_a_worker_that_is_to_be_given_up_is_not_ready_any_more() -> None:
    found = retained(DESCRIPTION, "no answer", ready=False)
    (said,) = [condition for condition in found.conditions if condition["type"] == "Ready"]
    assert (said["status"], said["reason"]) == ("Unknown", "WorkerUnreachable")
    assert UNREACHABLE_TAINT in found.taints


def test_keeping_a_found_node_never_replaces_what_was_declared() -> None:
    host = RecordingHost()
    nodes = VirtualNodes(host)
    nodes.keep(live(DESCRIPTION))
    assert nodes.physical_name("vnode-demo-a") == "a"
    changed = NodeDescription("vnode-demo-a", {"cpu": "1"})
    nodes.declare(changed, physical_name="a", physical_uid="uid-a")
    nodes.keep(live(DESCRIPTION))
    assert host.nodes["vnode-demo-a"] == changed


def test_completeness_is_said_once() -> None:
    host = RecordingHost()
    nodes = VirtualNodes(host)
    nodes.complete()
    host.complete = False
    nodes.complete()
    assert not host.complete and nodes.is_complete


def test_a_retired_node_is_remembered_until_it_left_the_hub() -> None:
    nodes = VirtualNodes(RecordingHost())
    nodes.retire("vnode-demo-a")
    assert nodes.is_retired("vnode-demo-a")
    nodes.remove("vnode-demo-a")
    assert not nodes.is_retired("vnode-demo-a")
