"""What a program can observe of its machine besides the loop: random numbers, process id, host name and ports, all decided by the seed.

Invariant: only the standard library and the listening socket of the kubelet server are replaced, and only until the block ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import ssl
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from attrs import define, field

from tests.faults.simulation.loop import PROCESS
from vkubelet.server import listeners


@define
class Ports:
    """Listening ports of all simulated processes; those of a killed process are free again, as the kernel closes them."""

    taken: dict[int, str] = field(factory=dict)

    def bind(self, address: str, port: int) -> FakeListener:
        """Raises OSError when the port is taken."""
        if port == 0:
            port = next(number for number in range(30_000, 60_000) if number not in self.taken)
        if port in self.taken:
            raise OSError(98, "Address already in use")
        self.taken[port] = PROCESS.get()
        return FakeListener(self, address, port)

    def release(self, process: str) -> None:
        """Frees the ports of a process."""
        for port in self.of(process):
            del self.taken[port]

    def of(self, process: str) -> list[int]:
        return [port for port, owner in self.taken.items() if owner == process]


@define(eq=False)
class FakeListener:
    """A listening socket to which nobody connects."""

    ports: Ports
    address: str
    port: int

    def getsockname(self) -> tuple[str, int]:
        return self.address, self.port

    def setblocking(self, flag: bool) -> None:
        """Does nothing: nobody connects."""

    def close(self) -> None:
        self.ports.taken.pop(self.port, None)


@contextlib.contextmanager
def sandbox(rng: random.Random, ports: Ports) -> Iterator[None]:
    """Decides by `rng` whatever a program draws at random while the block runs."""
    state = random.getstate()
    random.seed(rng.random())
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)),
        (secrets, "token_hex", lambda size=32: rng.randbytes(size).hex()),
        (os, "getpid", lambda: 1),
        (socket, "gethostname", lambda: PROCESS.get() or "world"),
        (listeners, "_bound", ports.bind),
        # Reading the certificate authorities of the machine takes longer than all handshakes that a simulation does not have.
        (ssl.SSLContext, "load_default_certs", lambda context, purpose=None: None),
        # Nobody asks for all tasks; each of them has its number from here on, as the set would ask for its hash.
        (asyncio.tasks._all_tasks, "add", hash),  # type: ignore[attr-defined]
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in replaced:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        try:
            yield
        finally:
            random.setstate(state)
