"""Streams of a real API server and kubelet, to their very end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop
from attrs import define, field

from tests.support.bound import apply, pod
from tests.support.program import KUBECTL_TIMEOUT, eventually
from tests.support.sockets import connections_to
from vkubelet.client.connection import load_connection
from vkubelet.client.remote import remote_command
from vkubelet.client.rest import Client
from vkubelet.clock import SystemClock
from vkubelet.provider import TerminalSize
from vkubelet.testing.cluster import ControlPlane, WorkerNode
from vkubelet.testing.fixtures import run_apart

NAME = "speaker"
PATIENCE = 5.0
"""Seconds in which a server that can be done is done."""


@pytest.fixture(scope="module")
def speaker(worker: ControlPlane, worker_node: WorkerNode) -> str:
    """The namespace of a pod."""

    async def start() -> str:
        namespace = await worker.namespace("channels")
        await apply(worker, pod(NAME, namespace))
        await worker.kubectl("wait", f"pod/{NAME}", "-n", namespace, "--for=condition=Ready", KUBECTL_TIMEOUT)
        return namespace

    return run_apart(start())


async def nothing() -> AsyncIterator[bytes]:
    for never in ():
        yield never


async def no_sizes() -> AsyncIterator[TerminalSize]:
    for never in ():
        yield never


@define
class Listener:
    """Takes nothing before `ready` returns."""

    ready: Callable[[], object]
    stdin: AsyncIterator[bytes] | None = None
    resizes: AsyncIterator[TerminalSize] = field(factory=no_sizes)
    tty: bool = False
    heard: int = 0

    async def write_stdout(self, data: bytes) -> None:
        await eventually(self.ready, "the server has said all", seconds=20, every=0.02)
        self.heard += len(data)

    async def write_stderr(self, data: bytes) -> None:
        raise AssertionError(data)


@define
class Hurried(SystemClock):
    """As soon as the server has hung up, whatever is sent now and then is sent all the time."""

    hung_up: Callable[[], bool]
    began: float = field(factory=time.monotonic)
    since: float = 0.0
    """When that was, or when it was given up to wait for it: not every kernel takes so much from a server at once."""
    has_hung_up: bool = False

    async def sleep(self, seconds: float) -> None:
        while not self.since:
            self.has_hung_up = self.hung_up()
            if self.has_hung_up or time.monotonic() - self.began > PATIENCE:
                self.since = time.monotonic()
            await super().sleep(0.02)
        await super().sleep(0.02)

    def ticked(self) -> bool:
        """Some rounds ago."""
        return bool(self.since) and time.monotonic() - self.since > 0.1


def in_loop(loop: Callable[[], asyncio.AbstractEventLoop], work: Callable[[], object]) -> None:
    """In a thread of its own, as its loop is not the one of the tests."""

    def run() -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(work())  # type: ignore[arg-type]

    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(run).result()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("interactive", [True, False], ids=["v5", "v4"])
def test_all_output_arrives_although_the_server_hangs_up_before_it_is_read(
    worker: ControlPlane, speaker: str, loop: Callable[[], asyncio.AbstractEventLoop], interactive: bool
) -> None:
    path = f"/api/v1/namespaces/{speaker}/pods/{NAME}/exec"

    async def listen(size: int) -> bool:
        # What fills every buffer between the socket and the reader, one after the other.
        # It speaks when it has read the end of stdin: of an end that comes after the server has hung up, its kernel resets the connection
        # and forgets what it has not sent yet. A reader can not help that; such a stream is reported as cut.
        command = ("sh", "-c", f"{'cat; ' if interactive else ''}head -c {size} /dev/zero")
        # Others of this process may keep connections of theirs.
        others = connections_to(os.getpid(), worker.port)
        clock = Hurried(lambda: connections_to(os.getpid(), worker.port) <= others)
        async with Client(await load_connection(kubeconfig=worker.kubeconfig), clock=clock) as client:
            listener = Listener(clock.ticked, nothing() if interactive else None)
            params = [("container", "main"), *(("command", word) for word in command)]
            assert await remote_command(client, path, params, console=listener) == 0
            assert listener.heard == size
            return clock.has_hung_up

    async def all_sizes() -> None:
        hung_up = [await listen(size) for size in range(300_000, 1_400_000, 100_000)]
        assert sum(hung_up) > 3, "the server was hardly ever done before it was read"

    in_loop(loop, all_sizes)
