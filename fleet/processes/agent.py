"""`fleet agent`: the process in a worker that joins it to a hub.

Invariant: one process of a worker reports to the hub; the others stand by until its leader Lease in the worker is free.
"""

import asyncio
import socket
from collections.abc import Callable

from fleet.agent.agent_settings import AgentProcessSettings
from fleet.agent.health import WorkerHealth
from fleet.agent.hubs import Hubs
from fleet.agent.join import Registration
from fleet.agent.properties import WorkerInventory
from fleet.agent.situation import Situation
from fleet.agent.worker import Worker
from fleet.api import keys
from vkubelet.api.objects import DEPLOYMENTS, Key
from vkubelet.client.connection import Connection
from vkubelet.clock import Clock, SystemClock
from vkubelet.control.certificates import PairSecret
from vkubelet.control.recorder import ObjectReference
from vkubelet.errors import Fenced, VKubeletError
from vkubelet.process import LeaderProcess, run_process
from vkubelet.settings import FollowedSettings


class AgentProcess(LeaderProcess):
    """The agent; `connection` is the one to the worker."""

    def __init__(self, settings: AgentProcessSettings, *, connection: Connection, clock: Clock | None = None) -> None:
        super().__init__(
            connection=connection,
            settings=settings,
            field_manager=keys.AGENT,
            component=keys.AGENT,
            host=socket.gethostname(),
            lease=settings.leader.name or keys.AGENT,
            clock=clock or SystemClock(),
        )
        own = settings.agent
        self.situation = Situation(self.recorder)
        self._deployment = Key(own.namespace, keys.AGENT)
        store = PairSecret(self.client, Key(own.namespace, keys.HUB_SECRET))
        self._worker = Worker(
            settings=own,
            health=WorkerHealth(self.client, self.clock),
            inventory=WorkerInventory(self.client, cluster_properties=own.cluster_properties, clock=self.clock, metrics=self.metrics),
            situation=self.situation,
            registration=Registration(own, store, situation=self.situation, clock=self.clock),
            clock=self.clock,
            metrics=self.metrics,
            holder=self.identity,
            may_lead=self._may_lead,
        )
        self._hubs = Hubs(self._worker, self.client, store)
        self._way: asyncio.Task[None] | None = None

    async def serve(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._worker.health.run(), name="health of the worker")
        group.create_task(self._worker.inventory.run(), name="inventory")
        self._way = group.create_task(self._join(), name="hubs")

    async def finish(self) -> None:
        """Stops writing to the hub; the next process continues."""
        if self._way is not None:
            self._way.cancel()

    def unready(self) -> str | None:
        """Returns what the leader waits for, or why the worker is not healthy. A standby is ready."""
        return (self.situation.waiting_for or self._worker.health.problem or None) if self.leads else None

    async def _join(self) -> None:
        try:
            found = await self.client.get(DEPLOYMENTS, self._deployment)
        except VKubeletError:
            # It runs without a Deployment, as for a test of the connection.
            self.situation.subject = None
        else:
            self.situation.subject = ObjectReference.of(DEPLOYMENTS, found)
        await self._hubs.run()

    def _may_lead(self) -> bool:
        try:
            self._gate.check()
        except Fenced:
            return False
        return True


def run_agent(read: Callable[[], AgentProcessSettings]) -> None:
    """Runs in this process until SIGTERM or SIGINT, polling `read` for changed settings. Raises VKubeletError."""
    chosen = read()
    run_process(lambda connection: AgentProcess(chosen, connection=connection), FollowedSettings(chosen, read=lambda: (read(), None)))
