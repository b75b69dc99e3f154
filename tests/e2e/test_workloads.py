"""Workloads of the computing cluster's own controllers on a virtual node whose pods run in the worker.

Not here: StatefulSets in test_volumes, the autoscaler in test_metrics, the API by a pod's token in test_pod_environment, DaemonSets in
integration/kubeocean/test_pod_mirror and test_pods_down.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.background import background
from tests.support.bound import Body, Bound, apply, get, items, physical, pod, running, vacate
from tests.support.program import KUBECTL_TIMEOUT, eventually
from vkubelet.testing.cluster import CommandFailed, WorkerNode

PORT = 8080
SERVE = f"mkdir /www; hostname > /www/index.html; exec httpd -f -p {PORT} -h /www"


def template(leased: Bound, node: WorkerNode, command: str, *, labels: Body | None = None, **spec: Any) -> Body:
    body = pod("unused", "unused", nodeSelector={"kubernetes.io/hostname": leased.vnode(node.name)}, **spec)
    body["spec"]["containers"][0]["command"] = ["sh", "-c", command]
    return {"metadata": {"labels": labels or {}}, "spec": body["spec"]}


def workload(kind: str, name: str, namespace: str, spec: Body) -> Body:
    group = "batch/v1" if kind in ("Job", "CronJob") else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


async def fired_twice(leased: Bound, node: WorkerNode) -> list[Body]:
    """The Jobs of a CronJob when the second of them is complete."""
    namespace = await leased.hub.namespace("cron")
    job = {"template": template(leased, node, "date", restartPolicy="Never", terminationGracePeriodSeconds=1)}
    await apply(leased.hub, workload("CronJob", "minutely", namespace, {"schedule": "* * * * *", "jobTemplate": {"spec": job}}))

    async def check() -> list[Body] | None:
        done = [each for each in await items(leased.hub, "jobs", "-n", namespace) if each["status"].get("succeeded")]
        return done if len(done) >= 2 else None

    out: list[Body] = await eventually(check, "the CronJob has fired twice", seconds=300, every=3)
    ended = [each for each in await items(leased.hub, "pods", "-n", namespace) if each["status"]["phase"] == "Succeeded"]
    assert len(ended) >= 2 and {each["spec"]["nodeName"] for each in ended} == {leased.vnode(node.name)}
    assert all(each["metadata"]["annotations"]["kubeocean.io/physical-pod-uid"] for each in ended), "they ran in the worker"
    await vacate(leased.hub, namespace, workloads=True)
    return out


@pytest.fixture(scope="session", autouse=True)
def fired(leased: Bound, worker_node: WorkerNode) -> Iterator[concurrent.futures.Future[list[Body]]]:
    """Goes on while the other tests run, also those of other files: who asks for the result comes last."""
    with background(fired_twice(leased, worker_node)) as result:
        yield result


async def test_job_tries_again_in_the_same_pod_and_in_another_and_completes_or_fails(leased: Bound, worker_node: WorkerNode) -> None:
    hub, namespace = leased.hub, await leased.hub.namespace("job")
    again = "if [ -e /kept/tried ]; then exit 0; fi; touch /kept/tried; exit 3"
    mended = template(leased, worker_node, again, restartPolicy="OnFailure", volumes=[{"name": "kept", "emptyDir": {}}])
    mended["spec"]["containers"][0]["volumeMounts"] = [{"name": "kept", "mountPath": "/kept"}]
    hopeless = template(leased, worker_node, "exit 4", restartPolicy="Never")
    await apply(
        hub,
        workload("Job", "mended", namespace, {"template": mended, "completions": 2, "parallelism": 2}),
        workload("Job", "hopeless", namespace, {"template": hopeless, "backoffLimit": 1}),
    )
    await hub.kubectl("wait", "job/mended", "-n", namespace, "--for=condition=Complete", KUBECTL_TIMEOUT)
    await hub.kubectl("wait", "job/hopeless", "-n", namespace, "--for=condition=Failed", KUBECTL_TIMEOUT)
    done = await items(hub, "pods", "-n", namespace, "-l", "job-name=mended")
    assert [(each["status"]["phase"], each["status"]["containerStatuses"][0]["restartCount"]) for each in done] == [("Succeeded", 1)] * 2
    failed = await items(hub, "pods", "-n", namespace, "-l", "job-name=hopeless")
    codes = [each["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for each in failed]
    assert codes == [4, 4] and {each["status"]["phase"] for each in failed} == {"Failed"}
    await vacate(hub, namespace, workloads=True)


async def ready_addresses(leased: Bound, namespace: str) -> list[str]:
    """Where a Service leads to, as a proxy would learn it."""
    slices = await items(leased.hub, "endpointslices", "-n", namespace, "-l", "kubernetes.io/service-name=web")
    endpoints = [endpoint for each in slices for endpoint in each.get("endpoints") or ()]
    return [address for endpoint in endpoints if endpoint["conditions"]["ready"] for address in endpoint["addresses"]]


async def test_deployment_rolls_without_one_failed_request(leased: Bound, worker_node: WorkerNode) -> None:
    hub, namespace = leased.hub, await leased.hub.namespace("rollout")
    labels = {"app": "web"}
    served = template(leased, worker_node, SERVE, labels=labels, terminationGracePeriodSeconds=15)
    [main] = served["spec"]["containers"]
    main["readinessProbe"] = {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1}
    # As for every Service: what still follows an old list may come late. The rollout does not wait for it.
    main["lifecycle"] = {"preStop": {"sleep": {"seconds": 12}}}
    strategy = {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": served, "strategy": strategy}
    service = {"selector": labels, "ports": [{"port": 80, "targetPort": PORT}]}
    await apply(
        hub,
        workload("Deployment", "web", namespace, spec),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": namespace}, "spec": service},
    )
    await hub.kubectl("rollout", "status", "deployment/web", "-n", namespace, KUBECTL_TIMEOUT)
    seen: Counter[str] = Counter()
    over = asyncio.Event()
    known = [await eventually(lambda: ready_addresses(leased, namespace), "the Service has endpoints")]

    async def follow() -> None:
        while not over.is_set():
            known[0] = await ready_addresses(leased, namespace)
            await asyncio.sleep(0.5)

    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            while not over.is_set():
                async with session.get(f"http://{random.choice(known[0])}:{PORT}/") as response:
                    assert response.status == 200
                    seen[(await response.text()).strip()] += 1
                await asyncio.sleep(0.02)

    async def roll() -> None:
        before = {each["metadata"]["name"] for each in await items(hub, "pods", "-n", namespace)}
        await eventually(lambda: before <= set(seen), "both old pods were asked")
        await hub.kubectl("rollout", "restart", "deployment/web", "-n", namespace)
        await hub.kubectl("rollout", "status", "deployment/web", "-n", namespace, KUBECTL_TIMEOUT)
        new = {each["metadata"]["name"] for each in await items(hub, "pods", "-n", namespace) if each["metadata"]["name"] not in before}
        await eventually(lambda: len(new & set(seen)) == 2, "both new pods were asked")
        over.set()

    async with asyncio.TaskGroup() as group:
        for each in (follow(), ask(), ask(), roll()):
            group.create_task(each)
    print(f"{sum(seen.values())} requests to {len(seen)} pods, none failed")
    await vacate(hub, namespace, workloads=True)


async def test_budget_blocks_an_eviction_until_there_is_room(leased: Bound, worker_node: WorkerNode) -> None:
    hub, namespace = leased.hub, await leased.hub.namespace("budget")
    labels = {"app": "guarded"}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": template(leased, worker_node, "trap 'exit 0' TERM; while true; do sleep 0.2; done", labels=labels),
    }
    budget = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    meta = {"name": "guarded", "namespace": namespace}
    await apply(
        hub,
        workload("Deployment", "guarded", namespace, spec),
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": budget},
    )
    await hub.kubectl("rollout", "status", "deployment/guarded", "-n", namespace, KUBECTL_TIMEOUT)
    [guarded] = await items(hub, "pods", "-n", namespace)
    name = guarded["metadata"]["name"]

    async def counted() -> Any:
        found = await get(hub, "pdb", "guarded", "-n", namespace)
        return found["status"].get("currentHealthy") == 1 and found["status"].get("expectedPods") == 1

    await eventually(counted, "the budget has counted the pod")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    with pytest.raises(CommandFailed, match="disruption budget"):
        await hub.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    spared = await physical(leased, await running(leased, namespace, name))
    assert not spared["metadata"].get("deletionTimestamp") and guarded["metadata"]["uid"] in spared["metadata"]["annotations"].values()
    await hub.kubectl("scale", "deployment/guarded", "-n", namespace, "--replicas=2")
    await hub.kubectl("rollout", "status", "deployment/guarded", "-n", namespace, KUBECTL_TIMEOUT)

    async def evicted() -> bool:
        try:
            await hub.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        except CommandFailed:
            return False
        return True

    await eventually(evicted, "with a second one the first may be evicted")

    async def gone() -> bool:
        there = await get(leased.worker, "pod", spared["metadata"]["name"], "-n", leased.mount)
        return there is None and await get(hub, "pod", name, "-n", namespace) is None

    await eventually(gone, "the evicted pod has ended in both clusters")
    await vacate(hub, namespace, workloads=True)


@pytest.mark.last
async def test_cron_job_fires_twice(fired: concurrent.futures.Future[list[Body]]) -> None:
    jobs = await asyncio.wrap_future(fired)
    assert len(jobs) >= 2 and all(each["metadata"]["ownerReferences"][0]["kind"] == "CronJob" for each in jobs)
    due = {each["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] for each in jobs}
    assert len(due) == len(jobs), "each at a time of its own"
