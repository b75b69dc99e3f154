"""Nodes that the provider withdraws, and Nodes of an earlier process (rule `declared-before`)."""

from __future__ import annotations

from tests.integration.runtime.fleet import Body, Fleet, complaints, renewed_at
from tests.integration.runtime.test_shutdown import renewed_thrice
from tests.support.program import eventually

RETIRING = {"key": "vkubelet.io/retiring", "effect": "NoSchedule"}


def _retiring(node: Body) -> bool:
    return RETIRING in node["spec"].get("taints", [])


async def test_withdrawn_node_takes_no_pods_and_goes_when_it_is_empty(fleet: Fleet) -> None:
    keep, leave = fleet.declare("keep leave")
    with fleet.program() as program:
        await fleet.ready([keep, leave], program=program)
        await fleet.create("p", node=leave)
        await fleet.running("p")
        fleet.declare("keep")
        await fleet.until_node(leave, _retiring, "retiring")
        await fleet.create("late", node=leave)
        await fleet.create("other", node=keep)
        await fleet.running("p", "other")
        assert fleet.calls("sync late") == []
        assert await fleet.node(leave) is not None
        await fleet.kubectl("delete", "pod", "p", "late", "--wait=false")
        await fleet.gone(leave)
        assert await fleet.node(keep) is not None
        assert complaints(program) == []


async def test_empty_node_goes_at_once_with_its_lease(fleet: Fleet) -> None:
    keep, leave = fleet.declare("keep leave")
    with fleet.program() as program:
        await fleet.ready([keep, leave], program=program)
        fleet.declare("keep")
        await fleet.gone(leave)
        assert not [line for line in program.messages() if line["level"] == "ERROR"]


async def test_node_declared_again_while_retiring_takes_pods_again(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program() as program:
        await fleet.ready([name], program=program)
        await fleet.create("p", node=name)
        await fleet.running("p")
        fleet.declare("")
        await fleet.until_node(name, _retiring, "retiring")
        fleet.declare("a")
        await fleet.until_node(name, lambda node: not _retiring(node), "not retiring any more")
        await fleet.create("q", node=name)
        await fleet.running("p", "q")


async def test_nodes_of_an_earlier_process_are_held_until_declarations_are_complete(fleet: Fleet) -> None:
    keep, old = fleet.declare("keep old")
    with fleet.program() as first:
        await fleet.ready([keep, old], program=first)
        await fleet.create("p", node=old)
        await fleet.running("p")
        await fleet.settled(old)
        first.kill()
    fleet.untell("complete")
    fleet.declare("keep", complete=False)
    node, lease = await fleet.node(old), await fleet.lease(old)
    assert node is not None and lease is not None
    with fleet.program(log="b", lease={"renew_every": 1.0}) as second:
        async with fleet.watched() as seen:

            async def renewed() -> bool:
                now = await fleet.lease(old)
                return now is not None and renewed_at(now) > renewed_at(lease)

            await eventually(renewed, "the Lease of the node that nobody declared is renewed")
            await fleet.create("late", node=old)
            await fleet.create("other", node=keep)
            await fleet.running("other")
            assert fleet.calls("sync late") == []
            held = await fleet.node(old)
            assert held is not None
            assert held["metadata"]["resourceVersion"] == node["metadata"]["resourceVersion"]
            fleet.tell("end", "p")
            fleet.tell("complete")
            await fleet.until_node(old, _retiring, "retiring")
        assert not [event for event in seen.events if event.kind == "DELETED" or event.deleting]
        assert fleet.calls("delete") == []
        await fleet.kubectl("delete", "pod", "p", "late", "--wait=false")
        await fleet.gone(old)
        assert await fleet.node(keep) is not None
        assert fleet.calls("sync late") == []
        assert complaints(second) == []


async def test_held_node_that_a_person_deletes_costs_no_lease_and_its_pods_still_terminate(fleet: Fleet) -> None:
    keep, old = fleet.declare("keep old")
    with fleet.program() as first:
        await fleet.ready([keep, old], program=first)
        await fleet.create("p", node=old)
        await fleet.running("p")
        first.kill()
    fleet.untell("complete")
    fleet.declare("keep", complete=False)
    lease = await fleet.lease(old)
    assert lease is not None
    with fleet.program(log="b", lease={"renew_every": 0.5}) as second:

        async def renewed() -> bool:
            now = await fleet.lease(old)
            return now is not None and renewed_at(now) > renewed_at(lease)

        await eventually(renewed, "the Lease is renewed")
        await fleet.kubectl("delete", "node", old, "--wait=false")
        await eventually(lambda: _absent(fleet, old), "Node gone")

        async def let_go() -> bool:
            """What was under way when the Node went may make its Lease once more."""
            await fleet.plane.kubectl("-n", "kube-node-lease", "delete", "lease", old, "--ignore-not-found")
            await renewed_thrice(fleet, keep)
            return await fleet.lease(old) is None

        await eventually(let_go, "the Lease is not made again while others are renewed")
        # The cluster itself deletes pods of nodes that are gone.
        await fleet.kubectl("delete", "pod", "p", "--ignore-not-found", "--force", "--grace-period=0")
        fleet.tell("complete")
        await eventually(lambda: bool(fleet.calls("delete p")), "its pod is ended")
        assert await fleet.node(old) is None
        assert complaints(second) == []


async def _absent(fleet: Fleet, name: str) -> bool:
    return await fleet.node(name) is None
