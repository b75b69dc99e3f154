"""A provider that has nothing to do."""

from __future__ import annotations

from vkubelet.api.objects import Pod, PodRef
from vkubelet.provider import Host, PodReport


class Idle:
    """A provider without nodes."""

    async def run(self, host: Host) -> None:
        host.nodes_complete()
        await host.until_stopped()

    async def sync_pod(self, pod: Pod) -> None: ...

    async def delete_pod(self, pod: PodRef, grace: float) -> None: ...

    async def list_pods(self, node: str) -> list[PodReport]:
        return []
