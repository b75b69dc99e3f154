"""Claims of pods and the volumes behind them are in the worker before the pods are, and go without a byte being lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from attrs import frozen

from tests.support.bound import Body, apply, delete, get, items, pod
from tests.support.program import eventually
from tests.support.stage import Stage, physical_name, uid_of
from vkubelet.testing.cluster import CommandFailed, ControlPlane

DRIVER = "disks.example.com"
ATTACH = "volumes.kubernetes.io/controller-managed-attach-detach"
ALLOWED = "kubeocean.io/allowed-volume-sources"
BOUND_WITHIN = 60.0
"""Seconds: the binders of both clusters look at everything every 15, and not always sooner."""


@frozen
class Storage:
    """Volumes of the hub whose names carry the stage's namespace; they are taken away afterwards."""

    stage: Stage

    def name(self, short: str) -> str:
        return f"{self.stage.namespace}-{short}"

    async def volume(self, short: str, source: Body, **more: Any) -> str:
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            **source,
            **more,
        }
        await apply(
            self.stage.bound.hub, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self.name(short)}, "spec": spec}
        )
        return self.name(short)

    async def claim(self, short: str, volume: str = "", *, of_class: str = "") -> None:
        spec: Body = {"accessModes": ["ReadWriteOnce"], "storageClassName": of_class, "resources": {"requests": {"storage": "1Gi"}}}
        spec["volumeName"] = volume or self.name(short)
        await self.stage.home.create(
            "persistentvolumeclaims", {"metadata": {"name": short, "namespace": self.stage.namespace}, "spec": spec}
        )

    async def bound(self, short: str, source: Body, **more: Any) -> None:
        """A volume and the claim bound to it."""
        await self.volume(short, source, **more)
        await self.claim(short, of_class=more.get("storageClassName", ""))
        await until_phase(self.stage, short, "Bound")

    async def user(self, short: str, *, name: str = "", **spec: Any) -> str:
        """A pod that mounts a claim; its name."""
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": short}}]
        await self.stage.create(name or f"uses-{short}", volumes=volumes, **spec)
        return name or f"uses-{short}"

    async def copy(self, short: str) -> Body | None:
        """The volume of the worker."""
        return await self.stage.there.get("persistentvolumes", physical_name("", self.name(short)))

    async def copied_claim(self, short: str) -> Body | None:
        return await self.stage.physical(short, "persistentvolumeclaims")

    async def nothing_left(self, short: str) -> None:
        """Neither copies in the worker nor marks at home."""

        async def check() -> bool:
            return await self.copy(short) is None and await self.copied_claim(short) is None and not await self.marks(short)

        await eventually(check, f"nothing is left of {short}", seconds=BOUND_WITHIN)

    async def marks(self, short: str) -> list[str]:
        found = [
            await self.stage.home.get("persistentvolumeclaims", short, self.stage.namespace),
            await self.stage.home.get("persistentvolumes", self.name(short)),
        ]
        metas = [each["metadata"] for each in found if each is not None]
        every = [mark for meta in metas for mark in (*meta.get("labels", {}), *meta.get("annotations", {}), *meta.get("finalizers", ()))]
        return [mark for mark in every if mark.startswith("kubeocean.io/")]


@pytest.fixture
async def storage(stage: Stage) -> AsyncIterator[Storage]:
    made = Storage(stage)
    yield made
    hub = stage.bound.hub
    await delete(hub, "pods,persistentvolumeclaims", "--all", "-n", stage.namespace, "--wait=false")
    for volume in await items(hub, "pv"):
        if volume["metadata"]["name"].startswith(f"{stage.namespace}-"):
            await delete(hub, "pv", volume["metadata"]["name"], "--ignore-not-found", "--wait=false")


def csi(handle: str, **more: Any) -> Body:
    return {"csi": {"driver": DRIVER, "volumeHandle": handle, **more}}


def nfs() -> Body:
    return {"nfs": {"server": "files.example.com", "path": "/"}}


async def until_phase(stage: Stage, claim: str, phase: str) -> None:
    async def check() -> bool:
        found = await stage.home.get("persistentvolumeclaims", claim, stage.namespace)
        return found is not None and found["status"]["phase"] == phase

    await eventually(check, f"claim {claim} is {phase}", seconds=BOUND_WITHIN)


async def is_available(stage: Stage, volume: str) -> bool:
    found = await stage.home.get("persistentvolumes", volume)
    return found is not None and found["status"].get("phase") == "Available"


def waiting_for(body: Body) -> set[str]:
    return {each["state"].get("waiting", {}).get("reason", "") for each in body["status"].get("containerStatuses", ())}


