"""`fleet accept` and `fleet deny`: the consent of the hub to a cluster.

Invariant: a request is approved only after its requester, subject and key were shown, and never when it asks for another identity than that
of the cluster.
"""

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from attrs import field, frozen
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fleet.api import keys
from fleet.api.clusters import CLUSTER_JOINED, ManagedCluster, holds
from fleet.api.resources import MANAGEDCLUSTERS
from fleet.commands.objects import confirm
from fleet.core.requests import ClientRequest, content_flaw
from vkubelet.api.objects import CSRS, Json, Unknown
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import Clock, SystemClock, parse_rfc3339
from vkubelet.commands import clusters
from vkubelet.commands.terminal import Terminal
from vkubelet.control.certificates import approve
from vkubelet.logformat import printable

_REASON: Final = "ApprovedByFleetAccept"
_ACCOUNT: Final = f"system:serviceaccount:{keys.BOOTSTRAP_NAMESPACE}:{keys.BOOTSTRAP_ACCOUNT}"


def is_bootstrap(request: ClientRequest) -> bool:
    """Checks that the requester may ask for clusters to join, or renews its own certificate."""
    known = request.requester == _ACCOUNT or keys.BOOTSTRAPPERS in request.groups
    return known or request.requester == request.common_name


def fingerprint(csr: Unknown) -> str:
    """Returns the SHA-256 of the public key in a request; "" for an invalid one."""
    try:
        request = x509.load_pem_x509_csr(base64.b64decode(csr.body["spec"]["request"]))
        key = request.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (KeyError, TypeError, ValueError):
        return ""
    return f"sha256:{hashlib.sha256(key).hexdigest()}"


@frozen(kw_only=True)
class Accept:
    """One run of `fleet accept`."""

    choice: clusters.Choice
    names: Sequence[str]
    any_requester: bool
    yes: bool
    terminal: Terminal
    clock: Clock = field(factory=SystemClock)

    async def run(self) -> list[Json]:
        """Accepts the clusters in their order; returns what was approved of each. Raises VKubeletError."""
        async with clusters.opened(self.choice) as hub:
            return [await self._accept(hub, name) for name in self.names]

    async def _accept(self, hub: Client, name: str) -> Json:
        cluster = await find_cluster(hub, name, self.choice)
        pending = await self._pending(hub, name)
        for csr, request in pending:
            self._show(csr, request, name)
        if holds(cluster.conditions, CLUSTER_JOINED) and pending:
            self.terminal.write_line(f"warning: cluster {name} is joined already; a request of another cluster gets the same identity")
        if not pending:
            self.terminal.write_line(f"Cluster {name} has no request that waits for approval.")
        if pending or not cluster.accepted:
            confirm(self.terminal, f"Accept cluster {name}?", yes=self.yes)
        with clusters.explained(self.choice):
            for csr, _ in pending:
                await approve(hub, csr, reason=_REASON, message=f"approved at {_written(self.clock.now())}")
                self.terminal.write_line(f"{self.choice.what}: CertificateSigningRequest {csr.metadata.name}: approved")
        await set_accepted(hub, cluster, self.choice, accepted=True)
        self.terminal.write_line(f"{self.choice.what}: ManagedCluster {name}: accepted; to see it join, run: fleet get clusters")
        return {"name": name, "accepted": True, "approved": [csr.metadata.name for csr, _ in pending]}

    async def _pending(self, hub: Client, name: str) -> list[tuple[Unknown, ClientRequest]]:
        """Returns the requests that may be approved. Raises CommandFailed for one that must not be."""
        with clusters.explained(self.choice):
            listed = (await hub.list(CSRS, Selection(labels=f"{keys.CLUSTER_NAME}={name}"))).items
        found = [(each, ClientRequest.parse(each)) for each in listed]
        pending = [(csr, request) for csr, request in found if not request.decided]
        for _, request in pending:
            remedy = f"to deny it run: {self.choice.kubectl} certificate deny {request.name}"
            flaw = content_flaw(request)
            if flaw:
                raise clusters.CommandFailed(f"request {request.name} is not that of an agent of cluster {name}: {flaw}; {remedy}")
            if not is_bootstrap(request) and not self.any_requester:
                who = printable(request.requester)
                hint = f"to approve it all the same, add --any-requester; {remedy}"
                raise clusters.CommandFailed(f"the requester {who} of {request.name} is no bootstrap identity; {hint}")
        return pending

    def _show(self, csr: Unknown, request: ClientRequest, name: str) -> None:
        age = self.clock.now() - parse_rfc3339(csr.metadata.creation_timestamp)
        self.terminal.write_line(f"Request {request.name} of cluster {name}, {age.total_seconds():.0f} s old:")
        self.terminal.write_line(f"  requester    {printable(request.requester)}")
        self.terminal.write_line(f"  subject      CN={printable(request.common_name)}, O={printable(', '.join(request.organizations))}")
        self.terminal.write_line(f"  public key   {fingerprint(csr)}")


@frozen(kw_only=True)
class Deny:
    """One run of `fleet deny`."""

    choice: clusters.Choice
    names: Sequence[str]
    yes: bool
    terminal: Terminal

    async def run(self) -> list[Json]:
        """Denies the clusters. Raises VKubeletError."""
        async with clusters.opened(self.choice) as hub:
            found = [await find_cluster(hub, name, self.choice) for name in self.names]
            confirm(self.terminal, f"Deny {', '.join(self.names)}, which revokes their access to the hub?", yes=self.yes)
            for cluster in found:
                await set_accepted(hub, cluster, self.choice, accepted=False)
                self.terminal.write_line(f"{self.choice.what}: ManagedCluster {cluster.name}: denied")
        return [{"name": name, "accepted": False} for name in self.names]


async def find_cluster(hub: Client, name: str, choice: clusters.Choice) -> ManagedCluster:
    """Returns the record. Raises CommandFailed."""
    with clusters.explained(choice):
        found = await clusters.find_named(hub, MANAGEDCLUSTERS, name)
    if found is None:
        raise clusters.CommandFailed(f"the {choice.title} has no ManagedCluster {name}; in the worker run: fleet join --name {name}")
    return ManagedCluster.parse(found)


async def set_accepted(hub: Client, cluster: ManagedCluster, choice: clusters.Choice, *, accepted: bool) -> None:
    """Sets the consent of the hub, unless the record has it. Raises CommandFailed."""
    if cluster.accepted == accepted:
        return
    change = {"metadata": {"uid": cluster.meta.uid}, "spec": {"hubAcceptsClient": accepted}}
    with clusters.explained(choice):
        await hub.patch(MANAGEDCLUSTERS, cluster.name, change, kind=PatchKind.MERGE)


def _written(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"
