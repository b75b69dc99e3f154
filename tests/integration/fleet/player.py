"""An administrator of the hub and the agent of a worker, both played by the `kubernetes` package.

Invariant: nothing of the product decides here what is sent; an agent has no rights but those of its certificate.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from attrs import field, frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kubernetes import client as k8s

from tests.support.program import LONG, eventually
from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane

Body = dict[str, Any]

CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
SETS = "/apis/cluster.open-cluster-management.io/v1beta2/managedclustersets"
MEMBERS = "/apis/cluster.kubernetes-fleet.io/v1beta1/memberclusters"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
USAGES = ("digital signature", "key encipherment", "client auth")
SIGNER = "kubernetes.io/kube-apiserver-client"


def works(cluster: str, name: str = "") -> str:
    return f"/apis/work.open-cluster-management.io/v1/namespaces/{cluster}/manifestworks" + (f"/{name}" if name else "")


def addons(cluster: str, name: str = "") -> str:
    return f"/apis/addon.open-cluster-management.io/v1alpha1/namespaces/{cluster}/managedclusteraddons" + (f"/{name}" if name else "")


def lease(cluster: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{cluster}/leases/managed-cluster-lease"


def internal(cluster: str) -> str:
    base = "/apis/cluster.kubernetes-fleet.io/v1beta1"
    return f"{base}/namespaces/fleet-member-{cluster}/internalmemberclusters/{cluster}"


def profile(namespace: str, name: str = "") -> str:
    return f"/apis/multicluster.x-k8s.io/v1alpha1/namespaces/{namespace}/clusterprofiles" + (f"/{name}" if name else "")


def rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def conditions(obj: Body | None) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition."""
    listed = ((obj or {}).get("status") or {}).get("conditions") or ()
    return {each["type"]: (each["status"], each["reason"]) for each in listed}


def taints(obj: Body) -> list[tuple[str, str]]:
    return [(each["key"], each["effect"]) for each in obj["spec"].get("taints") or ()]


