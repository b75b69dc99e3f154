"""Rule `reclaim-the-excess`: when less is leased than before, the excess is reclaimed by the rules of the policy that ended.

Lines 91 to 98 of docs/reference/kubeocean-behaviour.md.

Excess goes lowest priority first, then youngest; by eviction within the grace, and by deletion after it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.integration.kubeocean.leases import (
    CLOSED,
    POLICY,
    closed_now,
    comes_to_offer,
    decided_by,
    listed,
    open_now,
    patch_policy,
    taints,
)
from tests.support.audit import Audit
from tests.support.bound import Body, apply, delete, get
from tests.support.program import PATIENCE, eventually
from tests.support.stage import Stage
from tests.support.witness import Record, watching
from vkubelet.testing.cluster import ControlPlane

GRACE = 10
"""Seconds; whoever may be evicted goes long before."""
PRIORITIES = {"low": 1000, "high": 2000}


@pytest.fixture(scope="module")
def lent(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("excess")) as made:
        yield made


@pytest.fixture
async def stage(lent: Scene) -> AsyncIterator[Stage]:
    """A namespace over the scene, whose only policy leases everything before and after a test."""
    classes = [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": f"{name}-{lent.bound.name}"}, "value": value}
        for name, value in PRIORITIES.items()
    ]
    await apply(lent.bound.hub, *classes)
    made = await Stage.of(lent.bound, lent.nodes)
    yield made
    hub, worker = lent.bound.hub, lent.bound.worker
    await delete(hub, "pods,pdb", "--all", "-n", made.namespace, "--wait=false")
    await hub.kubectl("delete", "priorityclass", *(body["metadata"]["name"] for body in classes))
    for body in await listed(worker, POLICY):
        if body["spec"]["cluster"] == lent.bound.name and body["metadata"]["name"] != whole(lent):
            await delete(worker, POLICY, body["metadata"]["name"], "--wait=false")
    if await get(worker, POLICY, whole(lent)) is None:
        await apply(worker, lent.bound.policy())
    change = json.dumps([{"op": "replace", "path": "/spec", "value": lent.bound.policy()["spec"]}])
    await worker.kubectl("patch", POLICY, whole(lent), "--type=json", "-p", change)
    await comes_to_offer(lent, cpu="64")


def whole(scene: Scene) -> str:
    return f"all-of-{scene.bound.name}"


async def run(stage: Stage, name: str, *, cpu: str, priority: str = "", tolerates_closed: bool = False) -> None:
    """A pod of the hub, Running."""
    body = stage.body(name, labels={"name": name}, terminationGracePeriodSeconds=1)
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    if priority:
        body["spec"]["priorityClassName"] = f"{priority}-{stage.bound.name}"
    if tolerates_closed:
        body["spec"]["tolerations"].append({"key": CLOSED, "operator": "Exists"})
    await stage.home.create("pods", body)
    await stage.running(name)


async def guard(stage: Stage, name: str) -> None:
    """A budget that lets this pod not be evicted, in force."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"name": name}}}
    await apply(
        stage.bound.hub,
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": stage.namespace}, "spec": spec},
    )

    async def counts() -> bool:
        budget = await get(stage.bound.hub, "pdb", name, "-n", stage.namespace)
        return bool(budget.get("status", {}).get("currentHealthy") == 1)

    await eventually(counts, f"the budget knows {name}")


def ends(record: Record) -> dict[str, datetime]:
    """When the deletion of each pod was asked for, by the API server's clock."""
    found: dict[str, datetime] = {}
    for event in record.where(lambda event: event.deleting):
        meta = event.object["metadata"]
        asked = datetime.fromisoformat(meta["deletionTimestamp"]) - timedelta(seconds=meta["deletionGracePeriodSeconds"])
        found.setdefault(meta["name"], asked)
    return found


async def ended(record: Record, *names: str, seconds: float = PATIENCE) -> dict[str, datetime]:
    await eventually(lambda: set(names) <= ends(record).keys(), f"these pods are ended: {names}", seconds=seconds)
    return ends(record)


async def test_policy_that_shrinks_evicts_lowest_priority_and_youngest_within_its_grace(lent: Scene, stage: Stage) -> None:
    """By the policy itself; 16 of 64 CPUs stay leased, so that only two of the five pods have to leave, one of them guarded."""
    await patch_policy(lent, whole(lent), forceReclaim=True, gracefulReclaimPeriodSeconds=GRACE)
    await run(stage, "important", cpu="6", priority="high")
    await run(stage, "guarded", cpu="6", priority="low")
    await run(stage, "older", cpu="6")
    # A pod's age counts whole seconds.
    await _a_second_passes()
    await run(stage, "youngest", cpu="6")
    await run(stage, "frugal", cpu="0")
    await guard(stage, "guarded")
    audit = Audit(stage.bound.hub, stage.bound.user)
    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        asked = datetime.now(UTC)
        await patch_policy(lent, whole(lent), resourceLimits=[{"resource": "cpu", "quantity": "20"}])
        await ended(seen, "youngest")
        await comes_to_offer(lent, cpu="20")
        assert set(ends(seen)) == {"youngest"}, "18 CPUs fit into 20"
        await stage.absent("youngest")
        # Another step down: `older` would do, and goes before the guarded one of higher priority.
        again = datetime.now(UTC)
        await patch_policy(lent, whole(lent), resourceLimits=[{"resource": "cpu", "quantity": "7"}])
        times = await ended(seen, "older", "guarded", seconds=GRACE + PATIENCE)
        assert set(times) == {"youngest", "older", "guarded"}
    assert times["youngest"] - asked < timedelta(seconds=GRACE), times
    assert times["older"] - again < timedelta(seconds=GRACE), times
    held = (times["guarded"] - again).total_seconds()
    print(f"the guarded pod was kept for {held:.1f} s of a grace of {GRACE} s")
    # Deletion times are whole seconds, rounded down.
    assert GRACE - 1 <= held < GRACE + 10, times
    evictions = [call for call in audit.writes() if call.what == "pods/eviction"]
    assert [call.code for call in evictions if call.name == "guarded"][0] == 429
    said = await stage.event("older", "Reclaiming")
    assert f"ResourceLeasingPolicy {whole(lent)}" in said["message"]
    assert (await stage.running("important"))["status"]["phase"] == (await stage.running("frugal"))["status"]["phase"] == "Running"


