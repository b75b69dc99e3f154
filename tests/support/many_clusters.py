"""Many clusters on one `fleet hub`, played by the `kubernetes` package: each joins, renews its Lease, and sends heartbeats as a member.

Invariant: nothing of the product decides what a cluster sends; each sends it once in its period, and a share of all of them each second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import define, field

from fleet.api import keys
from tests.integration.fleet.player import ACCEPTED, CLUSTERS, MEMBERS, conditions, internal, lease, managed, rfc3339
from tests.support.audit import Audit, Call
from tests.support.load import Load, Request
from tests.support.program import Program
from vkubelet.testing.cluster import ControlPlane

PERIOD = 60
"""Seconds between two renewals, and between two heartbeats, of each cluster."""
MERGE = "application/merge-patch+json"
STALLED = 120.0
"""Seconds without progress of any cluster after which joining counts as failed."""
_LONGEST_SETTLED = 40
"""Periods without writes that are waited for."""
_ASKING = 200
"""Clusters that ask to join before the others are cared for."""
_AVAILABLE = {"type": "ManagedClusterConditionAvailable", "status": "True", "reason": "ManagedClusterAvailable", "message": ""}
_SYNCED = ("True", "ManagedClusterClockSynced")

Body = dict[str, Any]


@define
class ManyClusters:
    """The clusters `NAME-0` … of a hub; `program` is its process."""

    plane: ControlPlane
    program: Program
    count: int
    name: str = "many"
    names: Sequence[str] = field(init=False)
    load: Load = field(init=False)
    _accepted: Sequence[str] = field(init=False, default=())
    _turn: int = field(init=False, default=0)
    """The monotonic second up to which each cluster has had its turn."""

    def __attrs_post_init__(self) -> None:
        self.names = [f"{self.name}-{number}" for number in range(self.count)]
        self.load = Load(self.plane.kubeconfig)

    async def join(self) -> float:
        """Lets all of them join; the seconds until each is accepted, mirrored and available, and has a clock and no taint. However slow
        the machine is: this fails when there is no progress for `STALLED`."""
        began = time.monotonic()
        for first in range(0, self.count, _ASKING):
            await self.load.send(Request("POST", CLUSTERS, _record(name)) for name in self.names[first : first + _ASKING])
            await self._follow()
        await self._progress(self._follow, 2 * self.count, "accepted, and available with a clock and without a taint")
        await self._progress(self._mirrored, self.count, "mirrored")
        return time.monotonic() - began

    async def _progress(self, number: Callable[[], Awaitable[int]], whole: int, what: str) -> None:
        best, since = -1, time.monotonic()
        while (found := await number()) < whole:
            if found > best:
                best, since = found, time.monotonic()
            assert time.monotonic() < since + STALLED, f"{found} of {whole} {what}, no more for {STALLED:g} s\n{self.program.tail()}"

    async def _follow(self) -> int:
        """Lets the accepted clusters report, and live for a moment; how many are accepted, and how many of these have joined, in sum."""
        records = [each for each in (await self.load.get(CLUSTERS))["items"] if _has(each, "HubAcceptedManagedCluster", ACCEPTED)]
        self._accepted = [each["metadata"]["name"] for each in records]
        joining = [each for each in records if not _is_settled(each)]
        await self.load.send(_renewal(each["metadata"]["name"]) for each in joining)
        await self.load.send(_report(each) for each in joining if not _is_available(each))
        await self.live(2.0)
        return 2 * len(records) - len(joining)

    async def _mirrored(self) -> int:
        """Lets them live for a moment; how many are members as well."""
        await self.live(2.0)
        listed = (await self.load.get(MEMBERS))["items"]
        return sum(_has(each, "ReadyToJoin", ("True", "MemberClusterReadyToJoin")) for each in listed)

    async def live(self, seconds: float, *, heartbeats: bool = False) -> int:
        """Renews the Lease of each accepted cluster once in a period, and sends heartbeats likewise; how many of these were sent."""
        ends, sent = time.monotonic() + seconds, 0
        while (now := time.monotonic()) < ends:
            # By the clock and not by the number of turns: a slow answer must not lengthen the period.
            turns = range(max(self._turn, int(now) - PERIOD), int(now))
            share = [name for turn in turns for name in self._accepted[turn % PERIOD :: PERIOD]]
            self._turn = int(now)
            await self.load.send(map(_renewal, share))
            if heartbeats:
                await self.load.send(map(_heartbeat, share))
                sent += len(share)
            await asyncio.sleep(max(0.0, now + 1.0 - time.monotonic()))
        return sent

    async def settle(self, user: str, *, seconds: float, heartbeats: bool = False) -> None:
        """Lives until the hub, which is this user, has written nothing for so long but what heartbeats cause; its Events come last."""
        caused = {"memberclusters/status"} if heartbeats else set()
        for _ in range(_LONGEST_SETTLED):
            audit = Audit(self.plane, user)
            await self.live(seconds, heartbeats=heartbeats)
            if all(call.what in caused for call in own_writes(audit)):
                return
        waited = _LONGEST_SETTLED * seconds
        raise AssertionError(f"the hub still writes {waited:.0f} s after the clusters have joined\n{self.program.tail()}")

    async def unavailable(self) -> list[str]:
        """Those that are not available any more, although each has renewed its Lease."""
        listed = (await self.load.get(CLUSTERS))["items"]
        return [each["metadata"]["name"] for each in listed if not _is_available(each)]


def own_writes(audit: Audit) -> list[Call]:
    """Writes of the hub, but for its own Lease."""
    return [call for call in audit.writes() if not _is_of_leader(call)]


def requests(audit: Audit) -> Counter[str]:
    """Requests of the hub by verb, resource and status, but for its watches, the lists before them, and its own Lease."""
    return Counter(f"{each.verb} {each.what} {each.code}" for each in audit.calls() if _is_counted(each))


def _is_counted(call: Call) -> bool:
    return call.verb not in ("watch", "list") and not _is_of_leader(call)


def _is_of_leader(call: Call) -> bool:
    return (call.what, call.namespace) == ("leases", keys.NAMESPACE)


def _has(body: Body, type_: str, wanted: tuple[str, str]) -> bool:
    return conditions(body).get(type_) == wanted


def _is_available(body: Body) -> bool:
    return _has(body, _AVAILABLE["type"], (_AVAILABLE["status"], _AVAILABLE["reason"]))


def _is_settled(body: Body) -> bool:
    return not body["spec"].get("taints") and _is_available(body) and _has(body, "ManagedClusterConditionClockSynced", _SYNCED)


def _record(name: str) -> Body:
    body = managed(name)
    body["spec"]["leaseDurationSeconds"] = PERIOD
    return body


def _renewal(name: str) -> Request:
    return Request("PATCH", lease(name), {"spec": {"renewTime": rfc3339(datetime.now(UTC)), "holderIdentity": name}}, MERGE)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _report(found: Body) -> Request:
    """What the agent of a cluster reports, beside what the hub has; the hub may have reported meanwhile that it is not available."""
    name = found["metadata"]["name"]
    others = [each for each in (found.get("status") or {}).get("conditions") or () if each["type"] != _AVAILABLE["type"]]
    available = {**_AVAILABLE, "lastTransitionTime": _now()}
    return Request("PATCH", f"{CLUSTERS}/{name}/status", {"status": {"conditions": [*others, available]}}, MERGE)


def _heartbeat(name: str) -> Request:
    """What the agent of a member reports once in each period."""
    common = {"status": "True", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    own = [{"type": each, "reason": f"InternalMemberCluster{each}", **common} for each in ("Joined", "Healthy")]
    agents = [{"type": "MemberAgent", "conditions": own, "lastReceivedHeartbeat": _now()}]
    return Request("PATCH", f"{internal(name)}/status", {"status": {"agentStatus": agents}}, MERGE)
