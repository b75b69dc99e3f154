"""The roles of accepted and denied clusters, judged by the authorizer of a real API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import pytest

from fleet.api import keys
from fleet.api.clusters import ManagedCluster
from fleet.ocm.acceptance import accepted_objects, denied_objects, hub_objects, revoked_bindings
from tests.integration.patient import patient_connection
from vkubelet.api.objects import SUBJECTACCESSREVIEWS, Json, ObjectMeta
from vkubelet.client.rest import Client
from vkubelet.testing.cluster import ControlPlane

CLUSTER, REGISTER = "cluster.open-cluster-management.io", "register.open-cluster-management.io"
WORK, ADDON = "work.open-cluster-management.io", "addon.open-cluster-management.io"
READ = ("get", "list", "watch")

Right = tuple[str, str, str, str, str]
"""Verb, group, resource with its subresource, namespace, name."""


def own_record(cluster: str) -> set[Right]:
    return {(verb, CLUSTER, "managedclusters", "", cluster) for verb in READ}


def of_accepted(cluster: str) -> set[Right]:
    """Some of the rights of an accepted cluster, on its own objects alone."""
    return {
        *own_record(cluster),
        ("update", CLUSTER, "managedclusters", "", cluster),
        ("patch", CLUSTER, "managedclusters/status", "", cluster),
        ("create", REGISTER, "managedclusters/tunnel", "", cluster),
        ("update", "coordination.k8s.io", "leases", cluster, keys.LEASE),
        ("patch", ADDON, "managedclusteraddons/status", cluster, "tunnel"),
        ("patch", WORK, "manifestworks/status", cluster, "some"),
        ("create", "events.k8s.io", "events", cluster, ""),
    }


OF_ALL: set[Right] = {
    ("create", "certificates.k8s.io", "certificatesigningrequests", "", ""),
    ("renew", REGISTER, "managedclusters/clientcertificates", "", ""),
    ("get", "", "configmaps", keys.NAMESPACE, keys.GATEWAY),
    ("create", "", "services/proxy", keys.NAMESPACE, f"{keys.GATEWAY}:tunnel"),
}
FORBIDDEN: set[Right] = {
    ("create", CLUSTER, "managedclusters", "", ""),
    ("delete", CLUSTER, "managedclusters", "", "w1"),
    ("update", REGISTER, "managedclusters/accept", "", "w1"),
    ("list", CLUSTER, "managedclusters", "", ""),
    ("get", "", "secrets", "w1", "any"),
    ("list", "", "secrets", "", ""),
    ("list", "", "nodes", "", ""),
    ("create", WORK, "manifestworks", "w1", ""),
    ("delete", WORK, "manifestworks", "w1", "some"),
    ("delete", "coordination.k8s.io", "leases", "w1", keys.LEASE),
    ("approve", "certificates.k8s.io", "signers", "", keys.CLIENT_SIGNER),
    ("get", "", "configmaps", keys.NAMESPACE, "other"),
    ("get", "", "services/proxy", keys.NAMESPACE, "other:tunnel"),
}


@pytest.fixture
async def client(fleet_hub: ControlPlane) -> AsyncIterator[Client]:
    async with Client(await patient_connection(fleet_hub.kubeconfig), field_manager="tests") as made:
        yield made


async def granted(client: Client, groups: Sequence[str], rights: set[Right]) -> set[Right]:
    """The rights that an identity in these groups has."""
    found = set()
    for right in rights:
        verb, group, resource, namespace, name = right
        plural, _, subresource = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": namespace, "name": name}
        review = {"spec": {"user": "someone", "groups": list(groups), "resourceAttributes": asked}}
        status = (await client.create(SUBJECTACCESSREVIEWS, review)).body["status"]
        if status["allowed"]:
            found.add(right)
    return found


async def apply(hub: ControlPlane, bodies: Sequence[Json]) -> None:
    await hub.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(bodies)}))


@pytest.fixture
async def accepted(fleet_hub: ControlPlane) -> AsyncIterator[ControlPlane]:
    """A hub that has accepted w1 and w2."""
    system: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": keys.NAMESPACE}}
    await apply(fleet_hub, [system, *hub_objects()])
    for cluster in ("w1", "w2"):
        await apply(fleet_hub, accepted_objects(ManagedCluster(meta=ObjectMeta(name=cluster))))
    yield fleet_hub
    release = json.dumps({"metadata": {"finalizers": None}})
    for cluster in ("w1", "w2"):
        for namespace, name in revoked_bindings(cluster):
            await fleet_hub.kubectl("delete", "rolebinding", name, "-n", namespace, "--ignore-not-found", "--wait=false")
        work = revoked_bindings(cluster)[-1]
        if (await fleet_hub.kubectl("get", "rolebinding", work[1], "-n", work[0], "--ignore-not-found", "-o", "name")).strip():
            await fleet_hub.kubectl("patch", "rolebinding", work[1], "-n", work[0], "--type=merge", f"--patch={release}")
    await fleet_hub.kubectl("delete", "clusterroles,clusterrolebindings", "-l", keys.CLUSTER_NAME)
    # The namespaces stay for the next test: no controller of this hub would complete their deletion.


async def test_f_114_either_identity_of_a_cluster_has_the_rights_on_its_own_objects(accepted: ControlPlane, client: Client) -> None:
    for group in keys.cluster_groups("w1"):
        asked = of_accepted("w1") | of_accepted("w2") | OF_ALL | FORBIDDEN
        assert await granted(client, [group, "system:authenticated"], asked) == of_accepted("w1") | OF_ALL, group


async def test_f_118_a_bootstrap_identity_asks_to_join_and_reads_no_other_object(accepted: ControlPlane, client: Client) -> None:
    joins: set[Right] = {
        ("create", "certificates.k8s.io", "certificatesigningrequests", "", ""),
        ("create", CLUSTER, "managedclusters", "", ""),
        ("list", CLUSTER, "managedclusters", "", ""),
        ("create", CLUSTER, "managedclustersets/join", "", "default"),
    }
    account = f"system:serviceaccounts:{keys.BOOTSTRAP_NAMESPACE}"
    asked = joins | FORBIDDEN | {("update", CLUSTER, "managedclusters", "", "w1"), ("get", "", "secrets", keys.BOOTSTRAP_NAMESPACE, "any")}
    found = await granted(client, [keys.BOOTSTRAPPERS], asked)
    assert found - {("get", "", "configmaps", keys.NAMESPACE, "other")} == joins
    assert await granted(client, [account], asked) == set()


async def test_f_154_a_denied_cluster_reads_its_own_record_and_nothing_else(accepted: ControlPlane, client: Client) -> None:
    await apply(accepted, denied_objects("w1"))
    for namespace, name in revoked_bindings("w1"):
        await accepted.kubectl("delete", "rolebinding", name, "-n", namespace, "--wait=false")
    work = json.loads(await accepted.kubectl("get", "rolebinding", revoked_bindings("w1")[-1][1], "-n", "w1", "-o", "json"))
    assert work["metadata"]["deletionTimestamp"] and work["metadata"]["finalizers"] == [keys.WORK_CLEANUP]
    await accepted.kubectl(
        "patch", "rolebinding", work["metadata"]["name"], "-n", "w1", "--type=merge", '--patch={"metadata":{"finalizers":null}}'
    )
    asked = of_accepted("w1") | of_accepted("w2") | OF_ALL | FORBIDDEN
    assert await granted(client, keys.cluster_groups("w1"), asked) == own_record("w1")
    assert await granted(client, keys.cluster_groups("w2"), asked) == of_accepted("w2") | OF_ALL
