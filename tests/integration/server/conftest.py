"""A kubelet server in front of a backend the test controls."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from tests.integration.server.backend import Backend, Stand, serving
from vkubelet.testing.cluster import ControlPlane


@pytest.fixture
async def namespace(hub: ControlPlane) -> str:
    return await hub.namespace("server")


@pytest.fixture
def node() -> str:
    """The name of a node nobody else has."""
    return f"v-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def stand(hub: ControlPlane) -> AsyncIterator[Stand]:
    async with serving(hub, Backend()) as running:
        yield running
