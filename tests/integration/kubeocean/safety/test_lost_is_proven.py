"""Rule `lost-is-proven`: a physical pod is reported as lost only after a GET by name in the worker did not find it."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.integration.kubeocean.outages import may
from tests.support.audit import Audit, Call
from tests.support.bound import get
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of
from tests.support.witness import watching


async def test_pod_deleted_in_the_worker_is_lost_after_it_was_asked_for(stage: Stage) -> None:
    await stage.create("lost")
    await stage.running("lost")
    audit, home = Audit(stage.bound.worker, stage.bound.user), Audit(stage.bound.hub, stage.bound.user)
    await stage.there.delete("pods", stage.physical_name("lost"), stage.bound.mount)
    failed = await stage.until("lost", lambda p: p["status"]["phase"] == "Failed", "Failed")
    assert failed["status"]["reason"] == "PhysicalPodLost" and "deleted in the worker" in failed["status"]["message"]
    await stage.event("lost", "PhysicalPodLost")

    def asked() -> list[Call]:
        return [call for call in audit.calls() if (call.verb, call.name, call.code) == ("get", stage.physical_name("lost"), 404)]

    first = (await eventually(asked, "the worker was asked for it by name"))[0]

    def said() -> list[Call]:
        """Statuses written after the answer; of an end that is on its way something may have been said before it."""
        return [call for call in home.writes() if (call.what, call.name) == ("pods/status", "lost") and call.at > first.at]

    await eventually(said, "it was said only then")
    assert not [call for call in audit.writes() if call.verb == "create" and call.name == stage.physical_name("lost")]


@asynccontextmanager
async def may_not_get_pods(stage: Stage) -> AsyncIterator[None]:
    """Our user may still watch pods of the worker, but not ask for one by name."""
    worker, name = stage.bound.worker, f"kubeocean-syncer-{stage.bound.name}"
    roles = {("clusterrole", name): None, ("role", name): stage.bound.mount}
    before = {}
    for (kind, role), namespace in roles.items():
        where = ("-n", namespace) if namespace else ()
        before[kind] = (await get(worker, kind, role, *where))["rules"]
        rules = copy.deepcopy(before[kind])
        for rule in [each for each in rules if "pods" in each["resources"]]:
            rule["resources"].remove("pods")
            rules.append({**rule, "resources": ["pods"], "verbs": [verb for verb in rule["verbs"] if verb != "get"]})
        rules = [rule for rule in rules if rule["resources"]]
        await worker.kubectl("patch", kind, role, *where, "--type=merge", "-p", json.dumps({"rules": rules}))
    try:
        await eventually(lambda: may(stage.bound, "get", "pods", False, namespace=stage.bound.mount), "get pods is forbidden")
        yield
    finally:
        for (kind, role), namespace in roles.items():
            where = ("-n", namespace) if namespace else ()
            await worker.kubectl("patch", kind, role, *where, "--type=merge", "-p", json.dumps({"rules": before[kind]}))


async def test_pod_is_not_lost_while_the_worker_does_not_say_so(stage: Stage) -> None:
    await stage.create("unsure")
    await stage.running("unsure")
    audit = Audit(stage.bound.worker, stage.bound.user)
    name = stage.physical_name("unsure")
    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        async with may_not_get_pods(stage):
            await stage.there.delete("pods", name, stage.bound.mount)
            await stage.no_physical("unsure")

            def refused() -> bool:
                return len([call for call in audit.calls() if call.verb == "get" and call.name == name and call.code == 403]) >= 3

            await eventually(refused, "it was asked for three times in vain")
            assert not seen.where(lambda event: event.phase == "Failed" or event.deleting)
        await stage.until("unsure", lambda p: p["status"]["phase"] == "Failed", "Failed")


async def test_pod_that_lost_its_marks_gets_them_back_and_is_not_lost(stage: Stage) -> None:
    await stage.create("stripped")
    await stage.running("stripped")
    labels, annotations = await stage.marks()
    below = await stage.until_physical("stripped", bool, "there")
    assert labels.items() <= below["metadata"]["labels"].items()
    with (
        watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as above,
        watching(stage.bound.worker.kubeconfig, namespace=stage.bound.mount) as under,
    ):
        strip = {"metadata": {"labels": dict.fromkeys(labels)}}
        await stage.there.patch("pods", stage.physical_name("stripped"), strip, namespace=stage.bound.mount)
        mended = await stage.until_physical("stripped", lambda p: labels.items() <= p["metadata"]["labels"].items(), "marked again")
        strip = {"metadata": {"annotations": dict.fromkeys(annotations)}}
        await stage.there.patch("pods", stage.physical_name("stripped"), strip, namespace=stage.bound.mount)
        await stage.until_physical("stripped", lambda p: annotations.items() <= p["metadata"]["annotations"].items(), "marked again")
    assert uid_of(mended) == uid_of(below)
    for seen in (above, under):
        assert not seen.where(lambda event: event.uid in (uid_of(below),) and (event.deleting or event.kind == "DELETED"))
        assert not seen.where(lambda event: event.phase == "Failed")


async def test_pod_that_was_stripped_of_all_that_says_whose_it_is_is_not_lost(stage: Stage) -> None:
    await stage.create("nameless")
    before = await stage.running("nameless")
    there = await stage.physical("nameless")
    assert there is not None
    ours = {kind: {key: None for key in there["metadata"][kind] if key.startswith("kubeocean.io/")} for kind in ("labels", "annotations")}
    await stage.there.patch("pods", stage.physical_name("nameless"), {"metadata": ours}, namespace=stage.bound.mount)
    marks = ("kubeocean.io/virtual-pod-uid", "kubeocean.io/virtual-pod-name", "kubeocean.io/cluster-id")
    await stage.until_physical("nameless", lambda p: all(p["metadata"].get("annotations", {}).get(key) for key in marks), "marked again")
    await stage.home.patch("pods", "nameless", {"metadata": {"labels": {"still": "followed"}}}, namespace=stage.namespace)
    after = await stage.until_physical("nameless", lambda p: p["metadata"]["labels"].get("still") == "followed", "followed")
    assert uid_of(after) == uid_of(there)
    virtual = await stage.virtual("nameless")
    assert virtual is not None and uid_of(virtual) == uid_of(before) and virtual["status"]["phase"] == "Running"
