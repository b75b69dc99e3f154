"""Fields of a physical pod: docs/reference/kubeocean-behaviour.md, lines 115 to 125, 138 and 144 to 148.

Other lines: 114, 135 to 137 in safety/test_same_name_new_uid, 116 and 140 in test_pod_mirror, 126 to 132 in test_access, 133, 134 and
141 to 143 in test_dependents, 139 in safety/test_lost_is_proven.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.support.bound import Body, apply, delete, get
from tests.support.program import eventually
from tests.support.stage import Stage, physical_name
from vkubelet.testing.cluster import ControlPlane


@pytest.fixture(scope="module")
def special(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A binding that uses upstream's switches, whose process gives unscheduled pods up after three seconds."""
    spec = {"runningDaemonsetByDefault": True, "directScheduling": True, "podPriorityClassName": "leased-pods"}
    settings = {"provider": {"unscheduled_after": 3.0}}
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("special"), spec=spec, settings=settings) as made:
        yield made


def deployment(stage: Stage, name: str, kind: str = "Deployment") -> Body:
    spec = stage.body("unused")["spec"]
    spec.pop("nodeName")
    spec["nodeSelector"] = {"kubernetes.io/hostname": stage.vnode}
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    metadata = {"name": name, "namespace": stage.namespace}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


async def first_pod(stage: Stage, app: str) -> Body:
    async def check() -> Body | None:
        found = await stage.home.list("pods", stage.namespace)
        mine = (p for p in found if p["metadata"]["labels"].get("app") == app and p["spec"].get("nodeName") == stage.vnode)
        return next(mine, None)

    out: Body = await eventually(check, f"a pod of {app} is bound")
    return out


async def test_pod_of_a_deployment_is_placed_named_and_marked(stage: Stage) -> None:
    """Lines 115 and 118 to 121, 123 and 125 of kubeocean-behaviour.md."""
    await apply(stage.bound.hub, deployment(stage, "web"))
    virtual = await first_pod(stage, "web")
    name = virtual["metadata"]["name"]
    await stage.running(name)
    below = await stage.until_physical(name, bool, "there")
    assert below["metadata"]["name"] == physical_name(stage.namespace, name) != physical_name("default", name), "line 115"
    labels, notes, spec = below["metadata"]["labels"], below["metadata"]["annotations"], below["spec"]
    wanted = {
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/virtual-namespace": stage.namespace,
        "kubeocean.io/workload-type": "deployment",
        "kubeocean.io/workload-name": "web",
        "app": "web",
    }
    assert labels.items() >= wanted.items(), "lines 118 and 119"
    assert notes["kubeocean.io/virtual-pod-namespace"] == stage.namespace and notes["kubeocean.io/virtual-pod-name"] == name
    assert notes["kubeocean.io/virtual-pod-uid"] == virtual["metadata"]["uid"] and notes["kubeocean.io/virtual-node-name"] == stage.vnode
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [stage.nodes[0]]}]}
    assert spec["affinity"] == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}}
    assert "nodeSelector" not in spec and spec["schedulerName"] == "default-scheduler" and spec["nodeName"] == stage.nodes[0], "line 121"
    assert (spec["priorityClassName"], spec["priority"], spec["hostname"]) == ("kubeocean-default", -10000, name), "lines 123 and 125"
    made = await get(stage.bound.worker, "priorityclass", "kubeocean-default")
    assert made["value"] == -10000 and not made.get("globalDefault")
    await stage.bound.worker.kubectl("delete", "priorityclass", "kubeocean-default")
    await stage.create("after")
    await stage.running("after")
    assert await get(stage.bound.worker, "priorityclass", "kubeocean-default"), "made again"
    await stage.create("w" * 70 + ".x")
    long = await stage.until_physical("w" * 70 + ".x", bool, "there")
    assert long["spec"]["hostname"] == "w" * 63 and long["metadata"]["labels"]["kubeocean.io/workload-type"] == "pod", "lines 119 and 125"


