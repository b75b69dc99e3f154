"""Records: the objects of one kind, watched, and patched without losing what other clients have written.

Invariant: a patch names UID and resourceVersion of the object that it was computed from; nothing is written when nothing differs.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from fleet.clusters.hub import Hub
from vkubelet.api.objects import Json, JsonView, Key, Resource, Unknown, get_condition, set_condition
from vkubelet.client.rest import PatchKind
from vkubelet.control.store import Store


def condition(type_: str, status: str, reason: str, *, message: str) -> Json:
    """Builds a condition without its time and generation."""
    return {"type": type_, "status": status, "reason": reason, "message": message}


def updated_conditions(old: Sequence[JsonView], new: Sequence[JsonView], *, generation: int, now: datetime) -> list[Json] | None:
    """Returns the conditions with the new ones in place; None when that changes nothing."""
    found = [dict(each) for each in old]
    for each in new:
        found = set_condition(found, {**each, "observedGeneration": generation}, now=now)
    return None if found == list(old) else found


class Records:
    """Watch and writer of one kind. `run` the informer in a task group."""

    def __init__(self, hub: Hub, resource: Resource[Unknown], *, store: Store[Unknown] | None = None) -> None:
        self.resource = resource
        self.informer = hub.informer(resource, store=store)
        self._hub = hub

    def get(self, name: str, namespace: str = "") -> Unknown | None:
        return self.informer.store.get(Key(namespace, name))

    def latest(self, obj: Unknown) -> Unknown:
        """Returns the newest known state of an object."""
        found = self.informer.store.get(obj.key)
        return found if found is not None and found.metadata.uid == obj.metadata.uid else obj

    def unchanged(self, obj: Unknown) -> Unknown | None:
        """Returns the newest known state of an object, to report about its spec; None when that has changed, so that a reconcile is due."""
        found = self.latest(obj)
        return found if found.metadata.generation == obj.metadata.generation else None

    async def patch(self, obj: Unknown, change: JsonView, *, subresource: str = "") -> Unknown:
        """Merges a change into the object as it was read; returns it. Raises ApiError, Conflict when it has changed since."""
        metadata = {**change.get("metadata", {}), "uid": obj.metadata.uid, "resourceVersion": obj.metadata.resource_version}
        body = {**change, "metadata": metadata}
        made = await self._hub.client.patch(self.resource, obj.key, body, subresource=subresource, kind=PatchKind.MERGE)
        self.informer.adopt(made)
        return made

    async def report(self, obj: Unknown, conditions: Sequence[JsonView], fields: Mapping[str, Any] | None = None) -> Unknown:
        """Writes conditions and other fields of the status that differ; returns the object. Raises ApiError."""
        status = obj.body.get("status") or {}
        change = {name: value for name, value in (fields or {}).items() if status.get(name) != value}
        known, generation = status.get("conditions") or [], obj.metadata.generation
        listed = updated_conditions(known, conditions, generation=generation, now=self._hub.clock.now())
        if listed is not None:
            change["conditions"] = listed
        return await self.patch(obj, {"status": change}, subresource="status") if change else obj

    async def hold(
        self, obj: Unknown, finalizers: Collection[str], *, metadata: JsonView | None = None, spec: JsonView | None = None
    ) -> Unknown:
        """Adds finalizers, and changes other fields in the same write. Raises ApiError."""
        obj = self.unchanged(obj) or obj
        missing = [each for each in finalizers if each not in obj.metadata.finalizers]
        head = {**(metadata or {}), **({"finalizers": [*obj.metadata.finalizers, *missing]} if missing else {})}
        change = {name: value for name, value in (("metadata", head), ("spec", spec)) if value}
        return await self.patch(obj, change) if change else obj

    async def release(self, obj: Unknown, finalizers: Collection[str]) -> Unknown:
        """Removes finalizers. Raises ApiError."""
        obj = self.latest(obj)
        left = [each for each in obj.metadata.finalizers if each not in finalizers]
        return await self.patch(obj, {"metadata": {"finalizers": left}}) if len(left) < len(obj.metadata.finalizers) else obj


def has_condition(obj: Unknown, type_: str, *, status: str, reason: str) -> bool:
    """Checks that the condition has this status for this reason."""
    found = get_condition((obj.body.get("status") or {}).get("conditions") or (), type_)
    return found is not None and (found.get("status"), found.get("reason")) == (status, reason)
