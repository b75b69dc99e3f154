"""The end of a binding: everything of it goes from both clusters, nothing of anybody else does, and its deletion always ends."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.kubeocean.leases import listed
from tests.integration.kubeocean.outages import SHORT, all_nodes, events_of, is_held
from tests.integration.kubeocean.test_dependents import configmap, secret, volumes
from tests.support.audit import Audit
from tests.support.bound import Body, apply, delete, get
from tests.support.cable import Cable
from tests.support.program import eventually, holds
from tests.support.stage import Stage, away, physical_name, uid_of
from tests.support.witness import Seen, watching
from vkubelet.testing.cluster import ControlPlane

SYNCER = "kubeocean.io/clusterbinding-syncer"
QUICK = {**SHORT, "pods": {"list_interval": 1.0}}


async def binding(scene: Scene) -> Body | None:
    found: Body | None = await get(scene.bound.hub, "clusterbinding", scene.bound.name)
    return found


async def delete_binding(scene: Scene) -> None:
    await delete(scene.bound.hub, "clusterbinding", scene.bound.name, "--wait=false")


async def gone(scene: Scene, *, seconds: float = STARTS_WITHIN) -> None:
    async def check() -> bool:
        return await binding(scene) is None

    try:
        await eventually(check, "the binding is gone", seconds=seconds, every=0.3)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await binding(scene)}\n{scene.program.tail(30)}") from None


async def terminating(scene: Scene, *words: str, seconds: float = STARTS_WITHIN) -> str:
    """What condition Ready says of the end, as soon as it has these words."""

    async def check() -> str:
        conditions = ((await binding(scene)) or {}).get("status", {}).get("conditions", [])
        said = [c["message"] for c in conditions if (c["type"], c["status"], c["reason"]) == ("Ready", "False", "Terminating")]
        return str(said[0]) if said and all(word in said[0] for word in words) else ""

    out: str = await eventually(check, f"Ready=False, Terminating: {words}", seconds=seconds, every=0.2)
    return out


async def traces(cluster: ControlPlane, scene: Scene) -> list[str]:
    """Everything in a cluster that speaks of the binding, by kubectl; what it was made of is left out."""
    kinds = "nodes,pods,configmaps,secrets,persistentvolumeclaims,persistentvolumes,csinodes,namespaces,resourceleasingpolicies,leases"
    kinds = kinds if cluster is scene.bound.worker else kinds.replace("resourceleasingpolicies,", "")
    bound, out = scene.bound, []
    for item in await listed(cluster, kinds, "-A"):
        meta = item["metadata"]
        marks = {**meta.get("labels", {}), **meta.get("annotations", {})}
        texts = [f"{key}={value}" for key, value in marks.items() if key.startswith("kubeocean.io/")] + meta.get("finalizers", [])
        name = re.compile(rf"\b{re.escape(bound.name)}\b")
        # Users and physical nodes are named after the scene as well.
        said = {text: text.replace(bound.user, "").replace(f"sim-{bound.name}", "") for text in texts}
        about = [text for text in texts if name.search(said[text]) or text.startswith("policy.kubeocean.io/")]
        of_another = item["kind"] == "ResourceLeasingPolicy" and item["spec"]["cluster"] != bound.name
        if not of_another and (about or item["metadata"]["name"].startswith(f"vnode-{bound.name}-")):
            out.append(f"{item['kind']} {meta.get('namespace', '')}/{meta['name']}: {about}")
    return out


async def workload(stage: Stage) -> None:
    """A pod with a copy of each kind, and a token."""
    await stage.home.create("configmaps", configmap(stage, "settings", color="red"))
    await stage.home.create("secrets", secret(stage, "keys", one="1"))
    token: dict[str, Any] = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    sources = [*volumes(("configMap", "settings"), ("secret", "keys")), token]
    await stage.create("user", terminationGracePeriodSeconds=2, volumes=sources)
    await stage.running("user")


async def test_unbinding_leaves_nothing_in_either_cluster_and_nodes_go_first(scene: MakeScene) -> None:
    made = await scene(nodes=2, settings=QUICK)
    bound, stage = made.bound, await Stage.of(made.bound, made.nodes)
    await eventually(lambda: _has_finalizer(made), "the finalizer stands on the binding")
    await workload(stage)
    # Nothing leads to it any more but a look at all of them.
    stripped = configmap(stage, "stripped", a="b")
    stripped["metadata"]["finalizers"] = [f"kubeocean.io/finalizer-{bound.name}"]
    await stage.home.create("configmaps", stripped)
    assert await traces(bound.hub, made) and await traces(bound.worker, made)
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    at_home, there = Audit(bound.hub, bound.user), Audit(bound.worker, bound.user)
    with (
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes,
    ):
        await delete_binding(made)
        await gone(made)
        assert await traces(bound.hub, made) == []
        assert await traces(bound.worker, made) == []
        await eventually(lambda: len(nodes.where(_is_deleted)) == 2 and below.where(_is_deleted), "the watches tell of the ends")
    assert below.where(_is_deleted)[0].deleting
    copies = [call.at for call in there.writes() if (call.verb, call.what) == ("delete", "configmaps")]
    assert _last(at_home, "delete", "nodes") < min(copies)
    assert await stage.home.get("configmaps", "settings", stage.namespace) and await stage.home.get("secrets", "keys", stage.namespace)
    for reason in ("Unbinding", "Unbound"):
        await eventually(lambda reason=reason: events_of(made, reason), f"event {reason}")  # type: ignore[misc]
    # The same process serves the next binding of this name, and claims the namespace again.
    await apply(bound.hub, bound.binding())
    await made.ready()
    await stage.create("again")
    await stage.running("again")


def _is_deleted(event: Seen) -> bool:
    return event.kind == "DELETED"


async def _has_finalizer(scene: Scene) -> bool:
    return SYNCER in ((await binding(scene)) or {})["metadata"].get("finalizers", [])


async def test_only_what_bears_our_mark_is_waited_for_and_touched_also_after_a_restart(scene: MakeScene) -> None:
    made = await scene(settings=QUICK)
    bound, stage = made.bound, await Stage.of(made.bound, made.nodes)
    await workload(stage)
    labels, annotations = await stage.marks()
    stranger = labels | {"kubeocean.io/owner": "somebody-else"}, annotations | {"kubeocean.io/hub-uid": str(uuid.uuid4())}
    kept = [
        await stage.there.create("configmaps", _marked(stage, "of-a-stranger", *stranger)),
        await stage.there.create("pods", stage.twin("local", str(uuid.uuid4()), labels={}, annotations={})),
        await stage.there.create("pods", stage.twin("stranger", str(uuid.uuid4()), labels=stranger[0], annotations=stranger[1])),
    ]
    orphan = _marked(stage, "orphan", labels, annotations)
    orphan["metadata"]["finalizers"] = ["example.com/holds-it"]
    await stage.there.create("configmaps", orphan)
    lost = await stage.there.create("pods", stage.twin("lost", str(uuid.uuid4()), labels=labels, annotations=annotations | _NOWHERE))
    above, below = Audit(bound.hub, bound.user), Audit(bound.worker, bound.user)
    with watching(bound.worker.kubeconfig, namespace=bound.mount) as seen:
        await delete_binding(made)
        await terminating(made, "1 configmaps")
        assert await stage.there.get("pods", lost["metadata"]["name"], bound.mount) is None
        made.program.kill()
        made.program.start()
        await eventually(lambda: len(_connections(made)) == 2, "the new process has connected again", seconds=STARTS_WITHIN)
        await terminating(made, "1 configmaps")
        assert await _has_finalizer(made)
        change = {"metadata": {"finalizers": None}}
        await stage.there.patch("configmaps", "orphan", change, namespace=bound.mount)
        await gone(made)
    assert not seen.where(lambda event: event.uid in {uid_of(body) for body in kept[1:]} and (event.deleting or event.kind == "DELETED"))
    assert uid_of(await stage.there.get("configmaps", "of-a-stranger", bound.mount) or {"metadata": {"uid": ""}}) == uid_of(kept[0])
    # The line of the last write comes a moment after it.
    await holds(lambda: _went_in_order(above, below))


def _went_in_order(above: Audit, below: Audit) -> None:
    """Nodes go before copies, each copy before the marks on its original, and the binding's finalizer is the last."""
    copies = {(call.what, call.name): call.at for call in reversed(below.writes()) if call.verb == "delete"}
    assert _last(above, "delete", "nodes") < min(at for (what, _), at in copies.items() if what == "configmaps")
    marks = [call for call in above.writes() if call.verb == "patch" and call.what in ("configmaps", "secrets")]
    assert {call.what for call in marks} == {"configmaps", "secrets"}
    assert all(copies[call.what, physical_name(call.namespace, call.name)] < call.at for call in marks)
    let_go = _last(above, "patch", "clusterbindings")
    assert max(call.at for call in marks) < let_go and _last(below, "patch", "namespaces") < let_go


