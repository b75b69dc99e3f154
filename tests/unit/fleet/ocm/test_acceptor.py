"""Tests of fleet.ocm.acceptor."""

from typing import Any

import pytest

from fleet.clusters.registry import Registry
from fleet.ocm.acceptor import FINALIZERS, Acceptor
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import SINCE, hub_of, unknown
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
