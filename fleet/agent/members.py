"""The worker's part in the API of KubeFleet: reports to its InternalMemberCluster, and leaves when that requests it.

Invariant: only the entry of this agent is written, once in each heartbeat period and when the state or the health changes; after `Leave`
was acknowledged nothing more is reported.
"""

import asyncio
import random
from datetime import datetime
from typing import Final

from attrs import define, field, frozen

from fleet.agent.agent_settings import ClientConfig
from fleet.agent.properties import WorkerFacts
from fleet.agent.worker import Worker, wait_at_most
from fleet.api import keys
from fleet.api.clusters import AGENT_HEALTHY, JOIN, LEAVE, MEMBER_JOINED, InternalMemberCluster, condition_of
from fleet.api.resources import INTERNALMEMBERCLUSTERS
from fleet.core.profiles import HEARTBEAT_JITTER
from fleet.core.properties import Inventory, merged
from vkubelet.api.objects import Json, JsonView, Key, Unknown, set_condition
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import rfc3339
from vkubelet.control.backoff import Backoff
from vkubelet.control.informer import Change, Informer
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.errors import Conflict, VKubeletError

_RECHECKED_EVERY: Final = 60.0
_WATCHED_EVERY: Final = 1.0
_PROVIDER_STARTED: Final = "ClusterPropertyProviderStarted"
_COLLECTED: Final = "ClusterPropertyCollectionSucceeded"


@frozen(kw_only=True)
class MemberReport:
    """What the agent has to report; without `unhealthy` the worker is healthy."""

    facts: WorkerFacts
    unhealthy: str = ""
    entrypoint: str = ""
    authority: str = ""


def agent_status(live: JsonView, report: MemberReport, *, desired: str, generation: int, now: datetime) -> Json:
    """Returns the entry of this agent, from the live one."""
    joined, healthy = desired == JOIN, not report.unhealthy
    conditions = [
        _condition(MEMBER_JOINED, joined, "InternalMemberClusterJoined" if joined else "InternalMemberClusterLeft", ""),
        _condition(
            AGENT_HEALTHY, healthy, "InternalMemberClusterHealthy" if healthy else "InternalMemberClusterUnhealthy", report.unhealthy
        ),
    ]
    made = list(live.get("conditions") or ())
    for each in conditions:
        made = set_condition(made, {**each, "observedGeneration": generation}, now=now)
    return {"type": keys.MEMBER_AGENT, "conditions": made, "lastReceivedHeartbeat": rfc3339(now)}


def status_change(live: JsonView, report: MemberReport, *, desired: str, generation: int, now: datetime) -> Json:
    """Returns the merge patch of `status`: the entry of this agent beside those of others, and what the worker has while it is joined."""
    agents = [dict(each) for each in live.get("agentStatus") or ()]
    before = next((each for each in agents if each.get("type") == keys.MEMBER_AGENT), {})
    entry = agent_status(before, report, desired=desired, generation=generation, now=now)
    change: Json = {"agentStatus": [*(each for each in agents if each.get("type") != keys.MEMBER_AGENT), entry]}
    facts, inventory = report.facts, report.facts.inventory
    if desired != JOIN or inventory is None:
        return change
    observed = rfc3339(now)
    change["resourceUsage"] = {**inventory.member_usage(), "observationTime": observed}
    properties = {name: {"value": value, "observationTime": observed} for name, value in _properties(inventory, report).items()}
    change["properties"] = {**dict.fromkeys(live.get("properties") or ()), **properties}
    lacking = "; ".join(facts.missing)
    conditions = list(live.get("conditions") or ())
    started, collected = facts.started, facts.collected
    for each in (
        _condition(_PROVIDER_STARTED, started.holds, started.reason, started.message),
        _condition(_COLLECTED, collected.holds, collected.reason, f"not reported: {lacking}" if lacking else collected.message),
    ):
        conditions = set_condition(conditions, {**each, "observedGeneration": generation}, now=now)
    return {**change, "conditions": conditions}


def next_heartbeat(period: int) -> float:
    """Returns the seconds until the next heartbeat: the period, varied so that members that joined together disperse."""
    return period * random.uniform(1 - HEARTBEAT_JITTER, 1 + HEARTBEAT_JITTER)


def _properties(inventory: Inventory, report: MemberReport) -> dict[str, str]:
    facts = report.facts
    computed = inventory.properties(version=facts.version or "", entrypoint=report.entrypoint, authority=report.authority)
    return merged(computed={**computed, **facts.provided}, claims=facts.claims or {}, cluster_properties=facts.cluster_properties)


def _condition(type_: str, holds: bool, reason: str, message: str) -> Json:
    return {"type": type_, "status": "True" if holds else "False", "reason": reason, "message": message}


