"""Further scenarios of a binding: what the owner of a worker does, budgets that refuse evictions, and a second outage.

Invariant: each scenario states by itself what must hold, so that it fails without any fault when its rule is broken.
"""

from __future__ import annotations

from typing import Any, ClassVar

from kubeocean.model import keys
from tests.faults.model import controllers
from tests.faults.model.kinds import Kind
from tests.faults.simulation import schedule
from tests.faults.simulation.actors import NAMESPACE, condition, pod_body
from tests.faults.simulation.kubelet import STOP_DELAY
from tests.faults.simulation.kubeocean_world import MOUNT, POLICIES_PATH, THEIRS, VIRTUAL_NODES, KubeoceanWorld
from vkubelet.clock import parse_rfc3339

Body = dict[str, Any]
_VOLUME: Body = {"name": "settings", "configMap": {"name": "settings"}}
_GUARDED = {"labels": {"guarded": "yes"}}
_CLOSES = 120.0
"""Second at which the window of the policy closes."""
_GRACE = 40.0
_ENDED: Body = {"timeWindows": [{"start": "08:00", "end": "08:01"}], "forceReclaim": True, "gracefulReclaimPeriodSeconds": int(_GRACE)}
_OPEN: Body = {**_ENDED, "timeWindows": [{"start": "00:00", "end": "20:00"}]}
_GIVEN_UP = 60
_RENEWED = 550.0