async def test_switches_of_the_binding_name_node_and_class_and_let_daemonsets_in(special: Scene) -> None:
    """Lines 117, 122 and 123 of kubeocean-behaviour.md: directScheduling, podPriorityClassName, runningDaemonsetByDefault."""
    stage = await Stage.of(special.bound, special.nodes)
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "leased-pods"}, "value": -77}
    await apply(special.bound.worker, body)
    try:
        await apply(special.bound.hub, deployment(stage, "everywhere", "DaemonSet"))
        name = (await first_pod(stage, "everywhere"))["metadata"]["name"]
        await stage.running(name)
        below = await stage.until_physical(name, bool, "there")
        assert below["spec"]["nodeName"] == special.nodes[0] and "affinity" not in below["spec"], "line 122"
        assert (below["spec"]["priorityClassName"], below["spec"]["priority"]) == ("leased-pods", -77), "line 123"
        assert below["metadata"]["labels"]["kubeocean.io/workload-type"] == "daemonset"
    finally:
        await delete(special.bound.hub, "daemonset", "--all", "-n", stage.namespace, "--ignore-not-found", "--wait=false")


async def test_pod_that_the_worker_can_not_schedule_is_given_up(special: Scene) -> None:
    """Line 138 of kubeocean-behaviour.md, after three seconds instead of five minutes."""
    stage = await Stage.of(special.bound, special.nodes)
    change = json.dumps({"spec": {"directScheduling": False, "podPriorityClassName": None}})
    await special.bound.hub.kubectl("patch", "clusterbinding", special.bound.name, "--type=merge", "-p", change)

    async def unscheduled() -> bool:
        """The first pod that is made after the process has heard of the change."""
        name = f"late-{len(await stage.home.list('pods', stage.namespace))}"
        await stage.create(name)
        below = await stage.until_physical(name, bool, "there")
        if below["spec"].get("nodeName"):
            return False
        failed = await stage.until(name, lambda p: p["status"]["phase"] == "Failed", "Failed")
        await stage.no_physical(name)
        await stage.event(name, "FailedSchedulingPod")
        return bool(failed["status"]["reason"] == "PhysicalPodLost")

    await special.bound.worker.kubectl("cordon", special.nodes[0])
    try:
        await eventually(unscheduled, "the pod is given up with the event FailedSchedulingPod")
    finally:
        await special.bound.worker.kubectl("uncordon", special.nodes[0])


async def test_status_is_the_workers_and_stays_so_whoever_writes_it(stage: Stage) -> None:
    """Lines 144, 145 and 148 of kubeocean-behaviour.md."""
    body = stage.body("watched", initContainers=[{"name": "start", "image": "busybox", "command": ["true"]}])
    # Bound by the scheduler, which is who says PodScheduled.
    body["spec"]["nodeSelector"] = {"kubernetes.io/hostname": body["spec"].pop("nodeName")}
    await stage.home.create("pods", body)
    await stage.until("watched", lambda p: ready(p) == "True", "Ready")

    async def as_below() -> Body | None:
        virtual, below = await stage.virtual("watched"), await stage.physical("watched")
        assert virtual is not None and below is not None
        same = ("phase", "podIP", "podIPs", "hostIP", "startTime", "containerStatuses", "initContainerStatuses")
        return virtual if all(virtual["status"].get(name) == below["status"].get(name) for name in same) else None

    virtual = await eventually(as_below, "the status is the physical pod's")
    conditions = virtual["status"]["conditions"]
    assert conditions[0]["type"] == "PodScheduled" and conditions[0]["status"] == "True", "line 145"
    # As the node lifecycle controller does to the pods of a node it takes for lost.
    spoilt = [{**each, "status": "False"} if each["type"] == "Ready" else each for each in conditions]
    await stage.home.patch(
        "pods", "watched", {"status": {"conditions": spoilt, "message": "lost"}}, namespace=stage.namespace, subresource="status"
    )
    repaired = await stage.until("watched", lambda p: ready(p) == "True", "repaired (line 148)")
    assert repaired["status"].get("message", "") == "" and repaired["status"]["conditions"][0]["type"] == "PodScheduled"


