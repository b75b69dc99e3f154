"""Two bindings of one hub whose pods use the same object: docs/reference/kubeocean-behaviour.md, lines 8, 146 and 160."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.leases import policy_reports
from tests.support.bound import Body, delete
from tests.support.program import eventually
from tests.support.stage import Stage

OURS = "kubeocean.io/"
SHARED = "shared"


async def user(stage: Stage, name: str) -> None:
    """A pod that takes its environment from the shared ConfigMap."""
    body = stage.body(name)
    body["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": SHARED}}]
    await stage.home.create("pods", body)
    await stage.running(name)


async def original(stage: Stage, wanted: Callable[[Body], Any], what: str) -> Body:
    async def check() -> Body | None:
        found = await stage.home.get("configmaps", SHARED, stage.namespace)
        return found if found is not None and wanted(found) else None

    out: Body = await eventually(check, f"the shared ConfigMap {what}")
    return out


def marks_of(body: Body, scene: Scene) -> tuple[bool, bool]:
    """Whether label and finalizer of a binding are on it."""
    metadata, cluster_id = body["metadata"], scene.bound.name
    labelled = metadata.get("labels", {}).get(f"{OURS}synced-by-{cluster_id}") == "true"
    return labelled, f"{OURS}finalizer-{cluster_id}" in metadata.get("finalizers", [])


async def test_one_object_serves_both_until_the_last_of_them_lets_it_go(scene: MakeScene) -> None:
    """Lines 8, 146 and 160 of kubeocean-behaviour.md."""
    settings = {"provider": {"unused_copy_after": 1.0}}
    first, second = await scene(settings=settings), await scene(settings=settings)
    here = await Stage.of(first.bound, first.nodes)
    there = await Stage.of(second.bound, second.nodes, namespace=here.namespace)
    status = await policy_reports(first, f"all-of-{first.bound.name}", "Active")
    assert status["activeTimeWindow"] is True, "line 8"

    await here.home.create("configmaps", {"metadata": {"name": SHARED, "namespace": here.namespace}, "data": {"key": "old"}})
    await user(here, "one")
    await user(there, "two")
    both = await original(here, lambda o: marks_of(o, first) == marks_of(o, second) == (True, True), "bears the marks of both")
    assert {copy["metadata"]["namespace"] for copy in [await copied(here), await copied(there)]} == {first.bound.mount, second.bound.mount}

    note = json.dumps({"metadata": {"labels": {"from-the-worker": "yes"}}})
    await first.bound.worker.kubectl("patch", "pod", here.physical_name("one"), "-n", first.bound.mount, "--type=merge", "-p", note)
    await here.until("one", lambda p: p["metadata"].get("labels", {}).get("from-the-worker") == "yes", "line 146")

    await delete(here.bound.hub, "pod", "one", "-n", here.namespace, "--wait=false")
    left = await original(here, lambda o: marks_of(o, first) == (False, False), "has been let go by the first")
    assert marks_of(left, second) == (True, True) and left["metadata"]["uid"] == both["metadata"]["uid"]
    await here.no_physical(SHARED, kind="configmaps")
    change = json.dumps({"data": {"key": "new"}})
    await here.bound.hub.kubectl("patch", "configmap", SHARED, "-n", here.namespace, "--type=merge", "-p", change)
    await there.until_physical(SHARED, lambda copy: copy["data"] == {"key": "new"}, "still follows", kind="configmaps")


async def copied(stage: Stage) -> Body:
    return await stage.until_physical(SHARED, lambda copy: copy["data"] == {"key": "old"}, "is copied", kind="configmaps")
