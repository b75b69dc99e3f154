"""A StatefulSet on a virtual node keeps names and data: what its pods wrote is there for those that come after them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.bound import Bound, apply, delete, get, items, pod, running
from tests.support.program import eventually
from tests.support.stage import physical_name
from vkubelet.testing.cluster import WorkerNode

ALLOWED = "kubeocean.io/allowed-volume-sources"
REPLICAS = 2
SCRIPT = """
echo "$(hostname) of $UID_" >> /data/log
trap 'exit 0' TERM; while true; do sleep 0.2; done
"""


def volume(name: str, path: Path, node: str) -> dict[str, Any]:
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": str(path)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def statefulset(namespace: str) -> dict[str, Any]:
    labels = {"app": "db"}
    spec = pod("db", namespace, terminationGracePeriodSeconds=2)["spec"]
    (container,) = spec["containers"]
    container["command"] = ["sh", "-c", SCRIPT]
    container["env"] = [{"name": "UID_", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": namespace},
        "spec": {
            "replicas": REPLICAS,
            "podManagementPolicy": "Parallel",
            "serviceName": "db",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }


async def lines(bound: Bound, namespace: str, name: str, *, count: int) -> list[str]:
    """What was written, once it is so many lines: a container runs a moment before its command has written."""

    async def written() -> list[str] | None:
        found = (await bound.hub.kubectl("exec", name, "-n", namespace, "--", "sh", "-c", "cat /data/log || true")).splitlines()
        return found if len(found) >= count else None

    out: list[str] = await eventually(written, f"{name} has written", every=0.3)
    return out


async def test_statefulset_keeps_name_and_data_over_the_re_creation_of_its_pods(leased: Bound, worker_node: WorkerNode) -> None:
    hub, worker, namespace = leased.hub, leased.worker, await leased.hub.namespace()
    names = [f"{namespace}-{number}" for number in range(REPLICAS)]
    disks = [worker_node.directory / name for name in names]
    for disk in disks:
        disk.mkdir()
    # These disks are in the node itself, and so a matter of its owner's.
    await worker.kubectl("annotate", "namespace", leased.mount, f"{ALLOWED}=local")
    try:
        await apply(hub, *(volume(name, disk, leased.vnode(worker_node.name)) for name, disk in zip(names, disks, strict=True)))
        await apply(hub, statefulset(namespace))
        first = [await running(leased, namespace, f"db-{number}") for number in range(REPLICAS)]
        for number, body in enumerate(first):
            assert await lines(leased, namespace, f"db-{number}", count=1) == [f"db-{number} of {body['metadata']['uid']}"]
        claim = await get(hub, "pvc", "data-db-0", "-n", namespace)
        await hub.kubectl("delete", "pod", "db-0", "-n", namespace)
        second = await running(leased, namespace, "db-0")
        assert second["metadata"]["uid"] != first[0]["metadata"]["uid"]
        wanted = [f"db-0 of {each['metadata']['uid']}" for each in (first[0], second)]
        assert await lines(leased, namespace, "db-0", count=2) == wanted
        assert (await get(hub, "pvc", "data-db-0", "-n", namespace))["metadata"]["uid"] == claim["metadata"]["uid"]
        assert await lines(leased, namespace, "db-1", count=1) == [f"db-1 of {first[1]['metadata']['uid']}"]
        await gone_but_the_data(leased, namespace, names)
        kept = sorted((disk / "log").read_text().splitlines() for disk in disks)
        assert kept == [wanted, [f"db-1 of {first[1]['metadata']['uid']}"]]
    finally:
        await worker.kubectl("annotate", "namespace", leased.mount, f"{ALLOWED}-")
        await delete(hub, "statefulset,pvc", "--all", "-n", namespace, "--wait=false")
        await delete(hub, "pv", *names, "--ignore-not-found", "--wait=false")


async def gone_but_the_data(bound: Bound, namespace: str, names: list[str]) -> None:
    """Everything is deleted at home, and soon there is nothing of it in the worker."""
    await delete(bound.hub, "statefulset", "db", "-n", namespace, "--wait=false")
    await delete(bound.hub, "pvc", "--all", "-n", namespace, "--wait=false")
    await delete(bound.hub, "pv", *names, "--wait=false")

    async def nothing() -> bool:
        copies = {each["metadata"]["name"] for each in await items(bound.worker, "pv")} & {physical_name("", name) for name in names}
        claims = await items(bound.worker, "pvc", "-n", bound.mount)
        originals = {each["metadata"]["name"] for each in await items(bound.hub, "pv")} & set(names)
        return not copies and not originals and not [each for each in claims if each["metadata"]["name"].startswith("data-db-")]

    await eventually(nothing, "claims and volumes are gone on both sides")
