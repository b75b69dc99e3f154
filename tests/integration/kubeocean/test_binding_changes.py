"""What may be changed about a binding while it is served, and what the process does without one."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime
from pathlib import Path

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.kubeocean.leases import taints, vnode
from tests.support.audit import Audit
from tests.support.bound import apply, condition, get, pod, roles_for, running
from tests.support.kubectl import Kubectl
from tests.support.program import PATIENCE, Program, eventually
from tests.support.stage import MOCK, physical_name
from tests.support.witness import watching
from vkubelet.testing.cluster import ControlPlane

DEFAULT = "kubeocean.io/vnode"


async def test_process_without_a_binding_to_serve_ends_and_says_what_to_name(hub: ControlPlane, tmp_path: Path) -> None:
    with Program("kubeocean", "run", "--kubeconfig", str(hub.kubeconfig), log=tmp_path / "log") as program:
        await eventually(lambda: not program.alive, "the process ended", seconds=STARTS_WITHIN)
        assert program.process.returncode == 2 and "--binding" in program.tail(1)


async def test_taint_and_kubeconfig_of_a_binding_change_without_a_restart_of_it_or_of_pods(scene: MakeScene) -> None:
    made = await scene(nodes=2)
    bound = made.bound
    namespace = await bound.hub.namespace()
    stays = pod("stays", namespace, node=made.vnodes[0])
    stays["metadata"]["annotations"] = {f"{MOCK}log-interval": "0.2"}
    stays["spec"]["volumes"] = [{"name": "late", "configMap": {"name": "late", "optional": True}}]
    await apply(bound.hub, stays)
    await running(bound, namespace, "stays")
    pid = made.program.process.pid

    async def tainted(wanted: bool) -> bool:
        nodes = [await vnode(made, number) for number in (0, 1)]
        return all(node is not None and (DEFAULT in taints(node)) is wanted for node in nodes)

    with (
        watching(bound.hub.kubeconfig, namespace=namespace) as above,
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
    ):
        await eventually(lambda: tainted(True), "tainted by default")
        for disabled in (True, False):
            change = json.dumps({"spec": {"disableNodeDefaultTaint": disabled}})
            await bound.hub.kubectl("patch", "clusterbinding", bound.name, "--type=merge", "-p", change)
            await eventually(lambda disabled=disabled: tainted(not disabled), f"disableNodeDefaultTaint {disabled} is followed")
        async with Kubectl(bound.hub, namespace).kubectl("logs", "--follow", "--timestamps", "--tail=1", "stays") as follower:
            assert follower.stdout is not None
            await asyncio.wait_for(follower.stdout.readline(), PATIENCE)
            await _credentials_are_exchanged(made.bound.user, made)
            now = datetime.now(UTC)
            while datetime.fromisoformat((await asyncio.wait_for(follower.stdout.readline(), PATIENCE)).split()[0].decode()) <= now:
                assert made.program.alive
        # The new connection knows what the pods name that the old one has synced.
        late = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": namespace}, "data": {"now": "here"}}
        await apply(bound.hub, late)
        await eventually(lambda: _copied(made, namespace, "late", "now", "here"), "the optional object is there", seconds=2, every=0.1)
        certificates = json.dumps({"spec": {"apiServerAccess": {"caBundle": base64.b64encode(b"RENEWED").decode()}}})
        await bound.hub.kubectl("patch", "clusterbinding", bound.name, "--type=merge", "-p", certificates)
        await eventually(lambda: _copied(made, namespace, "kube-root-ca.crt", "ca.crt", "RENEWED"), "the renewed certificates are there")
        await apply(bound.hub, pod("later", namespace, node=made.vnodes[1]))
        await running(bound, namespace, "later")
    assert made.program.process.pid == pid and made.program.alive
    assert not [event for event in (*above.events, *below.events) if event.deleting or event.kind == "DELETED" or event.restarts > 0]
    await eventually(lambda: _served(made), "the binding is Ready")


async def _copied(made: Scene, namespace: str, name: str, key: str, text: str) -> bool:
    copy = await get(made.bound.worker, "configmap", physical_name(namespace, name), "-n", made.bound.mount)
    return copy is not None and copy["data"][key].endswith(text)


async def _served(made: Scene) -> bool:
    return condition(await get(made.bound.hub, "clusterbinding", made.bound.name), "Ready") == "True"


async def _credentials_are_exchanged(old: str, made: Scene) -> None:
    """Another user gets the rights, its kubeconfig replaces that of the first, and the first has none any more."""
    bound, new = made.bound, f"{old}-renewed"
    mine = {"kubeocean-worker": bound.mount}
    await apply(bound.worker, *roles_for(new, "worker-rbac.yaml", name=f"{bound.name}-renewed", namespaces=mine))
    text = bound.worker.client_config(new).read_text()
    audit = Audit(bound.worker, new)
    await bound.hub.kubectl("replace", "-f", "-", stdin=json.dumps(bound.kubeconfig_secret(text)))
    await eventually(lambda: [call for call in audit.calls() if call.what == "nodes"], "the new user is at work")
    for role in roles_for(old, "worker-rbac.yaml", name=bound.name, namespaces=mine):
        namespace = ["-n", role["metadata"]["namespace"]] if "namespace" in role["metadata"] else []
        await bound.worker.kubectl("delete", role["kind"], role["metadata"]["name"], *namespace)
