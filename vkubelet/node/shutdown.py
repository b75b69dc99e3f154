"""Handles the nodes when the process stops: keeps them for the next process, cordons, drains or deletes them.

Invariant: by default nothing is changed, so that a restart has no effect; any other mode completes within its time limit.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from attrs import define, frozen

from vkubelet.clock import Clock
from vkubelet.errors import SettingsError, VKubeletError
from vkubelet.logformat import bind
from vkubelet.node.declared import HEALTHY, DeclaredNodes, Health

log = logging.getLogger(__name__)

_CHECK_EVERY = 0.1
_SHUTTING_DOWN = Health("KubeletNotReady", "node is shutting down")


@frozen(kw_only=True)
class ShutdownSettings:
    """What happens to the nodes and their pods when the process stops; for processes that do not come back."""

    nodes: Literal["keep", "cordon", "drain", "delete"] = "keep"
    """keep: nothing changes, a restart has no effect; cordon: closed to new pods until the next start; drain: NotReady, refuses new pods,
    and others become Failed with the reason Terminated; delete: drained, then Node and Lease are deleted."""
    seconds: float = 30.0
    """Time limit for all of that; pods get no longer grace period."""

    def __attrs_post_init__(self) -> None:
        if self.seconds <= 0:
            raise SettingsError("shutdown.seconds", f"is {self.seconds:g}; set a number of seconds above 0")


@define(kw_only=True, eq=False)
class NodeShutdown:
    """Handling of the nodes at a stop; use `run` once, while all controllers still run."""

    _settings: ShutdownSettings
    _nodes: DeclaredNodes
    _refuse: Callable[[], None]
    """Rejects new pods from now on."""
    _drain: Callable[[float], None]
    """Starts to terminate all pods."""
    _drained: Callable[[], bool]
    """Returns whether all pods have terminated."""
    _is_closed: Callable[[str], bool]
    _remove_node: Callable[[str], Awaitable[None]]
    _clock: Clock

    async def run(self) -> None:
        """Applies the settings, as far as the time limit allows."""
        if self._settings.nodes == "keep":
            return
        try:
            async with asyncio.timeout(self._settings.seconds):
                await self._apply()
        except TimeoutError:
            with bind(mode=self._settings.nodes, seconds=self._settings.seconds):
                log.warning("shutdown.nodes was not completed within shutdown.seconds; set more seconds if pods need longer to stop")

    async def _apply(self) -> None:
        if self._settings.nodes != "cordon":
            # Who reads that the node is not ready finds no new pod started on it.
            self._refuse()
        self._nodes.close(HEALTHY if self._settings.nodes == "cordon" else _SHUTTING_DOWN)
        await self._until(lambda: all(self._is_closed(name) for name in self._declared()))
        if self._settings.nodes == "cordon":
            return
        self._drain(self._settings.seconds)
        await self._until(self._drained)
        if self._settings.nodes == "delete":
            async with asyncio.TaskGroup() as group:
                for name in self._declared():
                    group.create_task(self._remove(name), name=f"remove {name}")

    async def _remove(self, name: str) -> None:
        try:
            await self._remove_node(name)
        except VKubeletError as error:
            with bind(node=name, error=str(error)):
                log.warning("node was not deleted; delete it manually, or start the process again")

    def _declared(self) -> list[str]:
        return [name for name in self._nodes.names() if self._nodes.is_declared(name)]

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            await self._clock.sleep(_CHECK_EVERY)
