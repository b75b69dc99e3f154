"""A kubelet server in front of a backend the test controls."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.server.backend import Backend, Stand, serving
from tests.integration.server.shells import Shells, shells_on
from vkubelet.testing.cluster import ControlPlane
from vkubelet.testing.fixtures import run_apart


@pytest.fixture
def node() -> str:
    """The name of a node nobody else has."""
    return f"v-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def streams_namespace(hub: ControlPlane) -> str:
    """For tests that give their pods names of their own."""
    return run_apart(hub.namespace("streams"))


@pytest.fixture
async def shells(hub: ControlPlane, streams_namespace: str, tmp_path: Path) -> AsyncIterator[Shells]:
    async with shells_on(hub, streams_namespace, tmp_path) as running:
        yield running


@pytest.fixture
async def stand(hub: ControlPlane) -> AsyncIterator[Stand]:
    async with serving(hub, Backend()) as running:
        yield running