class OwnersWorld(KubeoceanWorld):
    """All scenarios of one binding."""

    scenarios: ClassVar = {
        **KubeoceanWorld.scenarios,
        "copies": "copies",
        "guarded": "guarded",
        "reopened": "reopened",
        "closed": "closes",
        "withdrawn": "withdrawn",
        "outages": "outages",
        "shared": "shared",
        "tenants-created": "created",
        "tokens": "tokens",
    }

    async def copies(self) -> None:
        """The owner of the worker deletes a copy; then a pod with a long grace period is deleted."""
        hub = self.hub
        await self.pause(5.0)
        self.configure("one")
        hub.stateful("web", replicas=1, volumes=[_VOLUME])
        hub.create_pod(pod_body("slow", annotations={STOP_DELAY: "25"}, terminationGracePeriodSeconds=300))
        await self.pause(10.0)
        for body in self.worker.model.objects("", "v1", "configmaps", MOUNT):
            if (body["metadata"].get("annotations") or {}).get(keys.VIRTUAL_NAME) == "settings":
                self.worker.attempt("owner", "DELETE", f"/api/v1/namespaces/{MOUNT}/configmaps/{body['metadata']['name']}")
        await self.pause(5.0)
        hub.delete_pod("slow")
        self.wish("StatefulSet web", lambda: hub.unready(["web-0"]))
        self.wish("copy of a ConfigMap", lambda: self.configured("one"))
        self.wish("deleted pod", lambda: hub.existing(["slow"]))
        self._always()

    async def guarded(self) -> None:
        """A window closes, a budget refuses the evictions, and the process is started again: pods leave when the grace period is over."""
        self.history.may_end |= {"web-0"}
        await self._closing()
        await self._started_again("closed window")
        self.policy("all", _OPEN)
        self.wish("StatefulSet web", lambda: self.hub.unready(["web-0"]))
        self._always()

    async def reopened(self) -> None:
        """A window closes, a budget refuses the evictions, and the window opens again before the grace period is over: pods stay."""
        await self._closing()
        await self.pause(20.0)
        self.policy("all", _OPEN)
        if not self.branch.common(lambda schedule: schedule.is_brief):
            # An outage or a restart may delay what the process learns by as much.
            self.history.may_end |= {"web-0"}
        await self.pause(_GRACE)
        self.wish("StatefulSet web", lambda: self.hub.unready(["web-0"]))
        self._always()

    async def closes(self) -> None:
        """A window closes, and stays closed: no pod is left on the nodes, and none fits."""
        self.history.may_end |= {"web-0", "web-1"}
        self.policy("all", {**_ENDED, "gracefulReclaimPeriodSeconds": 20})
        await self.pause(5.0)
        self.hub.stateful("web", replicas=2)
        await self.pause(_CLOSES + 40.0 - self.loop.time())
        self.wish("closed window", self._is_open)
        self.wish("physical pods", self._matched)

    async def withdrawn(self) -> None:
        """The policy is deleted, a budget refuses evictions, the process is started again: the grace period counts from the deletion."""
        self.history.may_end |= {"web-0"}
        self.history.may_be_unready |= VIRTUAL_NODES
        await self._protected(_OPEN)
        path = f"{POLICIES_PATH}/all"
        self.worker.attempt("owner", "DELETE", path)
        await self._started_again("deleted policy")
        await self.worker.removed(path)
        self.policy("all", _OPEN)
        self.wish("StatefulSet web", lambda: self.hub.unready(["web-0"]))
        self._always()

    async def _started_again(self, cause: str) -> None:
        """Starts the process again within the grace period; when that is over, no pod may be left for this cause."""
        await self.pause(25.0)
        for process in list(self.running.values()):
            self.crash(process, 2.0)
        await self.pause(_GRACE - 10.0)
        self.expect(cause, self._is_open)

    async def _closing(self) -> None:
        """Closes the window of a node with a pod that a budget protects."""
        await self._protected(_ENDED)
        await self.pause(_CLOSES - self.loop.time())

    async def _protected(self, policy: Body) -> None:
        """Leases the nodes by this policy, and starts a pod that a budget protects."""
        self.policy("all", policy)
        path = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
        spec = {"maxUnavailable": 0, "selector": {"matchLabels": _GUARDED["labels"]}}
        self.hub.model.call("POST", path, {"metadata": {"name": "guarded"}, "spec": spec}, user="person")
        status = {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
        self.hub.merge(f"{path}/guarded/status", {"status": status}, user="disruption-controller")
        await self.pause(5.0)
        self.hub.stateful("web", replicas=1)
        await self.pause(5.0)
        self.hub.label_pod("web-0", "guarded", "yes")
        await self.pause(5.0)

    async def outages(self) -> None:
        """The worker is silent until pods are given up, answers, and is silent again for less than that: the nodes stay Ready."""
        hub = self.hub
        self.bind(onUnreachable={"mode": "FailOver", "afterSeconds": _GIVEN_UP})
        self.history.may_end |= {"web-0"}
        self.history.may_be_unready |= VIRTUAL_NODES
        await self.pause(5.0)
        hub.stateful("web", replicas=1)
        await self.pause(10.0)
        self.network.begin(schedule.Fault(schedule.Kind.CUT, 0, _GIVEN_UP + 60.0, "worker"))
        await self.pause(_GIVEN_UP + 60.0)
        await self.pause(60.0)
        self.wish("StatefulSet web", lambda: hub.unready(["web-0"]))
        self._always()
        self.expect("nodes after the first outage", lambda: hub.unready_nodes(2))
        self.network.begin(schedule.Fault(schedule.Kind.CUT, 0, _GIVEN_UP - 5.0, "worker"))
        await self.pause(_GIVEN_UP - 8.0)
        self.expect("nodes in the second outage", self._given_up)

    def _given_up(self) -> str | None:
        """Returns which nodes are Unknown."""
        bad = [node["metadata"]["name"] for node in self.hub.nodes() if condition(node, "Ready").get("status") != "True"]
        return f"not Ready: {bad}" if bad else None

    async def shared(self) -> None:
        """A binding is deleted whose mount namespace contains objects of others with the label of leased objects."""
        self.history.may_be_unready |= VIRTUAL_NODES
        places = (f"/api/v1/namespaces/{MOUNT}/configmaps", f"/api/v1/namespaces/{MOUNT}/secrets", "/api/v1/persistentvolumes")
        for path in places:
            self.worker.model.call("POST", path, _of_others(path), user="owner")
        await self.unbind()
        self.wishes = [each for each in self.wishes if each[0] != "worker"]
        self.wish("worker", lambda: self._marked_besides(THEIRS))

    async def tokens(self) -> None:
        """Pods have a token for ten minutes and a Secret: the token is renewed, the Secret is changed, and one pod is deleted."""
        token: Body = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
        volumes = [{"name": "own", "projected": {"sources": [token, {"secret": {"name": "password"}}]}}]
        await self.pause(5.0)
        self._set_password("b25l")
        self.hub.stateful("web", replicas=1, volumes=volumes)
        self.hub.create_pod(pod_body("short", volumes=volumes))
        await self.pause(20.0)
        self._set_password("dHdv")
        self.hub.delete_pod("short")
        # Tokens are renewed when at most a tenth of their time is left.
        await self.pause(_RENEWED)
        self.wish("StatefulSet web", lambda: self.hub.unready(["web-0"]))
        self.wish("deleted pod", lambda: self.hub.existing(["short"]))
        self.wish("Secrets", self._secrets)
        self._always()

    def _set_password(self, value: str) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/password"
        self.hub.model.apply(path, {"metadata": {"name": "password"}, "data": {"value": value}}, user="person")

    def _secrets(self) -> str | None:
        """Returns what is wrong with the Secrets in the worker: one with a valid token, and the copy."""
        tokens, values = [], []
        for body in self.worker.model.objects("", "v1", "secrets", MOUNT):
            if keys.TOKEN_SECRET in body["metadata"]["labels"]:
                tokens.append(body["metadata"]["annotations"][keys.TOKEN_EXPIRY])
            else:
                values.append(body["data"]["value"])
        valid = [expiry for expiry in tokens if parse_rfc3339(expiry) > self.loop.wall()]
        return None if len(valid) == len(tokens) == 1 and values == ["dHdv"] else f"tokens until {tokens}, copies {values}"

    async def created(self) -> None:
        """The namespace of a tenant is created within the worker's admission policies; its owner deletes it, and it is created again."""
        self.history.may_end |= {"web-0"}
        model = self.worker.model
        model.guard(self._refusal)
        model.allow(self._may)
        self.every(1.0, self.worker.name, lambda: controllers.empty_namespaces(model) > 0)
        await self.pause(5.0)
        self.hub.stateful("web", replicas=1)
        await self.pause(15.0)
        self.worker.attempt("owner", "DELETE", f"/api/v1/namespaces/{self.space}")
        await self.pause(15.0)
        self.wish("StatefulSet web", lambda: self.hub.unready(["web-0"]))
        self.wish("isolation", self.decreed)
        self.wish("rights", lambda: None if self._has_rights() else f"no RoleBinding in {self.space}")
        self._always()

    def _refusal(self, user: str, kind: Kind, namespace: str, obj: Body) -> str:
        """Refuses what the admission policies of the chart do: namespaces without the prefix, and RoleBindings in other namespaces."""
        outside = not (namespace or obj["metadata"]["name"]).startswith(f"{MOUNT}-")
        return "outside the prefix" if user in self.history.ours and kind.kind in ("Namespace", "RoleBinding") and outside else ""

    def _may(self, user: str, review: Body) -> bool:
        asked = review.get("resourceAttributes") or {}
        return (asked.get("resource"), asked.get("namespace")) != ("pods", self.space) or self._has_rights()

    def _has_rights(self) -> bool:
        return bool(self.worker.model.objects("rbac.authorization.k8s.io", "v1", "rolebindings", self.space))

    def _marked_besides(self, name: str) -> str | None:
        found = self._marked(self.worker)
        left = [each for each in (found or "").removeprefix("left: ").split(", ") if each and not each.endswith(name)]
        return f"left: {', '.join(left)}" if left else None


def _of_others(path: str) -> Body:
    """Returns an object of a binding of another hub."""
    another = keys.Owner("another-hub", "another")
    body: Body = {"metadata": {"name": THEIRS, "labels": {**another.labels}, "annotations": {**another.annotations}}}
    if path.endswith("volumes"):
        body["spec"] = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    return body
