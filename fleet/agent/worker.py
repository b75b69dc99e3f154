"""What everything in the process of an agent shares: settings, state of the worker, clock.

Invariant: one instance for each process.
"""

import asyncio
from collections.abc import Callable

from attrs import define

from fleet.agent.agent_settings import AgentSettings
from fleet.agent.health import WorkerHealth
from fleet.agent.join import Registration
from fleet.agent.properties import WorkerInventory
from fleet.agent.situation import Situation
from vkubelet.clock import Clock
from vkubelet.metrics import Metrics


@define(kw_only=True)
class Worker:
    """The worker in which the agent runs."""

    settings: AgentSettings
    health: WorkerHealth
    inventory: WorkerInventory
    situation: Situation
    registration: Registration
    clock: Clock
    metrics: Metrics
    holder: str
    """Name of this process."""
    may_lead: Callable[[], bool]
    """Checks that no other process of the worker can have replaced this one."""


async def wait_at_most(clock: Clock, event: asyncio.Event, seconds: float) -> None:
    """Waits until the event is set, or so many seconds have passed."""

    async def ring() -> None:
        await clock.sleep(seconds)
        event.set()

    async with asyncio.TaskGroup() as group:
        alarm = group.create_task(ring())
        await event.wait()
        alarm.cancel()
