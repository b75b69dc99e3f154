"""The manifests of the cookbook, applied as they are but for the names of binding and namespace.

Invariant: what needs a shell or a device runs on the real worker node; what is about many pods, windows or silence runs on a simulated one,
whose pods end by a script.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from attrs import frozen

from tests.integration.kubeocean.leases import CLOSED
from tests.integration.kubeocean.outages import SHORT
from tests.support.bound import Body, Bound, apply, condition, delete, get, items, vacate
from tests.support.cable import Cable
from tests.support.device_plugin import DevicePlugin
from tests.support.program import KUBECTL_TIMEOUT, eventually
from tests.support.simulated import all_ready, simulated_nodes
from vkubelet.testing.cluster import ControlPlane, WorkerNode
from vkubelet.testing.fixtures import run_apart

COOKBOOK = Path(__file__).parents[2] / "deploy" / "samples" / "cookbook"
NODE, HUB_NODE = "cookbook", "cookbook-hub"
POLICY = "resourceleasingpolicies.cloud.tencent.com"
ENDS = {"mock.vkubelet.io/run-for": "0.2"}
"""Annotations by which a simulated pod ends well."""


def manifests(file: str, *nodes: str, binding: str, annotations: Body | None = None) -> list[Body]:
    """The documents of a file, for this binding. Pods get `annotations`, and run on these nodes: the hub of the tests has others too."""
    bodies: list[Body] = list(yaml.safe_load_all((COOKBOOK / file).read_text().replace(": demo", f": {binding}")))
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]}]
    for body in bodies:
        template = body["spec"].get("jobTemplate", body)["spec"].get("template")
        if template is not None:
            template.setdefault("metadata", {})["annotations"] = dict(annotations or {})
            chosen = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            template["spec"]["affinity"] = {"nodeAffinity": chosen}
    return bodies


@frozen
class Kitchen:
    """A binding over a line that can be cut, of one simulated worker node; the hub has a node too."""

    bound: Bound
    cable: Cable

    @property
    def vnode(self) -> str:
        return self.bound.vnode(NODE)

    async def lease(self, **spec: Any) -> None:
        await self.bound.worker.kubectl("patch", POLICY, f"all-of-{self.bound.name}", "--type=merge", "-p", json.dumps({"spec": spec}))

    async def taints(self) -> set[str]:
        node = await get(self.bound.hub, "node", self.vnode)
        return {taint["key"] for taint in node["spec"].get("taints") or ()}


async def installed(bound: Bound) -> None:
    """The binding with the policy of the cookbook, whose window is always open at first."""
    [policy] = manifests("night-policy.yaml", binding=bound.name)
    policy["metadata"]["name"] = f"all-of-{bound.name}"
    term = {"matchExpressions": [{"key": "simulated", "operator": "In", "values": [NODE]}]}
    policy["spec"] |= {"nodeSelector": {"nodeSelectorTerms": [term]}, "timeWindows": [{"start": "00:00", "end": "24:00"}]}
    await bound.install(policy)


@pytest.fixture(scope="module")
def kitchen(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    directory = tmp_path_factory.mktemp("cookbook")
    with (
        Cable(worker.port) as cable,
        simulated_nodes(worker, NODE, nodes=1, directory=directory),
        simulated_nodes(hub, HUB_NODE, nodes=1, directory=directory),
    ):
        bound = Bound(hub=hub, worker=worker, name=NODE, directory=directory, settings=SHORT, through=cable.port)
        run_apart(all_ready(worker, [NODE]))
        run_apart(all_ready(hub, [HUB_NODE]))
        run_apart(installed(bound))
        with bound.served(NODE):
            yield Kitchen(bound, cable)
    run_apart(delete(hub, "node", HUB_NODE, "--ignore-not-found", "--wait=false"))
    run_apart(delete(worker, "node", NODE, "--ignore-not-found", "--wait=false"))


@pytest.fixture
async def namespace(hub: ControlPlane) -> AsyncIterator[str]:
    name = await hub.namespace("cookbook")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(vacate, hub, name, workloads=True)
        yield name


async def create(cluster: ControlPlane, namespace: str, *bodies: Body) -> None:
    await apply(cluster, *({**body, "metadata": {**body["metadata"], "namespace": namespace}} for body in bodies))


async def log(hub: ControlPlane, namespace: str, what: str) -> str:
    return (await hub.kubectl("logs", what, "-n", namespace)).strip()


async def test_ci_runner_tests_what_was_checked_out(leased: Bound, worker_node: WorkerNode, namespace: str) -> None:
    await create(leased.hub, namespace, *manifests("ci-runners.yaml", leased.vnode(worker_node.name), binding=leased.name))
    await leased.hub.kubectl("wait", "job/build-1", "-n", namespace, "--for=condition=Complete", KUBECTL_TIMEOUT)
    assert await log(leased.hub, namespace, "job/build-1") == "all tests passed"
    [quota] = await items(leased.hub, "resourcequotas", "-n", namespace)
    assert quota["status"]["hard"]["requests.cpu"] == "8"


async def test_training_gets_a_gpu_of_the_worker(leased: Bound, worker_node: WorkerNode, namespace: str) -> None:
    hub, vnode = leased.hub, leased.vnode(worker_node.name)

    async def offered(count: str) -> bool:
        node = await get(hub, "node", vnode)
        return str(node["status"]["allocatable"].get("nvidia.com/gpu", "0")) == count

    async with DevicePlugin("nvidia.com/gpu", "GPU-a", variable="NVIDIA_VISIBLE_DEVICES").on(worker_node):
        await eventually(lambda: offered("1"), "the virtual node offers the GPU")
        await create(hub, namespace, *manifests("gpu-training.yaml", vnode, binding=leased.name))
        await hub.kubectl("wait", "job/training", "-n", namespace, "--for=condition=Complete", KUBECTL_TIMEOUT)
        assert await log(hub, namespace, "job/training") == "training on GPU GPU-a"
    await eventually(lambda: offered("0"), "the GPU is gone with its plugin")


async def test_fan_out_completes_each_of_200_parts_once(kitchen: Kitchen, namespace: str) -> None:
    hub = kitchen.bound.hub
    await create(hub, namespace, *manifests("fan-out.yaml", kitchen.vnode, binding=NODE, annotations=ENDS))
    await hub.kubectl("wait", "job/fan-out", "-n", namespace, "--for=condition=Complete", KUBECTL_TIMEOUT)
    pods = await items(hub, "pods", "-n", namespace)
    indices = {int(each["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]) for each in pods}
    assert indices == set(range(200)) and len(pods) == 200
    assert {each["spec"]["nodeName"] for each in pods} == {kitchen.vnode}


def closed_now() -> Body:
    """A window of one minute, half a day from now."""
    later = (datetime.now(ZoneInfo("Europe/Berlin")) + timedelta(hours=12)).strftime("%H:%M")
    return {"start": later, "end": later}


async def test_night_batch_waits_for_the_window_and_runs_in_it(kitchen: Kitchen, namespace: str) -> None:
    hub = kitchen.bound.hub
    await create(hub, namespace, *manifests("night-batch.yaml", kitchen.vnode, binding=NODE, annotations=ENDS))
    await kitchen.lease(timeWindows=[closed_now()])
    try:

        async def is_closed() -> bool:
            return CLOSED in await kitchen.taints()

        await eventually(is_closed, "the window is closed")
        await hub.kubectl("create", "job", "tonight", "--from=cronjob/night-report", "-n", namespace)

        async def unscheduled() -> bool:
            pods = await items(hub, "pods", "-n", namespace)
            return bool(pods) and all(condition(each, "PodScheduled") == "False" for each in pods)

        await eventually(unscheduled, "the pod waits")
    finally:
        await kitchen.lease(timeWindows=[{"start": "00:00", "end": "24:00"}])
    await hub.kubectl("wait", "job/tonight", "-n", namespace, "--for=condition=Complete", KUBECTL_TIMEOUT)


async def test_web_tier_serves_from_the_hub_while_the_worker_is_silent(kitchen: Kitchen, namespace: str) -> None:
    hub = kitchen.bound.hub
    await create(hub, namespace, *manifests("web-failover.yaml", HUB_NODE, kitchen.vnode, binding=NODE))
    await hub.kubectl("rollout", "status", "deployment/web", "-n", namespace, KUBECTL_TIMEOUT)

    async def served_by(*nodes: str) -> bool:
        slices = await items(hub, "endpointslices", "-n", namespace, "-l", "kubernetes.io/service-name=web")
        return sorted(nodes) == sorted(
            endpoint["nodeName"] for each in slices for endpoint in each.get("endpoints") or () if endpoint["conditions"]["ready"]
        )

    await eventually(lambda: served_by(HUB_NODE, kitchen.vnode), "a replica on each node serves")
    kitchen.cable.silence()
    try:
        await eventually(lambda: served_by(HUB_NODE), "the replica of the hub serves alone")
        # Nothing is deleted: the binding holds, which is the default.
        assert len(await items(hub, "pods", "-n", namespace)) == 2
    finally:
        kitchen.cable.mend()
    await eventually(lambda: served_by(HUB_NODE, kitchen.vnode), "both serve again")
