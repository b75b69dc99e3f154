"""A client of ours and a client that is not ours, on the same cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.support.witness import api_client
from vkubelet.client.connection import load_connection
from vkubelet.client.rest import Client
from vkubelet.testing.cluster import ControlPlane


@pytest.fixture
async def client(hub: ControlPlane) -> AsyncIterator[Client]:
    """Ours, as cluster administrator."""
    async with Client(await load_connection(kubeconfig=hub.kubeconfig), field_manager="tests") as ours:
        yield ours


@pytest.fixture
async def namespace(hub: ControlPlane) -> str:
    return await hub.namespace("client")


@pytest.fixture
def witness(hub: ControlPlane) -> Any:
    """A CoreV1Api of the official package; untyped, because there every field may be None."""
    return k8s.CoreV1Api(api_client(hub.kubeconfig))
