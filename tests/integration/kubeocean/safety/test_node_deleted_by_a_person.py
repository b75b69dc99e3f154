"""Rule `node-deleted-by-a-person`: a virtual Node that a person deletes is created again at once, and its pods keep running."""

from __future__ import annotations

import time

from tests.integration.tries import best_within
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of
from tests.support.witness import watching

OURS = "kubeocean.io/"
WITHIN = 10.0


async def test_deleted_node_is_registered_again_within_ten_seconds_and_its_pods_survive(stage: Stage) -> None:
    await stage.create("survivor")
    await stage.running("survivor")
    backed = uid_of(await stage.until_physical("survivor", bool, "there"))
    before = await stage.home.get("nodes", stage.vnode)
    assert before is not None
    assert not [each for each in before["metadata"].get("finalizers", ()) if each.startswith(OURS)]
    with (
        watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as above,
        watching(stage.bound.worker.kubeconfig, namespace=stage.bound.mount) as below,
    ):
        await best_within(WITHIN, lambda: _back_after(stage), "the way back of a deleted Node")
        # Its life goes on: a new pod runs, and the old one still answers to a change.
        await stage.create("newcomer")
        await stage.running("newcomer")
        await stage.home.patch("pods", "survivor", {"metadata": {"labels": {"after": "all"}}}, namespace=stage.namespace)
        await stage.until_physical("survivor", lambda p: p["metadata"]["labels"].get("after") == "all", "has the label")
    assert not above.where(lambda event: event.deleting or event.kind == "DELETED" or event.phase == "Failed")
    assert not below.where(lambda event: event.uid == backed and (event.deleting or event.kind == "DELETED"))


async def _back_after(stage: Stage) -> float:
    """Delete the Node; seconds until it is back and Ready. Each of the tries ends before a sweep of every minute would mend it."""
    before = await stage.home.get("nodes", stage.vnode)
    assert before is not None
    started = time.monotonic()
    await stage.home.delete("nodes", stage.vnode)
    await eventually(lambda: _ready_as_another(stage, uid_of(before)), "it is back, Ready, another Node")
    return time.monotonic() - started


async def _ready_as_another(stage: Stage, uid: str) -> bool:
    node = await stage.home.get("nodes", stage.vnode)
    if node is None or uid_of(node) == uid:
        return False
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))


async def _finalizers(stage: Stage) -> list[str]:
    node = await stage.home.get("nodes", stage.vnode)
    return list(node["metadata"].get("finalizers", ())) if node is not None else []


async def test_finalizer_of_kubeocean_go_is_removed_and_a_foreign_one_stays(stage: Stage) -> None:
    foreign = "example.com/watched"
    await stage.home.patch("nodes", stage.vnode, {"metadata": {"finalizers": [foreign, "kubeocean.io/vnode"]}})

    async def only_foreign() -> bool:
        return await _finalizers(stage) == [foreign]

    await eventually(only_foreign, "only the foreign finalizer is left")
    await stage.home.patch("nodes", stage.vnode, {"metadata": {"finalizers": None}})
