"""Clients on a shared cluster, and a clock that runs fast."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from kubernetes import client as k8s

from tests.support.witness import api_client
from vkubelet.client.connection import load_connection
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.testing.cluster import ControlPlane


class FastClock(SystemClock):
    """Ten seconds pass in one."""

    FACTOR = 10.0

    def __init__(self) -> None:
        self._began = super().now()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=(super().now() - self._began).total_seconds() * self.FACTOR)

    def monotonic(self) -> float:
        return super().monotonic() * self.FACTOR

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / self.FACTOR)


@pytest.fixture
def fast_clock() -> FastClock:
    return FastClock()


@pytest.fixture
async def client(hub: ControlPlane) -> AsyncIterator[Client]:
    """Ours, as cluster administrator."""
    async with Client(await load_connection(kubeconfig=hub.kubeconfig), field_manager="tests") as ours:
        yield ours


@pytest.fixture
async def namespace(hub: ControlPlane) -> str:
    return await hub.namespace("control")


@pytest.fixture
def witness(hub: ControlPlane) -> Any:
    """The official client's connection; untyped, because there every field may be None."""
    return k8s.CoreV1Api(api_client(hub.kubeconfig))