def ready(body: Body) -> str:
    return next((str(c["status"]) for c in body["status"].get("conditions", ()) if c["type"] == "Ready"), "")


async def test_resize_in_place_goes_down_and_one_beyond_the_lease_does_not(stage: Stage) -> None:
    """By the resize subresource on both sides; rule `observed-generation` for what does not fit.

    The containers wait: of running ones the API server wants to see that their kubelet can resize, and a simulated one can not.
    """
    body = stage.body("growing", script={"start-delay": "600"})
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "2"}}
    await stage.home.create("pods", body)
    before = await stage.until_physical("growing", bool, "there")
    await resize(stage, "growing", requests={"cpu": "1500m", "memory": "128Mi"}, limits={"cpu": "2500m"})
    after = await stage.until_physical("growing", lambda p: amounts(p)["requests"]["cpu"] == "1500m", "has the new amounts")
    assert amounts(after) == {"requests": {"cpu": "1500m", "memory": "128Mi"}, "limits": {"cpu": "2500m"}}
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await resize(stage, "growing", requests={"cpu": "100", "memory": "128Mi"}, limits={"cpu": "100"})

    def infeasible(p: Body) -> bool:
        return pending(p).get("reason") == "Infeasible" and "cpu" in pending(p)["message"]

    await stage.until("growing", infeasible, "says that the resize is infeasible")
    there = await stage.physical("growing")
    assert there is not None and amounts(there) == amounts(after)
    # A simulated kubelet does not report what it allocates: until the pod has terminated it takes all that it requests from its node.
    await stage.home.delete("pods", "growing", stage.namespace)
    await stage.absent("growing")


async def test_resize_beyond_the_free_part_of_the_lease_waits_until_pods_leave_more(stage: Stage) -> None:
    """The physical node would have the room: the lease has not."""
    node = await stage.home.get("nodes", stage.vnode)
    assert node is not None
    most = int(node["status"]["allocatable"]["cpu"])
    for name, cpu in (("waiting", 1), ("filling", most - 2)):
        body = stage.body(name, script={"start-delay": "600"}, terminationGracePeriodSeconds=0)
        body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": str(cpu)}}
        await stage.home.create("pods", body)
        await stage.until_physical(name, bool, "there")
    await resize(stage, "waiting", requests={"cpu": "3"})
    told = await stage.until("waiting", lambda p: pending(p).get("reason") == "Deferred", "says that the resize waits")
    assert "leave too little cpu" in pending(told)["message"]
    assert told["status"].get("observedGeneration", 2) == 2
    await stage.event("waiting", "ResizeDeferred")
    there = await stage.until_physical("waiting", bool, "there")
    assert amounts(there)["requests"] == {"cpu": "1"}
    await stage.home.delete("pods", "filling", stage.namespace)
    await stage.until_physical("waiting", lambda p: amounts(p)["requests"] == {"cpu": "3"}, "has grown")
    await stage.until("waiting", lambda p: not pending(p), "does not wait any more")


def pending(body: Body) -> Body:
    found: list[Body] = [c for c in body["status"].get("conditions", ()) if c["type"] == "PodResizePending"]
    return found[0] if found else {}


async def resize(stage: Stage, name: str, **resources: Any) -> None:
    containers = (await stage.until(name, bool, "there"))["spec"]["containers"]
    change = {"spec": {"containers": [{**containers[0], "resources": resources}]}}
    await stage.home.patch("pods", name, change, namespace=stage.namespace, subresource="resize")


def amounts(body: Body) -> Body:
    found: Body = body["spec"]["containers"][0]["resources"]
    return found
