"""Tests of fleet.clusters.registry."""

from typing import Any

import pytest

from fleet.clusters.registry import Registry
from tests.support.memory_api import MemoryApi
from tests.unit.fleet.builders import SINCE, condition, hub_of, unknown


def status(second: int, **more: Any) -> dict[str, Any]:
    time = f"2026-01-01T00:00:0{second}Z"
    agent = {"type": "MemberAgent", "conditions": [condition("Joined", "True")], "lastReceivedHeartbeat": time}
    properties = {"node-count": {"value": "1", "observationTime": time}}
    return {"agentStatus": [agent], "properties": properties, "resourceUsage": {"observationTime": time}, **more}


METADATA: dict[str, Any] = {"name": "m1", "uid": "u", "generation": 1, "resourceVersion": "1"}
USAGE = {"resourceUsage": {"capacity": {"cpu": "1"}, "observationTime": "2026-01-01T00:00:01Z"}}


@pytest.mark.parametrize(
    ("metadata", "later", "expected"),
    [
        ({}, status(1), ["heartbeat"]),
        ({}, status(1, agentStatus=[]), ["status"]),
        ({}, status(1, properties={"node-count": {"value": "2"}}), ["status"]),
        ({}, status(1, **USAGE), ["status"]),
        ({}, status(1, conditions=[condition("Joined", "True")]), ["status"]),
        ({}, status(1, namespaces={"a": "b"}), ["status"]),
        ({"labels": {"a": "b"}}, status(1), ["record", "status"]),
        ({"generation": 2}, status(1), ["record", "status"]),
        ({"finalizers": ["f"]}, status(1), ["record", "status"]),
    ],
)
def test_f_123_a_heartbeat_concerns_only_those_who_read_it(metadata: dict[str, Any], later: Any, expected: list[str]) -> None:
    registry = Registry(hub_of(MemoryApi().client()), with_members=True)
    assert registry.members is not None
    registry.members.informer.adopt(unknown({"metadata": METADATA, "spec": {}, "status": status(0)}))
    called: list[str] = []
    registry.on_change(lambda name: called.append("record"), status=False)
    registry.on_change(lambda name: called.append("status"))
    registry.on_heartbeat(lambda name: called.append("heartbeat"))
    called.clear()
    metadata = {**METADATA, "resourceVersion": "2", **metadata}
    registry.members.informer.adopt(unknown({"metadata": metadata, "spec": {}, "status": later}))
    assert called == expected


ACCEPTED, DENIED = (condition("HubAcceptedManagedCluster", each) for each in ("True", "False"))
AVAILABLE, LOST = (condition("ManagedClusterConditionAvailable", each) for each in ("True", "Unknown"))
DELETED = {"deletionTimestamp": SINCE, "generation": 2}


@pytest.mark.parametrize(
    ("metadata", "old", "new", "expected"),
    [
        ({}, [ACCEPTED], [ACCEPTED, AVAILABLE], ["status"]),
        ({}, [ACCEPTED], [ACCEPTED, LOST], ["record", "status"]),
        ({}, [ACCEPTED], [DENIED], ["record", "status"]),
        ({}, [ACCEPTED], [AVAILABLE], ["record", "status"]),
        ({}, [], [ACCEPTED], ["record", "status"]),
        ({"labels": {"a": "b"}}, [ACCEPTED], [ACCEPTED], ["record", "status"]),
        ({"generation": 2}, [ACCEPTED], [ACCEPTED], ["record", "status"]),
        ({"finalizers": ["f"]}, [ACCEPTED], [ACCEPTED], ["record", "status"]),
        (DELETED, [ACCEPTED], [ACCEPTED], ["record", "status"]),
    ],
)
def test_f_145_what_an_agent_reports_concerns_only_those_who_read_it(metadata: Any, old: Any, new: Any, expected: list[str]) -> None:
    registry = Registry(hub_of(MemoryApi().client()), with_members=False)
    called: list[str] = []
    registry.on_change(lambda name: called.append("record"), status=False)
    registry.on_change(lambda name: called.append("status"))
    registry.managed.informer.adopt(unknown({"metadata": METADATA, "spec": {}, "status": {"conditions": old}}))
    called.clear()
    metadata = {**METADATA, "resourceVersion": "2", **metadata}
    registry.managed.informer.adopt(unknown({"metadata": metadata, "spec": {}, "status": {"conditions": new}}))
    assert called == expected


def test_f_156_each_step_of_a_removal_is_followed_by_the_next() -> None:
    registry = Registry(hub_of(MemoryApi().client()), with_members=False)
    called: list[str] = []
    registry.on_change(called.append, status=False)
    for version, status in (("1", {}), ("2", {"conditions": [condition("Deleting", "True")]})):
        called.clear()
        metadata = {**METADATA, **DELETED, "resourceVersion": version}
        registry.managed.informer.adopt(unknown({"metadata": metadata, "spec": {}, "status": status}))
    assert called == ["m1"]
