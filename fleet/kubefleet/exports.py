"""Marks members that export services, so that an admission policy refuses to delete them while `validationMode` is Strict.

Invariant: a hub that does not serve InternalServiceExports marks nothing; what cannot be read changes no mark.
"""

import asyncio
from typing import Final

from fleet.api import keys
from fleet.api.resources import SERVICEEXPORTS
from fleet.clusters.hub import Hub, synced
from fleet.clusters.records import Records
from fleet.clusters.registry import Registry
from vkubelet.api.objects import Unknown
from vkubelet.client.rest import Selection
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import NotFound, VKubeletError

_BY_NAMESPACE: Final = "namespace"
_PRESENT: Final = "true"
_CHECKED_EVERY: Final = 60.0
"""Seconds between two checks whether the kind is served now."""


class Exports:
    """Controller of these marks, by the name of the member."""

    def __init__(self, hub: Hub, registry: Registry, members: Records) -> None:
        self._hub = hub
        self._members = members
        store: Store[Unknown] = Store(indexes={_BY_NAMESPACE: lambda obj: (obj.metadata.namespace,)})
        self.exports = hub.informer(SERVICEEXPORTS, Selection(metadata_only=True), store=store)
        self.informers: list[Informer[Unknown]] = []
        """None that the process has to wait for: the kind is optional."""
        self.controller = hub.controller("exports", self.reconcile)
        self.exports.on_change(self._export_changed)
        registry.on_change(self.controller.add, status=False)

    async def run(self) -> None:
        """Runs until cancelled."""
        while not await self._is_served():
            await self._hub.clock.sleep(_CHECKED_EVERY)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.exports.run(), name=f"watch {SERVICEEXPORTS}")
            await synced([self.exports, self._members.informer])
            group.create_task(self.controller.run(), name="exports")

    async def _is_served(self) -> bool:
        """Checks for the kind; what else prevents a list is for the watch to report."""
        try:
            await self._hub.client.list(SERVICEEXPORTS, Selection(metadata_only=True))
        except NotFound:
            return False
        except VKubeletError:
            return True
        return True

    async def reconcile(self, name: str) -> None:
        """Sets or removes the mark of one member. Raises ApiError."""
        obj = self._members.get(name)
        if obj is None or obj.metadata.deletion_timestamp is not None:
            return
        exports = self.exports.store.has(_BY_NAMESPACE, keys.member_namespace(name))
        if exports != (keys.EXPORTS in obj.metadata.annotations):
            await self._members.patch(obj, {"metadata": {"annotations": {keys.EXPORTS: _PRESENT if exports else None}}})

    def _export_changed(self, change: Change[Unknown]) -> None:
        """Reconciles the member of a namespace with its first export, or without its last one."""
        prefix = keys.member_namespace("")
        if change.key.namespace.startswith(prefix):
            self.controller.add(change.key.namespace.removeprefix(prefix))
