"""Manager and process of one binding side by side: who tells what, and what the settings made by the manager do."""

from __future__ import annotations

from typing import Any

from tests.integration.kubeocean.conftest import STARTS_WITHIN
from tests.integration.manager.conftest import USER, Binding, Computing, MakeBinding
from tests.support.audit import Audit
from tests.support.cable import Cable
from tests.support.program import eventually, holds

ATTENTIVE = {"provider": {"probe_interval": 0.5, "unreachable_after": 2.0, "reconnect_interval": 1.0}}
LOST = ("False", "ConnectivityFailed")


def through(computing: Computing, cable: Cable) -> str:
    return computing.worker.kubeconfig.read_text().replace(f":{computing.worker.port}", f":{cable.port}")


def status_writes(audit: Audit) -> list[Any]:
    return [call for call in audit.writes() if call.what == "clusterbindings/status"]


async def ready(binding: Binding) -> None:
    await eventually(lambda: binding.conditions().get("Ready", ("",))[0] == "True", f"{binding.body()}", seconds=STARTS_WITHIN)


def is_told_by_its_process(binding: Binding) -> None:
    told = binding.conditions()
    assert [told[kind][0] for kind in ("Ready", "Connected", "SyncerReady", "ProxierReady")] == ["True"] * 4
    assert binding.phase() == "Ready" and (binding.body() or {})["status"]["lastSyncTime"]


async def test_served_binding_is_ready_and_turns_not_ready_and_back_with_its_cluster(computing: Computing, bind: MakeBinding) -> None:
    """Lines 20 and 34 of kubeocean-behaviour.md; while the process speaks, the manager writes nothing of what the process tells."""
    with Cable(computing.worker.port) as cable:
        binding = bind(kubeconfig=through(computing, cable))
        await binding.deployed()
        await eventually(lambda: binding.conditions().get("Connected"), "looked at once")
        with binding.process(**ATTENTIVE):
            await ready(binding)
            await binding.available()
            await ready(binding)
            await holds(lambda: is_told_by_its_process(binding))
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
    """Line 34 of kubeocean-behaviour.md, before a process lives, and after it has died."""
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
