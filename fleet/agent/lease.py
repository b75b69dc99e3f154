"""Renews the Lease by which the hub knows that a cluster is alive.

Invariant: only the Lease that the hub created is renewed; nothing is created or deleted.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from fleet.api import keys
from vkubelet.api.objects import LEASES, Key, Resource, Unknown
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, rfc3339_micro
from vkubelet.control.backoff import Backoff
from vkubelet.errors import Conflict, LeadershipLost, VKubeletError

_JITTER: Final = 0.25
_LEASES: Final[Resource[Unknown]] = Resource(LEASES.group, LEASES.version, LEASES.plural, LEASES.kind, True, Unknown)
"""Complete, so that fields of other clients survive a renewal."""


class HubLease:
    """The Lease of one cluster; `holder` names this process, `may_lead` checks that no other can have replaced it."""

    def __init__(self, hub: Client, cluster: str, *, holder: str, may_lead: Callable[[], bool], clock: Clock) -> None:
        self.renewed_at = clock.monotonic()
        """Time of the last renewal; at first that of the start."""
        self.problem = ""
        """Why the last attempt failed."""
        self.renewed = asyncio.Event()
        """Set when this process has renewed it once."""
        self.returned = asyncio.Event()
        """Set when a renewal succeeds after one that failed: the hub responds again."""
        self._hub = hub
        self._key = Key(cluster, keys.LEASE)
        self._holder = holder
        self._may_lead = may_lead
        self._clock = clock
        self._lease: Unknown | None = None
        self._backoff = Backoff(first=1.0, limit=30.0, jitter=0.5)

    async def run(self, ready: Callable[[], Awaitable[int]]) -> None:
        """Renews until cancelled; `ready` waits until that is allowed and returns the seconds between two renewals.

        Raises LeadershipLost when another process renews the Lease, and this one may have been replaced.
        """
        while True:
            seconds = await ready()
            try:
                await self._renew()
            except VKubeletError as error:
                if isinstance(error, LeadershipLost):
                    raise
                self._lease, self.problem = None, str(error)
                await self._clock.sleep(min(self._backoff.next(), float(seconds)))
                continue
            if self.problem:
                self.returned.set()
            self.renewed_at, self.problem = self._clock.monotonic(), ""
            self.renewed.set()
            self._backoff.reset()
            await self._clock.sleep(seconds * random.uniform(1.0, 1.0 + _JITTER))

    async def _renew(self) -> None:
        """Renews once. Raises ApiError, LeadershipLost."""
        if self._lease is not None:
            try:
                self._lease = await self._put(self._lease)
                return
            except Conflict:
                self._lease = None
        found = await self._hub.get(_LEASES, self._key)
        holder = (found.body.get("spec") or {}).get("holderIdentity") or self._holder
        if holder != self._holder and not self._may_lead():
            raise LeadershipLost(f"Lease {self._key} of the hub was renewed by {holder}; this process exits")
        self._lease = await self._put(found)

    async def _put(self, found: Unknown) -> Unknown:
        body = found.body
        body["spec"] = {**(body.get("spec") or {}), "holderIdentity": self._holder, "renewTime": rfc3339_micro(self._clock.now())}
        return await self._hub.replace(_LEASES, body)
