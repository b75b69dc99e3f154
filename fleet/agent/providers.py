"""Property providers: packages that add properties of the cluster, found by the entry point `fleet.property_providers`.

Invariant: a provider that fails, or does not answer in time, delays nothing and takes away nothing but its own properties.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from typing import Final, Protocol

from attrs import field, frozen

from vkubelet.clock import Clock

GROUP: Final = "fleet.property_providers"
LIMIT: Final = 10.0
"""Seconds for the start, and for each collection."""
EVERY: Final = 60.0
OUTSTANDING: Final = 3
"""Calls of one provider that may be unanswered before no further one is made."""


class PropertyProvider(Protocol):
    """A source of properties; the entry point is a callable without arguments that returns one."""

    async def start(self) -> None:
        """Prepares the provider; called once."""
        ...

    async def collect(self) -> Mapping[str, str]:
        """Returns all its properties by their names."""
        ...


@frozen
class Outcome:
    """Reason and message of a condition, which is True when it `holds`."""

    reason: str
    message: str
    holds: bool = field(default=False)


STARTED: Final = Outcome("Started", "the agent collects the properties", holds=True)
COLLECTED: Final = Outcome("PropertiesCollected", "all properties were collected", holds=True)


class _Running:
    """One provider."""

    def __init__(self, name: str, provider: PropertyProvider) -> None:
        self.name = name
        self.provider = provider
        self.outstanding = 0
        self.properties: Mapping[str, str] = {}


class PropertyProviders:
    """All providers. `run` it in a task group, and read `properties`, which never waits."""

    def __init__(self, clock: Clock, found: Mapping[str, Callable[[], PropertyProvider]] | None = None) -> None:
        self.started = STARTED
        self.collected = COLLECTED
        self._clock = clock
        self._found = found if found is not None else installed()
        self._running: list[_Running] = []
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Starts the providers, and collects their properties once a minute, until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for name, make in self._found.items():
                await self._start(name, make)
            while True:
                await self.collect()
                await self._clock.sleep(EVERY)

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of all providers, as collected last."""
        return {name: value for each in self._running for name, value in each.properties.items()}

    async def collect(self) -> None:
        """Collects once; the properties of a provider that does not answer stay as they are."""
        problems = [problem for each in self._running if (problem := await self._collect(each)) is not None]
        self.collected = problems[0] if problems else COLLECTED

    async def _start(self, name: str, make: Callable[[], PropertyProvider]) -> None:
        running: list[_Running] = []

        async def start() -> None:
            provider = make()
            await provider.start()
            running.append(_Running(name, provider))

        error = await self._call(start)
        if error is not None:
            reason = "TimedOut" if isinstance(error, TimeoutError) else "FailedToStart"
            self.started = Outcome(reason, f"property provider {name}: {_text(error)}; correct or uninstall it")
        self._running += running

    async def _collect(self, each: _Running) -> Outcome | None:
        if each.outstanding >= OUTSTANDING:
            return Outcome("TooManyCalls", f"property provider {each.name} has not answered {OUTSTANDING} calls; restart the agent")

        async def collect() -> None:
            each.outstanding += 1
            try:
                each.properties = _texts(await each.provider.collect())
            finally:
                each.outstanding -= 1

        error = await self._call(collect)
        if error is None:
            return None
        reason = "TimedOut" if isinstance(error, TimeoutError) else "FailedToCollect"
        return Outcome(reason, f"property provider {each.name}: {_text(error)}; correct or uninstall it")

    async def _call(self, step: Callable[[], Awaitable[None]]) -> Exception | None:
        """Calls a provider; returns its error, or a TimeoutError after which the call goes on."""
        assert self._group is not None, "providers are called while they run"
        done, errors = asyncio.Event(), list[Exception]()

        async def guarded() -> None:
            try:
                await step()
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        async def expire() -> None:
            await self._clock.sleep(LIMIT)
            if not done.is_set():
                errors.append(TimeoutError(f"no answer within {LIMIT:g} s"))
                done.set()

        self._group.create_task(guarded(), name="property provider")
        alarm = self._group.create_task(expire(), name="limit of a property provider")
        await done.wait()
        alarm.cancel()
        return errors[0] if errors else None


def installed() -> Mapping[str, Callable[[], PropertyProvider]]:
    """Returns the installed providers by the names of their entry points."""
    return {each.name: _loader(each) for each in metadata.entry_points(group=GROUP)}


def _loader(entry: metadata.EntryPoint) -> Callable[[], PropertyProvider]:
    def load() -> PropertyProvider:
        made: PropertyProvider = entry.load()()
        return made

    return load


def _texts(properties: Mapping[str, str]) -> Mapping[str, str]:
    return {str(name): str(value) for name, value in properties.items() if name and value}


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
