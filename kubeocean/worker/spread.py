"""An informer of one kind in a set of namespaces that changes: one watch for each, since the rights of the identity are per namespace.

Invariant: unknown does not mean deleted. It is synced only while every namespace of the set is, and a namespace that leaves the set takes
no object with it that its own watch has not reported as deleted.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from vkubelet.api.objects import Key, Resource, Unknown
from vkubelet.client.rest import Client
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store


class SpreadInformer(Informer[Unknown]):
    """Behaves as one informer; `of` creates that of one namespace, `namespaces` is the set, run by its owner."""

    def __init__(
        self,
        client: Client,
        resource: Resource[Unknown],
        *,
        of: Callable[[str], Informer[Unknown]],
        namespaces: Informer[Unknown],
        indexes: Mapping[str, Callable[[Unknown], Iterable[str]]] | None = None,
    ) -> None:
        self._of = of
        self._namespaces = namespaces
        self._parts: dict[str, Informer[Unknown]] = {}
        self._added = asyncio.Event()
        super().__init__(client, resource, store=Store(indexes=indexes))
        namespaces.on_change(self._namespace_changed)

    @property
    def ever_synced(self) -> bool:
        """Whether all namespaces have been listed completely once."""
        return self._namespaces.ever_synced and all(part.ever_synced for part in self._current())

    @ever_synced.setter
    def ever_synced(self, value: bool) -> None:
        """Ignores the value: it is that of the parts."""

    @property
    def last_error(self) -> Exception | None:
        """Error of the first namespace that cannot be watched now."""
        return next((part.last_error for part in self._current() if part.last_error is not None), None)

    @last_error.setter
    def last_error(self, value: Exception | None) -> None:
        """Ignores the value: it is that of the parts."""

    @property
    def synced(self) -> bool:
        """Whether all namespaces are listed completely now."""
        return self._namespaces.synced and all(part.synced for part in self._current())

    async def wait_synced(self) -> None:
        """Waits until all namespaces that are known then have been listed."""
        await self._namespaces.wait_synced()
        for part in self._current():
            await part.wait_synced()

    def stale_for(self) -> float:
        """Returns the seconds since the last response on the watch that is silent longest."""
        return max((part.stale_for() for part in self._current()), default=0.0)

    def adopt(self, obj: Unknown) -> None:
        """Adds an object that another call returned."""
        part = self._parts.get(obj.metadata.namespace)
        if part is not None:
            part.adopt(obj)

    def part(self, namespace: str) -> Informer[Unknown] | None:
        """Returns the informer of one namespace; None for one that has never been in the set."""
        return self._parts.get(namespace)

    async def listed(self, namespace: str) -> None:
        """Waits until one namespace of the set is listed."""
        await self._parts[namespace].wait_synced()

    async def run(self) -> None:
        """Watches all namespaces until cancelled."""
        running: set[str] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                self._added.clear()
                for name in self._parts.keys() - running:
                    running.add(name)
                    group.create_task(self._parts[name].run(), name=f"{self.resource.plural} of {name}")
                await self._added.wait()

    def _current(self) -> list[Informer[Unknown]]:
        """Returns the parts of namespaces that are in the set now; a deleted one cannot be listed any more."""
        return [part for name, part in self._parts.items() if Key("", name) in self._namespaces.store]

    def _namespace_changed(self, change: Change[Unknown]) -> None:
        name = change.key.name
        if change.new is not None and name not in self._parts:
            part = self._parts[name] = self._of(name)
            part.on_change(self._forward)
            self._added.set()

    def _forward(self, change: Change[Unknown]) -> None:
        self.store.remove(change.key)
        if change.new is not None:
            self.store.place(change.new)
        self._notify(change)
