"""What the tests of outages ask of both clusters: leases, held nodes, rights taken away, and what was refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from tests.integration.kubeocean.conftest import Scene
from tests.integration.kubeocean.leases import listed, taints, vnode
from tests.support.audit import entries
from tests.support.bound import Body, Bound, apply, condition, get, pod
from tests.support.program import PATIENCE, eventually
from tests.support.reviews import allows

UNREACHABLE = "kubeocean.io/worker-unreachable"
SHORT = {"provider": {"unreachable_after": 4, "probe_interval": 1, "reconnect_interval": 1}, "lease": {"renew_every": 2}}
"""Settings under which a worker is lost within seconds."""
GRACE = 2
"""Seconds that the pods get to end; where their kubelet is dead they are waited for in vain."""


async def running_pods(scene: Scene, count: int) -> str:
    """Pods `p0` … spread over the virtual nodes, Running and Ready; their namespace."""
    namespace = await scene.bound.hub.namespace()
    bodies = [pod(f"p{i}", namespace, node=scene.vnodes[i % len(scene.vnodes)], terminationGracePeriodSeconds=GRACE) for i in range(count)]
    await apply(scene.bound.hub, *bodies)
    await all_pods(scene, namespace, lambda body: condition(body, "Ready") == "True", what="Ready", count=count)
    return namespace


async def all_pods(scene: Scene, namespace: str, keep: Callable[[Body], bool], *, what: str, count: int, seconds: float = PATIENCE) -> None:
    """Wait until there are `count` pods at home, all of which fit."""

    async def check() -> bool:
        items = await listed(scene.bound.hub, "pods", "-n", namespace)
        return len(items) == count and all(map(keep, items))

    await eventually(check, f"{count} pods {what}", seconds=seconds, every=0.3)


async def renewals(scene: Scene) -> dict[str, datetime]:
    """When the Lease of each virtual node was renewed last."""
    items = await listed(scene.bound.hub, "leases", "-n", "kube-node-lease")
    times = {item["metadata"]["name"]: item["spec"]["renewTime"] for item in items}
    return {name: datetime.fromisoformat(times[name]) for name in scene.vnodes}


async def renewed_after(scene: Scene, moment: datetime, *, seconds: float = PATIENCE) -> None:
    """Wait until each Lease was renewed later than this."""

    async def check() -> bool:
        return min((await renewals(scene)).values()) > moment

    await eventually(check, f"all leases renewed after {moment}", seconds=seconds, every=0.5)


def is_held(node: Body) -> bool:
    """Ready as before, closed to new pods, and honest about why."""
    ready = next(each for each in node["status"]["conditions"] if each["type"] == "Ready")
    return bool(
        (ready["status"], ready["reason"]) == ("True", "WorkerUnreachableHold")
        and condition(node, "kubeocean.io/WorkerReachable") == "False"
        and taints(node).get(UNREACHABLE, {}).get("effect") == "NoSchedule"
    )


def is_released(node: Body) -> bool:
    """Ready, and nothing is left of an outage; a Node that was just created has no conditions."""
    ready: Body = next((each for each in node["status"].get("conditions", ()) if each["type"] == "Ready"), {})
    return bool(
        ready.get("status") == "True"
        and ready["reason"] != "WorkerUnreachableHold"
        and condition(node, "kubeocean.io/WorkerReachable") != "False"
        and UNREACHABLE not in taints(node)
    )


async def all_nodes(scene: Scene, keep: Callable[[Body], bool], *, what: str, seconds: float = PATIENCE) -> None:
    """Wait until every virtual node exists and fits."""

    async def check() -> bool:
        nodes = [await vnode(scene, number) for number in range(len(scene.nodes))]
        return all(node is not None and keep(node) for node in nodes)

    await eventually(check, f"virtual nodes {what}", seconds=seconds, every=0.3)


async def connected(scene: Scene) -> str:
    """Status of the binding's condition Connected."""
    return condition(await get(scene.bound.hub, "clusterbinding", scene.bound.name), "Connected")


async def events_of(scene: Scene, reason: str) -> list[Body]:
    """Events about the binding."""
    selector = f"reason={reason},involvedObject.name={scene.bound.name}"
    return await listed(scene.bound.hub, "events", "-A", "--field-selector", selector)


@asynccontextmanager
async def without_right(scene: Scene, resource: str, *verbs: str) -> AsyncIterator[None]:
    """The worker's owner takes verbs on a cluster-wide resource away from us while the block runs."""
    name = f"kubeocean-syncer-{scene.bound.name}"
    before = (await get(scene.bound.worker, "clusterrole", name))["rules"]
    rules = [rule for rule in before if resource not in rule["resources"]]
    for rule in before:
        if resource in rule["resources"]:
            others = [each for each in rule["resources"] if each != resource]
            left = [verb for verb in rule["verbs"] if verb not in verbs]
            rules += [{**rule, "resources": others}] if others else []
            rules += [{**rule, "resources": [resource], "verbs": left}] if left else []
    await _set_rules(scene, name, rules)
    try:
        await eventually(lambda: may(scene.bound, verbs[0], resource, False), f"{verbs[0]} {resource} is forbidden")
        yield
    finally:
        await _set_rules(scene, name, before)
    await eventually(lambda: may(scene.bound, verbs[0], resource, True), f"{verbs[0]} {resource} is allowed")


async def _set_rules(scene: Scene, name: str, rules: list[Body]) -> None:
    await scene.bound.worker.kubectl("patch", "clusterrole", name, "--type=merge", "-p", json.dumps({"rules": rules}))


async def may(bound: Bound, verb: str, resource: str, answer: bool, *, namespace: str = "") -> bool:
    """Whether this is the worker's answer to what our user may do; the authorizer follows its own watch, so a change takes a moment."""
    group, _, plural = resource.partition("/")[0].rpartition(".")
    groups = {"resourceleasingpolicies": "cloud.tencent.com", "csinodes": "storage.k8s.io"}
    attributes = {"verb": verb, "resource": plural, "group": groups.get(plural, group), "namespace": namespace}
    return await allows(bound.worker, bound.user, **attributes) is answer


def refused(scene: Scene, since: datetime, *, verb: str, resource: str, name: str = "") -> list[Body]:
    """What the worker's API server refused us since then, by its audit log."""
    out = []
    for entry in entries(scene.bound.worker.audit_log):
        if entry.get("user", {}).get("username") != scene.bound.user or entry.get("responseStatus", {}).get("code") != 403:
            continue
        about: dict[str, Any] = entry.get("objectRef", {})
        asked = (entry["verb"], about.get("resource"), about.get("name", "") if name else "")
        if asked == (verb, resource, name) and datetime.fromisoformat(entry["requestReceivedTimestamp"]) > since:
            out.append(entry)
    return out


def now() -> datetime:
    return datetime.now(UTC)
