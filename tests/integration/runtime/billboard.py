"""A provider that declares what a test writes: `descriptions.json` below `directory` is a list of NodeDescriptions as JSON.

Invariant: `declared.json` beside it holds what was declared last.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import frozen

from vkubelet import Host, NodeDescription, Pod, PodRef, PodReport, Taint

LOOK = 0.05


class Billboard:
    @frozen(kw_only=True)
    class Settings:
        directory: str

    def __init__(self, settings: Settings) -> None:
        self.file = Path(settings.directory) / "descriptions.json"
        self.shown = ""

    async def run(self, host: Host) -> None:
        stopped = asyncio.ensure_future(host.until_stopped())
        while not stopped.done():
            text = self.file.read_text()
            if text != self.shown:
                self.shown = text
                for body in json.loads(text):
                    host.set_node(described(body))
                host.nodes_complete()
                self.file.with_name("declared.json").write_text(text)
            await asyncio.wait([stopped], timeout=LOOK)

    async def sync_pod(self, pod: Pod) -> None:
        raise NotImplementedError

    async def delete_pod(self, pod: PodRef, grace: float) -> None:
        raise NotImplementedError

    async def list_pods(self, node: str) -> Iterable[PodReport]:
        return []


def described(body: dict[str, Any]) -> NodeDescription:
    taints = [Taint(**taint) for taint in body.pop("taints", ())]
    return NodeDescription(body.pop("name"), body.pop("capacity"), taints=taints, **body)
