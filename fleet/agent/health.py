"""Health of the worker's API server, as the hub reports it.

Invariant: the server counts as unhealthy only after it failed without a break, and as healthy with its first success.
"""

import asyncio
from typing import Final

from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.backoff import with_timeout
from vkubelet.errors import Forbidden, NotFound, VKubeletError

ASKED_EVERY: Final = 5.0
FAILED_AFTER: Final = 20.0
"""Seconds of failures after which the API server is unhealthy."""


class WorkerHealth:
    """Probes the API server. `run` it in a task group."""

    def __init__(self, worker: Client, clock: Clock) -> None:
        self.problem = ""
        """Why the API server is unhealthy; "" when it is healthy."""
        self.known = asyncio.Event()
        """Set once the health is known."""
        self._change = asyncio.Event()
        self._worker = worker
        self._clock = clock
        self._failing_since: float | None = None

    async def run(self) -> None:
        """Probes until cancelled."""
        while True:
            self._note(await self._probe())
            await self._clock.sleep(ASKED_EVERY)

    async def changes(self) -> None:
        """Waits until the API server becomes unhealthy, or healthy again."""
        await self._change.wait()

    def _note(self, problem: str) -> None:
        now = self._clock.monotonic()
        if not problem:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        failed = self._failing_since is not None and now - self._failing_since >= FAILED_AFTER
        if failed or not problem:
            flipped = bool(self.problem) != failed
            self.problem = problem
            self.known.set()
            if flipped:
                self._change.set()
                self._change = asyncio.Event()

    async def _probe(self) -> str:
        try:
            return await self._ask("/livez")
        except (Forbidden, NotFound):
            pass
        try:
            return await self._ask("/healthz")
        except (Forbidden, NotFound) as error:
            return f"{error}; bind ClusterRole system:public-info-viewer to the agent"

    async def _ask(self, path: str) -> str:
        """Returns why the server is not healthy; "" when it is. Raises Forbidden and NotFound."""
        try:
            await with_timeout(self._worker.request("GET", path), f"GET {path}", clock=self._clock, within=ASKED_EVERY)
        except (Forbidden, NotFound):
            raise
        except VKubeletError as error:
            return str(error)
        return ""
