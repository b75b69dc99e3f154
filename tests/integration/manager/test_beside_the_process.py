"""Manager and process of one binding side by side: who tells what, and what the settings made by the manager do."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.kubeocean.conftest import only_simulated
from tests.integration.manager.conftest import USER, Binding, Computing, MakeBinding
from tests.support.audit import Audit
from tests.support.bound import condition, items, pod
from tests.support.cable import Cable
from tests.support.program import Program, eventually
from tests.support.simulated import all_ready, simulated_nodes
from tests.support.witness import watching

ATTENTIVE = {"provider": {"probe_interval": 0.5, "unreachable_after": 2.0, "reconnect_interval": 1.0}}
LOST = ("False", "ConnectivityFailed")
TAKEOVER = 20.0


def through(computing: Computing, cable: Cable) -> str:
    return computing.worker.kubeconfig.read_text().replace(f":{computing.worker.port}", f":{cable.port}")


def status_writes(audit: Audit) -> list[Any]:
    return [call for call in audit.writes() if call.what == "clusterbindings/status"]


async def ready(binding: Binding) -> None:
    await eventually(lambda: binding.conditions().get("Ready", ("",))[0] == "True", f"{binding.body()}")


async def test_served_binding_is_ready_and_turns_not_ready_and_back_with_its_cluster(computing: Computing, bind: MakeBinding) -> None:
    """Lines 20 and 34; while the process speaks, the manager writes nothing of what the process tells."""
    with Cable(computing.worker.port) as cable:
        binding = bind(kubeconfig=through(computing, cable))
        await binding.deployed()
        await eventually(lambda: binding.conditions().get("Connected"), "looked at once")
        with binding.process(**ATTENTIVE):
            await ready(binding)
            await binding.available()
            await ready(binding)
            told = binding.conditions()
            assert [told[kind][0] for kind in ("Ready", "Connected", "SyncerReady", "ProxierReady")] == ["True"] * 4
            assert binding.phase() == "Ready" and (binding.body() or {})["status"]["lastSyncTime"]
            await eventually(lambda: (binding.body() or {})["status"].get("observedGeneration") == 1, "seen by the manager")
            audit = Audit(computing.hub, USER)
            cable.cut()
            await eventually(lambda: binding.conditions()["Ready"] == binding.conditions()["Connected"] == LOST, f"{binding.body()}")
            assert binding.phase() == "Failed"
            await eventually(lambda: computing.events(binding.name).count("ConnectivityFailed"), "the manager has noticed it, too")
            cable.mend()
            await ready(binding)
            assert binding.phase() == "Ready" and not [call for call in status_writes(audit) if call.name == binding.name]


async def test_without_a_process_the_manager_tells_that_the_cluster_is_lost_and_back(computing: Computing, bind: MakeBinding) -> None:
    """Line 34, before a process lives, and after it has died."""
    with Cable(computing.worker.port) as cable:
        binding = bind(kubeconfig=through(computing, cable))
        await binding.deployed()
        await eventually(lambda: binding.conditions().get("Connected") == ("True", "ConnectivityPassed"), f"{binding.body()}")
        cable.cut()
        await eventually(lambda: binding.conditions()["Connected"] == binding.conditions()["Ready"] == LOST, f"{binding.body()}")
        assert binding.phase() == "Failed" and binding.deployment() is not None
        cable.mend()
        await eventually(lambda: binding.conditions()["Connected"] == ("True", "ConnectivityPassed"), f"{binding.body()}")
        await binding.tell_of_pods(running=False, waiting="CrashLoopBackOff")
        await eventually(lambda: binding.conditions()["SyncerReady"] == ("False", "SyncerFailed"), f"{binding.body()}")


def leading(programs: list[Program]) -> Program | None:
    found = [each for each in programs if each.alive and '"message": "leading"' in each.text()]
    return found[0] if found else None


async def test_of_two_replicas_one_serves_and_the_other_takes_over(computing: Computing, bind: MakeBinding) -> None:
    """Line 190."""
    worker, directory = computing.worker, computing.directory
    name = "sim-replicas"
    with simulated_nodes(worker, name, nodes=1, directory=directory):
        await all_ready(worker, [name])
        binding = bind(nodeSelector=only_simulated(name))
        await binding.deployed()
        lease = {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy", "metadata": {"name": f"all-{name}"}}
        await worker.kubectl("apply", "-f", "-", stdin=json.dumps({**lease, "spec": {"cluster": binding.name}}))
        programs = [binding.process("one"), binding.process("two")]
        vnode = f"vnode-{binding.name}-{name}"
        try:
            with programs[0], programs[1]:
                await all_ready(computing.hub, [vnode])
                first = await eventually(lambda: leading(programs), "one leads")
                await run_pod(computing, vnode)
                physical = await items(worker, "pods", "-n", binding.spec["mountNamespace"])
                with watching(computing.hub.kubeconfig, "nodes") as nodes, watching(computing.hub.kubeconfig) as pods:
                    first.kill()
                    await eventually(lambda: leading(programs), "the other leads", seconds=TAKEOVER)
                    await computing.hub.kubectl("label", "pod", "steady", "after=takeover", "-n", "default")
                    await eventually(lambda: followed(worker, binding), "the new leader works", seconds=TAKEOVER)
                assert not nodes.where(lambda seen: seen.object["metadata"]["name"] == vnode and seen.condition("Ready") != "True")
                assert not pods.where(lambda seen: seen.key == "default/steady" and (seen.kind == "DELETED" or seen.phase != "Running"))
                after = await items(worker, "pods", "-n", binding.spec["mountNamespace"])
                assert [each["metadata"]["uid"] for each in after] == [each["metadata"]["uid"] for each in physical] != []
                await computing.hub.kubectl("delete", "pod", "steady", "-n", "default", "--wait=true", "--timeout=30s")
        finally:
            await worker.kubectl("delete", "resourceleasingpolicies", f"all-{name}", "--ignore-not-found", "--wait=false")
            await computing.hub.kubectl("delete", "node", vnode, "--ignore-not-found", "--wait=false")
    await worker.kubectl("delete", "node", name, "--ignore-not-found", "--wait=false")


async def run_pod(computing: Computing, vnode: str) -> None:
    body = pod("steady", "default", node=vnode)
    await eventually(lambda: computing.core.read_namespaced_service_account("default", "default"), "its ServiceAccount")
    computing.core.create_namespaced_pod("default", body)

    def running() -> bool:
        return bool(computing.core.read_namespaced_pod("steady", "default").status.phase == "Running")

    await eventually(running, "pod steady runs")


async def followed(worker: Any, binding: Binding) -> bool:
    found = await items(worker, "pods", "-n", binding.spec["mountNamespace"], "-l", "after=takeover")
    return bool(found) and condition(found[0], "Ready") == "True"
