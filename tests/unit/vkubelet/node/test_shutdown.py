"""What becomes of the nodes when the process stops, in its order."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from vkubelet.node.declared import DeclaredNodes
from vkubelet.node.shutdown import NodeShutdown, ShutdownSettings
from vkubelet.provider import NodeDescription
from vkubelet.testing.clock import ManualClock

Mode = Literal["keep", "cordon", "drain", "delete"]


async def steps(mode: Mode) -> list[str]:
    """The nodes close a second after they were told to, and pods end two seconds after that."""
    clock, told = ManualClock(), list[str]()
    nodes, began = DeclaredNodes(clock), clock.monotonic()
    nodes.declare(NodeDescription("n", {"cpu": "1"}))
    nodes.on_change(lambda name: told.append(f"close {name}: {nodes.health(name).message or 'healthy'}"))

    async def remove(node: str) -> None:
        told.append(f"remove {node}")

    shutdown = NodeShutdown(
        settings=ShutdownSettings(nodes=mode),
        nodes=nodes,
        refuse=lambda: told.append("refuse"),
        drain=lambda grace: told.append(f"drain within {grace:g} s"),
        drained=lambda: clock.monotonic() - began > 3,
        is_closed=lambda node: clock.monotonic() - began > 1,
        remove_node=remove,
        clock=clock,
    )
    async with asyncio.timeout(5):
        running = asyncio.create_task(shutdown.run())
        await clock.advance(5)
        await running
    return told


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("keep", []),
        ("cordon", ["close n: healthy"]),
        ("drain", ["refuse", "close n: node is shutting down", "drain within 30 s"]),
        ("delete", ["refuse", "close n: node is shutting down", "drain within 30 s", "remove n"]),
    ],
)
async def test_pods_are_refused_before_the_node_reports_its_shutdown(mode: Mode, expected: list[str]) -> None:
    assert await steps(mode) == expected
