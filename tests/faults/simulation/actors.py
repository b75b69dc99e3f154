"""The control plane around the product in a simulated cluster: a person, scheduler, StatefulSets, node lifecycle, garbage collection.

Invariant: each actor does what its namesake in Kubernetes does to the objects of a simulation, and nothing else; it reads the API server
directly, so it is never behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tests.faults.model.refusals import Refusal
from tests.faults.simulation.loop import START
from vkubelet.clock import rfc3339
from vkubelet.control.certificates import Name, self_signed
from vkubelet.server.certificates import PUBLISHED

if TYPE_CHECKING:
    from tests.faults.simulation.world import World

Body = dict[str, Any]
NAMESPACE = "default"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_NOT_READY = "node.kubernetes.io/not-ready"
_OF_VIRTUAL_NODES = ("virtual-kubelet.io/provider", "kubeocean.io/vnode")
_CLOSED = (_UNREACHABLE, _NOT_READY, "kubeocean.io/out-of-time-windows", "kubeocean.io/worker-unreachable", "kubeocean.io/vnode-deleting")
_GRACE = 40.0
_EVICTED_AFTER = 300.0
_ORPHANED_AFTER = 40.0
_PATIENCE = 1200
"""Seconds after which a person no longer waits for the deletion of a pod."""


@lru_cache
def _client_ca() -> str:
    return self_signed(Name("client-ca"), ("192.0.2.1",), now=START).certificate.decode()


def pod_body(name: str, *, restart: str = "Always", annotations: Mapping[str, str] | None = None, **spec: Any) -> Body:
    """A pod of one container, to be scheduled."""
    container = {"name": "main", "image": "image", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    return {
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "containers": [container],
            "restartPolicy": restart,
            "tolerations": [{"operator": "Exists", "effect": "NoSchedule", "key": key} for key in _OF_VIRTUAL_NODES],
            "terminationGracePeriodSeconds": 30,
            "automountServiceAccountToken": False,
            **spec,
        },
    }


class ControlPlane:
    """What a cluster has besides its API server."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.model = world.cluster(name)
        self.sets: dict[str, Body] = {}
        self._beats: dict[str, tuple[str, str, float]] = {}
        """Of each node: its last heartbeat, the last renewal of its Lease since then, and when either was observed."""
        self._unready: dict[str, float] = {}
        self._sound: dict[str, Body | None] = {}
        """Nodes as they were when nothing was to do for them, unless their Lease expires."""
        self._evicted: set[str] = set()
        self._nodeless: dict[str, float] = {}
        self._asked: list[str] = []
        """Names of pods that a person has not managed to create yet."""

    def run(self) -> None:
        """Starts the controllers."""
        self.world.every(0.5, self.name, self.schedule)
        self.world.every(1.0, self.name, self.reconcile_sets)
        self.world.every(2.0, self.name, self.judge_nodes)
        self.world.every(5.0, self.name, self.collect_pods)

    def publish_client_ca(self) -> None:
        """Creates the ConfigMap by which servers know the CA of client certificates."""
        meta = {"name": PUBLISHED.name, "namespace": PUBLISHED.namespace}
        body = {"metadata": meta, "data": {"client-ca-file": _client_ca()}}
        self.model.call("POST", f"/api/v1/namespaces/{PUBLISHED.namespace}/configmaps", body, user="kube-apiserver")

    def attempt(self, user: str, method: str, path: str, body: Body | None = None, **more: Any) -> Body | None:
        """Writes as a user of this cluster; returns the answer, None when it is refused."""
        try:
            return self.model.call(method, path, body, user=user, **more)
        except Refusal:
            return None

    def merge(self, path: str, body: Body, *, user: str, strategic: bool = False) -> None:
        """Patches an object, if it exists."""
        name = "strategic-merge-patch" if strategic else "merge-patch"
        self.attempt(user, "PATCH", path, body, content_type=f"application/{name}+json")

    # --- a person ---

    def create_pod(self, body: Body, *, namespace: str = NAMESPACE) -> None:
        """Creates a pod; while its name is taken, a person tries again."""
        self._asked.append(body["metadata"]["name"])
        self._try_to_create(body, namespace)

    def _try_to_create(self, body: Body, namespace: str) -> None:
        name = body["metadata"]["name"]
        if self.pod(name, namespace) is not None or self.attempt("person", "POST", f"/api/v1/namespaces/{namespace}/pods", body) is None:
            self.world.network.later(2.0, self._try_to_create, body, namespace)
        else:
            self._asked.remove(name)

    async def created(self, name: str) -> None:
        """Waits until a person has created a pod of this name: what they do to it next is not meant for its predecessor."""
        for _ in range(_PATIENCE):
            if name not in self._asked:
                return
            await self.world.pause(1.0)

    async def removed(self, path: str) -> None:
        """Waits until an object whose deletion was requested does not exist any more."""
        for _ in range(_PATIENCE):
            if self.attempt("person", "GET", path) is None:
                return
            await self.world.pause(1.0)

    def delete_pod(self, name: str, *, namespace: str = NAMESPACE, grace: int | None = None) -> None:
        options: Body = {} if grace is None else {"gracePeriodSeconds": grace}
        self.attempt("person", "DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", options)

    def label_pod(self, name: str, key: str, value: str, *, namespace: str = NAMESPACE) -> None:
        self.merge(f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"labels": {key: value}}}, user="person")

    def annotate_pod(self, name: str, key: str, value: str, *, namespace: str = NAMESPACE) -> None:
        self.merge(f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"annotations": {key: value}}}, user="person")

    def mark_node(self, name: str) -> None:
        """A person puts a label, an annotation and a taint on a node."""
        node = self.model.get("", "v1", "nodes", "", name)
        if node is None:
            self.world.network.later(2.0, lambda: self.mark_node(name))
            return
        taint = {"key": "example.com/slow", "effect": "PreferNoSchedule"}
        meta = {
            "labels": {"example.com/team": "a"},
            "annotations": {"example.com/note": "b"},
            "resourceVersion": node["metadata"]["resourceVersion"],
        }
        body = {"metadata": meta, "spec": {"taints": [*(node["spec"].get("taints") or ()), taint]}}
        self.merge(f"/api/v1/nodes/{name}", body, user="person")

    def stateful(self, name: str, *, replicas: int, annotations: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Creates a StatefulSet, or scales it."""
        self.sets[name] = {"replicas": replicas, "annotations": annotations or {}, "spec": spec}
        self.world.notify(self.name)

    # --- what a person sees ---

    def pods(self, namespace: str = "") -> list[Body]:
        return self.model.objects("", "v1", "pods", namespace)

    def nodes(self) -> list[Body]:
        return self.model.objects("", "v1", "nodes")

    def pod(self, name: str, namespace: str = NAMESPACE) -> Body | None:
        return self.model.get("", "v1", "pods", namespace, name)

    def unready(self, names: Sequence[str]) -> str | None:
        """Returns which pods are not Ready."""
        bad = [name for name in names if not is_ready(self.pod(name)) and not self._was_evicted(name)]
        return f"not Ready: {', '.join(f'{name} ({_state(self.pod(name))})' for name in bad)}" if bad else None

    def unphased(self, name: str, phase: str) -> str | None:
        found = (self.pod(name) or {}).get("status", {}).get("phase", "absent")
        return None if found == phase or self._was_evicted(name) else f"phase {found}, not {phase}"

    def _was_evicted(self, name: str) -> bool:
        """Whether the control plane itself has ended the pod, and nobody has created it again."""
        return name in self._evicted and self.pod(name) is None

    def existing(self, names: Sequence[str]) -> str | None:
        found = [name for name in names if self.pod(name) is not None]
        return f"still exist: {', '.join(found)}" if found else None

    def unready_nodes(self, number: int) -> str | None:
        """Returns which nodes are not as new pods need them; `number` of them should exist."""
        nodes = self.nodes()
        bad = [node["metadata"]["name"] for node in nodes if not is_ready(node) or is_closed(node)]
        return f"{len(nodes)} nodes, not Ready or closed: {bad}" if bad or len(nodes) != number else None

    # --- controllers ---

    def schedule(self) -> bool:
        """Binds pods to nodes that are ready, tolerated and selected."""
        waiting = [pod for pod in self.pods() if not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")]
        for pod in waiting:
            fitting = [node for node in self.nodes() if is_ready(node) and tolerates(pod, node) and selects(pod, node)]
            if fitting:
                name = self.world.rng.choice(fitting)["metadata"]["name"]
                self.attempt("scheduler", "POST", f"{path_of(pod)}/binding", {"target": {"kind": "Node", "name": name}})
        return False

    def reconcile_sets(self) -> bool:
        """The StatefulSet controller: an ordinal is created again once its pod is removed."""
        user = "statefulset-controller"
        for name, wanted in self.sets.items():
            for ordinal in range(wanted["replicas"]):
                found = self.pod(f"{name}-{ordinal}")
                if found is None:
                    body = pod_body(f"{name}-{ordinal}", annotations=wanted["annotations"], **wanted["spec"])
                    self.attempt(user, "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
                elif found["status"].get("phase") in ("Failed", "Succeeded") and not found["metadata"].get("deletionTimestamp"):
                    self.attempt(user, "DELETE", path_of(found), {})
            for pod in [pod for pod in self.pods() if _ordinal(pod, name) >= wanted["replicas"]]:
                if not pod["metadata"].get("deletionTimestamp"):
                    self.attempt(user, "DELETE", path_of(pod), {})
        return False

    def judge_nodes(self) -> bool:
        """The node lifecycle controller: heartbeats and Leases, taints, eviction (`updateNodeHealth`)."""
        now = self.world.loop.time()
        for node in self.nodes():
            name = node["metadata"]["name"]
            lease = self.model.get("coordination.k8s.io", "v1", "leases", "kube-node-lease", name)
            renewed = (lease or {}).get("spec", {}).get("renewTime", "")
            # A heartbeat counts with another time than the last one, a renewal with a later one than the last since then.
            beat, last, observed = self._beats.get(name, ("", "", now))
            if (heartbeat := condition(node, "Ready").get("lastHeartbeatTime") or "") != beat:
                beat, last, observed = heartbeat, "", now
            elif last < renewed:
                last, observed = renewed, now
            self._beats[name] = beat, last, observed
            if node is self._sound.get(name) and now - observed <= _GRACE:
                continue
            if now - observed > _GRACE and condition(node, "Ready").get("status") != "Unknown":
                stale = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": self._now()}
                self.merge(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [stale]}}, user="node-controller", strategic=True)
            self._taint(name)
            self._evict(name)
            unchanged = self.model.get("", "v1", "nodes", "", name) is node
            self._sound[name] = node if unchanged and is_ready(node) else None
        return True

    def _taint(self, name: str) -> None:
        node = self.model.get("", "v1", "nodes", "", name)
        if node is None:
            return
        wanted = {"True": "", "Unknown": _UNREACHABLE}.get(condition(node, "Ready").get("status") or "", _NOT_READY)
        taints = node["spec"].get("taints") or []
        kept = [each for each in taints if each["key"] not in (_UNREACHABLE, _NOT_READY)]
        if wanted:
            kept += [{"key": wanted, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        if {(each["key"], each["effect"]) for each in kept} != {(each["key"], each["effect"]) for each in taints}:
            version = node["metadata"]["resourceVersion"]
            self.merge(
                f"/api/v1/nodes/{name}", {"metadata": {"resourceVersion": version}, "spec": {"taints": kept}}, user="node-controller"
            )

    def _evict(self, name: str) -> None:
        node, now = self.model.get("", "v1", "nodes", "", name), self.world.loop.time()
        if is_ready(node):
            self._unready.pop(name, None)
        elif now - self._unready.setdefault(name, now) > _EVICTED_AFTER:
            for pod in self.pods():
                if pod["spec"].get("nodeName") == name and not pod["metadata"].get("deletionTimestamp"):
                    self._evicted.add(pod["metadata"]["name"])
                    self.attempt("node-controller", "DELETE", path_of(pod), {})

    def collect_pods(self) -> bool:
        """The pod garbage collector: pods of nodes that no longer exist."""
        nodes = {node["metadata"]["name"] for node in self.nodes()}
        now = self.world.loop.time()
        for pod in self.pods():
            node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
            if not node or node in nodes:
                self._nodeless.pop(uid, None)
            elif now - self._nodeless.setdefault(uid, now) > _ORPHANED_AFTER:
                self._evicted.add(pod["metadata"]["name"])
                self.attempt("pod-garbage-collector", "DELETE", path_of(pod), {"gracePeriodSeconds": 0})
        return bool(self._nodeless)

    def _now(self) -> str:
        return rfc3339(self.world.now())


def path_of(pod: Body) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def condition(body: Body, kind: str) -> Body:
    """Returns a condition, empty when there is none."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), {})


def is_ready(body: Body | None) -> bool:
    return body is not None and condition(body, "Ready").get("status") == "True" and not body["metadata"].get("deletionTimestamp")


def tolerates(pod: Body, node: Body) -> bool:
    """Checks that each taint that keeps pods away is tolerated."""
    tolerated = pod["spec"].get("tolerations") or ()

    def bears(taint: Body) -> bool:
        return any(
            each.get("key", taint["key"]) == taint["key"]
            and each.get("effect", taint["effect"]) == taint["effect"]
            and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
            for each in tolerated
        )

    return all(bears(taint) for taint in node["spec"].get("taints") or () if taint["effect"] != "PreferNoSchedule")


def selects(pod: Body, node: Body) -> bool:
    """Checks the pod's nodeSelector, and the names that its node affinity requires."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    names = [set(field["values"]) for term in terms for field in term.get("matchFields") or ()]
    return all(node["metadata"]["name"] in each for each in names)


def is_closed(node: Body) -> bool:
    return any(each["key"] in _CLOSED for each in node["spec"].get("taints") or ())


def _ordinal(pod: Body, name: str) -> int:
    head, _, tail = pod["metadata"]["name"].rpartition("-")
    return int(tail) if head == name and tail.isdigit() else -1


def _state(pod: Body | None) -> str:
    if pod is None:
        return "absent"
    status = pod.get("status", {})
    terminating = ", terminating" if pod["metadata"].get("deletionTimestamp") else ""
    return f"{status.get('phase')} {condition(pod, 'Ready').get('reason', '')}{terminating} on {pod['spec'].get('nodeName', 'no node')}"
