"""Tests of fleet.agent.situation."""

from __future__ import annotations

import asyncio

import pytest

from fleet.agent.situation import Situation
from tests.support.memory_api import Body, MemoryApi
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.testing.clock import ManualClock

DEPLOYMENT = ObjectReference("apps/v1", "Deployment", "fleet-agent", "fleet-system", "u1")


async def events(api: MemoryApi, clock: ManualClock, recorder: Recorder) -> list[Body]:
    """All Events that are recorded."""
    task = asyncio.ensure_future(recorder.run())
    await clock.settle()
    task.cancel()
    return [write.body for write in api.writes]


async def test_f_101_each_state_is_reported_once_by_log_and_event(caplog: pytest.LogCaptureFixture) -> None:
    api, clock = MemoryApi(), ManualClock()
    recorder = Recorder(api.client(), "fleet-agent", host="h", clock=clock)
    situation = Situation(recorder)
    assert situation.waiting_for == "the agent starts"
    situation.subject = DEPLOYMENT
    caplog.set_level("INFO")
    for _ in range(3):
        situation.waits("NoBootstrap", "the Secret is missing")
        situation.warns("CertificateExpires", "it expires")
    assert situation.waiting_for == "the Secret is missing"
    situation.proceeds("Joined", "the hub accepts the cluster", joined=True)
    assert situation.waiting_for == ""
    assert [record.getMessage() for record in caplog.records] == ["the Secret is missing", "it expires", "the hub accepts the cluster"]
    found = await events(api, clock, recorder)
    assert [(each["reason"], each["type"]) for each in found] == [
        ("NoBootstrap", "Warning"),
        ("CertificateExpires", "Warning"),
        ("Joined", "Normal"),
    ]


async def test_f_101_an_agent_without_a_deployment_records_no_event() -> None:
    api, clock = MemoryApi(), ManualClock()
    recorder = Recorder(api.client(), "fleet-agent", host="h", clock=clock)
    Situation(recorder).waits("NoBootstrap", "the Secret is missing")
    assert await events(api, clock, recorder) == []
