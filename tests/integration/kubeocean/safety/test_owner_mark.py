"""Rule `owner-mark`: physical pods carry their owner; hubs that share a worker never touch the pods of each other."""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.integration.kubeocean.conftest import MakeScene, Scene, undo
from tests.support.audit import Audit
from tests.support.bound import Bound
from tests.support.program import eventually
from tests.support.stage import Stage, away, uid_of
from tests.support.witness import watching
from vkubelet.testing.cluster import ControlPlane

BRIEF = {"pods": {"list_interval": 1.0}}


async def test_two_hubs_with_equal_names_on_one_worker_do_not_touch_each_other(
    scene: MakeScene, bare_hub: ControlPlane, tmp_path: Path
) -> None:
    one = await scene(settings=BRIEF)
    first = one.bound
    second = Bound(
        hub=bare_hub, worker=first.worker, name=f"{first.name}-too", directory=tmp_path, spec={"nodeSelector": first.spec["nodeSelector"]}
    )
    try:
        await second.install()
        with second.program():
            await second.node_ready(one.nodes[0])
            here = await Stage.of(first, one.nodes)
            await second.hub.kubectl("create", "namespace", here.namespace)
            await eventually(lambda: _has_account(second.hub, here.namespace), "the other namespace has its account")
            there = await Stage.of(second, one.nodes, namespace=here.namespace)
            await _live_side_by_side(here, there, one)
    finally:
        await undo(second)


async def _has_account(hub: ControlPlane, namespace: str) -> bool:
    return bool((await hub.kubectl("get", "serviceaccount", "default", "-n", namespace, "--ignore-not-found", "-o", "name")).strip())


async def _live_side_by_side(here: Stage, there: Stage, one: Scene) -> None:
    for stage in (here, there):
        await stage.create("same")
        await stage.create("other")
    backed = {}
    for stage in (here, there):
        for name in ("same", "other"):
            await stage.running(name)
            backed[stage.bound.name, name] = uid_of(await stage.until_physical(name, bool, "there"))
    assert len(set(backed.values())) == 4
    marks = [(await stage.marks())[0]["kubeocean.io/owner"] for stage in (here, there)]
    assert marks[0] != marks[1]
    audit = Audit(here.bound.worker, here.bound.user)
    with watching(there.bound.worker.kubeconfig, namespace=there.bound.mount) as seen:
        await here.home.delete("pods", "same", here.namespace)
        await here.no_physical("same")
        with away(one.program):
            await here.home.delete("pods", "other", here.namespace, grace=0)
        # The first one sweeps: what the hub does not know is ended, and only in its own namespace.
        await here.no_physical("other")
    assert not seen.where(lambda event: event.deleting or event.kind == "DELETED")
    assert uid_of(await there.until_physical("same", bool, "there")) == backed[there.bound.name, "same"]
    assert {call.namespace for call in audit.writes() if call.what.startswith("pods")} == {here.bound.mount}


async def test_pod_of_kubeocean_go_is_adopted_only_if_its_virtual_pod_is_on_a_node_of_ours(common: Scene, stage: Stage) -> None:
    go = {"kubeocean.io/managed-by": "kubeocean"}
    elsewhere = stage.body("elsewhere")
    elsewhere["spec"]["nodeName"] = "a-node-of-somebody-else"
    with watching(stage.bound.worker.kubeconfig, namespace=stage.bound.mount) as seen:
        with away(common.program):
            virtual = await stage.create("taken-over")
            ours = await stage.there.create("pods", stage.twin("taken-over", uid_of(virtual), labels=go, annotations={}))
            other = await stage.home.create("pods", elsewhere)
            left = [
                await stage.there.create("pods", stage.twin("elsewhere", uid_of(other), labels=go, annotations={})),
                await stage.there.create("pods", stage.twin("nobodys", str(uuid.uuid4()), labels=go, annotations={})),
            ]
        found = await stage.running("taken-over")
        labels, annotations = await stage.marks()
        adopted = await stage.until_physical(
            "taken-over", lambda p: labels.items() <= p["metadata"]["labels"].items(), "bears the owner's mark now"
        )
    assert found["metadata"]["annotations"]["kubeocean.io/physical-pod-uid"] == uid_of(ours) == uid_of(adopted)
    assert annotations.items() <= adopted["metadata"]["annotations"].items()
    assert not seen.where(lambda event: event.uid == uid_of(ours) and (event.deleting or event.kind == "DELETED"))
    for before in left:
        after = await stage.there.get("pods", before["metadata"]["name"], stage.bound.mount)
        assert after is not None and uid_of(after) == uid_of(before)
        assert after["metadata"]["labels"] == go and after["metadata"]["annotations"] == before["metadata"]["annotations"]
        await stage.there.delete("pods", before["metadata"]["name"], stage.bound.mount, grace=0)
    await stage.home.delete("pods", "elsewhere", stage.namespace, grace=0)
    await stage.home.delete("pods", "taken-over", stage.namespace)
    await stage.no_physical("taken-over")