async def test_claim_and_volume_are_copied_with_their_secret_until_the_last_pod_ends(storage: Storage) -> None:
    """Lines 162 and 163 of kubeocean-behaviour.md; and what is not used any more goes, but the data."""
    stage = storage.stage
    secret = {"name": "key", "namespace": stage.namespace}
    await stage.home.create("secrets", {"metadata": secret, "type": "Opaque", "data": {"word": "cGFzcw=="}})
    await storage.bound("disk", csi("d-1", nodePublishSecretRef=secret), persistentVolumeReclaimPolicy="Delete")
    for name in ("first", "second"):
        await stage.running(await storage.user("disk", name=name), seconds=BOUND_WITHIN)
    volume, claim = await storage.copy("disk"), await storage.copied_claim("disk")
    assert volume is not None and claim is not None
    assert volume["status"]["phase"] == claim["status"]["phase"] == "Bound"
    assert (volume["spec"]["persistentVolumeReclaimPolicy"], volume["spec"].get("storageClassName", "")) == ("Retain", "")
    assert (claim["spec"]["storageClassName"], claim["spec"]["volumeName"]) == ("", volume["metadata"]["name"])
    bound_to = volume["spec"]["claimRef"]
    assert (bound_to["namespace"], bound_to["name"], bound_to["uid"]) == (stage.bound.mount, stage.physical_name("disk"), uid_of(claim))
    assert volume["spec"]["csi"]["nodePublishSecretRef"] == {"name": stage.physical_name("key"), "namespace": stage.bound.mount}
    copied = await stage.physical("key", "secrets")
    assert copied is not None and copied["data"] == {"word": "cGFzcw=="}
    assert f"kubeocean.io/finalizer-{stage.bound.name}" in await storage.marks("disk")
    # One pod less changes nothing; without the second one all of it goes, and comes again for a third.
    await stage.home.delete("pods", "first", stage.namespace)
    await stage.no_physical("first")
    await stage.home.delete("pods", "second", stage.namespace)
    await storage.nothing_left("disk")
    await stage.no_physical("key", "secrets")
    await until_phase(stage, "disk", "Bound")
    await stage.running(await storage.user("disk", name="third"), seconds=BOUND_WITHIN)
    again = await storage.copied_claim("disk")
    assert again is not None and again["status"]["phase"] == "Bound" and uid_of(again) != uid_of(claim)


async def test_unbound_claim_delays_the_pod_and_says_so(storage: Storage) -> None:
    """Line 162 of kubeocean-behaviour.md."""
    stage = storage.stage
    await storage.claim("late")
    name = await storage.user("late")
    said = await stage.event(name, "FailedMount")
    assert f"PersistentVolumeClaim {stage.namespace}/late is not bound to a volume yet" in said["message"]
    await stage.until(name, lambda p: waiting_for(p) == {"ContainerCreating"}, "waits")
    assert await stage.physical(name) is None and await storage.copied_claim("late") is None
    other = await storage.user("missing")
    assert "missing does not exist; create it" in (await stage.event(other, "FailedMount"))["message"]
    volume = await storage.volume("late", nfs())
    await eventually(lambda: is_available(stage, volume), "the volume can be bound")
    # Otherwise the hub's own controller would look at the claim again every 15 s only.
    await stage.home.patch("persistentvolumeclaims", "late", {"metadata": {"labels": {"look": "again"}}}, namespace=stage.namespace)
    await stage.running(name, seconds=BOUND_WITHIN)


async def test_copies_of_a_deleted_claim_and_volume_are_deleted_when_no_pod_uses_them(storage: Storage) -> None:
    """Line 164 of kubeocean-behaviour.md: the worker releases the storage before the hub, and the volume in the worker is not deleted."""
    stage = storage.stage
    await storage.bound("kept", nfs())
    name = await storage.user("kept")
    await stage.running(name, seconds=BOUND_WITHIN)
    await stage.home.delete("persistentvolumeclaims", "kept", stage.namespace)

    async def is_ending() -> bool:
        found = await storage.copied_claim("kept")
        return found is not None and bool(found["metadata"].get("deletionTimestamp"))

    await eventually(is_ending, "the copy of the claim is being deleted")
    assert (await stage.running(name, seconds=BOUND_WITHIN))["status"]["phase"] == "Running"
    volume = await storage.copy("kept")
    assert volume is not None and volume["status"]["phase"] == "Bound"
    await stage.home.delete("persistentvolumes", storage.name("kept"))
    assert await stage.home.get("persistentvolumeclaims", "kept", stage.namespace) is not None
    await stage.home.delete("pods", name, stage.namespace)

    async def gone() -> bool:
        found = [
            await stage.home.get("persistentvolumeclaims", "kept", stage.namespace),
            await stage.home.get("persistentvolumes", storage.name("kept")),
        ]
        return found == [None, None]

    await storage.nothing_left("kept")
    await eventually(gone, "claim and volume are gone at home")