async def _a_second_passes() -> None:
    then = datetime.now(UTC) + timedelta(seconds=1.1)
    await eventually(lambda: datetime.now(UTC) > then, "a second has passed")


async def test_smaller_policy_that_takes_over_reclaims_by_the_rules_of_the_one_that_ended(lent: Scene, stage: Stage) -> None:
    """A policy that does not force leaves everybody alone when it hands over, however hard the next one is; and the other way round."""
    soft, hard = f"soft-{lent.bound.name}", f"hard-{lent.bound.name}"
    small: dict[str, Any] = {"resourceLimits": [{"resource": "cpu", "quantity": "4"}], "forceReclaim": True}
    await apply(lent.bound.worker, lent.bound.policy(soft, priority=9, **open_now()))
    await decided_by(lent, soft, cpu="64")
    await apply(lent.bound.worker, lent.bound.policy(hard, priority=5, **small))
    await run(stage, "excess", cpu="8")
    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        await patch_policy(lent, soft, **closed_now())
        await decided_by(lent, hard, cpu="4")
        # The next hand-over, from a policy that forces, shows that the first had its time.
        await patch_policy(lent, soft, forceReclaim=True, gracefulReclaimPeriodSeconds=0, **open_now())
        await decided_by(lent, soft, cpu="64")
        assert not ends(seen), "the policy that ended did not force"
        await patch_policy(lent, soft, **closed_now())
        await ended(seen, "excess")


async def test_closed_window_keeps_pods_and_with_force_deletes_those_without_toleration(lent: Scene, stage: Stage) -> None:
    """Lines 91 to 96: NoSchedule first and no pod touched; then force without grace ends the pods; a toleration of the key saves a pod."""
    await run(stage, "ordinary", cpu="1")
    await run(stage, "tolerant", cpu="1", tolerates_closed=True)

    async def closed(effect: str) -> Body | None:
        node = await stage.home.get("nodes", stage.vnode)
        taint = taints(node or {"spec": {}}).get(CLOSED)
        return taint if taint is not None and (taint["effect"], taint["value"]) == (effect, "true") else None

    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        await patch_policy(lent, whole(lent), forceReclaim=False, **closed_now())
        taint = await eventually(lambda: closed("NoSchedule"), "closed to new pods")
        # Another change passes through the node, and moves nothing.
        await patch_policy(lent, whole(lent), resourceLimits=[{"resource": "cpu", "percent": 50}])
        await comes_to_offer(lent, cpu="32")
        again = await closed("NoSchedule")
        assert again is not None and again["timeAdded"] == taint["timeAdded"], "line 95"
        assert not ends(seen), "line 91"
        await patch_policy(lent, whole(lent), forceReclaim=True, gracefulReclaimPeriodSeconds=0, allowOutOfWindowPods=True)
        await eventually(lambda: closed("NoExecute"), "closed to running pods")
        await ended(seen, "ordinary")
        await stage.absent("ordinary")
        assert set(ends(seen)) == {"ordinary"}, "line 94"
        await patch_policy(lent, whole(lent), **open_now())

        async def opened() -> bool:
            node = await stage.home.get("nodes", stage.vnode)
            return node is not None and CLOSED not in taints(node)

        await eventually(opened, "the taint is gone (line 96)")
        assert (await stage.running("tolerant"))["status"]["phase"] == "Running" and set(ends(seen)) == {"ordinary"}


async def test_growing_local_use_drives_no_leased_pod_out(lent: Scene, stage: Stage) -> None:
    """No policy ended or shrank: what local pods take is missing for new pods only."""
    limits = [{"resource": "cpu", "percent": 75}]
    await patch_policy(lent, whole(lent), forceReclaim=True, gracefulReclaimPeriodSeconds=0, resourceLimits=limits)
    await comes_to_offer(lent, cpu="48")
    await run(stage, "settled", cpu="40")
    namespace = await lent.bound.worker.namespace()
    body = stage.body("local")
    body["metadata"] = {"name": "local", "namespace": namespace}
    body["spec"] |= {"nodeName": lent.nodes[0]}
    # All that the leased pod leaves of 64, as a kubelet would refuse more; three quarters of the rest are less than the 40 that are lent.
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "24"}}
    try:
        with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
            await apply(lent.bound.worker, body)
            await comes_to_offer(lent, cpu="30")
            # Without requests it fits beside them; that it runs shows that the node was looked at.
            await run(stage, "later", cpu="0")
            assert not ends(seen)
    finally:
        await delete(lent.bound.worker, "pod", "local", "-n", namespace, "--ignore-not-found", "--wait=false")
        await patch_policy(lent, whole(lent), resourceLimits=[])
