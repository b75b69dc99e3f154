"""A kubelet server that reaches no cluster: for what happens before anybody is asked who calls.

Invariant: it listens on loopback alone, with a certificate of its own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from tests.integration.server.backend import Backend, Pods
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.metrics import Metrics
from vkubelet.server import KubeletServer, ServerSettings

ADDRESS = "127.0.0.1"


@asynccontextmanager
async def offline(**settings: Any) -> AsyncIterator[KubeletServer]:
    values = {"bind_address": ADDRESS, "node_address": ADDRESS, "main_port": 0, "certificate": "self-signed", **settings}
    async with Client(Connection("http://127.0.0.1:1")) as client:
        made = KubeletServer(
            provider=Backend(),
            pods=Pods(),
            client=client,
            clock=SystemClock(),
            metrics=Metrics(CollectorRegistry()),
            settings=ServerSettings(**values),
        )
        async with made as server, asyncio.TaskGroup() as group:
            run = group.create_task(server.run())
            yield server
            run.cancel()


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
