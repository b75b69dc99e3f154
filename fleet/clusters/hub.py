"""Hub: the API server of the hub with what every controller of it needs, so that all of them watch, retry and record Events alike.

Invariant: every controller of a process has the same client, and so the same fence of writes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from attrs import frozen

from vkubelet.api.objects import Resource, Unknown
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Informer
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.control.store import Store
from vkubelet.metrics import Metrics

WORKERS = 16
"""Objects of one kind that are reconciled at the same time."""


@frozen(eq=False)
class Hub:
    """Client, Events, time and metrics of a process."""

    client: Client
    recorder: Recorder
    clock: Clock
    metrics: Metrics

    def informer(
        self, resource: Resource[Unknown], where: Selection = Selection(), *, store: Store[Unknown] | None = None
    ) -> Informer[Unknown]:
        """Returns a watch that is not running yet."""
        return Informer(self.client, resource, where=where, store=store, clock=self.clock, metrics=self.metrics)

    def controller(self, name: str, reconcile: Callable[[str], Awaitable[float | None]]) -> Controller[str]:
        """Returns a controller of objects by name."""
        return Controller(name, reconcile, workers=WORKERS, clock=self.clock, metrics=self.metrics)

    def event(self, resource: Resource[Unknown], obj: Unknown, *, reason: str, message: str, warning: bool = False) -> None:
        """Records an Event about an object."""
        self.recorder.event(ObjectReference.of(resource, obj), reason, message, warning=warning)


def start(group: asyncio.TaskGroup, informers: Iterable[Informer[Unknown]]) -> None:
    """Starts watches in a task group."""
    for informer in informers:
        group.create_task(informer.run(), name=f"watch {informer.resource}")


async def synced(informers: Iterable[Informer[Unknown]]) -> None:
    """Waits until each of them was listed completely."""
    for informer in informers:
        await informer.wait_synced()
