"""Rule `worker-unreachable`: with FailOver the pods of a silent worker are deleted, and none runs twice under one UID."""

from __future__ import annotations

import json
import time
from collections.abc import Collection

from tests.integration.kubeocean.conftest import MakeScene
from tests.integration.kubeocean.outages import SHORT, all_nodes, events_of, is_held, is_released, now, renewed_after, taints
from tests.support.audit import Audit
from tests.support.bound import Body, condition
from tests.support.cable import Cable
from tests.support.program import PATIENCE, eventually
from tests.support.stage import Stage, uid_of, virtual_uid
from tests.support.witness import Record, watching

AFTER = 40.0
"""Seconds; less is refused by the definition."""
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
FOR_EVER = [{"key": "kubeocean.io/vnode", "operator": "Exists"}, UNREACHABLE]


def is_unknown(node: Body) -> bool:
    ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
    return (ready["status"], ready["reason"]) == ("Unknown", "WorkerUnreachable")


async def test_pods_of_a_silent_worker_are_deleted_and_their_copies_when_it_is_back(cable: Cable, scene: MakeScene) -> None:
    made = await scene(nodes=2, through=cable.port, settings=SHORT, spec={"onUnreachable": {"mode": "FailOver", "afterSeconds": 40}})
    bound, stage = made.bound, await Stage.of(made.bound, made.nodes)
    deployment = _deployment(stage)
    await bound.hub.kubectl("apply", "-f", "-", stdin=deployment)
    await stage.create("stays", tolerations=FOR_EVER)
    await stage.create("done", script={"run-for": "0.2"}, restartPolicy="Never")
    await stage.running("stays")
    await stage.until("done", lambda p: p["status"]["phase"] == "Succeeded", "Succeeded")
    before = await _replicas(stage, 2)
    audit = Audit(bound.hub, bound.user)
    with (
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, namespace=stage.namespace) as above,
        watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes,
    ):
        cable.silence()
        began, moment = time.monotonic(), now()
        await all_nodes(made, is_held, what="held")
        await eventually(
            lambda: len({e.uid for e in above.events if e.deleting}) == 2, "both replicas are deleted in the hub", seconds=AFTER + PATIENCE
        )
        waited = time.monotonic() - began
        await all_nodes(made, is_unknown, what="Unknown")
        assert _given_up_at(nodes) - began >= AFTER - 2, "before, the hub's taint eviction would have begun"
        await eventually(lambda: events_of(made, "FailingOver"), "an event about it")
        await renewed_after(made, moment)
        # Their owner makes others at once; what was given up may still run, so its UID stays until the worker is back.
        fresh = await _replicas(stage, 2, other_than=before)
        assert {uid_of(pod) for pod in await stage.home.list("pods", stage.namespace)} >= before | fresh
        assert not below.where(lambda event: event.deleting)
        cable.mend()
        await all_nodes(made, is_released, what="released")
        await eventually(lambda: _gone(stage, before), "the deleted pods are gone from both clusters")
        await eventually(lambda: _ready(stage, fresh), "the new replicas run")
        await stage.until("stays", lambda p: condition(p, "Ready") == "True", "Ready again")
    assert waited >= AFTER - 2
    assert {event.uid for event in above.events if event.deleting or event.kind == "DELETED"} == before
    deletions = [call for call in audit.writes() if call.verb == "delete" and call.what == "pods"]
    assert deletions and all(call.body["preconditions"]["uid"] in before for call in deletions)
    copies: dict[str, set[str]] = {}
    for event in below.events:
        copies.setdefault(virtual_uid(event.object), set()).add(event.uid)
    assert all(len(uids) == 1 for uids in copies.values()), copies


def _given_up_at(nodes: Record) -> float:
    """When a node was first seen not Ready, or with the taint by which the hub's controllers evict."""
    tainted = nodes.where(lambda event: event.condition("Ready") != "True" or UNREACHABLE["key"] in taints(event.object))
    return tainted[0].at


def _deployment(stage: Stage) -> str:
    template = stage.body("web")
    template["metadata"] = {"labels": {"app": "web"}}
    # Shorter than `afterSeconds`: it counts from when the node becomes Unknown.
    template["spec"]["tolerations"] = [*template["spec"].get("tolerations", []), {**UNREACHABLE, "tolerationSeconds": 5}]
    template["spec"] |= {"terminationGracePeriodSeconds": 2, "nodeSelector": {"kubeocean.io/cluster-binding": stage.bound.name}}
    template["spec"].pop("nodeName")
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {k: template[k] for k in ("metadata", "spec")}}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": stage.namespace}, "spec": spec}
    return json.dumps(body)


async def _replicas(stage: Stage, count: int, *, other_than: Collection[str] = ()) -> set[str]:
    """UIDs of the pods of the Deployment, Running unless they replace others."""

    async def check() -> set[str]:
        pods = [p for p in await stage.home.list("pods", stage.namespace) if p["metadata"]["name"].startswith("web-")]
        found = {uid_of(p) for p in pods if uid_of(p) not in other_than and (other_than or p["status"].get("podIP"))}
        return found if len(found) == count else set()

    out: set[str] = await eventually(check, f"{count} replicas")
    return out


async def _gone(stage: Stage, uids: set[str]) -> bool:
    here = {uid_of(pod) for pod in await stage.home.list("pods", stage.namespace)}
    there = {virtual_uid(pod) for pod in await stage.there.list("pods", stage.bound.mount)}
    return not uids & (here | there)


async def _ready(stage: Stage, uids: set[str]) -> bool:
    ready = {uid_of(pod) for pod in await stage.home.list("pods", stage.namespace) if condition(pod, "Ready") == "True"}
    return uids <= ready
