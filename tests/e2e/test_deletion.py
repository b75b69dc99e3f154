"""Pods end on both sides, in time, whoever ends them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from tests.support.bound import Bound, apply, delete, get, physical, pod, running
from tests.support.core import Core
from tests.support.program import KUBECTL_TIMEOUT, PATIENCE, eventually
from tests.support.witness import watching
from vkubelet.testing.cluster import ControlPlane

SOON, AT_ONCE = 3.0, 1.0
"""Seconds, on a machine whose kubelet ends a pod of the worker's own in one."""
TRIES = 3
"""Until one is in time: a machine that runs other tests stands still now and then, what waits for a grace is late each time."""


async def _gone(cluster: ControlPlane, body: dict[str, Any], *, seconds: float) -> float:
    """When it is, by the monotonic clock."""
    core, (name, namespace, uid) = Core(cluster), (body["metadata"][key] for key in ("name", "namespace", "uid"))

    async def check() -> bool:
        found = await core.get("pods", name, namespace)
        return found is None or found["metadata"]["uid"] != uid

    await eventually(check, f"pod {name} gone from {cluster.name}", seconds=seconds, every=0.05)
    return time.monotonic()


async def _both_gone(leased: Bound, name: str, *options: str) -> tuple[float, float, float]:
    """A leased pod is deleted, and beside it one of the worker's own: the seconds until it is gone above and below, and the own one is."""
    namespace, theirs = await leased.hub.namespace(), await leased.worker.namespace("theirs")
    await apply(leased.worker, pod(name, theirs))
    await apply(leased.hub, pod(name, namespace))
    virtual = await running(leased, namespace, name)
    below = await physical(leased, virtual)
    await leased.worker.kubectl("wait", f"pod/{name}", "-n", theirs, "--for=condition=Ready", KUBECTL_TIMEOUT)
    own = await get(leased.worker, "pod", name, "-n", theirs)
    began = time.monotonic()
    await leased.hub.kubectl("delete", "pod", name, "-n", namespace, "--wait=false", *options)
    async with asyncio.TaskGroup() as group:
        group.create_task(delete(leased.worker, "pod", name, "-n", theirs, "--wait=false"))
        at = [
            group.create_task(_gone(*where, seconds=PATIENCE))
            for where in ((leased.hub, virtual), (leased.worker, below), (leased.worker, own))
        ]
    above, there, alone = (task.result() - began for task in at)
    print(f"{name}: gone after {above:.1f} s, below after {there:.1f} s; a pod of the worker's own after {alone:.1f} s")
    return above, there, alone


async def _in_time(leased: Bound, name: str, *options: str, above_within: float) -> None:
    """One of the tries at least; seconds are what is granted where a pod of the worker's own is gone soon."""
    tries = []
    for number in range(TRIES):
        above, below, alone = await _both_gone(leased, f"{name}-{number}", *options)
        if above < max(above_within, above_within * alone) and below < max(SOON, SOON * alone):
            return
        tries.append((above, below, alone))
    raise AssertionError(f"gone above, below, and alone after {tries} s")


async def test_deleted_pod_that_stops_at_once_leaves_both_clusters_within_three_seconds(leased: Bound) -> None:
    await _in_time(leased, "quick", above_within=SOON)


async def test_forced_deletion_is_immediate_in_the_hub_and_quick_in_the_worker(leased: Bound) -> None:
    await _in_time(leased, "forced", "--force", "--grace-period=0", above_within=AT_ONCE)


async def test_process_that_ignores_sigterm_is_killed_after_a_forced_deletion(leased: Bound) -> None:
    """The worker's kubelet gives it no less than two seconds, so three are not to be had here."""
    namespace = await leased.hub.namespace()
    stubborn = pod("stubborn", namespace)
    stubborn["spec"]["containers"][0]["command"] = ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"]
    await apply(leased.hub, stubborn)
    virtual = await running(leased, namespace, "stubborn")
    below = await physical(leased, virtual)
    await leased.hub.kubectl("delete", "pod", "stubborn", "-n", namespace, "--force", "--grace-period=0")
    # With the call itself.
    await _gone(leased.hub, virtual, seconds=0.5)
    # Less than the grace of thirty that it has by itself.
    await _gone(leased.worker, below, seconds=25)


