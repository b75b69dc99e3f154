"""Random sequences of the requests that the product and its surroundings send, for the comparison of the model with a real API server.

Invariant: a sequence is a function of its name and seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.faults.model.pod_steps import NAMES, PodSteps
from tests.faults.model.steps import APPLY, MERGE, STRATEGIC, Body, Ref, Step

_GROUP: Final = "/apis/cloud.tencent.com/v1beta1"


class Sequence(PodSteps):
    """Generator of one sequence within its own namespace; names of cluster-scoped objects start with `name`."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self._makers: list[tuple[int, Callable[[], Step]]] = [
            (16, self.pod_status),
            (8, self.pod_create),
            (8, self.pod_meta),
            (6, self.pod_spec),
            (8, self.pod_delete),
            (4, self.pod_sub),
            (3, self.pod_put),
            (5, self.pod_list),
            (8, self.node),
            (8, self.lease),
            (10, self.config),
            (5, self.event),
            (6, self.volume),
            (10, self.custom),
            (3, self.other),
            (5, self.applied),
            (4, self.binding),
            (5, self.get),
        ]

    def begin(self) -> list[Step]:
        """Returns the requests before the random ones."""
        account = {"metadata": {"name": "default"}}
        return [
            Step("POST", "/api/v1/namespaces", body={"metadata": {"name": self.name}}),
            Step("POST", f"{self.space}/serviceaccounts", body=account),
            *(Step("POST", f"{self.space}/pods", body=self.pod(name)) for name in NAMES),
        ]

    def step(self) -> Step:
        """Returns the next request."""
        weights = [weight for weight, _ in self._makers]
        return self.rng.choices([make for _, make in self._makers], weights)[0]()

    # --- Nodes and Leases -------------------------------------------------------------------------------------------------------------

    def node(self) -> Step:
        name = f"{self.name}-{self.one('n', 'm')}"
        path = f"/api/v1/nodes/{name}"
        taint: Body = {"key": self.one("k1", "k2"), "value": self.word(), "effect": self.one("NoSchedule", "NoExecute")}
        if self.chance(25):
            labels = {"seq": self.name, "topology.kubernetes.io/zone": "z1"}
            body: Body = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": [taint]}}
            if self.chance(30):
                body["spec"]["providerID"] = "p://1"
            return Step("POST", "/api/v1/nodes", body=body)
        if self.chance(15):
            return self.delete(path)
        if self.chance(30):
            taints = self.one([taint], [taint, dict(taint)], [], [taint, {"key": "k3", "effect": "NoSchedule"}])
            spec = {"taints": taints} if self.chance(80) else {"providerID": self.one("p://1", "p://2")}
            return Step("PATCH", path, {}, {"metadata": {**self.guards(path), **self.marks()}, "spec": spec}, MERGE)
        return Step("PATCH", f"{path}/status", self.query(), {"metadata": self.guards(path), "status": self.node_status()}, STRATEGIC)

    def node_status(self) -> Body:
        status: Body = {"conditions": [{**self.condition("Ready"), "lastHeartbeatTime": "2026-01-02T03:04:05Z"}]}
        status["conditions"][0].pop("observedGeneration", None)
        if self.chance(40):
            amounts = {"cpu": self.one("4", "4000m", "1500m"), "memory": self.one("8Gi", "1000Ki", "1e9"), "pods": "10"}
            status |= {"capacity": amounts, "allocatable": {**amounts, self.one("pods", "example.com/x"): self.one("5", None)}}
        if self.chance(40):
            addresses = [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "10.0.0.2"}]
            status["addresses"] = [*addresses[: self.one(1, 2)], {"$patch": "replace"}]
        if self.chance(30):
            status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": 10250}}
            status["nodeInfo"] = {"kubeletVersion": "v1", "architecture": "amd64", "operatingSystem": "linux"}
            status["features"] = {"supplementalGroupsPolicy": True}
        if self.chance(20):
            status["conditions"].append({"$patch": "delete", "type": self.one("Ready", "Other")})
        return status

    def lease(self) -> Step:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.name}/leases/{self.one('l', 'k')}"
        if self.chance(10):
            return self.delete(path)
        metadata: Body = {"name": path.rpartition("/")[2], "labels": {}, "annotations": {"by": self.word()}}
        spec: Body = {
            "holderIdentity": self.word(),
            "leaseDurationSeconds": self.one(15, 15, 15, 0),
            "renewTime": "2026-01-02T03:04:05.000001Z",
        }
        spec["leaseTransitions"] = self.one(0, 1)
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        if self.chance(25):
            return Step("POST", path.rpartition("/")[0], {}, body)
        if self.chance(90):
            metadata["resourceVersion"] = Ref(path, "resourceVersion", self.one(0, 0, 0, 0, 1), other="1")
        return Step("PUT", path, self.query(), body)

    # --- Other objects --------------------------------------------------------------------------------------------------------------

    def config(self) -> Step:
        plural = self.one("configmaps", "secrets")
        path = f"{self.space}/{plural}/{self.one('c', 'd')}"
        data: Body = {"data": {self.one("k", "l"): self.one("dg==", "eA==")}}
        metadata: Body = {"name": path.rpartition("/")[2], **self.created_marks()}
        if plural == "secrets":
            data |= self.one({}, {}, {"type": "Opaque"}, {"type": "x.io/y"}, {"stringData": {"s": "t"}})
        else:
            data |= self.one({}, {}, {"immutable": True})
        kind = self.rng.random()
        if kind < 0.3:
            return Step("POST", f"{self.space}/{plural}", self.query(), {"metadata": metadata, **data})
        if kind < 0.5:
            return Step("PUT", path, self.query(), {"metadata": {**metadata, **self.guards(path)}, **data})
        if kind < 0.75:
            data.pop("stringData", None)
            return Step("PATCH", path, {}, {"metadata": {**self.marks(), **self.guards(path)}, **self.one({}, data, {"data": None})}, MERGE)
        return self.delete(path)

    def event(self) -> Step:
        path = f"{self.space}/events/{self.one('e', 'f')}"
        body: Body = {
            "metadata": {"name": path.rpartition("/")[2]},
            "involvedObject": {"kind": self.one("Pod", "Node"), "name": "a", "namespace": self.name},
            "reason": "R",
            "message": "m",
            "type": "Normal",
            "count": 1,
            "firstTimestamp": "2026-01-02T03:04:05Z",
            "lastTimestamp": "2026-01-02T03:04:05Z",
            "source": {"component": "c", "host": ""},
            "reportingComponent": "c",
            "reportingInstance": "",
        }
        if self.chance(35):
            return Step("POST", path.rpartition("/")[0], {}, body)
        if self.chance(30):
            fields = self.one("involvedObject.kind=Pod", "reason=R", "type!=Normal", "source=c")
            return Step("GET", path.rpartition("/")[0], {"fieldSelector": fields})
        change = {"count": self.one(2, 3), "lastTimestamp": "2026-01-02T03:04:06Z"}
        return Step("PATCH", path, {}, change, self.one(STRATEGIC, MERGE))

    def volume(self) -> Step:
        claims = self.chance(60)
        collection = f"{self.space}/persistentvolumeclaims" if claims else "/api/v1/persistentvolumes"
        name = "p" if claims else f"{self.name}-v"
        path = f"{collection}/{name}"
        if self.chance(35):
            spec: Body = {"accessModes": ["ReadWriteOnce"]}
            if claims:
                spec |= {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": f"{self.name}-v", "storageClassName": ""}
            else:
                spec |= {"capacity": {"storage": "1024Mi"}, "hostPath": {"path": "/x"}, "claimRef": {"namespace": self.name, "name": "p"}}
            return Step("POST", collection, {}, {"metadata": {"name": name}, "spec": spec})
        if self.chance(25):
            return self.delete(path)
        if self.chance(40):
            status = {"phase": self.one("Bound", "Lost", "Pending") if claims else self.one("Bound", "Released")}
            return Step("PATCH", f"{path}/status", {}, {"metadata": self.guards(path), "status": status}, MERGE)
        return Step("PATCH", path, {}, {"metadata": {**self.marks(), **self.guards(path)}}, MERGE)

    def custom(self) -> Step:
        path = f"{_GROUP}/resourceleasingpolicies/{self.name}-{self.one('p', 'q')}"
        spec: Body = self.one(
            {"cluster": self.word()},
            {"cluster": "c", "priority": self.one(1, 0, "x")},
            {"cluster": "c", "timeWindows": [{"start": self.one("08:00", "25:00"), "end": "09:00"}], "unknown": 1},
            {"cluster": "c", "resourceLimits": [{"resource": "cpu", "quantity": self.one("1", 1, "1x")}]},
            {"cluster": "c", "resourceLimits": [{"resource": "cpu", "percent": self.one(50, 101, -1)}], "forceReclaim": self.chance(50)},
            {},
        )
        kind = self.rng.random()
        head = {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ResourceLeasingPolicy"}
        if kind < 0.3:
            marks = {"name": path.rpartition("/")[2], **self.created_marks()}
            marks["labels"]["seq"] = self.name
            return Step(
                "POST", path.rpartition("/")[0], self.query(), {**head, "metadata": marks, "spec": spec, "status": {"phase": "Active"}}
            )
        if kind < 0.5:
            return Step(
                "PATCH", path, self.query(), {"metadata": {**self.marks(), **self.guards(path)}, **self.one({}, {"spec": spec})}, MERGE
            )
        if kind < 0.75:
            status: Body = {"phase": self.one("Active", "Inactive", "Wrong", None), "observedGeneration": self.one(1, 2)}
            condition = {"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}
            status |= self.one(
                {}, {"conditions": [condition]}, {"conditions": [condition, condition]}, {"conditions": []}, {"nextEdge": None}
            )
            metadata = {**self.guards(path), **(self.marks() if self.chance(30) else {})}
            return Step("PATCH", f"{path}/status", {}, {"metadata": metadata, "status": status}, MERGE)
        if kind < 0.85:
            return Step("PATCH", path, {}, {"metadata": {"labels": {"x": "y"}}}, STRATEGIC)
        return self.delete(path)

    def other(self) -> Step:
        return self.one(
            Step("PATCH", f"/api/v1/namespaces/{self.name}", {}, {"metadata": {"annotations": {"a": self.word()}}}, MERGE),
            Step("POST", "/api/v1/namespaces/absent/pods", {}, self.pod("a")),
            Step("GET", f"{self.space}/nothings"),
            Step("GET", f"{self.space}/serviceaccounts"),
            self.csinode(),
            self.csinode(),
        )

    def applied(self) -> Step:
        """Applies an object of which other clients write only one annotation."""
        deployment = self.chance(50)
        group, plural = ("/apis/apps/v1", "deployments") if deployment else ("/api/v1", "configmaps")
        path = f"{group}/namespaces/{self.name}/{plural}/applied"
        if self.chance(10):
            return self.delete(path)
        if self.chance(20):
            return Step("PATCH", path, {}, {"metadata": {"annotations": {"other": self.one("1", "2", None)}}}, MERGE)
        labels = {key: self.word() for key in ("l1", "l2") if self.chance(60)}
        body: Body = {"metadata": {"name": "applied", "namespace": self.name, "labels": labels}}
        if deployment:
            container = {
                "name": "main",
                "image": self.one("x:1", "x:2"),
                "env": [{"name": name, "value": "v"} for name in self.one("A", "AB", "B")],
            }
            pod = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [container]}}
            if self.chance(40):
                pod["spec"] |= {"terminationGracePeriodSeconds": 5, "volumes": [{"name": "v", "configMap": {"name": "c"}}]}
            spec = {"replicas": self.one(1, 2), "selector": {"matchLabels": {"app": "d"}}, "template": pod}
            body |= {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec}
        else:
            body |= {"apiVersion": "v1", "kind": "ConfigMap", "data": {key: self.word() for key in ("k1", "k2") if self.chance(60)}}
        return Step("PATCH", path, {"fieldManager": "applier", "force": "true"}, body, APPLY)

    def binding(self) -> Step:
        """Writes a ClusterBinding as the manager and the process of a binding do."""
        path = f"{_GROUP}/clusterbindings/{self.name}"
        if self.chance(25):
            spec: Body = {"clusterID": self.name[:20], "secretRef": {"name": "s", "namespace": "n"}, "mountNamespace": "m"}
            head = {"apiVersion": "cloud.tencent.com/v1beta1", "kind": "ClusterBinding", "metadata": {"name": self.name}}
            return Step("POST", path.rpartition("/")[0], {}, {**head, "spec": spec})
        if self.chance(15):
            return self.delete(path)
        if self.chance(40):
            return Step("PATCH", path, {}, {"metadata": {**self.marks(), **self.guards(path)}}, MERGE)
        condition = {"type": "Ready", "status": self.one("True", "False"), "reason": "R", "message": "m"}
        status = {
            "phase": self.one("Pending", "Ready", "Failed"),
            "conditions": [{**condition, "lastTransitionTime": "2026-01-02T03:04:05Z"}],
        }
        return Step("PATCH", f"{path}/status", {}, {"metadata": self.guards(path), "status": status}, MERGE)

    def csinode(self) -> Step:
        path = f"/apis/storage.k8s.io/v1/csinodes/{self.name}-n"
        drivers = [{"name": "d.io", "nodeID": self.one("i1", "i2"), "topologyKeys": None}]
        if self.chance(50):
            return Step("POST", path.rpartition("/")[0], {}, {"metadata": {"name": f"{self.name}-n"}, "spec": {"drivers": drivers}})
        return Step("PATCH", path, {}, {"metadata": self.guards(path), "spec": {"drivers": self.one(drivers, [])}}, MERGE)

    def get(self) -> Step:
        return Step(
            "GET",
            self.one(
                self.pod_path(),
                f"{self.space}/configmaps/c",
                f"/api/v1/nodes/{self.name}-n",
                f"{_GROUP}/resourceleasingpolicies/{self.name}-p",
                f"{self.space}/configmaps",
            ),
        )
