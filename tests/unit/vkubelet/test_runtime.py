"""What the runtime decides without a cluster."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

from tests.support.memory_api import MemoryApi
from tests.unit.vkubelet.idle import Idle
from vkubelet.errors import LeadershipLost, VKubeletError, first_error
from vkubelet.runtime import Runtime
from vkubelet.server import ServerSettings
from vkubelet.settings import HealthSettings, LeaderSettings, Settings
from vkubelet.testing.clock import ManualClock

T = TypeVar("T")


def test_first_error_of_nested_groups_is_the_one_that_ends_the_process() -> None:
    lost = LeadershipLost("taken")
    group = BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [lost]), VKubeletError("later")])
    assert first_error(group) is lost


class StopsWhileEntering(AsyncExitStack):
    """Asks the runtime to stop at the moment at which a new leader opens its server."""

    runtime: Runtime

    async def enter_async_context(self, manager: AbstractAsyncContextManager[T]) -> T:  # type: ignore[override]
        self.runtime.stop()
        for _ in range(10):
            await self.runtime.clock.sleep(0)
        return await super().enter_async_context(manager)


async def test_a_leader_that_is_stopped_while_it_starts_hands_its_lease_on() -> None:
    api, clock = MemoryApi(), ManualClock()
    settings = Settings(
        leader=LeaderSettings(enabled=True),
        health=HealthSettings(health_address="", metrics_address=""),
        server=ServerSettings(main_port=False),
    )
    runtime = Runtime(Idle(), settings, connection=api.connection, clock=clock)
    api.lend_to(runtime.client)
    runtime.streams = StopsWhileEntering()
    runtime.streams.runtime = runtime
    async with asyncio.TaskGroup() as group:
        running = group.create_task(runtime.run())
        await clock.advance(10.0)
        assert running.done()
    lease = api.objects["/apis/coordination.k8s.io/v1/namespaces/default/leases/vkubelet-default"]
    assert lease["spec"]["holderIdentity"] == ""
