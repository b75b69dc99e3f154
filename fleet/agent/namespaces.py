"""Managed namespaces: creates in the worker the namespaces that sets of its cluster prescribe, labels them, and reports each to the hub.

Invariant: no namespace is deleted; one that is not prescribed any more loses the label of its hub alone.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from attrs import define, field, frozen

from fleet.agent.agent_settings import AgentSettings
from fleet.agent.managed_cluster_status import LOOKED_EVERY, may_report
from fleet.agent.situation import Situation
from fleet.agent.worker import wait_at_most
from fleet.api import keys
from fleet.api.clusters import ManagedCluster
from fleet.api.resources import MANAGEDCLUSTERS
from vkubelet.api.objects import NAMESPACES, Json, JsonView, Key, Unknown, get_condition, set_condition
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.clock import Clock
from vkubelet.control.backoff import Backoff
from vkubelet.control.informer import Change, Informer
from vkubelet.errors import AlreadyExists, Conflict, Forbidden, NotFound, VKubeletError

AVAILABLE: Final = "NamespaceAvailable"
APPLIED: Final = "NamespaceApplied"
FAILED: Final = "NamespaceApplyFailed"
RULE: Final = '{apiGroups: [""], resources: [namespaces], verbs: [list, create, patch]}'
_LONGEST_NAME: Final = 63
_LEAST_PAUSE: Final = 2.0
"""Seconds between two writes of the status, also where another client reverts them."""


def hub_label(url: str) -> str:
    """Returns the label of the namespaces that the hub of this URL prescribes; several hubs may prescribe the same namespace."""
    return f"{keys.MANAGED_NAMESPACE}{hashlib.sha256(url.encode()).hexdigest()[:_LONGEST_NAME]}"


def prescribed(obj: Unknown) -> list[Json]:
    """Returns the entries of a record, each with the set and the name of a namespace."""
    entries = (obj.body.get("status") or {}).get("managedNamespaces") or ()
    return [dict(each) for each in entries if isinstance(each, dict) and each.get("name")]


@frozen
class Result:
    """What became of one namespace; without `problem` it exists with the label."""

    problem: str = ""

    def condition(self, generation: int) -> Json:
        status, reason = ("False", FAILED) if self.problem else ("True", APPLIED)
        message = self.problem or "the namespace exists"
        return {"type": AVAILABLE, "status": status, "reason": reason, "message": message, "observedGeneration": generation}


@define(kw_only=True)
class ManagedNamespaces:
    """Follows the record of one worker on one hub. `run` it in the task group of the membership."""

    settings: AgentSettings
    situation: Situation
    clock: Clock
    worker: Client
    hub: Client
    record: Informer[Unknown]
    label: str
    """The one by which namespaces of this hub are recognized."""
    _changed: asyncio.Event = field(init=False, factory=asyncio.Event)
    _labelled: set[str] | None = field(init=False, default=None)
    """The namespaces that have the label; None while that is unknown."""

    def __attrs_post_init__(self) -> None:
        self.record.on_change(self._on_change)

    def _on_change(self, change: Change[Unknown]) -> None:
        before, after = (each and (prescribed(each), may_report(ManagedCluster.parse(each))) for each in (change.old, change.new))
        if before != after:
            self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        backoff = Backoff(first=0.5, limit=LOOKED_EVERY)
        while True:
            self._changed.clear()
            wait = LOOKED_EVERY
            try:
                await self._reconcile()
                backoff.reset()
            except VKubeletError as error:
                wait = backoff.next()
                # Conflicts with other writers of the record, such as the heartbeat, are usual.
                if not isinstance(error, Conflict):
                    self.situation.warns("NamespacesNotReported", f"cannot report the managed namespaces of the cluster: {error}")
            await self.clock.sleep(_LEAST_PAUSE)
            await wait_at_most(self.clock, self._changed, wait)

    async def _reconcile(self) -> None:
        """Applies all that the record lists, and reports it. Raises ApiError."""
        obj = self.record.store.get(Key("", self.settings.cluster))
        if obj is None or not may_report(ManagedCluster.parse(obj)):
            return
        entries = prescribed(obj)
        wanted = list(dict.fromkeys(each["name"] for each in entries))
        # After a start, namespaces of deleted entries may have the label.
        if not wanted and self._labelled == set():
            return
        results = await self._apply(wanted)
        await self._report(obj, entries, results)

    async def _apply(self, wanted: Sequence[str]) -> dict[str, Result]:
        if not self.settings.managed_namespaces:
            self._labelled = set()
            return dict.fromkeys(wanted, Result("not created, because setting agent.managed_namespaces of the worker is false"))
        try:
            found = (await self.worker.list(NAMESPACES, Selection(labels=self.label))).items
        except Forbidden as error:
            self._labelled = set()
            return dict.fromkeys(wanted, Result(f"the agent may not list namespaces: {error}; add to its ClusterRole the rule {RULE}"))
        live = {each.metadata.name: each.metadata for each in found}
        self._labelled = set(live)
        for name in sorted(live.keys() - set(wanted)):
            await self._unlabel(name, live[name].uid)
        results = {}
        for name in wanted:
            ends = name in live and live[name].deletion_timestamp is not None
            results[name] = Result("the namespace is being deleted; it is created again afterwards") if ends else await self._ensure(name)
        return results

    async def _ensure(self, name: str) -> Result:
        """Creates or labels one namespace, unless it has the label."""
        assert self._labelled is not None
        metadata: Json = {"name": name, "labels": {self.label: "true"}}
        try:
            if name not in self._labelled:
                try:
                    await self.worker.patch(NAMESPACES, name, {"metadata": {"labels": metadata["labels"]}}, kind=PatchKind.MERGE)
                except NotFound:
                    await self.worker.create(NAMESPACES, {"metadata": metadata})
        except AlreadyExists:
            return Result("another client has just created the namespace; it is labelled within a minute")
        except Forbidden as error:
            return Result(f"the agent may not create it: {error}; add to its ClusterRole the rule {RULE}")
        except VKubeletError as error:
            return Result(f"cannot create the namespace: {error}")
        self._labelled.add(name)
        return Result()

    async def _unlabel(self, name: str, uid: str) -> None:
        try:
            await self.worker.patch(NAMESPACES, name, {"metadata": {"uid": uid, "labels": {self.label: None}}}, kind=PatchKind.MERGE)
        except NotFound:
            pass
        assert self._labelled is not None
        self._labelled.discard(name)

    async def _report(self, obj: Unknown, entries: Sequence[JsonView], results: dict[str, Result]) -> None:
        """Writes the conditions that differ. Raises ApiError, Conflict when the hub has changed the entries."""
        now, generation = self.clock.now(), obj.metadata.generation
        listed = []
        for each in entries:
            condition = results[each["name"]].condition(generation)
            known = get_condition(each.get("conditions") or (), AVAILABLE) or {}
            if all(known.get(name) == value for name, value in condition.items()):
                listed.append(each)
            else:
                listed.append({**each, "conditions": set_condition(each.get("conditions") or (), condition, now=now)})
        if listed == list(entries):
            return
        metadata = {"uid": obj.metadata.uid, "resourceVersion": obj.metadata.resource_version}
        change = {"metadata": metadata, "status": {"managedNamespaces": listed}}
        made = await self.hub.patch(MANAGEDCLUSTERS, obj.key, change, subresource="status", kind=PatchKind.MERGE)
        self.record.adopt(made)
