"""Faults around a provider: which calls meet them, and what comes of those."""

from __future__ import annotations

import asyncio

import pytest

from vkubelet.errors import Unavailable
from vkubelet.provider import ContainerProvider
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.conformance.faults import Fault, Faults, faulty
from vkubelet.testing.conformance.observed import capabilities_of
from vkubelet.testing.host import RecordingHost, make_pod
from vkubelet_providers.minimal import Minimal
from vkubelet_providers.mock import Mock
from vkubelet_providers.process import Process


@pytest.mark.parametrize("provider", [Minimal(), Mock(), Mock(Mock.Settings(poll_interval=2.0)), Process()], ids=str)
def test_faults_add_and_take_no_capability(provider: object) -> None:
    made = faulty(provider, Faults())
    assert capabilities_of(made) == capabilities_of(provider)
    assert isinstance(made, ContainerProvider) is isinstance(provider, ContainerProvider)
    assert hasattr(made, "sync_pod") is hasattr(provider, "sync_pod")


def minimal() -> tuple[Minimal, Minimal, Faults]:
    inner, faults = Minimal(), Faults()
    inner.host = RecordingHost()
    return inner, faulty(inner, faults), faults


@pytest.mark.parametrize(("fault", "held"), [(Fault.BEFORE, 0), (Fault.AFTER, 1)])
async def test_planned_calls_of_a_pod_fail_with_or_without_effect(fault: Fault, held: int) -> None:
    inner, made, faults = minimal()
    faults.plan("sync_pod", fault=fault, pod="a", times=1)
    await made.sync_pod(make_pod("b"))
    with pytest.raises(Unavailable):
        await made.sync_pod(make_pod("a"))
    assert len(inner.pods) == 1 + held
    await made.sync_pod(make_pod("a"))
    assert len(inner.pods) == 2


async def test_call_that_hangs_fails_without_effect_when_the_backend_is_back() -> None:
    inner, made, faults = minimal()
    faults.plan("sync_pod", fault=Fault.HANGS)

    async def come_back() -> None:
        await ManualClock().settle()
        faults.clear()

    async with asyncio.TaskGroup() as group:
        group.create_task(come_back())
        with pytest.raises(Unavailable):
            await made.sync_pod(make_pod())
    assert inner.pods == {}
    await made.sync_pod(make_pod())
    assert len(inner.pods) == 1


async def test_call_that_never_answers_takes_effect() -> None:
    inner, made, faults = minimal()
    faults.plan("sync_pod", fault=Fault.SILENT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await made.sync_pod(make_pod())
    assert len(inner.pods) == 1
