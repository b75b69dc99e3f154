"""Tests of fleet.ocm.acceptor."""

from datetime import UTC, datetime
from typing import Any

import pytest

from fleet.clusters.registry import Registry
from fleet.ocm.acceptor import FINALIZERS, Acceptor
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import SINCE, condition, hub_of, unknown
from vkubelet.api.objects import NAMESPACES

RECORD = "/apis/cluster.open-cluster-management.io/v1/managedclusters/w1"
LABEL = "cluster.open-cluster-management.io/clusterset"


@pytest.mark.parametrize(("labels", "expected"), [({}, "default"), ({LABEL: "blue"}, "blue"), ({LABEL: ""}, "")])
async def test_f_151_a_cluster_without_a_set_gets_the_default_one(labels: Any, expected: str) -> None:
    api = MergingApi()
    hub = hub_of(api.client())
    registry, namespaces = Registry(hub, with_members=False), hub.informer(NAMESPACES)
    acceptor = Acceptor(hub, registry, namespaces, namespace="fleet-system")
    # Its namespace is being deleted, so that nothing is created.
    metadata = {"name": "w1", "uid": "n1", "resourceVersion": "1", "deletionTimestamp": SINCE, "finalizers": ["kubernetes"]}
    namespaces.adopt(unknown({"metadata": metadata}))
    api.put(RECORD, {"metadata": {"name": "w1", "uid": "u1", "labels": labels}, "spec": {"hubAcceptsClient": True}})
    registry.managed.informer.adopt(unknown(api.objects[RECORD]))
    await acceptor.reconcile("w1")
    found = api.objects[RECORD]["metadata"]
    assert found["labels"][LABEL] == expected and found["finalizers"] == [*FINALIZERS]


class TimedApi(MergingApi):
    """Has the time of an API server."""

    def server_now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("conditions", "tainted"),
    [
        ([], True),
        ([condition("HubAcceptedManagedCluster", "False")], False),
        ([condition("ManagedClusterConditionAvailable", "True")], False),
    ],
)
async def test_f_142_a_cluster_that_is_accepted_is_tainted_by_its_first_write(conditions: Any, tainted: bool) -> None:
    """What has reported its health, or was accepted before, is tainted by the controller of health alone."""
    api = TimedApi()
    hub = hub_of(api.client())
    registry, namespaces = Registry(hub, with_members=False), hub.informer(NAMESPACES)
    acceptor = Acceptor(hub, registry, namespaces, namespace="fleet-system")
    taint = {"key": "theirs", "effect": "NoSelect"}
    body = {"metadata": {"name": "w1", "uid": "u1"}, "spec": {"hubAcceptsClient": True, "taints": [taint]}}
    api.put(RECORD, {**body, "status": {"conditions": conditions}})
    registry.managed.informer.adopt(unknown(api.objects[RECORD]))
    await acceptor.reconcile("w1")
    first = api.writes[0]
    assert (first.method, first.path, first.body["metadata"]["finalizers"]) == ("PATCH", RECORD, [*FINALIZERS])
    written = first.body.get("spec", {}).get("taints", [])
    assert [each["key"] for each in written] == (["theirs", "cluster.open-cluster-management.io/unreachable"] if tainted else [])
    assert [each.path for each in api.writes].count(RECORD) == 1
