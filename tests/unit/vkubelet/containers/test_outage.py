"""A ContainerProvider whose backend fails, loses answers or hangs: every call, every fault, every restart policy.

Invariant: whatever fails, no run is started twice and no state goes back; when the backend is back, containers run and a deleted pod ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import pytest

from tests.unit.vkubelet.containers.bench import Bench, app, bench
from vkubelet.api.objects import Pod, PodRef
from vkubelet.control.backoff import with_timeout
from vkubelet.errors import Unavailable
from vkubelet.provider import (
    ContainerReport,
    ContainerState,
    Host,
    NodeDescription,
    PodReport,
    ResolvedContainer,
    ResolvedPod,
    Running,
    Sandbox,
    Terminated,
    Waiting,
)
from vkubelet.testing.conformance.faults import CONTAINER_CALLS, Fault, Faults, faulty

POLL = 2.0
AWAY = 60.0
"""Seconds without an answer: longer than the grace, and than the runtime waits for one."""

GRACE = 5.0
BACK = 45.0
"""Seconds after an outage within which all is as it should be: a call that hangs may take 30, and a retry comes within 10."""


class Jobs:
    """Keeps the contract and no more: a start has no effect on what runs, but starts again what has ended.

    `tells`: it reports by itself; otherwise only its list shows what its containers do. `short`: the first run of `main` ends at once.
    """

    def __init__(self, *, tells: bool, short: bool) -> None:
        self.tells, self.short = tells, short
        self.runs: list[tuple[str, int]] = []
        self.held: dict[str, tuple[PodRef, dict[str, ContainerReport]]] = {}

    async def run(self, host: Host) -> None:
        self.host = host
        host.set_node(NodeDescription("node", capacity={"cpu": "4"}))
        host.nodes_complete()
        await host.until_stopped()

    async def prepare_pod(self, pod: Pod) -> Sandbox:
        self.held.setdefault(pod.ref.uid, (pod.ref, {}))
        return Sandbox(["10.0.0.1"])

    async def start_container(self, pod: ResolvedPod, container: ResolvedContainer, *, restarts: int) -> None:
        known = self.held[pod.pod.ref.uid][1].get(container.name)
        if known is not None and isinstance(known.state, Running):
            return
        self.runs.append((container.name, restarts))
        now = self.host.clock.now()
        over = self.short and container.name == "main" and restarts == 0
        state = Terminated(0, started_at=now, finished_at=now) if over else Running(now)
        self._note(pod.pod.ref, container.name, state, restarts)

    async def stop_container(self, pod: PodRef, container: str, *, grace: float) -> None:
        known = self.held[pod.uid][1].get(container) if pod.uid in self.held else None
        if known is not None and isinstance(known.state, Running):
            end = Terminated(143, started_at=known.state.started_at, finished_at=self.host.clock.now())
            self._note(pod, container, end, known.restarts)

    def _note(self, pod: PodRef, name: str, state: ContainerState, restarts: int) -> None:
        report = ContainerReport(name, state, restarts=restarts, id=f"job://{name}/{restarts}")
        self.held[pod.uid][1][name] = report
        if self.tells:
            self.host.report(PodReport(pod, [report]))

    async def remove_pod(self, pod: PodRef) -> None:
        self.held.pop(pod.uid, None)

    async def list_containers(self, node: str) -> Iterable[PodReport]:
        return [PodReport(ref, list(containers.values())) for ref, containers in self.held.values()]

    def settled(self, names: Sequence[str]) -> bool:
        """Each container has begun."""
        return {name for name, _ in self.runs} == set(names)


async def until_done(b: Bench, call: Callable[[], Awaitable[object]]) -> None:
    """As the runtime repeats a call of its own."""
    while True:
        try:
            await call()
            return
        except Unavailable:
            await b.host.clock.sleep(1.0)


async def poll(b: Bench) -> None:
    """As the runtime, which gives up a list that does not come."""
    while True:
        try:
            await with_timeout(b.adapter.list_pods("node"), "list_pods", clock=b.host.clock)
        except Unavailable:
            await b.host.clock.sleep(POLL / 2)
        await b.host.clock.sleep(POLL)


async def delete(b: Bench) -> None:
    """As the runtime: the grace, then nothing but zero."""
    await until_done(b, lambda: b.adapter.delete_pod(b.pod.ref, GRACE))
    await b.host.clock.sleep(GRACE)
    while True:
        await until_done(b, lambda: b.adapter.delete_pod(b.pod.ref, 0.0))
        await b.host.clock.sleep(30.0)


def expect_no_flapping(b: Bench, name: str) -> None:
    """What has begun is not shown as waiting to begin, unless a further run of it has ended."""
    ranks = {Waiting: 0, Running: 1, Terminated: 2}
    shown = [c for report in b.host.reports for c in report.containers if c.name == name]
    for was, now in zip(shown, shown[1:], strict=False):
        over = now.restarts > was.restarts or now.last != was.last or isinstance(was.state, Terminated)
        assert over or ranks[type(now.state)] >= ranks[type(was.state)], (was, now)


@pytest.mark.parametrize("names", [["main"], ["main", "other"]], ids=["one", "two"])
@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("call", CONTAINER_CALLS)
async def test_outage_starts_nothing_twice_and_ends(call: str, fault: Fault, policy: str, names: Sequence[str]) -> None:
    for tells, short in ((True, True), (True, False), (False, True), (False, False)):
        faults, provider = Faults(), Jobs(tells=tells, short=short)
        async with bench({"restartPolicy": policy, "containers": [app(name) for name in names]}, faulty(provider, faults)) as b:
            await play(b, faults, provider, (call, fault), names)


async def play(b: Bench, faults: Faults, provider: Jobs, wrong: tuple[str, Fault], names: Sequence[str]) -> None:
    call, fault = wrong
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(poll(b))]
        faults.plan(call, fault=fault)
        b.host.pods.put(b.pod)
        syncing = group.create_task(until_done(b, lambda: b.adapter.sync_pod(b.pod)))
        await b.pass_time(AWAY)
        faults.clear()
        await b.pass_time(BACK)
        # A sync that never answers is the one call that only a deletion ends.
        assert provider.settled(names) or (call, fault) == ("prepare_pod", Fault.SILENT)
        faults.plan(call, fault=fault)
        syncing.cancel()
        tasks.append(group.create_task(delete(b)))
        await b.pass_time(AWAY)
        faults.clear()
        await b.pass_time(2 * BACK if call == "remove_pod" else BACK)
        for task in tasks:
            task.cancel()
    assert len(provider.runs) == len(set(provider.runs)), provider.runs
    for name in names:
        expect_no_flapping(b, name)
    assert b.host.gone[:1] == [b.pod.ref]
    assert provider.held == {}
