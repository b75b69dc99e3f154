"""Leader election by a Lease, and the fence that stops the writes of a process whose leadership may have expired.

Invariant: the fence is open only while a renewal that the API server confirmed is younger than FENCE seconds, counted from its sending.

Other processes may acquire the Lease DURATION seconds after they observed its last change, by their own monotonic clocks (the rule of
client-go); a write takes at most 5 s, so none of ours arrives after FENCE + 5 = DURATION.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from attrs import frozen

from vkubelet.api.objects import LEASES, Json, Key, Lease
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, rfc3339_micro
from vkubelet.errors import AlreadyExists, Conflict, Fenced, LeadershipLost, NotFound, VKubeletError, first_error
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

DURATION = 15.0
FENCE = 10.0
PERIOD = 2.0
WRITES_END = 5.0
"""Seconds that writes in flight get at a stop; the client limits each write to that."""
_ATTEMPT = 5.0
_WARN_EVERY = 15


class WriteGate:
    """Fence of every write of a process: closed at its stop, else decided by its leader election."""

    def __init__(self) -> None:
        self.election: LeaderElection | None = None
        self._closed = False

    def check(self) -> None:
        """Raises Fenced when writes are not allowed."""
        if self._closed:
            raise Fenced("no writes are allowed any more: this process stops")
        if self.election is not None:
            self.election.fence.check()

    async def close(self, client: Client) -> None:
        """Stops all further writes and waits for those in flight; if one stays unresolved, the Lease is not released."""
        self._closed = True
        if not await client.writes_done(WRITES_END) and self.election is not None:
            self.election.release = False


class LeaderFence:
    """Fence that a Client checks before each write."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewed_at: float | None = None

    def check(self) -> None:
        """Raises Fenced when this process is not the leader, or was not confirmed lately."""
        if self._renewed_at is None:
            raise Fenced("no writes are allowed: this process is not the leader")
        age = self._clock.monotonic() - self._renewed_at
        if age > FENCE:
            raise Fenced(f"no writes are allowed: leadership was last confirmed {age:.0f} s ago, because its Lease was not renewed")

    def renewed(self, sent_at: float) -> None:
        """Records that a renewal sent at `sent_at` (monotonic) is confirmed."""
        self._renewed_at = sent_at

    def close(self) -> None:
        """Stops all further writes."""
        self._renewed_at = None


@frozen
class Record:
    """Fields of the Lease that an election reads."""

    holder: str = ""
    duration: float = DURATION
    renewed: str = ""
    transitions: int = 0

    @classmethod
    def of(cls, lease: Lease) -> Record:
        spec = lease.spec
        return cls(
            spec.get("holderIdentity") or "",
            float(spec.get("leaseDurationSeconds") or DURATION),
            spec.get("renewTime") or "",
            spec.get("leaseTransitions") or 0,
        )


