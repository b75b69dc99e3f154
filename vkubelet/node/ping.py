"""Pings the provider, if it supports pings, for the health of each of its nodes.

Invariant: at most one ping of a node is in flight; one that hangs counts as failed.
"""

import asyncio
import logging

from attrs import frozen

from vkubelet.clock import Clock
from vkubelet.control.controller import Controller
from vkubelet.errors import SettingsError, VKubeletError
from vkubelet.logformat import bind
from vkubelet.node.declared import HEALTHY, DeclaredNodes, Health
from vkubelet.provider import SupportsPing

log = logging.getLogger(__name__)

IN_FLIGHT = 1000
"""Maximum number of pings at the same time; each that hangs occupies one until its timeout."""


@frozen(kw_only=True)
class PingSettings:
    """How nodes are pinged."""

    every: float = 10.0
    """Seconds between two pings of one node."""
    timeout: float = 10.0
    """Seconds after which a ping without a response has failed."""

    def __attrs_post_init__(self) -> None:
        for name, seconds in (("every", self.every), ("timeout", self.timeout)):
            if seconds <= 0:
                raise SettingsError(f"ping.{name}", f"is {seconds:g}; set a number of seconds above 0")


class Pinger:
    """Pings of every declared node; each node is its own key, so that one that hangs does not delay the others."""

    def __init__(self, provider: SupportsPing, nodes: DeclaredNodes, *, clock: Clock, settings: PingSettings) -> None:
        self._provider = provider
        self._nodes = nodes
        self._settings = settings
        self._pinged: set[str] = set()
        self._controller: Controller[str] = Controller("ping", self._ping, workers=IN_FLIGHT, clock=clock)
        nodes.on_change(self._follow)

    async def run(self) -> None:
        """Pings until cancelled."""
        await self._controller.run()

    def _follow(self, name: str) -> None:
        if self._nodes.is_declared(name) and name not in self._pinged:
            self._pinged.add(name)
            self._controller.add(name)

    async def _ping(self, name: str) -> float | None:
        if not self._nodes.is_declared(name):
            self._pinged.discard(name)
            return None
        # An unexpected error of the provider propagates to the controller, which logs it and retries.
        health: Health | None = Health("PingFailed", "the provider failed unexpectedly; its log contains the cause")
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._provider.ping(name)
            health = HEALTHY
        except TimeoutError:
            health = Health("PingTimeout", f"the provider did not answer the ping within {self._settings.timeout:g} s (ping.timeout)")
        except (VKubeletError, OSError) as error:
            health = Health("PingFailed", str(error))
        except asyncio.CancelledError:
            health = None
            raise
        finally:
            if health is not None:
                self._record(name, health)
        return self._settings.every

    def _record(self, name: str, health: Health) -> None:
        known = self._nodes.get(name)
        if known is not None and known.health.reason != health.reason:
            with bind(node=name, health=health.reason or "healthy"):
                log.info("node health changed")
        self._nodes.set_health(name, health)
