"""Tests of fleet.clusters.registry."""

from typing import Any

import pytest

from fleet.clusters.registry import Registry
from tests.support.memory_api import MemoryApi
from tests.unit.fleet.builders import hub_of, unknown

MEMBER: dict[str, Any] = {"metadata": {"name": "m1", "uid": "u", "generation": 1, "resourceVersion": "1"}, "spec": {}, "status": {}}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, ["all"]),
        ({"labels": {"a": "b"}}, ["each", "all"]),
        ({"generation": 2}, ["each", "all"]),
        ({"finalizers": ["f"]}, ["each", "all"]),
    ],
)
def test_f_123_a_heartbeat_concerns_only_those_who_read_it(metadata: dict[str, Any], expected: list[str]) -> None:
    registry = Registry(hub_of(MemoryApi().client()), with_members=True)
    assert registry.members is not None
    registry.members.informer.adopt(unknown(MEMBER))
    called: list[str] = []
    registry.on_change(lambda name: called.append("each"), heartbeats=False)
    registry.on_change(lambda name: called.append("all"))
    called.clear()
    changed = {**MEMBER, "metadata": {**MEMBER["metadata"], "resourceVersion": "2", **metadata}, "status": {"a": 1}}
    registry.members.informer.adopt(unknown(changed))
    assert called == expected
