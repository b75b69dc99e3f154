"""Adapts a ContainerProvider, which only starts and stops containers, to a `Provider`.

Invariant: the adapter has exactly the capabilities of the provider it wraps.
"""

import asyncio
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, cast

from vkubelet.api.objects import Pod, PodRef
from vkubelet.containers.engine import Engine
from vkubelet.errors import Unavailable
from vkubelet.provider import ContainerProvider, Host, MetricsEndpoint, NodeDescription, PodReport, Provider, SupportsMetrics


class _ProviderReturned(Exception):
    """Raised to stop the task group when the provider's `run` has returned."""


class EngineHost:
    """Host of the wrapped provider: its container reports go to the engine, everything else to the runtime."""

    def __init__(self, host: Host, engine: Engine, declared: asyncio.Event) -> None:
        self._host = host
        self._engine = engine
        self._declared = declared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def set_node(self, node: NodeDescription) -> None:
        self._engine.set_node(node)
        self._declared.set()
        self._host.set_node(node)

    def report(self, report: PodReport) -> None:
        self._engine.on_report(report)

    def pod_gone(self, pod: PodRef) -> None:
        self._engine.on_pod_gone(pod)


class ContainerLifecycle:
    """`Provider` that the runtime calls; `wrapped` executes the decisions."""

    def __init__(self, wrapped: ContainerProvider) -> None:
        self.wrapped = wrapped
        self._engine: Engine | None = None
        self._declared = asyncio.Event()

    async def run(self, host: Host) -> None:
        engine = self._engine = Engine(self.wrapped, host)
        self._declared = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(engine.run(), name="containers")
                await self.wrapped.run(cast(Host, EngineHost(host, engine, self._declared)))
                raise _ProviderReturned
        except* _ProviderReturned:
            pass
        finally:
            self._engine = None
            # A caller that waits for a node which this run did not declare must not wait forever.
            self._declared.set()

    async def sync_pod(self, pod: Pod) -> None:
        await (await self._ready()).sync(pod)

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        await (await self._ready()).delete(pod, grace)

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return await (await self._ready()).reports(node)

    async def _ready(self) -> Engine:
        """Returns the engine of a provider that has declared a node in the current `run`."""
        engine = self._engine
        if engine is not None:
            await self._declared.wait()
        if engine is None or engine is not self._engine:
            raise Unavailable("the provider is not running")
        return engine


class _WithMetrics(ContainerLifecycle):
    """Adapter that serves `/metrics/probes` itself, because it runs the probes."""

    async def metrics(self, node: str, endpoint: MetricsEndpoint) -> bytes:
        if endpoint is MetricsEndpoint.PROBES:
            return (await self._ready()).probe_metrics(node)
        assert isinstance(self.wrapped, SupportsMetrics)
        return await self.wrapped.metrics(node, endpoint)


def adapt(provider: Provider | ContainerProvider) -> Provider:
    """Returns the provider itself, or an adapter with the same capabilities for a ContainerProvider.

    Every public attribute beyond the contract is passed through, so that a check for a capability has the same result.
    """
    if hasattr(provider, "sync_pod") or not isinstance(provider, ContainerProvider):
        return cast(Provider, provider)
    base = _WithMetrics if isinstance(provider, SupportsMetrics) else ContainerLifecycle
    kept = {*vars(ContainerProvider), *dir(base)}
    shown = [name for name in dir(provider) if not name.startswith("_") and name not in kept]
    kind = type(f"{type(provider).__name__}Lifecycle", (base,), {name: property(attrgetter(f"wrapped.{name}")) for name in shown})
    return cast(Provider, kind(provider))