async def test_pod_with_a_slow_process_keeps_its_grace_period(leased: Bound) -> None:
    namespace = await leased.hub.namespace()
    slow = pod("slow", namespace)
    slow["spec"]["containers"][0]["command"] = ["sh", "-c", "trap 'sleep 4; exit 0' TERM; while true; do sleep 0.2; done"]
    await apply(leased.hub, slow)
    virtual = await running(leased, namespace, "slow")
    with watching(leased.hub.kubeconfig, namespace=namespace) as seen:
        await leased.hub.kubectl("delete", "pod", "slow", "-n", namespace, "--wait=false", "--grace-period=60")
        # Not only when the grace is over.
        await _gone(leased.hub, virtual, seconds=PATIENCE)
        # The watch may be behind.
        await eventually(lambda: seen.where(lambda event: event.kind == "DELETED"), "the watch tells of the end")
    final = seen.where(lambda event: event.kind != "DELETED")[-1].object["status"]
    assert final["phase"] == "Succeeded"
    assert final["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def test_lost_physical_pod_fails_the_virtual_one_and_its_deployment_replaces_it(leased: Bound) -> None:
    namespace = await leased.hub.namespace()
    template = pod("unused", namespace)
    template["spec"]["terminationGracePeriodSeconds"] = 1
    labels = {"app": "replaced"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "replaced", "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }
    await apply(leased.hub, deployment)

    async def pods() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(await leased.hub.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
        return items

    async def first() -> dict[str, Any] | None:
        return next((item for item in await pods() if item["status"]["phase"] == "Running"), None)

    lost = await eventually(first, "the first pod runs", every=0.3)
    below = await physical(leased, lost)
    await delete(leased.worker, "pod", below["metadata"]["name"], "-n", below["metadata"]["namespace"], "--wait=false")

    async def replaced() -> tuple[dict[str, Any], dict[str, Any]] | None:
        by_uid = {item["metadata"]["uid"]: item for item in await pods()}
        old = by_uid.pop(lost["metadata"]["uid"], None)
        new = next((item for item in by_uid.values() if item["status"]["phase"] == "Running"), None)
        return (old, new) if old is not None and new is not None else None

    old, _ = await eventually(replaced, "a new pod runs beside the failed one", every=0.3)
    assert old["status"]["phase"] == "Failed"
    assert old["status"]["reason"] == "PhysicalPodLost"


async def test_label_taken_off_the_physical_pod_comes_back_and_nothing_is_lost(leased: Bound) -> None:
    namespace = await leased.hub.namespace()
    await apply(leased.hub, pod("labelled", namespace))
    virtual = await running(leased, namespace, "labelled")
    below = await physical(leased, virtual)
    name, mount = below["metadata"]["name"], below["metadata"]["namespace"]
    ours = "kubeocean.io/managed-by"
    with watching(leased.worker.kubeconfig, namespace=mount) as under, watching(leased.hub.kubeconfig, namespace=namespace) as above:
        await leased.worker.kubectl("label", "pod", name, "-n", mount, f"{ours}-")

        async def back() -> bool:
            found = await get(leased.worker, "pod", name, "-n", mount)
            return bool(found and found["metadata"]["labels"].get(ours) == "kubeocean")

        await eventually(back, "the label is back")
    uid = below["metadata"]["uid"]
    assert not under.where(lambda event: event.uid == uid and (event.deleting or event.kind == "DELETED"))
    assert not above.where(lambda event: event.phase != "Running" or event.deleting)
