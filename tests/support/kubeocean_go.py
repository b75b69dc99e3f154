"""A running installation of Kubeocean (Go): objects with the names, labels, annotations and finalizers that it writes, in both clusters.

Invariant: everything is built from the specification and the clusters' own answers; nothing is asked of the code under test.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from tests.support.bound import Body, apply, get
from tests.support.stage import Stage, physical_name, uid_of

NOW = "2026-01-01T00:00:00Z"
MANAGED = {"kubeocean.io/managed-by": "kubeocean"}
VNODE_FINALIZER = "kubeocean.io/vnode"
BINDING_FINALIZERS = ["kubeocean.io/clusterbinding-manager", "kubeocean.io/clusterbinding-syncer"]


def expected(**parts: Any) -> str:
    """The annotation expected-metadata."""
    return base64.b64encode(json.dumps(parts).encode()).decode()


@frozen
class Go:
    """Makes what it would have made for one binding."""

    stage: Stage

    @property
    def cluster_id(self) -> str:
        return self.stage.bound.name

    # --- at home ---

    async def node(self, physical: str, *, port: int, policy: str, extra_taints: list[Body]) -> Body:
        """A virtual node with its Lease."""
        bound, name = self.stage.bound, self.stage.bound.vnode(physical)
        real = await get(bound.worker, "node", physical)
        labels = {
            **real["metadata"]["labels"],
            **MANAGED,
            "kubeocean.io/cluster-binding": bound.name,
            "kubeocean.io/physical-cluster-id": self.cluster_id,
            "kubeocean.io/physical-node-name": physical,
            "kubeocean.io/physical-node-uid": uid_of(real),
            "kubeocean.io/physical-node-innerip": "127.0.0.1",
            "kubeocean.io/proxier_port": str(port),
            "type": "virtual-kubelet",
            "node.kubernetes.io/instance-type": "vnode",
            "beta.kubernetes.io/instance-type": "vnode",
            "kubernetes.io/hostname": name,
        }
        annotations = {
            "kubeocean.io/last-sync-time": NOW,
            "kubeocean.io/physical-node-name": physical,
            "kubeocean.io/physical-node-uid": uid_of(real),
            "kubeocean.io/policies-applied": policy,
            "kubeocean.io/policy-details": f"{policy}()",
            "kubeocean.io/prometheus-url": f"10.9.9.9:9006/{name}",
        }
        taints = [{"key": "kubeocean.io/vnode", "effect": "NoSchedule"}, *extra_taints]
        annotations["kubeocean.io/expected-metadata"] = expected(labels=labels, annotations=annotations, taints=taints)
        metadata = {"name": name, "labels": labels, "annotations": annotations, "finalizers": [VNODE_FINALIZER]}
        made = await self.stage.home.create("nodes", {"metadata": metadata, "spec": {"taints": taints}})
        status = {
            **{part: real["status"][part] for part in ("conditions", "nodeInfo")},
            "capacity": real["status"]["allocatable"],
            "allocatable": real["status"]["allocatable"],
            "addresses": [{"type": "InternalIP", "address": "10.9.9.9"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        await self.stage.home.patch("nodes", name, {"status": status}, subresource="status")
        await self._lease(made)
        return made

    async def _lease(self, node: Body) -> None:
        name = node["metadata"]["name"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid_of(node)}
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}
        metadata = {"name": name, "namespace": "kube-node-lease", "ownerReferences": [owner]}
        await apply(self.stage.bound.hub, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})

    async def csinode(self, physical: str) -> None:
        bound = self.stage.bound
        labels = {**MANAGED, "kubeocean.io/cluster-binding": bound.name, "kubeocean.io/physical-cluster-id": self.cluster_id}
        labels["kubeocean.io/physical-node-name"] = physical
        annotations = {"kubeocean.io/last-sync-time": NOW, "kubeocean.io/physical-node-name": physical}
        driver = {"name": "disk.example.com", "nodeID": physical, "topologyKeys": []}
        local = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": physical}, "spec": {"drivers": [driver]}}
        await apply(bound.worker, local)
        metadata = {"name": bound.vnode(physical), "labels": labels, "annotations": annotations}
        await apply(bound.hub, {**local, "metadata": metadata})

    def marks(self, namespace: str, name: str) -> Body:
        """On an object at home that is copied."""
        where = {"kubeocean.io/physical-name": physical_name(namespace, name), "kubeocean.io/physical-namespace": self.stage.bound.mount}
        labels = {**MANAGED, f"kubeocean.io/synced-by-{self.cluster_id}": "true"}
        return {"labels": labels, "annotations": where, "finalizers": [f"kubeocean.io/finalizer-{self.cluster_id}"]}

    async def original(self, kind: str, name: str, content: Mapping[str, Any]) -> Body:
        """An object of the stage's namespace with its marks."""
        metadata = {"name": name, "namespace": self.stage.namespace, **self.marks(self.stage.namespace, name)}
        return await self.stage.home.create(kind, {"metadata": metadata, **content})

    async def mark(self, kind: str, name: str) -> None:
        await self.stage.home.patch(kind, name, {"metadata": self.marks(self.stage.namespace, name)}, namespace=self.stage.namespace)

    # --- in the worker ---

    async def priority_class(self) -> None:
        metadata = {"name": "kubeocean-default", "labels": MANAGED}
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata, "value": -10000}
        await apply(self.stage.bound.worker, {**body, "preemptionPolicy": "PreemptLowerPriority", "globalDefault": False})

    async def copy(self, kind: str, name: str, content: Mapping[str, Any], *, namespace: str | None = None) -> Body:
        """The copy of an object; it names no owner."""
        home = self.stage.namespace if namespace is None else namespace
        labels = {**MANAGED, f"kubeocean.io/synced-by-{self.cluster_id}": "true"}
        says = {"kubeocean.io/virtual-name": name, "kubeocean.io/virtual-namespace": home}
        metadata = {"name": physical_name(home, name), "labels": labels, "annotations": says}
        if kind != "persistentvolumes":
            metadata["namespace"] = self.stage.bound.mount
        return await self.stage.there.create(kind, {"metadata": metadata, **content})

    def token_name(self, pod: Body, volume: str) -> str:
        return physical_name(pod["metadata"]["namespace"], f"{pod['metadata']['name']}-{volume}-{uid_of(pod)}")

    async def token(self, pod: Body, volume: str) -> Body:
        says = {**self._who(pod), "kubeocean.io/service-account": "default"}
        says.pop("kubeocean.io/virtual-node-name")
        labels = {**MANAGED, "kubeocean.io/service-account-token": "true"}
        metadata = {"name": self.token_name(pod, volume), "namespace": self.stage.bound.mount, "labels": labels, "annotations": says}
        return await self.stage.there.create("secrets", {"metadata": metadata, "type": "Opaque", "data": {"token": "b2xk"}})

    def _who(self, pod: Body) -> dict[str, str]:
        meta = pod["metadata"]
        return {
            "kubeocean.io/virtual-pod-namespace": meta["namespace"],
            "kubeocean.io/virtual-pod-name": meta["name"],
            "kubeocean.io/virtual-pod-uid": uid_of(pod),
            "kubeocean.io/virtual-node-name": pod["spec"]["nodeName"],
        }

    async def pod(self, virtual: Body, physical_node: str) -> Body:
        """The physical pod of one at home, recorded there; its volumes name copies."""
        meta, spec = virtual["metadata"], dict(virtual["spec"])
        for field in ("serviceAccountName", "serviceAccount", "schedulerName", "nodeName", "priority", "preemptionPolicy"):
            spec.pop(field, None)
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [physical_node]}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec |= {"affinity": {"nodeAffinity": required}, "hostname": meta["name"], "priorityClassName": "kubeocean-default"}
        spec["volumes"] = [self._volume(virtual, volume) for volume in spec.get("volumes", ())]
        theirs = {key: value for key, value in meta.get("annotations", {}).items() if not key.startswith("kubeocean.io/")}
        propagated = expected(labels=meta.get("labels", {}), annotations=theirs)
        labels = {**meta.get("labels", {}), **MANAGED}
        labels |= {"kubeocean.io/virtual-namespace": meta["namespace"], "kubeocean.io/workload-type": "pod"}
        annotations = {**theirs, **self._who(virtual), "kubeocean.io/expected-metadata": propagated}
        name = physical_name(meta["namespace"], meta["name"])
        metadata = {"name": name, "namespace": self.stage.bound.mount, "labels": labels, "annotations": annotations}
        made = await self.stage.there.create("pods", {"metadata": metadata, "spec": spec})
        says = {"kubeocean.io/physical-pod-namespace": self.stage.bound.mount, "kubeocean.io/physical-pod-name": name}
        says |= {"kubeocean.io/physical-pod-uid": uid_of(made), "kubeocean.io/last-sync-time": NOW}
        change = {"metadata": {"annotations": says, "labels": MANAGED}}
        await self.stage.home.patch("pods", meta["name"], change, namespace=meta["namespace"])
        return made

    def _volume(self, pod: Body, volume: Body) -> Body:
        def renamed(name: str) -> str:
            return physical_name(pod["metadata"]["namespace"], name)

        if "configMap" in volume:
            return {**volume, "configMap": {**volume["configMap"], "name": renamed(volume["configMap"]["name"])}}
        if "secret" in volume:
            return {**volume, "secret": {**volume["secret"], "secretName": renamed(volume["secret"]["secretName"])}}
        if "persistentVolumeClaim" in volume:
            return {**volume, "persistentVolumeClaim": {"claimName": renamed(volume["persistentVolumeClaim"]["claimName"])}}
        sources = []
        for source in volume.get("projected", {}).get("sources", ()):
            if "serviceAccountToken" in source:
                items = [{"key": "token", "path": source["serviceAccountToken"]["path"]}]
                sources.append({"secret": {"name": self.token_name(pod, volume["name"]), "items": items}})
            elif "configMap" in source:
                sources.append({"configMap": {**source["configMap"], "name": renamed(source["configMap"]["name"])}})
            else:
                items = source["downwardAPI"]["items"]
                fields = [{**item, "fieldRef": {"fieldPath": _FIELDS[item["fieldRef"]["fieldPath"]]}} for item in items]
                sources.append({"downwardAPI": {"items": fields}})
        return {**volume, "projected": {**volume["projected"], "sources": sources}}


_FIELDS = {
    "metadata.namespace": "metadata.annotations['kubeocean.io/virtual-pod-namespace']",
    "metadata.name": "metadata.annotations['kubeocean.io/virtual-pod-name']",
}
