"""Rule `worker-unreachable`: nodes of a worker that does not answer are held, and everything is as before when it answers again."""

from __future__ import annotations

import time

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.kubeocean.leases import comes_to_offer, listed, vnode
from tests.integration.kubeocean.outages import (
    SHORT,
    all_nodes,
    all_pods,
    connected,
    events_of,
    is_held,
    is_released,
    now,
    renewed_after,
    running_pods,
)
from tests.integration.kubeocean.test_restarts import ready
from tests.support.bound import Body, apply, condition, delete, get, physical, pod, running
from tests.support.cable import Cable
from tests.support.moments import moments_of
from tests.support.program import PATIENCE, eventually
from tests.support.witness import Record, watching

LOST_WITHIN = 50.0
"""Seconds: it is lost after 40 without an answer, and with one more question, which comes every ten, it would have been this."""
ENDS_AFTER = 40
"""Seconds: the pod that ends by itself runs when the worker falls silent, and ends in the outage."""
BINDINGS = "/apis/cloud.tencent.com/v1beta1/clusterbindings"


def only_deleted(record: Record, names: set[str]) -> bool:
    return {event.object["metadata"]["name"] for event in record.where(lambda event: event.deleting or event.kind == "DELETED")} <= names


async def _physical_name(scene: Scene, namespace: str, name: str) -> str:
    body = await physical(scene.bound, await get(scene.bound.hub, "pod", name, "-n", namespace))
    return str(body["metadata"]["name"])


async def test_silent_worker_is_held_after_forty_seconds_and_everything_is_back_when_it_is(cable: Cable, scene: MakeScene) -> None:
    made = await scene(nodes=2, through=cable.port)
    bound = made.bound
    namespace = await running_pods(made, 4)
    ends = pod("ends", namespace, node=made.vnodes[0], restartPolicy="Never")
    ends["metadata"]["annotations"] = {"mock.vkubelet.io/run-for": str(ENDS_AFTER)}
    await apply(bound.hub, ends)
    await running(bound, namespace, "ends")
    ending, deleted = await _physical_name(made, namespace, "ends"), await _physical_name(made, namespace, "p3")
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    with (
        watching(bound.hub.kubeconfig, namespace=namespace) as above,
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes,
        moments_of(bound.hub.kubeconfig, BINDINGS, fields=f"metadata.name={bound.name}", when=_is_disconnected) as lost,
    ):
        cable.silence()
        began = time.monotonic()
        await eventually(lambda: len(lost), "Connected=False", seconds=LOST_WITHIN + PATIENCE)
        lost_after = lost.first(bound.name) - began
        await all_nodes(made, is_held, what="held")
        await all_pods(made, namespace, lambda body: not ready(body), what="not ready", count=5)
        assert await eventually(lambda: events_of(made, "WorkerUnreachable"), "an event about the outage")
        await delete(bound.hub, "pod", "p3", "-n", namespace, "--wait=false")
        await renewed_after(made, now())
        await eventually(lambda: _phase(bound.worker, bound.mount, ending, "Succeeded"), "the physical pod has ended")
        assert await _phase(bound.hub, namespace, "ends", "Running")
        assert (await get(bound.hub, "pod", "p3", "-n", namespace))["metadata"]["deletionTimestamp"]
        assert not (await get(bound.worker, "pod", deleted, "-n", bound.mount))["metadata"].get("deletionTimestamp")
        assert only_deleted(above, {"p3"}) and only_deleted(below, set())
        cable.mend()
        outage, back = time.monotonic() - began, time.monotonic()
        # Sooner than a sweep of every minute would bring it about.
        await all_nodes(made, is_released, what="released")
        await all_pods(made, namespace, _as_it_should_be, what="up to date", count=4)
        back_after = time.monotonic() - back
        await eventually(lambda: _is_connected(made), "Connected=True")
        await eventually(lambda: _is_gone(made, deleted), "the physical pod of the deleted one is gone")
    print(f"lost after {lost_after:.1f} s, outage {outage:.1f} s, back after {back_after:.1f} s")
    assert lost_after < LOST_WITHIN
    assert only_deleted(above, {"p3"}) and only_deleted(below, {deleted})
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")
    assert not below.where(lambda event: event.restarts > 0 or event.kind == "ADDED")


def _is_disconnected(binding: Body) -> bool:
    return condition(binding, "Connected") == "False"


async def _is_connected(scene: Scene) -> bool:
    return await connected(scene) == "True"


def _as_it_should_be(body: dict[str, object]) -> bool:
    if body["metadata"]["name"] == "ends":  # type: ignore[index]
        return body["status"]["phase"] == "Succeeded"  # type: ignore[index]
    return ready(body)


async def _phase(cluster: object, namespace: str, name: str, phase: str) -> bool:
    body = await get(cluster, "pod", name, "-n", namespace)  # type: ignore[arg-type]
    return body is not None and body["status"]["phase"] == phase


def _is_fully_written(node: Body) -> bool:
    return "kubeocean.io/proxier_port" in node["metadata"]["labels"]


async def _is_gone(scene: Scene, name: str) -> bool:
    return await get(scene.bound.worker, "pod", name, "-n", scene.bound.mount) is None


async def test_hold_survives_a_restart_and_what_happened_meanwhile_is_made_up_for(cable: Cable, scene: MakeScene) -> None:
    made = await scene(nodes=2, through=cable.port, settings=SHORT)
    bound = made.bound
    namespace = await running_pods(made, 4)
    local = await bound.worker.namespace()
    await all_nodes(made, _is_fully_written, what="labelled with their ports, which follow the registration")
    before = [await vnode(made, number) for number in (0, 1)]
    labels = f"kubeocean.io/cluster-binding={bound.name}"
    with (
        watching(bound.hub.kubeconfig, namespace=namespace) as above,
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, "nodes", labels=labels) as nodes,
    ):
        cable.cut()
        await all_nodes(made, is_held, what="held")
        made.program.kill()
        made.program.start()
        restarted = now()
        await renewed_after(made, restarted, seconds=STARTS_WITHIN)
        await eventually(lambda: _times_lost(made) == 2, "the new process has lost the worker too")
        # What other people do meanwhile, on both sides.
        await apply(bound.hub, pod("late", namespace, node=made.vnodes[1]))
        costly = pod("local", local, node=made.nodes[0])
        costly["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "4"}}
        await apply(bound.worker, costly)
        await all_nodes(made, is_held, what="held")
        assert await _phase(bound.hub, namespace, "late", "Pending")
        cable.mend()
        await all_nodes(made, is_released, what="released")
        await all_pods(made, namespace, ready, what="ready", count=5)
        await comes_to_offer(made, cpu="60")
    assert only_deleted(above, set()) and only_deleted(below, set())
    assert not below.where(lambda event: event.restarts > 0)
    assert not nodes.where(lambda event: event.kind == "DELETED" or event.condition("Ready") != "True")
    for number, old in enumerate(before):
        new = await vnode(made, number)
        assert old is not None and new is not None
        for part in ("labels", "uid"):
            assert new["metadata"][part] == old["metadata"][part]
        assert new["spec"]["taints"] == old["spec"]["taints"]
    assert len(await listed(bound.worker, "pods", "-n", bound.mount)) == 5


def _times_lost(scene: Scene) -> int:
    return sum(line.get("message") == "worker cluster is unreachable" for line in scene.program.messages())
