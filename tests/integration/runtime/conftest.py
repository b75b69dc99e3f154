"""Fleets of virtual nodes on either kind of control plane.

Invariant: what a test starts ends with the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.runtime.fleet import Fleet
from vkubelet.testing.cluster import ControlPlane


@asynccontextmanager
async def fleet_on(plane: ControlPlane, directory: Path) -> AsyncIterator[Fleet]:
    directory.mkdir(exist_ok=True)
    made = Fleet(plane=plane, directory=directory)
    made.namespace = await plane.namespace("fleet")
    try:
        yield made
    finally:
        # Shown only when the test failed.
        for log in sorted(directory.glob("*.log")):
            print(f"--- {log.name}", *log.read_text().splitlines()[-25:], sep="\n")
        await made.remove()


@pytest.fixture
async def fleet(bare_hub: ControlPlane, tmp_path: Path) -> AsyncIterator[Fleet]:
    """On a cluster without scheduler: pods are bound by the test."""
    async with fleet_on(bare_hub, tmp_path / "fleet") as made:
        yield made


@pytest.fixture
async def second_fleet(bare_hub: ControlPlane, tmp_path: Path) -> AsyncIterator[Fleet]:
    """For a test that does two slow things side by side."""
    async with fleet_on(bare_hub, tmp_path / "second") as made:
        yield made


@pytest.fixture
async def scheduled(hub: ControlPlane, tmp_path: Path) -> AsyncIterator[Fleet]:
    """On a cluster with the real scheduler."""
    async with fleet_on(hub, tmp_path / "scheduled") as made:
        yield made
