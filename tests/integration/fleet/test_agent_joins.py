"""The agent joins an independent hub, and stays joined; its requests, certificates and reports as the hub sees them."""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fleet.api.resources import CLUSTERCLAIMS, MANAGEDCLUSTERS, definition
from tests.integration.fleet.agents import AgentScene
from tests.support.bound import established
from tests.support.peer import PeerHub
from tests.support.program import eventually, holds
from vkubelet.api.objects import Resource, Unknown
from vkubelet.testing.cluster import ControlPlane, Site
from vkubelet.testing.fixtures import run_apart

ACCEPTED, JOINED, AVAILABLE = "HubAcceptedManagedCluster", "ManagedClusterJoined", "ManagedClusterConditionAvailable"
_numbers = itertools.count(1)


async def define(clusters: dict[ControlPlane, Resource[Unknown]]) -> None:
    for cluster, resource in clusters.items():
        await cluster.kubectl("apply", "-f", "-", stdin=definition(resource))
        await eventually(partial(established, cluster, f"crd/{resource.plural}.{resource.group}"), f"{resource} is established")


@pytest.fixture(scope="session")
def peer(hub: ControlPlane, worker: ControlPlane) -> Iterator[PeerHub]:
    kinds = {hub: MANAGEDCLUSTERS, worker: CLUSTERCLAIMS}
    run_apart(define(kinds))
    made = PeerHub(hub)
    made.prepare()
    yield made
    made.close()
    for cluster, resource in kinds.items():
        run_apart(cluster.kubectl("delete", "crd", f"{resource.plural}.{resource.group}", "--wait=false"))


@pytest.fixture
async def scene(peer: PeerHub, worker: ControlPlane, cluster_site: Site, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`await scene()`: a worker with a bootstrap Secret, whose agent is not started."""
    made: list[AgentScene] = []

    async def make(*, bootstrap: str = "", without: tuple[str, ...] = (), **settings: Any) -> AgentScene:
        number = next(_numbers)
        found = AgentScene(worker, await worker.namespace("agent"), f"laptop-{number}", tmp_path, cluster_site.free_port(), settings)
        await found.grant(without=without)
        found.put_secret({"kubeconfig": bootstrap or peer.bootstrap()})
        made.append(found)
        return found

    yield make
    for each in made:
        peer.remove(each.cluster)
        await each.revoke()


Make = Callable[..., Any]


async def test_f_107_a_worker_joins_once_both_consents_are_given(scene: Make, peer: PeerHub) -> None:
    # F-101, F-102, F-103, F-105, F-131, F-132, F-133
    laptop: AgentScene = await scene(labels={"agent.open-cluster-management.io/site": "lab"})
    name = laptop.cluster
    with laptop.program() as program:
        await eventually(lambda: peer.pending(name), f"a request\n{program.tail()}")
        assert (peer.record(name) or {})["metadata"]["labels"] == {"agent.open-cluster-management.io/site": "lab"}
        assert "fleet accept" in laptop.ready()
        (request,) = peer.decide(name)
        spec = request["spec"]
        assert request["metadata"]["generateName"] == f"{name}-"
        assert spec["signerName"] == "kubernetes.io/kube-apiserver-client"
        assert spec["usages"] == ["digital signature", "key encipherment", "client auth"] and "expirationSeconds" not in spec
        subject = x509.load_pem_x509_csr(base64.b64decode(spec["request"])).subject.rfc4514_string()
        agent = base64.b64decode(laptop.secret()["agent-name"]).decode()
        assert subject == f"CN=system:open-cluster-management:{name}:{agent},O=system:open-cluster-management:{name}"
        peer.let_read(name)
        await eventually(lambda: "has not accepted" in laptop.ready(), f"it waits for acceptance\n{program.tail()}")
        assert laptop.secret().keys() == {"tls.crt", "tls.key", "kubeconfig", "cluster-name", "agent-name"}
        assert JOINED not in peer.conditions(name)
        peer.accept(name)
        await eventually(lambda: JOINED in peer.conditions(name), f"joined\n{program.tail()}", seconds=15)

        async def complete() -> None:
            conditions = peer.conditions(name)
            assert conditions[ACCEPTED][0] == conditions[JOINED][0] == "True"
            assert conditions[AVAILABLE] == ("True", "ManagedClusterAvailable")
            assert peer.lease(name).get("renewTime")
            status = peer.status(name)
            assert status["version"]["kubernetes"].startswith("v1.") and "cpu" in status["capacity"]
            assert {each["name"] for each in status["clusterClaims"]} == {"id.k8s.io", "kubeversion.open-cluster-management.io"}

        await holds(complete)
        await eventually(lambda: laptop.ready() == "ok", "the process is ready")
