"""Which capabilities the adapter shows, and how it comes between provider and runtime."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.vkubelet.containers.bench import Executor, Starter, app, bench
from vkubelet.containers.adapter import ContainerLifecycle, adapt
from vkubelet.errors import Unavailable
from vkubelet.provider import (
    MetricsEndpoint,
    Provider,
    SupportsExec,
    SupportsLogs,
    SupportsMetrics,
    SupportsPing,
    SupportsPolling,
    contract,
)
from vkubelet.testing.host import RecordingHost, make_pod

CAPABILITIES = [getattr(contract, name) for name in vars(contract) if name.startswith("Supports")]


class Measuring(Starter):
    """With capabilities of every form: a call, a value, a flag of another module."""

    poll_interval = 5.0
    admits_pods = True

    async def metrics(self, node: str, endpoint: MetricsEndpoint) -> bytes:
        return f"{node} {endpoint.value}".encode()

    async def ping(self, node: str) -> None: ...


@pytest.mark.parametrize("kind", [Starter, Executor, Measuring])
def test_adapter_shows_exactly_the_capabilities_of_the_provider(kind: type[Starter]) -> None:
    wrapped = kind()
    adapter = adapt(wrapped)
    assert isinstance(adapter, ContainerLifecycle)
    for capability in CAPABILITIES:
        assert isinstance(adapter, capability) is isinstance(wrapped, capability), capability


def test_capabilities_of_these_three_differ() -> None:
    assert [isinstance(adapt(Executor()), kind) for kind in (SupportsExec, SupportsLogs, SupportsPing)] == [True, True, False]
    assert [isinstance(adapt(Measuring()), kind) for kind in (SupportsPolling, SupportsMetrics, SupportsExec)] == [True, True, False]
    assert getattr(adapt(Measuring()), "admits_pods", False) is True
    assert not hasattr(adapt(Starter()), "admits_pods")


class Complete(Starter):
    """It can do both, so it says how its pods live."""

    async def sync_pod(self, pod: object) -> None: ...


def test_provider_that_knows_pods_is_left_alone() -> None:
    provider = Complete()
    assert adapt(provider) is provider


async def test_probe_metrics_are_told_by_who_probes_and_others_by_the_provider() -> None:
    async with bench({"containers": [app()]}, Measuring()) as b:
        assert isinstance(b.adapter, SupportsMetrics)
        assert await b.adapter.metrics("node", MetricsEndpoint.RESOURCE) == b"node resource"
        assert await b.adapter.metrics("node", MetricsEndpoint.PROBES) == b""


async def test_calls_before_and_after_the_providers_life_are_to_be_repeated() -> None:
    adapter = adapt(Starter())
    with pytest.raises(Unavailable):
        await adapter.sync_pod(make_pod())


class Broken(Starter):
    """It ends at once."""

    async def run(self, host: object) -> None:
        raise RuntimeError("broken")


async def test_failure_of_the_provider_passes_and_ends_everything_of_this_life() -> None:
    adapter = adapt(Broken())
    with pytest.raises(ExceptionGroup) as caught:
        await adapter.run(RecordingHost())
    assert isinstance(caught.value.exceptions[0], RuntimeError)
    with pytest.raises(Unavailable):
        await adapter.list_pods("node")


async def test_call_that_waits_for_a_provider_that_ends_undeclared_is_to_be_repeated() -> None:
    class Silent(Starter):
        async def run(self, host: object) -> None:
            await going.wait()
            raise RuntimeError("broken")

    going = asyncio.Event()
    adapter = adapt(Silent())
    async with asyncio.TaskGroup() as group:
        running = group.create_task(_run_until_broken(adapter))
        await asyncio.sleep(0)
        waiting = group.create_task(_refused(adapter))
        await asyncio.sleep(0)
        assert not waiting.done()
        going.set()
        await running
        # The next run has begun before the call could look.
        going.clear()
        again = group.create_task(_run_until_broken(adapter))
        async with asyncio.timeout(5):
            assert await waiting
        going.set()
        await again


async def _run_until_broken(adapter: Provider) -> None:
    with pytest.raises(ExceptionGroup):
        await adapter.run(RecordingHost())


async def _refused(adapter: Provider) -> bool:
    with pytest.raises(Unavailable):
        await adapter.sync_pod(make_pod())
    return True


async def test_provider_sees_the_runtimes_host_behind_its_own() -> None:
    async with bench({"containers": [app()]}) as b:
        assert b.backend.host.clock is b.host.clock
        assert "node" in b.host.nodes
        assert b.host.complete


async def test_backend_that_loses_a_pod_is_believed() -> None:
    async with bench({"containers": [app()]}) as b:
        await b.sync()
        b.backend.host.pod_gone(b.pod.ref)
        assert b.host.gone == [b.pod.ref]
