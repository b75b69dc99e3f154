"""A kubeconfig that suddenly leads to another cluster: what runs in the first one is not lost."""

from __future__ import annotations

import json

from tests.integration.kubeocean.conftest import MakeScene
from tests.support.bound import CRDS, SYSTEM, apply, delete, get
from tests.support.program import eventually
from tests.support.stage import Stage
from tests.support.witness import watching


async def test_pods_are_not_lost_when_the_kubeconfig_leads_to_another_cluster(scene: MakeScene) -> None:
    made = await scene()
    bound = made.bound
    stage = await Stage.of(bound, made.nodes)
    await stage.create("stays")
    await stage.running("stays")
    # The computing cluster itself serves as the other one: it has such a namespace, the policies' definition, and lets us in.
    await bound.hub.kubectl("apply", "-f", str(CRDS / "resourceleasingpolicies.yaml"))
    await apply(bound.hub, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": bound.mount}}, bound.policy())
    wrong = bound.kubeconfig_secret(bound.hub.kubeconfig.read_text())

    async def says(text: str, *, in_use: bool = False) -> bool:
        found = await get(bound.hub, "clusterbinding", bound.name)
        message = next(entry["message"] for entry in found["status"]["conditions"] if entry["type"] == "Ready")
        return text in message and ("until then" in message) is in_use

    with watching(bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        await bound.hub.kubectl("replace", "-f", "-", stdin=json.dumps(wrong))
        await eventually(lambda: says("leads to another cluster", in_use=True), "the binding says so")
        made.program.kill()
        made.program.start()
        await eventually(lambda: says("leads to another cluster"), "another process says so too")
        await bound.hub.kubectl("replace", "-f", "-", stdin=json.dumps(bound.kubeconfig_secret()))
        await eventually(lambda: says("the worker cluster is connected"), "the binding is served again")
        assert not seen.where(lambda event: event.phase == "Failed" or event.deleting)
    await delete(bound.hub, "namespace", bound.mount, "--wait=false")
    await bound.hub.kubectl("delete", "resourceleasingpolicy", f"all-of-{bound.name}")
    assert await get(bound.hub, "secret", bound.secret, "-n", SYSTEM)
