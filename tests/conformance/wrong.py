"""Providers that are wrong on purpose, each in one way.

Invariant: apart from its one fault each is the minimal provider.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Sequence

from attrs import evolve, frozen

from vkubelet.provider import ContainerReport, Host, LogOptions, Pod, PodRef, PodReport, Running, all_running
from vkubelet_providers.minimal import Minimal


class ForgetsUids(Minimal):
    """Knows pods by their names, so the end of one pod is the end of every pod of that name."""

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        for uid in [uid for uid, report in self.pods.items() if report.pod.key == pod.key]:
            del self.pods[uid]
        self.host.pod_gone(pod)


class Blocks(Minimal):
    """Waits for its backend without letting anybody else work."""

    syncs = 0

    async def sync_pod(self, pod: Pod) -> None:
        self.syncs += 1
        if self.syncs % 5 == 1:
            time.sleep(1.5)
        await super().sync_pod(pod)


class ListsHalf(Minimal):
    """Shows only some of its pods."""

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        reports = list(self.pods.values())
        return reports[: len(reports) // 2]


class Overlaps(Minimal):
    """Lets the work of a sync_pod go on beside and behind everything that is asked later of the same pod."""

    async def run(self, host: Host) -> None:
        self.deleted = asyncio.Event()
        async with asyncio.TaskGroup() as self.group:
            await super().run(host)

    async def sync_pod(self, pod: Pod) -> None:
        self.group.create_task(self._bring_about(pod))

    async def _bring_about(self, pod: Pod) -> None:
        if pod.ref.name.startswith("hasty"):
            # However long it takes until it is deleted.
            await self.deleted.wait()
        await asyncio.sleep(0.7)
        await super().sync_pod(pod)

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        await super().delete_pod(pod, grace)
        if pod.name.startswith("hasty"):
            self.deleted.set()
            self.deleted = asyncio.Event()


class MixesUp(Minimal):
    """Keeps the pod it works on where the next call finds it."""

    async def sync_pod(self, pod: Pod) -> None:
        self.current = pod
        await asyncio.sleep(0.2)
        await super().sync_pod(self.current)


class NeverGone(Minimal):
    """Ends pods and tells nobody."""

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        self.pods.pop(pod.uid, None)


class Stubborn(Minimal):
    """Does not let itself be cancelled."""

    async def sync_pod(self, pod: Pod) -> None:
        await super().sync_pod(pod)
        if pod.ref.name.startswith("hasty"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await self._go_on(7.0)

    async def _go_on(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue


class StartsAnew(Minimal):
    """Takes every sync_pod for the first one."""

    starts = itertools.count(1)

    async def sync_pod(self, pod: Pod) -> None:
        report = all_running(pod)
        again = [evolve(container, id=f"start://{next(self.starts)}") for container in report.containers]
        self.pods[pod.ref.uid] = evolve(report, containers=again)
        self.host.report(self.pods[pod.ref.uid])


class NeverStops(Minimal):
    """Does not hear that it has to stop."""

    async def run(self, host: Host) -> None:
        await super().run(host)
        await asyncio.Event().wait()


class Timeless(Minimal):
    """Its log lines bear no time."""

    async def stream_logs(self, pod: PodRef, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        async for line in super().stream_logs(pod, container, options):
            yield line.partition(b" ")[2]


class Invents(Minimal):
    """Reports a container that no spec has."""

    async def sync_pod(self, pod: Pod) -> None:
        report = all_running(pod)
        self.pods[pod.ref.uid] = evolve(report, containers=[*report.containers, ContainerReport("helper", Running())])
        self.host.report(self.pods[pod.ref.uid])


class PingHangs(Minimal):
    """Answers the first ping, by which its node becomes Ready, and no other."""

    answered = False

    async def ping(self, node: str) -> None:
        if self.answered:
            await asyncio.Event().wait()
        self.answered = True


OTHERS = ("pod-runs", "delete-ends", "log-times", "run-returns")


@frozen
class Fault:
    """A wrong provider, the rule it breaks, and others that it keeps all the same."""

    provider: type[Minimal]
    rule: str
    others: Sequence[str] = OTHERS

    @property
    def name(self) -> str:
        return self.provider.__name__


FAULTS = (
    Fault(ForgetsUids, "uid-respected"),
    Fault(Blocks, "loop-is-free"),
    Fault(ListsHalf, "list-complete"),
    Fault(Overlaps, "calls-never-overlap", (*OTHERS, "delete-during-sync")),
    Fault(MixesUp, "many-at-once", ("run-returns",)),
    Fault(NeverGone, "delete-ends", ("run-returns",)),
    Fault(Stubborn, "delete-during-sync"),
    Fault(StartsAnew, "sync-again"),
    Fault(NeverStops, "run-returns"),
    Fault(Timeless, "log-times"),
    Fault(Invents, "reports-known"),
    Fault(PingHangs, "ping-answers"),
)
