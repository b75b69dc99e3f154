"""What becomes of nodes and pods when a process stops for good, and of a Node that somebody deleted while `node.restore` is off."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.runtime.fleet import Body, Fleet, renewed_at
from tests.support.bound import condition
from tests.support.program import Program, eventually

CLOSED = "vkubelet.io/retiring"


async def stopped(program: Program) -> int:
    return await asyncio.to_thread(program.terminate)


async def test_cordon_closes_the_nodes_until_the_next_start_and_leaves_pods_alone(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program(shutdown={"nodes": "cordon"}) as program:
        await fleet.ready([name], program=program)
        await fleet.create("stays", node=name)
        await fleet.running("stays")
        assert await stopped(program) == 0
    node = await fleet.node(name)
    assert node is not None
    assert _ours(node) == [(CLOSED, "NoSchedule")]
    assert condition(node, "Ready") == "True"
    await fleet.running("stays")
    assert not fleet.calls("delete")
    with fleet.program(log="b"):
        await fleet.until_node(name, lambda body: not _ours(body), "open again")


def _ours(node: Body) -> list[tuple[str, str]]:
    """Taints, but for those that the cluster's own controllers give and take when they come to it."""
    taints = node["spec"].get("taints", ())
    return [(taint["key"], taint["effect"]) for taint in taints if not taint["key"].startswith("node.kubernetes.io/")]


async def test_drain_ends_the_pods_as_a_node_shutdown_does_and_refuses_new_ones(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program(shutdown={"nodes": "drain", "seconds": 15}) as program:
        await fleet.ready([name], program=program)
        await fleet.create("runs", node=name, terminationGracePeriodSeconds=2)
        await fleet.running("runs")
        async with fleet.watched() as seen:
            assert await stopped(program) == 0
        node, pod = await fleet.node(name), await fleet.pod("runs")
    assert node is not None and pod is not None
    ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
    assert (ready["status"], ready["message"]) == ("False", "node is shutting down")
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "Terminated")
    assert pod["status"]["message"] == "Pod was terminated in response to imminent node shutdown."
    assert condition(pod, "DisruptionTarget") == "True"
    assert condition(pod, "Ready") == "False"
    assert "deletionTimestamp" not in pod["metadata"]
    assert not seen.where(lambda event: event.kind == "DELETED")
    assert fleet.calls("delete"), "the provider was told"


async def test_pod_that_comes_while_the_node_drains_is_refused(fleet: Fleet) -> None:
    (name,) = fleet.declare("a")
    with fleet.program("mock", shutdown={"nodes": "drain", "seconds": 30}, provider={"node": name}) as program:
        await fleet.ready([name], program=program)
        spec = {"nodeName": name, "terminationGracePeriodSeconds": 25, "containers": [{"name": "main", "image": "none"}]}
        for pod, seconds in (("slow", "2"), ("slower", "300")):
            metadata = {"name": pod, "annotations": {"mock.vkubelet.io/stop-delay": seconds}}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            await fleet.kubectl("create", "-f", "-", stdin=json.dumps(body))
        await fleet.running("slow", "slower")
        ending = asyncio.create_task(stopped(program))
        await fleet.until_node(name, lambda body: condition(body, "Ready") == "False", "shutting down")
        await fleet.create("late", node=name)
        late = await fleet.until_pod("late", lambda body: body["status"]["phase"] == "Failed", "refused")
        told = ("NodeShutdown", "Pod was rejected: Pod was rejected as the node is shutting down.")
        assert (late["status"]["reason"], late["status"]["message"]) == told
        # It has held up the end for as long as it took to ask.
        await fleet.kubectl("delete", "pod", "slower", "--grace-period=1", "--wait=false")
        assert await ending == 0
        slow_pod = await fleet.pod("slow")
    assert slow_pod is not None and slow_pod["status"]["reason"] == "Terminated"


async def test_delete_takes_node_and_lease_along(fleet: Fleet) -> None:
    names = fleet.declare("a b")
    with fleet.program(shutdown={"nodes": "delete"}) as program:
        await fleet.ready(names, program=program)
        await fleet.create("runs", node=names[0])
        await fleet.running("runs")
        assert await stopped(program) == 0
    for name in names:
        assert await fleet.node(name) is None
        assert await fleet.lease(name) is None
    assert fleet.calls("delete"), "its workload did not stay behind"


@pytest.mark.parametrize("restore", [False, True])
async def test_node_deleted_by_hand_stays_away_only_when_that_is_asked_for(fleet: Fleet, *, restore: bool) -> None:
    gone, other = fleet.declare("a b")
    with fleet.program(node={"taint": "", "restore": restore}, lease={"renew_every": 1.0}) as program:
        await fleet.ready([gone, other], program=program)
        old = await fleet.node(gone)
        assert old is not None
        await fleet.plane.kubectl("delete", "node", gone)
        if restore:
            new = await fleet.until_node(gone, lambda body: body["metadata"]["uid"] != old["metadata"]["uid"], "back")
            lease = await eventually(lambda: fleet.lease(gone), "its lease")
            await eventually(lambda: owned_by(fleet, gone, new["metadata"]["uid"]), "the lease belongs to the new Node")
            assert lease["spec"]["holderIdentity"] == gone
            return
        # The other node's renewals tell that the process had time enough.
        await renewed_thrice(fleet, other)
        assert await fleet.node(gone) is None


async def owned_by(fleet: Fleet, name: str, uid: str) -> bool:
    lease = await fleet.lease(name)
    return lease is not None and [owner["uid"] for owner in lease["metadata"]["ownerReferences"]] == [uid]


async def renewed_thrice(fleet: Fleet, name: str) -> None:
    for _ in range(3):
        before = await fleet.lease(name)
        assert before is not None
        moment = renewed_at(before)

        async def later(moment: object = moment) -> bool:
            lease = await fleet.lease(name)
            return lease is not None and renewed_at(lease) != moment

        await eventually(later, "the lease of the other node is renewed")


async def test_drain_and_election_do_not_go_together(fleet: Fleet) -> None:
    with fleet.program(shutdown={"nodes": "drain"}, leader={"enabled": True}) as program:
        assert await eventually(lambda: program.process.poll(), "the program refuses") == 2
        assert "shutdown.nodes" in program.text() and "leader.enabled" in program.text()
