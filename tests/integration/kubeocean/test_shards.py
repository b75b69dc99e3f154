"""A binding whose nodes are divided into shards: replicas that die, stop, or are replaced one after the other."""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

from attrs import evolve, frozen

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.support.audit import Audit, Call
from tests.support.bound import SYSTEM, Body, Bound, get, pod
from tests.support.kubectl import Kubectl
from tests.support.program import PATIENCE, Program, eventually
from tests.support.stage import MOCK, Stage
from tests.support.witness import Record, watching
from vkubelet.control.shards import shard_of
from vkubelet.server.ports import STREAMS_END

SHARDS = 4
NODES = 8
ANSWERED_WITHIN = 40.0
"""Seconds after which the Leases of the nodes expire as well. The Lease of the shard takes 15; on a free machine, logs are answered within
20."""
SETTINGS: Body = {
    "leader": {"enabled": True, "namespace": SYSTEM},
    "provider": {"shards": SHARDS},
    "server": {"approve_own_csr": True},
}


@frozen
class Replica:
    """One of several processes; what it does in the hub is known by its user."""

    program: Program
    audit: Audit

    @property
    def name(self) -> str:
        """The replica as its Leases name it, but for the host."""
        return str(self.program.process.pid)


def new_replica(bound: Bound, name: str) -> Replica:
    user = f"{bound.user}-{name}"
    made = evolve(bound, way=lambda plane, _: plane.client_config(user, ["system:masters"]), directory=bound.directory / name)
    return Replica(made.program(), Audit(bound.hub, user))


async def holders(bound: Bound) -> list[str]:
    """Process ids of the replicas that hold the shards; "" for a free one."""
    out = []
    for index in range(SHARDS):
        name = f"vkubelet-{bound.name}" + (f".shard-{index}" if index else "")
        lease = await get(bound.hub, "lease", name, "-n", SYSTEM)
        out.append(str((lease or {}).get("spec", {}).get("holderIdentity") or "").rpartition("_")[0].rpartition("_")[2])
    return out


async def until_shared(bound: Bound, replicas: Sequence[Replica], *, seconds: float = STARTS_WITHIN) -> list[str]:
    """Waits until these replicas, and no other one, hold numbers of shards that are at most one apart."""
    names = [each.name for each in replicas]

    async def shared() -> list[str] | None:
        found = await holders(bound)
        counts = [found.count(name) for name in names]
        return found if sum(counts) == SHARDS and max(counts) - min(counts) <= 1 else None

    try:
        out: list[str] = await eventually(shared, "the shards are shared out", seconds=seconds, every=0.5)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(each.program.tail(40) for each in replicas)])) from None
    return out


def nodes_of(made: Scene, held: Sequence[str], replica: Replica) -> list[str]:
    """The virtual nodes of the shards that a replica holds."""
    return [node for node in made.vnodes if held[shard_of(node, SHARDS)] == replica.name]


async def talking_pods(made: Scene) -> tuple[Kubectl, dict[str, str]]:
    """A pod on each node that writes to its log; by virtual node."""
    stage = await Stage.of(made.bound, made.nodes)
    names = {node: f"talks-{number}" for number, node in enumerate(made.vnodes)}
    for node, name in names.items():
        body: Body = pod(name, stage.namespace, node=node)
        body["metadata"]["annotations"] = {f"{MOCK}log-interval": "0.2"}
        await stage.home.create("pods", body)
    for name in names.values():
        await stage.running(name)
    return Kubectl(made.bound.hub, stage.namespace), names


@asynccontextmanager
async def undisturbed(made: Scene, namespace: str) -> AsyncIterator[Record]:
    """No node stops being Ready, and no pod changes in either cluster, while the block runs; yields what happens to the nodes."""
    bound, labels = made.bound, f"kubeocean.io/cluster-binding={made.bound.name}"
    with (
        watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes,
        watching(bound.hub.kubeconfig, namespace=namespace) as virtual,
        watching(bound.worker.kubeconfig, namespace=bound.mount) as physical,
    ):
        yield nodes
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")
    assert not [str(event) for event in physical.events], "physical pods are not written"
    assert not [str(event) for event in virtual.events], "virtual pods are not written"


async def answers(kubectl: Kubectl, name: str) -> bool:
    return (await kubectl.run("logs", "--tail=1", name)).code == 0


async def settled(made: Scene, replicas: Sequence[Replica]) -> list[str]:
    held = await until_shared(made.bound, replicas)
    await made.ready()
    return held


def about(calls: Sequence[Call], nodes: Sequence[str]) -> list[str]:
    return [str(call) for call in calls if call.name in nodes or str(call.body).find("nodeName") >= 0]


