"""Leaders die, of the manager and of the process of a binding: who stands by goes on within the time of a Lease.

Both wait for a Lease to run out, so one scene shows both.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from tests.integration.kubeocean.conftest import STARTS_WITHIN, only_simulated
from tests.integration.manager.conftest import SYSTEM, Binding, Computing, MakeBinding
from tests.support.bound import condition, delete, items, pod
from tests.support.program import PATIENCE, Program, eventually
from tests.support.simulated import all_ready, simulated_nodes
from tests.support.witness import watching
from vkubelet.control.leader import DURATION

TAKEOVER = DURATION + 5.0
"""Seconds; a Lease runs out that long after its last renewal was seen, and is looked at every two."""
NODE = "sim-takeover"
STANDS_BY = "another process leads"


def leads(program: Program) -> bool:
    return program.alive and '"message": "leading"' in program.text()


def led_since(program: Program) -> datetime:
    return max(datetime.fromisoformat(line["time"]) for line in program.messages() if line["message"] == "leading")


def leader(programs: Sequence[Program]) -> Program | None:
    return next((each for each in programs if leads(each)), None)


async def test_who_stands_by_goes_on_where_a_leader_died(computing: Computing, bind: MakeBinding) -> None:
    """Lines 33 and 190 of kubeocean-behaviour.md."""
    async with leased_node(computing, bind) as (binding, vnode):
        processes = [binding.process("one"), binding.process("two")]
        with computing.manager("second") as second, processes[0], processes[1]:
            try:
                await all_ready(computing.hub, [vnode], seconds=STARTS_WITHIN)
                serving = await eventually(lambda: leader(processes), "one process leads")
                other = next(each for each in processes if each is not serving)
                await eventually(lambda: STANDS_BY in other.text(), "the other process stands by", seconds=STARTS_WITHIN)
                await steady_pod(computing, vnode)
                before = await physical_pods(binding)
                await eventually(lambda: STANDS_BY in second.text(), "the second manager stands by", seconds=STARTS_WITHIN)
                assert not leads(second) and "accepted" not in second.text()
                with watching(computing.hub.kubeconfig, "nodes") as nodes, watching(computing.hub.kubeconfig) as pods:
                    await the_leaders_die(computing, second, serving, processes)
                    orphan = bind()
                    await computing.hub.kubectl("label", "pod", "steady", "after=takeover", "-n", "default")
                    await orphan.deployed()
                    await eventually(lambda: followed(binding), "the other process works")
                assert not nodes.where(lambda seen: seen.object["metadata"]["name"] == vnode and seen.condition("Ready") != "True")
                assert not pods.where(lambda seen: seen.key == "default/steady" and (seen.kind == "DELETED" or seen.phase != "Running"))
                assert await physical_pods(binding) == before != []
                await computing.hub.kubectl("delete", "pod", "steady", "-n", "default", "--grace-period=1", f"--timeout={PATIENCE:.0f}s")
            finally:
                stood_by = computing.program.text().count(STANDS_BY)
                if not computing.program.alive:
                    computing.program.start()
            await eventually(lambda: computing.program.text().count(STANDS_BY) > stood_by, "it stands by", seconds=STARTS_WITHIN)
            asked = datetime.now(UTC)
            second.terminate()
            stopped = datetime.now(UTC)
            await eventually(lambda: led_since(computing.program) > asked, "the first leads again")
            await bind().deployed()
            # Some two seconds before its end it was renewed.
            handed_on = led_since(computing.program) - stopped < timedelta(seconds=DURATION - 3)
            assert handed_on, "a Lease that was handed on is not waited for"


async def the_leaders_die(computing: Computing, second: Program, serving: Program, processes: Sequence[Program]) -> None:
    """And those that stand by lead, each within the time of its Lease; one of the two may be held up by a loaded machine for another."""
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/kubeocean-manager"
    holder = (computing.raw(lease) or {})["spec"]["holderIdentity"]
    killed = datetime.now(UTC)
    computing.program.kill()
    serving.kill()
    await eventually(lambda: leads(second) and leader(processes), "both are followed")
    followed_at = [led_since(each) for each in (second, leader(processes)) if each is not None]
    print("followed after", [f"{(at - killed).total_seconds():.1f} s" for at in followed_at])
    assert min(followed_at) - killed < timedelta(seconds=TAKEOVER), followed_at
    assert max(followed_at) - killed < timedelta(seconds=2 * DURATION), followed_at
    assert (computing.raw(lease) or {})["spec"]["holderIdentity"] != holder


@asynccontextmanager
async def leased_node(computing: Computing, bind: MakeBinding) -> AsyncIterator[tuple[Binding, str]]:
    """A binding to one simulated node that is leased, and the name of the virtual node."""
    worker = computing.worker
    with simulated_nodes(worker, NODE, nodes=1, directory=computing.directory):
        await all_ready(worker, [NODE])
        binding = bind(nodeSelector=only_simulated(NODE))
        await binding.deployed()
        metadata, spec = {"name": f"all-of-{binding.name}"}, {"cluster": binding.name}
        policy = {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy", "metadata": metadata, "spec": spec}
        await worker.kubectl("apply", "-f", "-", stdin=json.dumps(policy))
        vnode = f"vnode-{binding.name}-{NODE}"
        try:
            yield binding, vnode
        finally:
            await delete(worker, "resourceleasingpolicies", metadata["name"], "--ignore-not-found", "--wait=false")
            await delete(computing.hub, "node", vnode, "--ignore-not-found", "--wait=false")
    await delete(worker, "node", NODE, "--ignore-not-found", "--wait=false")


async def steady_pod(computing: Computing, vnode: str) -> None:
    await eventually(lambda: computing.raw("/api/v1/namespaces/default/serviceaccounts/default"), "its ServiceAccount")
    computing.core.create_namespaced_pod("default", pod("steady", "default", node=vnode))
    await eventually(lambda: computing.core.read_namespaced_pod("steady", "default").status.phase == "Running", "pod steady runs")


async def physical_pods(binding: Binding, *more: str) -> list[str]:
    """Uids of the Ready pods in the mount namespace."""
    found = await items(binding.computing.worker, "pods", "-n", binding.spec["mountNamespace"], *more)
    return [each["metadata"]["uid"] for each in found if condition(each, "Ready") == "True"]


async def followed(binding: Binding) -> bool:
    return await physical_pods(binding, "-l", "after=takeover") != []
