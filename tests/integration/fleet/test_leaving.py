"""A member whose agent does not answer: the controllers against a real API server, with a shorter time than the settings allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fleet.clusters.hub import Hub, start
from fleet.clusters.registry import Registry
from fleet.kubefleet.members import Members
from tests.integration.fleet.player import MEMBERS, Caller, agent_of, gone, internal, member, reaches, report
from tests.integration.patient import patient_connection
from tests.support.program import eventually
from vkubelet.api.objects import NAMESPACES
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.control.recorder import Recorder
from vkubelet.metrics import Metrics
from vkubelet.testing.cluster import ControlPlane

FORCE_AFTER = 4.0


@pytest.fixture
async def members(prepared: ControlPlane) -> AsyncIterator[None]:
    """The controller of members alone."""
    clock = SystemClock()
    async with Client(await patient_connection(prepared.kubeconfig), field_manager="fleet-hub") as client:
        hub = Hub(client, Recorder(client, "fleet-hub", clock=clock), clock, Metrics())
        registry = Registry(hub, with_members=True)
        namespaces = hub.informer(NAMESPACES)
        assert registry.members is not None
        made = Members(hub, registry, registry.members, namespaces=namespaces, force_after=FORCE_AFTER)

        async def serve() -> None:
            async with asyncio.TaskGroup() as group:
                start(group, [*registry.informers, namespaces, *made.informers])
                group.create_task(made.run())
                group.create_task(hub.recorder.run())

        async with asyncio.TaskGroup() as group:
            task = group.create_task(serve())
            yield
            task.cancel()


@pytest.mark.usefixtures("members")
async def test_f_128_a_member_without_an_agent_leaves_after_its_time(prepared: ControlPlane, admin: Caller) -> None:
    await admin.create(MEMBERS, member("l1"))
    await report(await agent_of(prepared, "l1"), "l1")
    await reaches(admin, f"{MEMBERS}/l1", "Joined", ("True", "MemberClusterJoined"))
    await admin.delete(f"{MEMBERS}/l1")

    async def asked() -> bool:
        return bool(((await admin.get(internal("l1"))) or {"spec": {}})["spec"].get("state") == "Leave")

    await eventually(asked, "the agent is asked to leave")
    await gone(admin, f"{MEMBERS}/l1")

    async def recorded() -> bool:
        events = await admin.items("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=l1")
        return any(each["reason"] == "MemberClusterForcedToLeave" and "may still run" in each["message"] for each in events)

    await eventually(recorded, "an Event about what was not acknowledged")
    await gone(admin, "/api/v1/namespaces/fleet-member-l1")