class Observation:
    """Last observed state of the Lease, and when it changed, by our clock: clocks of other machines are not compared."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self._changed_at = 0.0

    def note(self, record: Record, now: float) -> bool:
        """Records what was just read; returns whether the holder changed."""
        before = self.record
        if record != before:
            self.record, self._changed_at = record, now
        return before is None or before.holder != record.holder

    def free_for(self, identity: str, now: float) -> bool:
        """Checks whether `identity` may acquire the Lease now."""
        if self.record is None or self.record.holder in ("", identity):
            return True
        return now >= self.free_since

    @property
    def free_since(self) -> float:
        """When another process may acquire, or could have acquired, the Lease: since its release, or once it has expired."""
        expires = self.record is not None and self.record.holder != ""
        return self._changed_at + (self.record.duration if self.record is not None and expires else 0.0)


class LeaderElection:
    """Election by the Lease `name` in `namespace`; `client` must not check this election's fence."""

    def __init__(self, client: Client, *, name: str, namespace: str, identity: str, clock: Clock) -> None:
        self.fence = LeaderFence(clock)
        self.release = True
        """False when a write is unresolved at the stop: then the Lease is left to expire instead of being released."""
        self._client = client
        self._key = Key(namespace, name)
        self._identity = identity
        self._clock = clock
        self._seen = Observation()
        self._found: Lease | None = None
        """The Lease as it was read or written last."""
        self._lease: Lease | None = None
        self._failures = 0

    async def lead(self, body: Callable[[], Awaitable[None]]) -> None:
        """Waits for leadership, then runs `body` until it returns; then releases the Lease.

        Raises LeadershipLost, after cancelling `body`, when another holder is observed. While the API server does not respond, `body`
        continues behind a closed fence. After an error or a cancellation the Lease is left to expire.
        """
        await self._acquire()
        try:
            async with asyncio.TaskGroup() as group:
                keeper = group.create_task(self._keep(), name="leader election")
                await body()
                keeper.cancel()
        except BaseExceptionGroup as problems:
            lost = problems.subgroup(LeadershipLost)
            if lost is None:
                raise
            raise LeadershipLost(str(first_error(lost))) from problems
        finally:
            self.fence.close()
        if self.release:
            await self._release()

    async def _acquire(self) -> None:
        while not await self._attempt(self._take):
            await self._clock.sleep(PERIOD * random.uniform(1.0, 1.2))
        log.info("leading")

    async def _keep(self) -> None:
        while True:
            await self._clock.sleep(PERIOD)
            await self._attempt(self._renew)

    async def _attempt(self, step: Callable[[], Awaitable[bool]]) -> bool:
        """Runs one step within its timeout; returns False when it failed and may be retried. Raises LeadershipLost."""
        try:
            async with asyncio.timeout(_ATTEMPT):
                done = await step()
        except LeadershipLost:
            raise
        except (VKubeletError, TimeoutError) as error:
            self._failures += 1
            level = logging.WARNING if self._failures % _WARN_EVERY == 3 else logging.DEBUG
            with bind(lease=self._key):
                log.log(level, "leader election failed, it will be repeated: %s", str(error) or "no answer in time")
            return False
        self._failures = 0
        return done

    async def _take(self) -> bool:
        """Acquires the Lease if it is free."""
        try:
            found = self._found = await self._client.get(LEASES, self._key)
        except NotFound:
            self._found = None
            return self._may_take() and await self._create(0)
        record = Record.of(found)
        if self._seen.note(record, self._clock.monotonic()) and record.holder not in ("", self._identity):
            with bind(holder=record.holder):
                log.info("another process leads")
        if not self._seen.free_for(self._identity, self._clock.monotonic()) or not self._may_take():
            return False
        taken = record.transitions + (record.holder != self._identity)
        try:
            await self._put(found, transitions=taken)
        except Conflict:
            return False
        return True

    def _may_take(self) -> bool:
        """Checks whether a free Lease is to be acquired now."""
        return True

    async def _create(self, transitions: int) -> bool:
        sent_at = self._clock.monotonic()
        try:
            self._lease = self._found = await self._client.create(
                LEASES, self._body(None, transitions=transitions), namespace=self._key.namespace
            )
        except AlreadyExists:
            return False
        self.fence.renewed(sent_at)
        return True

    async def _renew(self) -> bool:
        """Confirms leadership. Raises LeadershipLost when the Lease has, or had meanwhile, another holder."""
        ours = self._lease
        assert ours is not None, "only the holder renews"
        transitions = Record.of(ours).transitions
        try:
            await self._put(ours, transitions=transitions)
        except NotFound:
            if not await self._create(transitions):
                await self._put(await self._still_ours(transitions), transitions=transitions)
        except Conflict:
            await self._put(await self._still_ours(transitions), transitions=transitions)
        return True

    async def _still_ours(self, transitions: int) -> Lease:
        """Returns the Lease after a conflict: another client may have edited it, or a response did not arrive; the holder decides."""
        found = await self._client.get(LEASES, self._key)
        record = Record.of(found)
        if record.holder != self._identity or record.transitions != transitions:
            # The body is only now being cancelled, and must not write anything meanwhile.
            self.fence.close()
            raise LeadershipLost(f"the leader Lease {self._key} was acquired by {record.holder or 'no process'}; this process exits")
        return found

    async def _put(self, found: Lease, *, transitions: int) -> None:
        sent_at = self._clock.monotonic()
        self._lease = self._found = await self._client.replace(LEASES, self._body(found, transitions=transitions))
        self.fence.renewed(sent_at)

    async def _release(self) -> None:
        """Releases the Lease; a waiting process acquires it within PERIOD seconds."""
        ours = self._lease
        assert ours is not None, "only the holder releases"
        try:
            async with asyncio.timeout(_ATTEMPT):
                try:
                    await self._give_up(ours)
                except Conflict:
                    # The last renewal may have arrived after it was cancelled.
                    await self._give_up(await self._still_ours(Record.of(ours).transitions))
        except (VKubeletError, TimeoutError) as error:
            with bind(error=str(error) or "no response within the time limit"):
                log.debug("leadership was not released; the Lease expires")

    async def _give_up(self, found: Lease) -> None:
        body = self._body(found, transitions=Record.of(found).transitions)
        body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        await self._client.replace(LEASES, body)

    def _body(self, found: Lease | None, *, transitions: int) -> Json:
        """Returns the renewed Lease; labels, annotations and fields of other clients are kept."""
        now = rfc3339_micro(self._clock.now())
        metadata: Json = {"name": self._key.name, "namespace": self._key.namespace}
        spec: Json = {}
        if found is not None:
            metadata |= {
                "resourceVersion": found.metadata.resource_version,
                "labels": found.metadata.labels,
                "annotations": found.metadata.annotations,
                "finalizers": found.metadata.finalizers,
            }
            spec = found.spec
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
        spec |= {"holderIdentity": self._identity, "leaseDurationSeconds": int(DURATION), "renewTime": now, "leaseTransitions": transitions}
        return {"metadata": self._marked(metadata), "spec": spec}

    def _marked(self, metadata: Json) -> Json:
        """Returns the metadata of the Lease with the marks of this election."""
        return metadata