async def test_nodes_and_pods_of_a_killed_replica_notice_nothing(scene: MakeScene) -> None:
    made = await scene(nodes=NODES, start=False, settings=SETTINGS)
    one, two = (new_replica(made.bound, name) for name in ("one", "two"))
    with one.program, two.program:
        held = await settled(made, [one, two])
        kubectl, names = await talking_pods(made)
        lost, kept = nodes_of(made, held, one), nodes_of(made, held, two)
        assert lost and kept
        async with undisturbed(made, kubectl.namespace):
            began, at = time.monotonic(), datetime.now().astimezone()
            one.program.kill()
            assert await answers(kubectl, names[kept[0]]), "the other shards are served"
            for node in lost:
                await eventually(lambda node=node: answers(kubectl, names[node]), f"logs of {node} are answered again", every=0.3)
            took = time.monotonic() - began
            await eventually(lambda: _renewed_by_all(made, two), "every Lease is renewed by the other replica")
        taken = await until_shared(made.bound, [two])
        assert taken == [two.name] * SHARDS
        acquired = min(call.at for call in two.audit.writes() if call.what == "leases" and call.name in lost)
        early = [call for call in two.audit.writes() if at < call.at < acquired]
        assert not about(early, lost), "the other shards write nothing about its nodes"
        before, after = [], []
        for name in names.values():
            (before if name in {names[node] for node in lost} else after).append(name)
        print(f"logs of all {len(lost)} nodes are answered again {took:.1f} s after kill -9")
        assert took < ANSWERED_WITHIN


async def _renewed_by_all(made: Scene, replica: Replica) -> bool:
    for node in made.vnodes:
        lease = await get(made.bound.hub, "lease", node, "-n", "kube-node-lease")
        notes = (lease or {}).get("metadata", {}).get("annotations", {})
        if f"_{replica.name}_" not in notes.get("vkubelet/renewed-by", ""):
            return False
    return True


async def follow(stack: AsyncExitStack, kubectl: Kubectl, name: str) -> Process:
    return await stack.enter_async_context(kubectl.kubectl("logs", "--follow", "--tail=1", name))


async def flows(follower: Process) -> bool:
    assert follower.stdout is not None
    return bool(await asyncio.wait_for(follower.stdout.readline(), PATIENCE))


async def test_replicas_are_replaced_one_by_one_and_streams_end_with_their_own_shard(scene: MakeScene) -> None:
    made = await scene(nodes=NODES, start=False, settings=SETTINGS)
    one, two, three = (new_replica(made.bound, name) for name in ("one", "two", "three"))
    async with AsyncExitStack() as stack:
        for program in (one.program, two.program):
            stack.enter_context(program)
        held = await settled(made, [one, two])
        kubectl, names = await talking_pods(made)
        moved, kept = nodes_of(made, held, one), nodes_of(made, held, two)
        async with undisturbed(made, kubectl.namespace):
            stack.enter_context(three.program)
            await eventually(lambda: "another process leads" in three.program.text(), "the new one stands by", seconds=STARTS_WITHIN)
            followers = {node: await follow(stack, kubectl, names[node]) for node in made.vnodes}
            for follower in followers.values():
                assert await flows(follower)
            one.program.process.terminate()
            found = await until_shared(made.bound, [two, three], seconds=PATIENCE)
            assert found.count(two.name) == found.count(three.name) == 2
            released = time.monotonic()
            for node in moved:
                assert await flows(followers[node]) or one.program.alive, "streams continue for their grace"
            assert await asyncio.to_thread(one.program.process.wait, STREAMS_END + 20) == 0
            print(f"the replica that stops exits {time.monotonic() - released:.1f} s after its shards have moved")
            for node in kept:
                assert followers[node].returncode is None and await flows(followers[node]), "a stream of another shard goes on"
            for node in moved:
                await eventually(lambda node=node: answers(kubectl, names[node]), f"logs of {node} are answered again", every=0.3)
            await eventually(lambda: _renewed_by_any(made, [two, three]), "every Lease is renewed by a replica that is left")


async def _renewed_by_any(made: Scene, replicas: Sequence[Replica]) -> bool:
    for node in made.vnodes:
        lease = await get(made.bound.hub, "lease", node, "-n", "kube-node-lease")
        renewed = (lease or {}).get("metadata", {}).get("annotations", {}).get("vkubelet/renewed-by", "")
        if not any(f"_{each.name}_" in renewed for each in replicas):
            return False
    return True


async def test_a_new_replica_is_given_shards_and_pods_are_served_in_all_of_them(scene: MakeScene) -> None:
    made = await scene(nodes=NODES, start=False, settings=SETTINGS)
    one, two = (new_replica(made.bound, name) for name in ("one", "two"))
    with one.program:
        held = await settled(made, [one])
        assert held == [one.name] * SHARDS
        kubectl, names = await talking_pods(made)
        async with undisturbed(made, kubectl.namespace):
            with two.program:
                held = await until_shared(made.bound, [one, two])
                assert held.count(one.name) == held.count(two.name) == SHARDS / 2
                for node in made.vnodes:
                    await eventually(lambda node=node: answers(kubectl, names[node]), f"logs of {node} are answered", every=0.3)
            held = await until_shared(made.bound, [one], seconds=PATIENCE)
            for node in made.vnodes:
                await eventually(lambda node=node: answers(kubectl, names[node]), f"logs of {node} are answered", every=0.3)