class Caller:
    """Requests as one identity. Raises k8s.ApiException, except that a missing object is None."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = api_client(kubeconfig)

    async def get(self, path: str) -> Body | None:
        try:
            return await self.call("GET", path)
        except k8s.ApiException as error:
            if error.status == 404:
                return None
            raise

    async def items(self, path: str) -> list[Body]:
        return list((await self.call("GET", path))["items"])

    async def create(self, path: str, body: Mapping[str, Any]) -> Body:
        return await self.call("POST", path, body)

    async def merge(self, path: str, change: Mapping[str, Any]) -> Body:
        return await self.call("PATCH", path, change, content="application/merge-patch+json")

    async def replace(self, path: str, body: Mapping[str, Any]) -> Body:
        return await self.call("PUT", path, body)

    async def change(self, path: str, edit: Callable[[Body], Any], *, part: str = "") -> None:
        """Writes an object, or its `part` as in "/status", as `edit` left it; again when another wrote it meanwhile."""
        while True:
            edit(found := await self.call("GET", path))
            if (status := await self.status_of("PUT", path + part, found)) != 409:
                assert status == 200, (path + part, status)
                return

    async def delete(self, path: str) -> None:
        try:
            await self.call("DELETE", path, {})
        except k8s.ApiException as error:
            if error.status != 404:
                raise

    async def status_of(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> int:
        """The HTTP status of a request."""
        try:
            await self.call(method, path, body, content="application/merge-patch+json" if method == "PATCH" else "application/json")
        except k8s.ApiException as error:
            return int(error.status or 0)
        return 200

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content: str = "application/json") -> Body:
        return await asyncio.to_thread(self._call, method, path, body, content)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None, content: str) -> Body:
        # An API server takes the options of a DELETE from its body, and then ignores those of the query: it would not be a dry run.
        assert body is None or method != "DELETE" or "?" not in path, path
        tokens = {each["key"]: each["value"] for each in self._api.configuration.auth_settings().values()}
        headers = {"Accept": "application/json", "Content-Type": content, **tokens}
        answer: Any = self._api.call_api(method, f"{self._api.configuration.host}{path}", header_params=headers, body=body)
        text = answer.read().decode(errors="replace")
        if answer.status >= 300:
            raise k8s.ApiException(status=answer.status, reason=f"{method} {path}: {text}")
        found: Body = json.loads(text)
        return found


def request_body(cluster: str, key: bytes, **changes: Any) -> Body:
    """The CertificateSigningRequest of an agent; `changes` of name, groups, label, signer, usages, names make it another one."""
    groups = changes.get("groups", (f"system:open-cluster-management:{cluster}",))
    user = changes.get("user", f"system:open-cluster-management:{cluster}:agent")
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in groups]
    attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    if "names" in changes:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in changes["names"]]), critical=False)
    private = serialization.load_pem_private_key(key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    encoded = builder.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {
            "generateName": f"{cluster}-",
            "labels": {"open-cluster-management.io/cluster-name": changes.get("label", cluster)},
        },
        "spec": {
            "request": base64.b64encode(encoded).decode(),
            "signerName": changes.get("signer", SIGNER),
            "usages": list(changes.get("usages", USAGES)),
        },
    }


def new_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@frozen
class Agent:
    """The agent of one cluster with its certificate."""

    cluster: str
    own: Caller
    key: bytes = field(factory=new_key, repr=False)

    @classmethod
    def of(cls, cluster: str, kubeconfig: Path, certificate: bytes, key: bytes) -> Agent:
        """The agent that uses this certificate; `kubeconfig` shows where the hub is."""
        config = yaml.safe_load(kubeconfig.read_text())
        pair = {"client-certificate-data": certificate, "client-key-data": key}
        config["users"][0]["user"] = {name: base64.b64encode(value).decode() for name, value in pair.items()}
        path = kubeconfig.with_name(f"issued-{cluster}-{datetime.now(UTC).timestamp():f}.kubeconfig")
        path.write_text(yaml.safe_dump(config))
        return cls(cluster, Caller(path), key)

    async def renew(self, *, ahead: timedelta = timedelta()) -> None:
        """Renews the Lease, by a clock that is `ahead`."""

        def renew(found: Body) -> None:
            found["spec"] |= {"renewTime": rfc3339(datetime.now(UTC) + ahead), "holderIdentity": self.cluster}

        await self.own.change(lease(self.cluster), renew)

    async def report(self, *conditions: tuple[str, str, str], **status: Any) -> None:
        """Sets conditions of the own record."""

        async def once() -> bool:
            found = await self.own.call("GET", f"{CLUSTERS}/{self.cluster}")
            listed = {each["type"]: each for each in found.get("status", {}).get("conditions") or ()}
            for type_, value, reason in conditions:
                now = rfc3339(datetime.now(UTC))[:19] + "Z"
                listed[type_] = {"type": type_, "status": value, "reason": reason, "message": "", "lastTransitionTime": now}
            found["status"] = {**found.get("status", {}), "conditions": list(listed.values()), **status}
            return await self.own.status_of("PUT", f"{CLUSTERS}/{self.cluster}/status", found) == 200

        await eventually(once, f"status of {self.cluster} is written")

    async def report_joined(self) -> None:
        joined = ("ManagedClusterJoined", "True", "ManagedClusterJoined")
        await self.report(joined, ("ManagedClusterConditionAvailable", "True", "ManagedClusterAvailable"))


async def request_certificate(caller: Caller, cluster: str, key: bytes, **changes: Any) -> str:
    """Posts a request; its name."""
    return str((await caller.create(CSRS, request_body(cluster, key, **changes)))["metadata"]["name"])


async def approve(admin: Caller, name: str) -> None:
    approved = {"conditions": [{"type": "Approved", "status": "True", "reason": "Person", "message": ""}]}
    await admin.change(f"{CSRS}/{name}", lambda found: found.update(status=approved), part="/approval")


async def issued(admin: Caller, name: str) -> bytes:
    """Waits for the certificate."""

    async def certificate() -> str:
        return str((await admin.call("GET", f"{CSRS}/{name}")).get("status", {}).get("certificate", ""))

    return base64.b64decode(await eventually(certificate, f"a certificate for {name}"))


# --- A cluster that joins -----------------------------------------------------------------------------------------------------------------

ACCEPTED = ("True", "HubClusterAdminAccepted")


async def record(bootstrap: Caller, name: str, *, seconds: int = 60) -> None:
    """What an agent does first."""
    await bootstrap.create(
        CLUSTERS,
        {
            "apiVersion": "cluster.open-cluster-management.io/v1",
            "kind": "ManagedCluster",
            "metadata": {"name": name},
            "spec": {"leaseDurationSeconds": seconds},
        },
    )


async def certified(prepared: ControlPlane, bootstrap: Caller, admin: Caller, name: str) -> Agent:
    """The agent of a recorded cluster whose request a person has approved."""
    key = new_key()
    request = await request_certificate(bootstrap, name, key)
    await approve(admin, request)
    return Agent.of(name, prepared.kubeconfig, await issued(admin, request), key)


async def accept(admin: Caller, name: str, *, accepts: bool = True) -> None:
    await admin.merge(f"{CLUSTERS}/{name}", {"spec": {"hubAcceptsClient": accepts}})


async def has_condition(admin: Caller, name: str, type_: str, wanted: tuple[str, str]) -> None:
    """Waits for a condition of a ManagedCluster."""
    await reaches(admin, f"{CLUSTERS}/{name}", type_, wanted)


async def reaches(admin: Caller, path: str, type_: str, wanted: tuple[str, str]) -> None:
    """Waits for status and reason of a condition."""

    async def check() -> bool:
        return conditions(await admin.get(path)).get(type_) == wanted

    await eventually(check, f"{type_} of {path} is {wanted}")


async def answers(agent: Agent, method: str, path: str, status: int) -> None:
    """Waits until a request of the agent gets this status: the authorizer learns of roles by a watch."""

    async def check() -> bool:
        return await agent.own.status_of(method, path, {} if method == "PATCH" else None) == status

    await eventually(check, f"{method} {path} of {agent.cluster} gets {status}")


async def joined(prepared: ControlPlane, bootstrap: Caller, admin: Caller, name: str, *, seconds: int = 60) -> Agent:
    """The agent of a cluster that has joined."""
    await record(bootstrap, name, seconds=seconds)
    agent = await certified(prepared, bootstrap, admin, name)
    await accept(admin, name)
    await has_condition(admin, name, "HubAcceptedManagedCluster", ACCEPTED)
    await answers(agent, "GET", lease(name), 200)
    await agent.renew()
    await agent.report_joined()
    return agent


async def gone(admin: Caller, path: str) -> None:
    """Waits until an object is removed; a namespace by the controllers of the cluster, for which there is no limit to show."""

    async def check() -> bool:
        return await admin.get(path) is None

    await eventually(check, f"{path} is removed", seconds=LONG)


def work(cluster: str, name: str, **metadata: object) -> Body:
    return {
        "apiVersion": "work.open-cluster-management.io/v1",
        "kind": "ManifestWork",
        "metadata": {"name": name, "namespace": cluster, **metadata},
        "spec": {},
    }


def addon(cluster: str, name: str, **metadata: object) -> Body:
    return {
        "apiVersion": "addon.open-cluster-management.io/v1alpha1",
        "kind": "ManagedClusterAddOn",
        "metadata": {"name": name, "namespace": cluster, **metadata},
        "spec": {},
    }


# --- Members ------------------------------------------------------------------------------------------------------------------------------


def member(name: str, *, user: str = "", taints: list[Body] | None = None, **metadata: Any) -> Body:
    return {
        "apiVersion": "cluster.kubernetes-fleet.io/v1beta1",
        "kind": "MemberCluster",
        "metadata": {"name": name, **metadata},
        "spec": {"identity": {"kind": "User", "name": user or f"agent-of-{name}"}, **({"taints": taints} if taints else {})},
    }


def managed(name: str, *, accepted: bool = True, **metadata: Any) -> Body:
    return {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name, **metadata},
        "spec": {"hubAcceptsClient": accepted},
    }


async def agent_of(prepared: ControlPlane, name: str) -> Caller:
    """The agent of a member, once it may read its InternalMemberCluster."""
    agent = Caller(prepared.client_config(f"agent-of-{name}"))

    async def allowed() -> bool:
        return await agent.status_of("GET", internal(name)) == 200

    await eventually(allowed, f"the agent of {name} may read its InternalMemberCluster")
    return agent


async def report(agent: Caller, name: str, *, joined: str = "True", healthy: str | None = "True", **status: Any) -> None:
    """What an agent reports of itself; without `healthy` nothing about its health."""
    now = rfc3339(datetime.now(UTC))[:19] + "Z"
    common = {"message": "", "lastTransitionTime": now}
    own = [
        {"type": "Joined", "status": joined, "reason": "InternalMemberClusterJoined", **common},
        {"type": "Healthy", "status": healthy, "reason": "InternalMemberClusterHealthy", **common},
    ]
    own = [each for each in own if each["status"] is not None]
    agents = [{"type": "MemberAgent", "conditions": own, "lastReceivedHeartbeat": now}]
    await agent.merge(f"{internal(name)}/status", {"status": {"agentStatus": agents, **status}})


async def found(admin: Caller, path: str) -> Body:
    return await eventually(lambda: admin.get(path), f"{path} exists")
