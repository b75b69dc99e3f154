"""A provider of one node that publishes the addresses a test writes into a file, one `type=address` in each line.

Invariant: the node is declared anew with every change of the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from vkubelet import Host, NodeDescription, Pod, PodRef, PodReport

LOOK = 0.05


class Addressed:
    @frozen(kw_only=True)
    class Settings:
        node: str
        addresses: str

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    async def run(self, host: Host) -> None:
        stopped = asyncio.ensure_future(host.until_stopped())
        while not stopped.done():
            pairs = [line.partition("=") for line in Path(self.settings.addresses).read_text().split()]
            addresses = [{"type": kind, "address": address} for kind, _, address in pairs]
            host.set_node(NodeDescription(self.settings.node, {"cpu": "1", "memory": "1Gi", "pods": "10"}, addresses=addresses))
            host.nodes_complete()
            await asyncio.wait([stopped], timeout=LOOK)

    async def sync_pod(self, pod: Pod) -> None:
        return None

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        return None

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return []