_NOWHERE = {"kubeocean.io/virtual-node-name": "a-node-that-never-was"}


def _marked(stage: Stage, name: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Body:
    metadata = {"name": name, "namespace": stage.bound.mount, "labels": dict(labels), "annotations": dict(annotations)}
    return {"metadata": metadata, "data": {"a": "b"}}


def _last(audit: Audit, verb: str, what: str) -> datetime:
    times = [call.at for call in audit.writes() if (call.verb, call.what) == (verb, what)]
    assert times, f"the audit log has no {verb} of {what}"
    return max(times)


def _connections(scene: Scene) -> list[Body]:
    return [line for line in scene.program.messages() if line.get("message") == "connected to the worker cluster"]


async def test_worker_that_does_not_answer_is_given_up_only_on_demand(cable: Cable, scene: MakeScene) -> None:
    made = await scene(nodes=2, through=cable.port, settings=QUICK)
    bound, stage = made.bound, await Stage.of(made.bound, made.nodes)
    await workload(stage)
    cable.cut()
    await all_nodes(made, is_held, what="held")
    with watching(bound.worker.kubeconfig, namespace=bound.mount) as below:
        await delete_binding(made)
        # The one that has never had a pod may have gone before it is said what is left.
        said = await terminating(made, "kubeocean.io/force-unbind=true", "virtual nodes")
        assert "cannot clean up the worker cluster" in said
        await eventually(lambda: events_of(made, "UnbindingBlocked"), "an event about it")
        node = await get(bound.hub, "node", made.vnodes[0])
        assert not node["metadata"].get("deletionTimestamp") and await _has_finalizer(made)
        await bound.hub.kubectl("annotate", "clusterbinding", bound.name, "kubeocean.io/force-unbind=true")
        await gone(made)
    assert await traces(bound.hub, made) == []
    assert await stage.virtual("user") is None
    (told,) = await eventually(lambda: events_of(made, "UnboundByForce"), "an event about it")
    mark = (await stage.marks())[0]["kubeocean.io/owner"] if await _namespace_is_marked(made) else ""
    for word in (f"{stage.namespace}/user", "2 configmaps", "1 secrets", bound.mount, f"kubeocean.io/owner={mark}"):
        assert word in told["message"] and told["type"] == "Warning"
    assert not below.where(lambda event: event.deleting or event.kind == "DELETED")
    cable.mend()


async def _namespace_is_marked(scene: Scene) -> bool:
    found = await get(scene.bound.worker, "namespace", scene.bound.mount)
    return "kubeocean.io/mount-owner" in found["metadata"]["annotations"]


async def test_deletion_ends_by_itself_after_the_time_that_the_binding_names(cable: Cable, scene: MakeScene) -> None:
    made = await scene(through=cable.port, settings=QUICK, spec={"forceUnbindAfter": 12})
    bound, stage = made.bound, await Stage.of(made.bound, made.nodes)
    await workload(stage)
    with away(made.program):
        cable.cut()
        began = time.monotonic()
        await delete_binding(made)
    # A process that never had a connection.
    await terminating(made, "1 virtual nodes")
    await gone(made)
    assert time.monotonic() - began > 11
    assert await traces(bound.hub, made) == []
    await eventually(lambda: events_of(made, "UnboundByForce"), "an event about it")
    physical = await stage.physical("user")
    assert physical is not None and not physical["metadata"].get("deletionTimestamp")
    cable.mend()
    # A binding made again finds what was left, and ends what nobody wants any more.
    await apply(bound.hub, {**bound.binding(), "spec": {**bound.binding()["spec"], "forceUnbindAfter": 300}})
    await made.ready()
    await stage.no_physical("user")
