"""Tests of fleet.agent.health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fleet.agent.health import WorkerHealth
from tests.support.memory_api import MemoryApi
from vkubelet.client.transport import Call
from vkubelet.errors import ApiError, Forbidden, NotFound, ServerError
from vkubelet.testing.clock import ManualClock


class ProbedApi(MemoryApi):
    """Answers probes with the errors in `errors`, by path."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: Mapping[str, type[ApiError]] = {}
        self.asked: list[str] = []

    async def fetch(self, call: Call, timeout: float) -> bytes:
        self.asked.append(call.path)
        if call.path in self.errors:
            raise self.errors[call.path](call.attempt, "some answer")
        return b"ok"


@asynccontextmanager
async def probed(api: ProbedApi, clock: ManualClock) -> AsyncIterator[WorkerHealth]:
    health = WorkerHealth(api.client(), clock)
    task = asyncio.ensure_future(health.run())
    await clock.settle()
    yield health
    task.cancel()


async def test_f_132_the_api_server_is_unhealthy_after_twenty_seconds_of_failures() -> None:
    api, clock = ProbedApi(), ManualClock()
    async with probed(api, clock) as health:
        assert health.known.is_set() and health.problem == ""
        api.errors = {"/livez": ServerError}
        flipped = asyncio.ensure_future(health.changes())
        await clock.advance(24.9)
        assert health.problem == "" and not flipped.done()
        await clock.advance(0.2)
        assert "some answer" in health.problem and flipped.done()
        api.errors = {}
        flipped = asyncio.ensure_future(health.changes())
        await clock.advance(5)
        assert health.problem == "" and flipped.done()


async def test_f_132_a_success_between_failures_counts() -> None:
    api, clock = ProbedApi(), ManualClock()
    async with probed(api, clock) as health:
        for _ in range(4):
            api.errors = {"/livez": ServerError}
            await clock.advance(15)
            api.errors = {}
            await clock.advance(5)
            assert health.problem == ""


async def test_f_132_healthz_is_asked_where_livez_is_forbidden_or_absent() -> None:
    for error in (Forbidden, NotFound):
        api, clock = ProbedApi(), ManualClock()
        api.errors = {"/livez": error}
        async with probed(api, clock) as health:
            assert health.known.is_set() and health.problem == "" and api.asked == ["/livez", "/healthz"]


async def test_f_132_without_the_right_to_probe_the_remedy_is_named() -> None:
    api, clock = ProbedApi(), ManualClock()
    api.errors = dict.fromkeys(("/livez", "/healthz"), Forbidden)
    async with probed(api, clock) as health:
        assert not health.known.is_set()
        await clock.advance(20)
        assert "system:public-info-viewer" in health.problem
