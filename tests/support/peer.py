"""An independent hub that our agent joins: it does by the `kubernetes` package what a hub of Open Cluster Management does.

Invariant: it is written from the public API alone, and imports nothing of `fleet`: our two halves are not the only witnesses of each other.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from kubernetes import client as k8s

from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane

Body = dict[str, Any]

GROUP = "cluster.open-cluster-management.io"
CLUSTERS = f"/apis/{GROUP}/v1/managedclusters"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
MEMBERS = "/apis/cluster.kubernetes-fleet.io/v1beta1"
LABEL = "open-cluster-management.io/cluster-name"
BOOTSTRAP = "open-cluster-management"
ACCOUNT = "agent-registration-bootstrap"
READ = ("get", "list", "watch")
_RBAC = "rbac.authorization.k8s.io"
_MERGE = "application/merge-patch+json"


def rule(group: str, resources: Sequence[str] | str, verbs: Sequence[str], *names: str) -> Body:
    listed = [resources] if isinstance(resources, str) else list(resources)
    return {"apiGroups": [group], "resources": listed, "verbs": list(verbs), **({"resourceNames": list(names)} if names else {})}


class PeerHub:
    """Plays the hub on a real API server, one step per call, so that a test chooses their order."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster = cluster
        self._api = api_client(cluster.kubeconfig)

    def close(self) -> None:
        self._api.close()

    # --- Any object --------------------------------------------------------------------------------------------------------------------

    def send(self, method: str, path: str, body: Any = None) -> Body | None:
        """One call; None for 404. Raises AssertionError with what the server answered."""
        pool, host = self._api.rest_client.pool_manager, self._api.configuration.host
        kind = _MERGE if method == "PATCH" else "application/json"
        answer = pool.request(method, host + path, body=None if body is None else json.dumps(body), headers={"Content-Type": kind})
        if answer.status == 404:
            return None
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.data.decode()}"
        found: Body = json.loads(answer.data)
        return found

    def put(self, path: str, body: Body) -> Body:
        """Create an object, or give one of its name these values; `path` is that of its collection."""
        own = f"{path}/{body['metadata']['name']}"
        made = self.send("PATCH", own, body) or self.send("POST", path, body)
        assert made is not None, path
        return made

    # --- Before any cluster ------------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """The identity by which clusters ask to join."""
        self._namespace(BOOTSTRAP)
        if self.send("GET", f"/api/v1/namespaces/{BOOTSTRAP}/serviceaccounts/{ACCOUNT}") is None:
            self.send("POST", f"/api/v1/namespaces/{BOOTSTRAP}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
        rules = [
            rule("certificates.k8s.io", "certificatesigningrequests", ("create", *READ)),
            rule(GROUP, "managedclusters", ("create", "get")),
        ]
        self._role("peer-bootstrap", rules, [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": BOOTSTRAP}])

    def token(self, seconds: int = 3600) -> str:
        made = k8s.CoreV1Api(self._api).create_namespaced_service_account_token(
            ACCOUNT, BOOTSTRAP, {"spec": {"expirationSeconds": seconds}}
        )
        return str(made.status.token)

    def bootstrap(self, token: str = "", *, server: str = "", authority: bytes = b"") -> str:
        """The kubeconfig for the Secret of a worker."""
        ca = base64.b64encode(authority or self.cluster.ca.read_bytes()).decode()
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "hub",
            "clusters": [{"name": "hub", "cluster": {"server": server or self.cluster.url, "certificate-authority-data": ca}}],
            "users": [{"name": "bootstrap", "user": {"token": token or self.token()}}],
            "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "bootstrap"}}],
        }
        return str(yaml.safe_dump(body))

    # --- One cluster -------------------------------------------------------------------------------------------------------------------

    def record(self, name: str) -> Body | None:
        return self.send("GET", f"{CLUSTERS}/{name}")

    def status(self, name: str) -> Body:
        return (self.record(name) or {}).get("status") or {}

    def conditions(self, name: str) -> dict[str, tuple[str, str]]:
        """Status and reason by type."""
        return {each["type"]: (each["status"], each["reason"]) for each in self.status(name).get("conditions") or ()}

    def lease(self, name: str) -> Body:
        found = self.send("GET", f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases/managed-cluster-lease")
        return (found or {}).get("spec") or {}

    def requests(self, name: str) -> list[Body]:
        """The requests of a cluster, the oldest first."""
        found = self.send("GET", f"{REQUESTS}?labelSelector={LABEL}={name}") or {"items": []}
        return sorted(found["items"], key=lambda each: str(each["metadata"]["creationTimestamp"]))

    def pending(self, name: str) -> list[Body]:
        return [each for each in self.requests(name) if not each["status"].get("conditions")]

    def decide(self, name: str, type_: str = "Approved", message: str = "by the peer") -> list[Body]:
        """Approve, or deny, what is pending of a cluster; returns these requests."""
        found = self.pending(name)
        for each in found:
            each["status"]["conditions"] = [{"type": type_, "status": "True", "reason": "Peer", "message": message}]
            self.send("PUT", f"{REQUESTS}/{each['metadata']['name']}/approval", each)
        return found

    def accept(self, name: str, *, seconds: int = 60, rights: bool = True) -> None:
        """Consent: spec, then namespace, rights and Lease, then the condition."""
        self.send("PATCH", f"{CLUSTERS}/{name}", {"spec": {"hubAcceptsClient": True, "leaseDurationSeconds": seconds}})
        self._namespace(name, {LABEL: name})
        if rights:
            self.grant(name)
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases"
        if not self.lease(name):
            self.send("POST", leases, {"metadata": {"name": "managed-cluster-lease"}, "spec": {"leaseDurationSeconds": seconds}})
        self.set_condition(name, "HubAcceptedManagedCluster", "True", "HubClusterAdminAccepted")

    def deny(self, name: str) -> None:
        self.send("PATCH", f"{CLUSTERS}/{name}", {"spec": {"hubAcceptsClient": False}})
        self.let_read(name)
        self.send("DELETE", f"/apis/{_RBAC}/v1/namespaces/{name}/rolebindings/peer-registration")
        self.set_condition(name, "HubAcceptedManagedCluster", "False", "HubClusterAdminDenied")

    def let_read(self, name: str) -> None:
        """What a certificate may do before the cluster is accepted."""
        self._role(f"peer-{name}", [rule(GROUP, "managedclusters", READ, name)], self._subjects(name))

    def grant(self, name: str) -> None:
        rules = [
            rule("certificates.k8s.io", "certificatesigningrequests", ("create", *READ)),
            rule(GROUP, "managedclusters", (*READ, "update"), name),
            rule(GROUP, "managedclusters/status", ("patch", "update"), name),
        ]
        self._role(f"peer-{name}", rules, self._subjects(name))
        registration = [
            rule("coordination.k8s.io", "leases", (*READ, "update")),
            rule("events.k8s.io", "events", ("create",)),
        ]
        self._role("peer-registration", registration, self._subjects(name), namespace=name)

    def set_condition(self, name: str, type_: str, status: str, reason: str) -> None:
        kept = [each for each in self.status(name).get("conditions") or () if each["type"] != type_]
        new = {"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        self.send("PATCH", f"{CLUSTERS}/{name}/status", {"status": {"conditions": [*kept, new]}})

    def remove(self, name: str) -> None:
        """Everything of a cluster but its namespaces."""
        for path in (
            f"{CLUSTERS}/{name}",
            *(f"{REQUESTS}/{each['metadata']['name']}" for each in self.requests(name)),
            *(f"/apis/{_RBAC}/v1/{plural}/peer-{name}" for plural in ("clusterroles", "clusterrolebindings")),
        ):
            self.send("DELETE", path)

    # --- A member of KubeFleet's API ---------------------------------------------------------------------------------------------------

    def admit(self, name: str, subject: Body, *, state: str = "Join", period: int = 1) -> None:
        """Namespace, rights of the member, and the record by which it knows that it joins."""
        space = f"fleet-member-{name}"
        self._namespace(space, {"kubernetes-fleet.io/is-fleet-resource": "true"})
        groups = ("cluster.kubernetes-fleet.io", "placement.kubernetes-fleet.io")
        rules = [*(rule(group, "*", ("*",)) for group in groups), *(rule(group, "events", ("*",)) for group in ("", "events.k8s.io"))]
        self._role(f"fleet-role-{name}", rules, [subject], namespace=space)
        path = f"{MEMBERS}/namespaces/{space}/internalmemberclusters"
        spec = {"state": state, "heartbeatPeriodSeconds": period}
        kind = {"apiVersion": "cluster.kubernetes-fleet.io/v1beta1", "kind": "InternalMemberCluster"}
        self.put(path, {**kind, "metadata": {"name": name, "namespace": space}, "spec": spec})

    def member(self, name: str) -> Body:
        return self.send("GET", f"{MEMBERS}/namespaces/fleet-member-{name}/internalmemberclusters/{name}") or {}

    def member_agent(self, name: str) -> Body:
        """What the agent of a member reported: the last heartbeat, and status and reason by the type of the condition."""
        entries = (self.member(name).get("status") or {}).get("agentStatus") or ()
        entry = next((each for each in entries if each["type"] == "MemberAgent"), {})
        conditions = {each["type"]: (each["status"], each["reason"]) for each in entry.get("conditions") or ()}
        return {"heartbeat": entry.get("lastReceivedHeartbeat", ""), **conditions}

    def annotate_member(self, name: str, value: str) -> None:
        """A change that is none to its agent."""
        path = f"{MEMBERS}/namespaces/fleet-member-{name}/internalmemberclusters/{name}"
        self.send("PATCH", path, {"metadata": {"annotations": {"note": value}}})

    def let_leave(self, name: str) -> None:
        path = f"{MEMBERS}/namespaces/fleet-member-{name}/internalmemberclusters/{name}"
        self.send("PATCH", path, {"spec": {"state": "Leave"}})

    def account(self, name: str, seconds: int = 3600) -> tuple[Body, str]:
        """A ServiceAccount of the hub as subject, and a token of it."""
        path = f"/api/v1/namespaces/{BOOTSTRAP}/serviceaccounts"
        if self.send("GET", f"{path}/{name}") is None:
            self.send("POST", path, {"metadata": {"name": name}})
        made = k8s.CoreV1Api(self._api).create_namespaced_service_account_token(name, BOOTSTRAP, {"spec": {"expirationSeconds": seconds}})
        return {"kind": "ServiceAccount", "name": name, "namespace": BOOTSTRAP}, str(made.status.token)

    # --- Inside ------------------------------------------------------------------------------------------------------------------------

    def _namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        if self.send("GET", f"/api/v1/namespaces/{name}") is None:
            self.send("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})

    def _subjects(self, name: str) -> list[Body]:
        groups = (f"system:open-cluster-management:{name}", f"open-cluster-management:{name}")
        return [{"apiGroup": _RBAC, "kind": "Group", "name": each} for each in groups]

    def _role(self, name: str, rules: list[Body], subjects: list[Body], *, namespace: str = "") -> None:
        kind, prefix = ("Role", f"/namespaces/{namespace}") if namespace else ("ClusterRole", "")
        plurals = ("roles", "rolebindings") if namespace else ("clusterroles", "clusterrolebindings")
        reference = {"apiGroup": _RBAC, "kind": kind, "name": name}
        for plural, body in zip(plurals, ({"rules": rules}, {"roleRef": reference, "subjects": subjects}), strict=True):
            self.put(f"/apis/{_RBAC}/v1{prefix}/{plural}", {"metadata": {"name": name}, **body})