@define(kw_only=True)
class MemberAgent:
    """Reports to the InternalMemberCluster of this worker on the hub. `run` it in a task group."""

    worker: Worker
    hub: Client
    alone: bool = False
    """Whether this is the only door by which the cluster joins, so that its state is that of the agent."""
    record: Informer[Unknown] = field(init=False)
    recorder: Recorder = field(init=False)
    joined: bool = field(init=False, default=False)
    """Whether the last report was that of a member."""
    _changed: asyncio.Event = field(init=False, factory=asyncio.Event)
    _reported: tuple[str, bool] | None = field(init=False, default=None)
    """Desired state and health of the last report."""

    def __attrs_post_init__(self) -> None:
        worker, name = self.worker, self.worker.settings.cluster
        where = Selection(namespace=keys.member_namespace(name), fields=f"metadata.name={name}")
        self.record = Informer(self.hub, INTERNALMEMBERCLUSTERS, where=where, clock=worker.clock, metrics=worker.metrics)
        self.record.on_change(self._on_change)
        self.recorder = Recorder(self.hub, keys.AGENT, host=worker.holder, clock=worker.clock)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.record.run(), name="internal member cluster")
            group.create_task(self.recorder.run(), name="events of the member")
            group.create_task(self._follow_health(), name="health")
            group.create_task(self._report(), name="heartbeat")
            if self.alone:
                group.create_task(self._watch_hub(), name="hub")

    async def _watch_hub(self) -> None:
        situation, name = self.worker.situation, self.worker.settings.cluster
        while True:
            obj = self._obj
            if self.record.last_error is not None:
                situation.waits("HubNotReached", f"cannot read the InternalMemberCluster on the hub: {self.record.last_error}")
            elif obj is None and self.record.synced:
                situation.waits(
                    "NoMemberCluster", f"the hub has no MemberCluster {name}; on the hub create it with the identity of the agent"
                )
            elif self.joined:
                situation.proceeds("Joined", f"the cluster is member {name} of the hub", joined=True)
            elif obj is not None and InternalMemberCluster.parse(obj).desired == LEAVE:
                situation.waits("Left", f"the hub removes member {name}; to join again, create MemberCluster {name} on the hub")
            await self.worker.clock.sleep(_WATCHED_EVERY)

    @property
    def _key(self) -> Key:
        name = self.worker.settings.cluster
        return Key(keys.member_namespace(name), name)

    @property
    def _obj(self) -> Unknown | None:
        return self.record.store.get(self._key)

    def _on_change(self, change: Change[Unknown]) -> None:
        if change.more_than_status:
            self._changed.set()

    async def _follow_health(self) -> None:
        while True:
            await self.worker.health.changes()
            self._changed.set()

    async def _report(self) -> None:
        clock, backoff = self.worker.clock, Backoff(first=1.0, limit=30.0)
        await self.worker.health.known.wait()
        while True:
            self._changed.clear()
            try:
                wait = await self._heartbeat()
                backoff.reset()
            except VKubeletError as error:
                wait = min(backoff.next(), self._period())
                self.worker.situation.warns("MemberNotReported", f"cannot write the InternalMemberCluster on the hub: {error}")
            await wait_at_most(clock, self._changed, wait)

    def _period(self) -> float:
        """Seconds between two heartbeats: one that failed is repeated before the next is due."""
        obj = self._obj
        return float(InternalMemberCluster.parse(obj).period) if obj is not None else _RECHECKED_EVERY

    async def _heartbeat(self) -> float:
        """Reports once where the record asks for it; returns the seconds until the next report. Raises ApiError."""
        try:
            return await self._write_report(self._obj)
        except Conflict:
            # After an outage the watch may take longer than a heartbeat may be late to show who wrote last.
            found = await self.hub.get(INTERNALMEMBERCLUSTERS, self._key)
            self.record.adopt(found)
            return await self._write_report(found)

    async def _write_report(self, obj: Unknown | None) -> float:
        member = InternalMemberCluster.parse(obj) if obj is not None else None
        if obj is None or member is None or member.desired not in (JOIN, LEAVE):
            self.joined, self._reported = False, None
            return _RECHECKED_EVERY
        if member.desired == LEAVE and self._acknowledged(member):
            self.joined = False
            return _RECHECKED_EVERY
        report = self._report_of(await self.worker.inventory.read())
        status = obj.body.get("status") or {}
        change = status_change(status, report, desired=member.desired, generation=obj.metadata.generation, now=self.worker.clock.now())
        body = {"metadata": {"resourceVersion": obj.metadata.resource_version}, "status": change}
        written = await self.hub.patch(INTERNALMEMBERCLUSTERS, obj.key, body, subresource="status", kind=PatchKind.MERGE)
        self.record.adopt(written)
        self._tell(written, member.desired, report)
        return next_heartbeat(member.period)

    def _acknowledged(self, member: InternalMemberCluster) -> bool:
        own = member.state.agent()
        found = condition_of(own.conditions, MEMBER_JOINED) if own is not None else None
        return found is not None and found.status == "False"

    def _report_of(self, facts: WorkerFacts) -> MemberReport:
        config = next(iter(self.worker.settings.client_configs), ClientConfig(url=""))
        return MemberReport(facts=facts, unhealthy=self.worker.health.problem, entrypoint=config.url, authority=config.ca_bundle)

    def _tell(self, obj: Unknown, desired: str, report: MemberReport) -> None:
        """Records Events about what differs from the last report."""
        before, self._reported = self._reported, (desired, not report.unhealthy)
        self.joined = desired == JOIN
        subject = ObjectReference.of(INTERNALMEMBERCLUSTERS, obj)
        if before is None or before[0] != desired:
            reason = "InternalMemberClusterJoined" if self.joined else "InternalMemberClusterLeft"
            self.recorder.event(subject, reason, "the agent reports to the hub" if self.joined else "the agent reports no longer")
        if before is None or before[1] != (not report.unhealthy):
            if report.unhealthy:
                self.recorder.event(subject, "InternalMemberClusterUnhealthy", report.unhealthy, warning=True)
            else:
                self.recorder.event(subject, "InternalMemberClusterHealthy", "the API server of the cluster is healthy")