async def test_path_of_a_machine_is_refused_unless_the_workers_owner_allows_it(storage: Storage) -> None:
    """Rule `references-by-allow-list`: who may make volumes in the hub is not thereby root on the worker's machines."""
    stage = storage.stage
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [stage.vnode]}]}
    affinity = {"required": {"nodeSelectorTerms": [here]}}
    await storage.bound("path", {"local": {"path": "/mnt/disks/one"}}, nodeAffinity=affinity)
    name = await storage.user("path")
    said = await stage.event(name, "UnsupportedVolume")
    assert (
        f"volumes of kind local cannot be copied to the worker cluster, unless its owner annotates namespace {stage.bound.mount}"
        in said["message"]
    )
    assert await storage.copy("path") is None and await stage.physical(name) is None
    worker = stage.bound.worker
    await worker.kubectl("annotate", "namespace", stage.bound.mount, f"{ALLOWED}=hostPath, local")
    try:
        # A change of the pod makes it be looked at again at once.
        await stage.home.patch("pods", name, {"metadata": {"labels": {"look": "again"}}}, namespace=stage.namespace)
        await stage.running(name, seconds=BOUND_WITHIN)
    finally:
        await worker.kubectl("annotate", "namespace", stage.bound.mount, f"{ALLOWED}-")
    copy = await storage.copy("path")
    assert copy is not None
    (term,) = copy["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "In", "values": [stage.nodes[0]]}]


async def _available(cluster: ControlPlane, volume: str) -> Body | None:
    found = await get(cluster, "pv", volume)
    return found if found["status"].get("phase") == "Available" else None


async def test_volume_of_somebody_else_with_our_name_is_left_alone(storage: Storage) -> None:
    """Volumes have no namespace, and two hubs may well have given one name."""
    stage, worker = storage.stage, storage.stage.bound.worker
    taken = physical_name("", storage.name("shared"))
    theirs = {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadOnlyMany"], **nfs()}
    await apply(worker, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": taken}, "spec": theirs})
    try:
        await storage.bound("shared", csi("d-2"))
        name = await storage.user("shared")
        await stage.running(name, seconds=BOUND_WITHIN)
        claim = await storage.copied_claim("shared")
        assert claim is not None and claim["status"]["phase"] == "Bound" and claim["spec"]["volumeName"] != taken
        found = await eventually(lambda: _available(worker, taken), "the volume of somebody else is Available")
        assert "labels" not in found["metadata"]
    finally:
        await delete(worker, "pv", taken, "--wait=false")


async def test_volume_grows_while_it_is_mounted(storage: Storage) -> None:
    """The driver's controllers grow it at home, the worker's kubelet the file system on it; here the test stands for either."""
    stage, hub, worker = storage.stage, storage.stage.bound.hub, storage.stage.bound.worker
    elastic = f"{stage.namespace}-elastic"
    klass = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": elastic}, "provisioner": DRIVER}
    await apply(hub, {**klass, "allowVolumeExpansion": True})
    try:
        await storage.bound("grows", csi("d-3"), storageClassName=elastic)
        await stage.running(await storage.user("grows"), seconds=BOUND_WITHIN)
        below = await storage.copied_claim("grows")
        assert below is not None and below["status"]["capacity"] == {"storage": "1Gi"}
        larger = {"storage": "2Gi"}
        await claim_patched(hub, "grows", stage.namespace, {"spec": {"resources": {"requests": larger}}})
        await hub.kubectl("patch", "pv", storage.name("grows"), "--type=merge", "-p", json.dumps({"spec": {"capacity": larger}}))
        await eventually(lambda: has_capacity(storage, larger), "the copy of the volume has grown")
        conditions = [{"type": "FileSystemResizePending", "status": "True"}]
        waits = {"allocatedResources": larger, "allocatedResourceStatuses": {"storage": "NodeResizePending"}, "conditions": conditions}
        await claim_patched(hub, "grows", stage.namespace, {"status": waits})
        # Its claim can not ask for more, because it has no class, and the kubelet goes by the volume.
        with pytest.raises(CommandFailed, match="only dynamically provisioned pvc can be resized"):
            await claim_patched(worker, below["metadata"]["name"], stage.bound.mount, {"spec": {"resources": {"requests": larger}}})
        home = await stage.home.get("persistentvolumeclaims", "grows", stage.namespace)
        assert home is not None and home["status"]["capacity"] == {"storage": "1Gi"}, "nobody has made the file system larger"
        await claim_patched(worker, below["metadata"]["name"], stage.bound.mount, {"status": {"capacity": larger}})

        async def told() -> bool:
            found = await stage.home.get("persistentvolumeclaims", "grows", stage.namespace)
            return found is not None and found["status"]["capacity"] == larger and not found["status"].get("conditions")

        await eventually(told, "the claim has its new size at home")
        home = await stage.home.get("persistentvolumeclaims", "grows", stage.namespace)
        assert home is not None and "allocatedResourceStatuses" not in home["status"] and home["status"]["phase"] == "Bound"
    finally:
        await delete(hub, "storageclass", elastic, "--wait=false")


async def claim_patched(cluster: Any, name: str, namespace: str, change: Body) -> None:
    sub = ["--subresource=status"] if "status" in change else []
    await cluster.kubectl("patch", "pvc", name, "-n", namespace, "--type=merge", "-p", json.dumps(change), *sub)


async def has_capacity(storage: Storage, capacity: Body) -> bool:
    copy = await storage.copy("grows")
    return copy is not None and copy["spec"]["capacity"] == capacity


async def test_the_worker_attaches_volumes_and_the_hub_does_not(storage: Storage) -> None:
    """A disk is attached to a machine by one cluster: by that in which the machine is, and the pod that mounts it."""
    stage, hub, worker = storage.stage, storage.stage.bound.hub, storage.stage.bound.worker
    driver = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": {"attachRequired": True}}
    spec = {"drivers": [{"name": DRIVER, "nodeID": "machine-1", "topologyKeys": []}]}
    csinode = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": stage.nodes[0]}, "spec": spec}
    other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{stage.namespace}-own", "annotations": {ATTACH: "true"}}}
    await apply(hub, driver, other)
    await apply(worker, driver, csinode)
    # What a kubelet says of its node.
    await worker.kubectl("annotate", "node", stage.nodes[0], f"{ATTACH}=true")
    try:
        await eventually(lambda: get(hub, "csinode", stage.vnode), "the hub knows the driver of the node")
        for short in ("ours", "theirs"):
            await storage.bound(short, csi(f"d-{short}"))
        await stage.running(await storage.user("ours"), seconds=BOUND_WITHIN)
        # A node of the hub's own, and a pod that came later: when its disk is to be attached, the other one would have been.
        own = pod("own", stage.namespace, node=other["metadata"]["name"], terminationGracePeriodSeconds=0)
        own["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "theirs"}}]
        await stage.home.create("pods", own)
        there = await until_attached(worker, stage.nodes[0], physical_name("", storage.name("ours")))
        await until_attached(hub, other["metadata"]["name"], storage.name("theirs"))
        assert not [each for each in await items(hub, "volumeattachments") if each["spec"]["nodeName"] == stage.vnode]
        node = await stage.home.get("nodes", stage.vnode)
        assert node is not None and ATTACH not in node["metadata"]["annotations"]
        # It is detached there, too, when the pod has gone.
        await stage.home.delete("pods", "uses-ours", stage.namespace)
        await detached(worker, there)
    finally:
        await worker.kubectl("annotate", "node", stage.nodes[0], f"{ATTACH}-")
        await delete(worker, "csinode", stage.nodes[0], "--wait=false")
        await delete(worker, "csidriver", DRIVER, "--wait=false")
        await delete(hub, "pod", "own", "-n", stage.namespace, "--force", "--ignore-not-found", "--wait=false")
        await delete(hub, "node", other["metadata"]["name"], "--wait=false")
        await delete(hub, "csidriver", DRIVER, "--wait=false")
        for plane in (hub, worker):
            await forget_attachments(plane, {stage.nodes[0], stage.vnode, other["metadata"]["name"]})


async def until_attached(cluster: Any, node: str, volume: str) -> str:
    """The name of the VolumeAttachment that the cluster's controller-manager made; we say that it is done, as a driver would."""

    async def check() -> str:
        for each in await items(cluster, "volumeattachments"):
            if (each["spec"]["nodeName"], each["spec"]["source"]["persistentVolumeName"]) == (node, volume):
                return str(each["metadata"]["name"])
        return ""

    name: str = await eventually(check, f"{volume} is to be attached to {node}", seconds=60)
    done = json.dumps({"status": {"attached": True}})
    await cluster.kubectl("patch", "volumeattachment", name, "--subresource=status", "--type=merge", "-p", done)
    return name


async def detached(cluster: Any, name: str) -> None:
    async def check() -> bool:
        found = await get(cluster, "volumeattachment", name)
        return found is None or bool(found["metadata"].get("deletionTimestamp"))

    await eventually(check, f"{name} is to be detached", seconds=60)


async def forget_attachments(cluster: Any, nodes: set[str]) -> None:
    for each in await items(cluster, "volumeattachments"):
        if each["spec"]["nodeName"] in nodes:
            await cluster.kubectl("delete", "volumeattachment", each["metadata"]["name"], "--ignore-not-found", "--wait=false")
