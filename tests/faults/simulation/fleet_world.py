"""A fleet: a hub with `fleet hub`, a worker whose `fleet agent` joins it, and the people who own the two.

Invariant: both processes are what the commands run; a person consents whenever there is something to consent to, and the hub's signer signs
what is approved.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, ClassVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fleet.agent.agent_settings import AgentProcessSettings, read_agent_settings
from fleet.api import keys
from fleet.api.resources import CLUSTERCLAIMS, DEFINED, definition
from fleet.hub_settings import HubProcessSettings, read_hub_settings
from fleet.ocm.acceptance import hub_objects
from fleet.processes.agent import AgentProcess
from fleet.processes.hub import HubProcess
from tests.faults.model import controllers
from tests.faults.simulation.actors import ControlPlane
from tests.faults.simulation.loop import START
from tests.faults.simulation.network import address_of, kubeconfig_of
from tests.faults.simulation.schedule import Kind
from tests.faults.simulation.world import World
from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Resource, Unknown
from vkubelet.client.connection import Connection
from vkubelet.process import Runs

Body = dict[str, Any]
CLUSTER = "edge"
CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
MEMBERS = "/apis/cluster.kubernetes-fleet.io/v1beta1/memberclusters"
WORKS = f"/apis/work.open-cluster-management.io/v1/namespaces/{CLUSTER}/manifestworks"
ADDONS = f"/apis/addon.open-cluster-management.io/v1alpha1/namespaces/{CLUSTER}/managedclusteraddons"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
ROLE = f"open-cluster-management:managedcluster:{CLUSTER}"
_GROUP = "cluster.open-cluster-management.io"
_LIFE = timedelta(days=365)
_PATIENCE = 1500
"""Seconds that a person waits for one step before the next."""
_HELD = {"finalizers": ["test.example/held"]}
_LOCAL: Body = {"leader": {"enabled": False}, "health": {"health_address": "", "metrics_address": ""}}


@lru_cache
def _definition(resource: Resource[Unknown]) -> Body:
    found: Body = decode_yaml(definition(resource))
    return found


@lru_cache
def _hub_settings() -> HubProcessSettings:
    return read_hub_settings(_LOCAL)


@lru_cache
def _agent_settings() -> AgentProcessSettings:
    return read_agent_settings({**_LOCAL, "agent": {"cluster": CLUSTER}})


@lru_cache
def _signer_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def signed(pem: bytes) -> bytes:
    """The certificate of a request."""
    request = x509.load_pem_x509_csr(pem)
    builder = (
        x509.CertificateBuilder()
        .subject_name(request.subject)
        .issuer_name(x509.Name([]))
        .public_key(request.public_key())
        .serial_number(1)
        .not_valid_before(START - timedelta(hours=1))
        .not_valid_after(START + _LIFE)
    )
    return builder.sign(_signer_key(), hashes.SHA256()).public_bytes(Encoding.PEM)


class FleetWorld(World):
    """Scenarios of one cluster that joins, is denied, and leaves."""

    name = "fleet"
    scenarios: ClassVar = {"join": "joins", "deny": "denied", "again": "accepted_again", "delete": "deleted", "member": "member_leaves"}

    def build(self) -> None:
        self.hub, self.worker = ControlPlane(self, "hub"), ControlPlane(self, "worker")
        self.consents = True
        for each in DEFINED:
            (self.worker if each == CLUSTERCLAIMS else self.hub).model.define(_definition(each))
        for plane in (self.hub, self.worker):
            plane.model.call("POST", "/api/v1/namespaces", {"metadata": {"name": keys.NAMESPACE}}, user="admin")
            self.every(1.0, plane.name, lambda model=plane.model: controllers.settle(model) > 0)  # type: ignore[misc]
        for body in hub_objects():
            self._create(body)
        secret = {
            "metadata": {"name": keys.BOOTSTRAP_SECRET},
            "data": {"kubeconfig": kubeconfig_of("hub")},
        }
        self.worker.model.call("POST", f"/api/v1/namespaces/{keys.NAMESPACE}/secrets", secret, user="admin")
        self.every(2.0, "hub", self._consent)
        self.every(1.0, "hub", self._sign)
        self.start("hub")
        if self.scenario != "member":
            self.start("agent")

    def make(self, role: str) -> Runs:
        connection = Connection(address_of("worker" if role == "agent" else "hub"))
        if role == "agent":
            return AgentProcess(_agent_settings(), connection=connection, clock=self.clock)
        return HubProcess(_hub_settings(), connection=connection, clock=self.clock)

    def _create(self, body: Body) -> None:
        metadata = body["metadata"]
        plural = {"Namespace": "namespaces"}.get(body["kind"], f"{body['kind'].lower()}s")
        root = "/api/v1" if body["apiVersion"] == "v1" else f"/apis/{body['apiVersion']}"
        space = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
        self.hub.model.call("POST", f"{root}{space}/{plural}", body, user="admin")

    # --- people and the signer ---

    def _consent(self) -> bool:
        """The hub's owner approves requests and accepts the cluster; returns whether anything was to do."""
        done = False
        for body in self._requests():
            if not (body.get("status") or {}).get("conditions"):
                approved = {"conditions": [{"type": "Approved", "status": "True", "reason": "Person", "message": ""}]}
                done |= self._decide(body, {"status": approved}, "approval")
        record = self.record()
        if record is not None and self.consents and not record["spec"].get("hubAcceptsClient"):
            self._accept(True)
            self.consents, done = False, True
        return done

    def _sign(self) -> bool:
        done = False
        for body in self._requests():
            status = body.get("status") or {}
            if status.get("conditions") and not status.get("certificate"):
                certificate = signed(base64.b64decode(body["spec"]["request"]))
                done |= self._decide(body, {"status": {**status, "certificate": base64.b64encode(certificate).decode()}}, "status")
        return done

    def _requests(self) -> list[Body]:
        return self.hub.model.objects("certificates.k8s.io", "v1", "certificatesigningrequests")

    def _decide(self, body: Body, change: Body, subresource: str) -> bool:
        path = f"{REQUESTS}/{body['metadata']['name']}/{subresource}"
        return self.hub.attempt("admin", "PUT", path, {**body, **change}) is not None

    def _accept(self, accepts: bool) -> None:
        self.hub.merge(f"{CLUSTERS}/{CLUSTER}", {"spec": {"hubAcceptsClient": accepts}}, user="person")

    @property
    def _agent(self) -> str:
        """The last process of the agent."""
        return max((each for each in self.history.ours if each.startswith("agent")), key=lambda each: int(each.partition("-")[2]))

    # --- what holds ---

    def record(self) -> Body | None:
        return self.hub.model.get(_GROUP, "v1", "managedclusters", "", CLUSTER)

    def lacks(self, **wanted: tuple[str, str]) -> str | None:
        """Returns which conditions of the record are others."""
        record = self.record() or {}
        found = {each["type"]: (each["status"], each["reason"]) for each in (record.get("status") or {}).get("conditions") or ()}
        return None if all(found.get(name) == each for name, each in wanted.items()) else f"conditions are {found}, not {wanted}"

    def _rights(self) -> list[str]:
        """Names of what binds rights to the cluster, but for the ClusterRole."""
        model, group = self.hub.model, "rbac.authorization.k8s.io"
        return [
            body["metadata"]["name"]
            for plural in ("rolebindings", "clusterrolebindings", "clusterroles")
            for body in model.objects(group, "v1", plural)
            if body["metadata"]["name"].startswith(ROLE)
        ]

    def _joined(self) -> str | None:
        if len(self._rights()) != 5:
            return f"rights are {self._rights()}"
        if len(self._requests()) != 1:
            return f"{len(self._requests())} certificate requests"
        accepted = {"HubAcceptedManagedCluster": ("True", "HubClusterAdminAccepted")}
        if self._is_off:
            return self.lacks(**accepted)
        taints = (self.record() or {"spec": {}})["spec"].get("taints")
        if taints:
            return f"tainted: {taints}"
        reported = {"ManagedClusterJoined": ("True", "ManagedClusterJoined")}
        return self.lacks(**accepted, **reported, ManagedClusterConditionAvailable=("True", "ManagedClusterAvailable"))

    @property
    def _is_off(self) -> bool:
        """Whether the clock of the agent is set away from that of the hub: it reports nothing then."""
        return self.branch.common(lambda schedule: any(fault.kind is Kind.CLOCK for fault in schedule.faults))

    def _settled(self) -> str | None:
        """Returns what is missing of a cluster that has joined, and whose clock was compared at a renewal."""
        compared = self._is_off or self.lacks(ManagedClusterConditionClockSynced=("True", "ManagedClusterClockSynced")) is None
        return self._joined() or (None if compared else "the clock is not compared")

    def _denied(self) -> str | None:
        if sorted(self._rights()) != [ROLE, ROLE]:
            return f"rights are {self._rights()}"
        (role,) = [
            each for each in self.hub.model.objects("rbac.authorization.k8s.io", "v1", "clusterroles") if each["metadata"]["name"] == ROLE
        ]
        if len(role["rules"]) != 1:
            return f"rules are {role['rules']}"
        return self.lacks(HubAcceptedManagedCluster=("False", "HubClusterAdminDenied"))

    def _mirrored(self) -> str | None:
        found = self.hub.model.get("cluster.kubernetes-fleet.io", "v1beta1", "memberclusters", "", CLUSTER)
        return None if found is not None and "deletionTimestamp" not in found["metadata"] else "no mirror"

    def _gone(self) -> str | None:
        """Returns what is left of a cluster that was deleted."""
        model = self.hub.model
        left = [f"right {each}" for each in self._rights()]
        left += ["record"] if self.record() is not None else []
        for group, version, plural in (
            ("cluster.kubernetes-fleet.io", "v1beta1", "memberclusters"),
            ("multicluster.x-k8s.io", "v1alpha1", "clusterprofiles"),
            ("work.open-cluster-management.io", "v1", "manifestworks"),
            ("addon.open-cluster-management.io", "v1alpha1", "managedclusteraddons"),
        ):
            left += [f"{plural} {each['metadata']['name']}" for each in model.objects(group, version, plural)]
        left += [f"namespace {each['metadata']['name']}" for each in model.objects("", "v1", "namespaces") if "fleet-member" in str(each)]
        return f"left: {', '.join(left)}" if left else None

    # --- scenarios ---

    async def _reached(self, check: Callable[[], str | None]) -> None:
        """Waits until that holds; what a fault prevents for good is a violation at the end."""
        for _ in range(_PATIENCE):
            if check() is None:
                return
            await self.pause(1.0)

    async def joins(self) -> None:
        """A worker joins, and reports from then on."""
        await self._reached(self._settled)
        self.wish("cluster", self._joined)
        self.wish("mirror", self._mirrored)

    async def denied(self) -> None:
        """A cluster that has joined is denied."""
        await self._reached(self._settled)
        self._accept(False)
        self.wish("cluster", self._denied)

    async def accepted_again(self) -> None:
        """A cluster is denied and accepted again."""
        await self._reached(self._settled)
        self._accept(False)
        await self.pause(5.0)
        self._accept(True)
        self.wish("cluster", self._joined)
        self.wish("mirror", self._mirrored)

    async def deleted(self) -> None:
        """A cluster with a work and an addon that no controller ends is deleted, by force after a while."""
        await self._reached(self._settled)
        for path, name in ((WORKS, "web"), (ADDONS, "tunnel")):
            body = {"metadata": {"name": name, "namespace": CLUSTER, **_HELD}, "spec": {}}
            # As one of ours: whichever client created them, they are deleted with their cluster, and by force released from their holder.
            self.hub.attempt(self._agent, "POST", path, body)
        self.hub.merge(f"{CLUSTERS}/{CLUSTER}", {"metadata": {"annotations": {keys.FORCE_CLEANUP: "15"}}}, user="person")
        self.hub.attempt("person", "DELETE", f"{CLUSTERS}/{CLUSTER}", {})
        self.wish("cluster", self._gone)

    async def member_leaves(self) -> None:
        """A member of the second API is created, and leaves."""
        await self.pause(5.0)
        body = {"metadata": {"name": CLUSTER}, "spec": {"identity": {"kind": "User", "name": "agent"}}}
        self.hub.attempt("person", "POST", MEMBERS, body)
        await self._reached(lambda: self.lacks(HubAcceptedManagedCluster=("True", "HubClusterAdminAccepted")))
        self.hub.attempt("person", "DELETE", f"{MEMBERS}/{CLUSTER}", {})
        self.wish("cluster", self._gone)
