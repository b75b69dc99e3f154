"""What the backend had from an earlier process when this one started, node by node.

Invariant: a node is listed once; later reports of such pods are retained, so nothing is missed until the pod is adopted.
"""

from __future__ import annotations

import asyncio

from attrs import evolve

from vkubelet.api.objects import PodRef
from vkubelet.clock import Clock
from vkubelet.control.answered import answered
from vkubelet.provider import ContainerProvider, PodReport


class Held:
    """Retained pod reports; adopted pods have to be removed from it."""

    def __init__(self, provider: ContainerProvider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._nodes: dict[str, dict[str, PodReport]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._meanwhile: dict[str, list[PodReport]] = {}

    async def of(self, ref: PodRef) -> PodReport | None:
        """Returns the retained report; None: there was nothing of the pod, and what exists by now was started by this process."""
        async with self._locks.setdefault(ref.node, asyncio.Lock()):
            if ref.node not in self._nodes:
                await self._list(ref.node)
        return self._nodes[ref.node].get(ref.uid)

    async def _list(self, node: str) -> None:
        self._meanwhile[node] = []
        try:
            call = self._provider.list_containers(node)
            found = {report.pod.uid: report for report in await answered(call, f"list_containers of node {node}", clock=self._clock)}
        finally:
            meanwhile = self._meanwhile.pop(node)
        self._nodes[node] = found
        for report in meanwhile:
            self.hear(report)

    def hear(self, report: PodReport) -> None:
        """Handles a report of a pod that is not adopted yet."""
        node, uid = report.pod.node, report.pod.uid
        if node in self._meanwhile:
            self._meanwhile[node].append(report)
        known = self._nodes.get(node, {}).get(uid)
        if known is None:
            return
        containers = {c.name: c for c in (*known.containers, *report.containers)}
        self._nodes[node][uid] = evolve(known, containers=list(containers.values()), ips=report.ips or known.ips)

    def forget(self, ref: PodRef) -> None:
        """Drops a pod that is adopted or deleted."""
        self._nodes.get(ref.node, {}).pop(ref.uid, None)
