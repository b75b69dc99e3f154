"""What each reader of a shared dashboard may see: the reading of the hub is shared, and bounded by the rights of the reader.

Invariant: a page contains nothing that its reader could not have read from the API server: a kind of the hub is shown only to a reader who
may list it, pods also by namespace, and everything else is read through `reviewed`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from attrs import define, evolve, field, frozen

from kubeocean.dashboard.fleet import Fleet, Reading, fleet_of
from kubeocean.dashboard.history import Ledger, Sample
from kubeocean.dashboard.observer import Observer
from kubeocean.dashboard.reviewed import Review, reviewed
from kubeocean.dashboard.source import Source
from kubeocean.model.crds import CLUSTERBINDINGS
from vkubelet.api.objects import NODES, PODS, KubeObject, Resource
from vkubelet.api.rbac import Check
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.commands.clusters import Choice
from vkubelet.commands.reading import MissingRight, missing_right

T = TypeVar("T", bound=KubeObject)

MOST_READERS: Final = 64
MOST_NAMESPACES: Final = 200
"""Namespaces about which a reader is reviewed who may not list pods in all of them."""
_AT_ONCE: Final = 16


@frozen(kw_only=True)
class Rights:
    """Which kinds a reader may list; `namespaces` are those whose pods may be listed, where not those of all may."""

    bindings: bool
    nodes: bool
    pods: bool
    namespaces: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        return self.bindings or self.nodes or self.pods or bool(self.namespaces)


def listing(resource: Resource[T], namespace: str = "") -> Check:
    """Returns the right to list a kind (pure)."""
    return Check(group=resource.group, resource=resource.plural, subresource="", verb="list", namespace=namespace)


async def rights_of(reading: Reading, review: Review) -> Rights:
    """Reviews what a reader may list of a reading. Raises ApiError."""
    pods = await review(listing(PODS))
    return Rights(
        bindings=await review(listing(CLUSTERBINDINGS)),
        nodes=await review(listing(NODES)),
        pods=pods,
        namespaces=() if pods else await _namespaces(reading, review),
    )


async def _namespaces(reading: Reading, review: Review) -> tuple[str, ...]:
    found = sorted({pod.namespace for pod in reading.pods or ()})[:MOST_NAMESPACES]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(name: str) -> bool:
        async with slots:
            return await review(listing(PODS, name))

    async with asyncio.TaskGroup() as group:
        asked = {name: group.create_task(ask(name)) for name in found}
    return tuple(name for name, task in asked.items() if task.result())


def bounded(reading: Reading, rights: Rights, choice: Choice) -> Reading:
    """Returns what a reader may see of a reading, with a note about each missing right (pure)."""
    others = "pods of other namespaces, and sums of requests, are not shown" if rights.namespaces else "pods are not shown"
    missing = (
        (rights.bindings, "bindings are not shown", missing_right(choice, "list", CLUSTERBINDINGS)),
        (rights.nodes, "nodes are not shown", missing_right(choice, "list", NODES)),
        (rights.pods, others, missing_right(choice, "list", PODS)),
    )
    pods = reading.pods
    if not rights.pods:
        pods = [pod for pod in pods or () if pod.namespace in rights.namespaces] if rights.namespaces else None
    return evolve(
        reading,
        bindings=reading.bindings if rights.bindings else None,
        nodes=reading.nodes if rights.nodes else None,
        pods=pods,
        namespaces=None if rights.pods or not rights.namespaces else rights.namespaces,
        notes=[*reading.notes, *(f"{otherwise}: {text}" for allowed, otherwise, text in missing if not allowed)],
    )


@define(eq=False)
class BoundedView:
    """What one reader sees of a shared observation; `source` reads with reviews of this reader."""

    shared: Observer
    source: Source
    review: Review
    cache: dict[Rights, tuple[Reading, Fleet]]
    """The fleets of the last reading, for readers with the same rights."""
    fleet: Fleet | None = None
    _rights: Rights | None = None

    @property
    def error(self) -> str:
        """Why the last reading failed."""
        return self.shared.error

    @property
    def version(self) -> int:
        """The version of the shared reading."""
        return self.shared.version

    @property
    def samples(self) -> Sequence[Sample]:
        """Capacity over time, of what the reader may list."""
        rights = self._rights
        if rights is None or not rights.nodes:
            return ()
        found = self.shared.samples
        return found if rights.pods else [evolve(each, requested_cpu=None, requested_memory=None) for each in found]

    @property
    def ledger(self) -> Ledger:
        """The accounts of the namespaces whose pods the reader may list; it names bindings, as nodes do."""
        rights = self._rights
        if rights is None or not rights.nodes:
            return self.shared.ledger.of(())
        return self.shared.ledger if rights.pods else self.shared.ledger.of(rights.namespaces)

    async def current(self) -> Fleet:
        """Returns the last reading, bounded. Raises CommandFailed, MissingRight for a reader who may see nothing, ApiError."""
        await self.shared.current()
        reading = self.shared.reading
        assert reading is not None, "there is a fleet, so there is a reading"
        rights = self._rights = await rights_of(reading, self.review)
        if not rights.any:
            self.fleet = None
            raise MissingRight(missing_right(self.source.choice, "list", NODES))
        known = self.cache.get(rights)
        if known is None or known[0] is not reading:
            shown = bounded(reading, rights, self.source.choice)
            known = self.cache[rights] = (reading, await fleet_of(shown, self.source.clock))
        self.fleet = known[1]
        self.source.show(reading.bindings or () if rights.bindings else ())
        return self.fleet

    async def after(self, version: int) -> int:
        """Waits until the version is another one, and returns it."""
        return await self.shared.after(version)


@define(eq=False)
class Readers:
    """The views of all readers, by what identifies them; `client` has the rights of this process."""

    client: Client
    choice: Choice
    clock: Clock
    shared: Observer
    _views: dict[object, BoundedView] = field(factory=dict)
    _fleets: dict[Rights, tuple[Reading, Fleet]] = field(factory=dict)

    def of(self, identity: object, review: Callable[[Check], Awaitable[bool]]) -> BoundedView:
        """Returns the view of a reader, which is the same one as long as it is among the last `MOST_READERS`."""
        view = self._views.pop(identity, None)
        if view is None:
            source = Source(reviewed(self.client, review), self.choice, self.clock)
            view = BoundedView(self.shared, source, review, self._fleets)
        self._views[identity] = view
        while len(self._views) > MOST_READERS:
            del self._views[next(iter(self._views))]
        self._drop_old()
        return view

    def _drop_old(self) -> None:
        for rights, (reading, _) in list(self._fleets.items()):
            if reading is not self.shared.reading:
                del self._fleets[rights]
