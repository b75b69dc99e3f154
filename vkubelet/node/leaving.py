"""Handles the nodes when the process stops: keeps them for the next process, cordons, drains or deletes them.

Invariant: by default nothing is changed, so that a restart has no effect; any other mode completes within its time limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from attrs import frozen

from vkubelet.clock import Clock
from vkubelet.errors import SettingsError, VKubeletError
from vkubelet.node.declared import HEALTHY, DeclaredNodes, Health, Standing

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.1
_SHUTTING_DOWN = Health("KubeletNotReady", "node is shutting down")


@frozen(kw_only=True)
class ShutdownSettings:
    """What happens to the nodes and their pods when the process stops; for processes that do not come back."""

    nodes: Literal["keep", "cordon", "drain", "delete"] = "keep"
    """keep: nothing changes, a restart has no effect; cordon: closed to new pods until the next start; drain: NotReady, and pods become
    Failed with the reason Terminated; delete: drained, then Node and Lease are deleted."""
    seconds: float = 30.0
    """Time limit for all of that; pods get no longer grace period."""

    def __attrs_post_init__(self) -> None:
        if self.seconds <= 0:
            raise SettingsError("shutdown.seconds", "must be above 0")


@frozen(kw_only=True)
class LeavingParts:
    """Collaborators: `drain(grace)` starts to terminate all pods, `drained()` returns whether they have terminated; `is_closed(node)`
    and `remove(node)` belong to the registrar."""

    nodes: DeclaredNodes
    drain: Callable[[float], None]
    drained: Callable[[], bool]
    is_closed: Callable[[str], bool]
    remove: Callable[[str], Awaitable[None]]
    clock: Clock


class Leaving:
    """Handling of the nodes at a stop; use `leave` once, while all controllers still run."""

    def __init__(self, parts: LeavingParts, settings: ShutdownSettings) -> None:
        self._parts = parts
        self._settings = settings

    async def leave(self) -> None:
        """Applies the settings, as far as the time limit allows."""
        if self._settings.nodes == "keep":
            return
        try:
            async with asyncio.timeout(self._settings.seconds):
                await self._leave()
        except TimeoutError:
            log.warning("nodes were not left as wanted within %g s", self._settings.seconds)

    async def _leave(self) -> None:
        self._parts.nodes.close(HEALTHY if self._settings.nodes == "cordon" else _SHUTTING_DOWN)
        await self._until(lambda: all(self._parts.is_closed(name) for name in self._declared()))
        if self._settings.nodes == "cordon":
            return
        self._parts.drain(self._settings.seconds)
        await self._until(self._parts.drained)
        if self._settings.nodes == "delete":
            async with asyncio.TaskGroup() as group:
                for name in self._declared():
                    group.create_task(self._remove(name), name=f"remove {name}")

    async def _remove(self, name: str) -> None:
        try:
            await self._parts.remove(name)
        except VKubeletError as error:
            log.warning("node %s could not be deleted: %s", name, error)

    def _declared(self) -> list[str]:
        nodes = self._parts.nodes
        return [name for name in nodes.names() if (known := nodes.get(name)) is not None and known.standing is Standing.DECLARED]

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            await self._parts.clock.sleep(_LOOK_EVERY)
