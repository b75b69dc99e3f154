"""What of a binding is counted, and how the process of the manager stops."""

from __future__ import annotations

import asyncio

import pytest

from kubeocean.manager.bindings import ManagerProcess, not_written, state_of
from kubeocean.settings import read_manager_settings
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import unknown
from vkubelet.errors import Forbidden, NotFound
from vkubelet.testing.clock import ManualClock


@pytest.mark.parametrize(
    ("metadata", "status", "state"),
    [
        ({}, {}, "Pending"),
        ({}, {"phase": ""}, "Pending"),
        ({}, {"phase": "Ready"}, "Ready"),
        ({}, {"phase": "Failed"}, "Failed"),
        ({}, {"phase": "Strange"}, "Pending"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"phase": "Ready"}, "Deleting"),
    ],
)
def test_a_binding_is_counted_under_one_state(metadata: dict[str, str], status: dict[str, str], state: str) -> None:
    """Line 32 of kubeocean-behaviour.md: one that is being deleted counts as nothing else."""
    assert state_of(unknown({"metadata": {"name": "demo", **metadata}, "status": status})) == state


def test_missing_namespace_is_named_with_its_remedy_as_the_manager_may_not_create_it() -> None:
    missing = not_written(NotFound("apply pods kubeocean-fake/x", 'namespaces "kubeocean-fake" not found'))
    assert 'namespaces "kubeocean-fake" not found' in missing.message and "helm upgrade" in missing.message
    assert "grant the manager the rights" in not_written(Forbidden("apply roles", "no")).message


async def test_a_stopped_manager_hands_its_lease_on_and_a_standby_is_ready() -> None:
    api, clock = MemoryApi(), ManualClock()
    settings = read_manager_settings({"manager": {"image": "some"}, "health": {"health_address": "", "metrics_address": ""}})
    first, second = (ManagerProcess(settings, connection=api.connection, clock=clock) for _ in range(2))
    lease = "/apis/coordination.k8s.io/v1/namespaces/kubeocean-system/leases/kubeocean-manager"
    async with asyncio.TaskGroup() as group:
        for process in (first, second):
            api.lend_to(process.client)
            group.create_task(process.run())
            await clock.advance(1.0)
        assert (first.leads, second.leads, first.ready(), second.ready()) == (True, False, None, None)
        first.stop()
        await clock.settle()
        assert first.ready() == "stopping" and api.objects[lease]["spec"]["holderIdentity"] == ""
        await clock.advance(5.0)
        assert second.leads
        second.stop()
