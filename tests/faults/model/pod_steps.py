"""Random requests about pods: creations, statuses, changes, deletions and subresources, right ones and wrong ones.

Invariant: what is valid for most requests is valid for most of these, so that pods live long enough to change.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from tests.faults.model.steps import MERGE, STRATEGIC, Body, Choices, Ref, Step

NAMES: Final = ("a", "b", "c")


class PodSteps(Choices):
    """Generator of requests about pods."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self._tolerations = count()

    def pod_path(self, sub: str = "") -> str:
        return f"{self.space}/pods/{self.rng.choice(NAMES)}{'/' + sub if sub else ''}"

    def container(self, name: str = "main") -> Body:
        made: Body = {"name": name, "image": self.one("busybox", "busybox:latest", "busybox:1.36", "r.io:5000/app")}
        if self.chance(40):
            made["resources"] = self.one(
                {"requests": {"cpu": "100m"}},
                {"requests": {"cpu": "0.5", "memory": "1024Mi"}, "limits": {"memory": "1Gi"}},
                {"limits": {"cpu": "1", "memory": "1Gi"}},
            )
        if self.chance(30):
            made["ports"] = [{"containerPort": 80}]
        if self.chance(20):
            made["readinessProbe"] = {"httpGet": {"port": 80}}
        if self.chance(30):
            made["env"] = [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": False}}},
            ]
        return made

    def pod(self, name: str) -> Body:
        spec: Body = {"containers": [self.container()]}
        if self.chance(70):
            spec["nodeName"] = f"{self.name}-n"
        if self.chance(40):
            spec["restartPolicy"] = self.one("Always", "OnFailure", "Never")
        if self.chance(30):
            spec["terminationGracePeriodSeconds"] = self.one(0, 1, 5, 600)
        if self.chance(30):
            spec["initContainers"] = [{**self.container("init"), **self.one({}, {"restartPolicy": "Always"})}]
            spec["initContainers"][0].pop("readinessProbe", None)
        if self.chance(30):
            spec["volumes"] = [
                self.one(
                    {"name": "v"},
                    {"name": "v", "configMap": {"name": "c"}},
                    {"name": "v", "secret": {"secretName": "c", "optional": True}},
                    {"name": "v", "hostPath": {"path": "/x"}},
                    {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
                    {"name": "v", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                )
            ]
            spec["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v", "readOnly": self.one(True, False)}]
        spec |= self.one({}, {}, {"hostNetwork": True}, {"automountServiceAccountToken": False}, {"enableServiceLinks": False})
        spec |= self.one({}, {}, {"schedulingGates": [{"name": "g.io/g"}]} if "nodeName" not in spec else {}, {"activeDeadlineSeconds": 60})
        if self.chance(20):
            spec["tolerations"] = [self.one({"operator": "Exists"}, {"key": "k", "value": "v", "effect": "NoSchedule"})]
        if self.chance(4):
            spec["containers"] = self.one([], [{"name": "main"}], [self.container(), self.container()])
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **self.created_marks()}, "spec": spec}

    def pod_create(self) -> Step:
        body = self.pod(self.rng.choice(NAMES))
        if self.chance(15):
            del body["metadata"]["name"]
            body["metadata"]["generateName"] = "gen-"
        if self.chance(5):
            body["metadata"]["namespace"] = "elsewhere"
        if self.chance(5):
            body["status"] = {"phase": "Running"}
        return Step("POST", f"{self.space}/pods", self.one({}, {}, {}, {"dryRun": "All"}), body)

    def conditions(self) -> tuple[list[Body], list[Body]]:
        kinds = self.rng.sample(["PodScheduled", "Initialized", "Ready", "ContainersReady", "kubeocean.io/x"], self.one(1, 2, 3))
        changes: list[Body] = [self.condition(kind) for kind in kinds]
        if self.chance(25):
            changes.append({"$patch": "delete", "type": self.one("Ready", "kubeocean.io/x", "Initialized")})
        return changes, [{"type": kind} for kind in kinds]

    def container_status(self, name: str = "main") -> Body:
        state = self.one(
            {"waiting": {"reason": "ContainerCreating"}},
            {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
            {"terminated": {"exitCode": self.one(0, 1), "finishedAt": None, "startedAt": None}},
        )
        return {
            "name": name,
            "state": state,
            "image": "busybox",
            "imageID": "",
            "ready": self.chance(50),
            "restartCount": 0,
            "lastState": {},
        }

    def pod_status(self) -> Step:
        path = self.pod_path()
        status: Body = {}
        if self.chance(40):
            status["phase"] = self.one("Pending", "Running", "Running", "Succeeded", "Failed")
        if self.chance(60):
            status["conditions"], order = self.conditions()
            if self.chance(40):
                status["$setElementOrder/conditions"] = order
        if self.chance(30):
            status |= {"podIP": "10.0.0.1", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.1"}]}
        if self.chance(10):
            status |= {"podIP": None, "podIPs": [{"$patch": "replace"}]}
        if self.chance(40):
            status["containerStatuses"] = [self.container_status()]
        if self.chance(10):
            status["initContainerStatuses"] = [self.container_status("init")]
        if self.chance(20):
            status["startTime"] = "2026-01-02T03:04:05Z"
        status |= self.one(
            {}, {}, {}, {"reason": "R", "message": "m"}, {"reason": None}, {"observedGeneration": 1}, {"qosClass": "Guaranteed"}
        )
        metadata = {**self.guards(path), **(self.marks() if self.chance(20) else {})}
        if not metadata.get("finalizers", True):
            metadata.pop("finalizers")
        content = STRATEGIC if self.chance(90) else MERGE
        if content == MERGE:
            status = {key: value for key, value in status.items() if key in ("phase", "reason", "message", "containerStatuses")}
        return Step("PATCH", f"{path}/status", self.query(), {"metadata": metadata, "status": status}, content)

    def pod_meta(self) -> Step:
        path = self.pod_path()
        metadata = {**self.marks(), **self.guards(path)}
        return Step("PATCH", path, self.query(), {"metadata": metadata}, self.one(MERGE, MERGE, STRATEGIC))

    def pod_spec(self) -> Step:
        path = self.pod_path()
        spec: Body = self.one(
            {"containers": [{"name": "main", "image": self.one("busybox:2", "busybox:3")}]},
            {"initContainers": [{"name": "init", "image": "busybox:2"}]},
            {"activeDeadlineSeconds": self.one(10, 100)},
            {"tolerations": [{"key": f"new-{next(self._tolerations)}", "operator": "Exists"}]},
            {"nodeName": "other"},
            {"terminationGracePeriodSeconds": 3},
            {"containers": [{"name": "added", "image": "x"}]},
            {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]},
        )
        return Step("PATCH", path, {}, {"metadata": self.guards(path), "spec": spec}, STRATEGIC)

    def pod_delete(self) -> Step:
        return self.delete(self.pod_path())

    def pod_sub(self) -> Step:
        path = self.pod_path()
        name = path.rpartition("/")[2]
        if self.chance(40):
            options: Body = self.one({}, {"preconditions": {"uid": Ref(path, "uid", other="u")}})
            options |= self.one({}, {}, {"gracePeriodSeconds": 60})
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
            return Step("POST", f"{path}/eviction", body=body)
        if self.chance(50):
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": f"{self.name}-n"}}
            if self.chance(30):
                body["metadata"]["uid"] = Ref(path, "uid", other="u")
            return Step("POST", f"{path}/binding", body=body)
        if self.chance(40):
            change = {"name": "main", "resources": self.one({"requests": {"cpu": "200m"}}, {"limits": {"memory": "2Gi"}}, {})}
            return Step("PATCH", f"{path}/resize", {}, {"metadata": self.guards(path), "spec": {"containers": [change]}}, STRATEGIC)
        debug = {"name": self.one("d1", "d2"), "image": self.one("busybox:1", "busybox:2")}
        patch = {"metadata": self.guards(path), "spec": {"ephemeralContainers": [debug]}}
        return Step("PATCH", f"{path}/ephemeralcontainers", {}, patch, STRATEGIC)

    def pod_put(self) -> Step:
        path = self.pod_path()
        return Step("PUT", path, {}, {"$last": path, "metadata": {"labels": {"put": self.one("1", "2")}, **self.guards(path)}})

    def pod_list(self) -> Step:
        params = self.one(
            {},
            {"limit": "1"},
            {"labelSelector": self.one("app=web", "app", "!app", "app in (web,db)", "app notin (db)", "tier!=db", "app=web,tier=db")},
            {
                "fieldSelector": self.one(
                    f"spec.nodeName={self.name}-n", "spec.nodeName!=", "metadata.name=a", "status.phase=Running", "spec.x=1"
                )
            },
        )
        return Step("GET", f"{self.space}/pods", params)
