"""A network namespace as a private network behind NAT: programs inside connect to chosen ports of this machine, and nothing connects to
them.

Invariant: the namespace has a loopback interface alone. Only the forwarder crosses its border, and it accepts connections inside only.
"""

import asyncio
import ctypes
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from vkubelet.testing.cluster.ledger import Kind
from vkubelet.testing.cluster.processes import ClusterError, ProcessId, run, spawn, tail, wait_until
from vkubelet.testing.cluster.site import Site

LOOPBACK = "127.0.0.1"
HOLDER = "network-namespace"
FORWARDER = "forwarder"
_NEWNET = 0x40000000
_READY_SECONDS = 20.0
_DIAL_SECONDS = 5.0
_CHUNK = 1 << 16


class Isolation:
    """The namespace of one cluster, which is `owner` in the ledger; needs root."""

    def __init__(self, owner: str, site: Site, directory: Path) -> None:
        self._owner = owner
        self._site = site
        self._directory = directory

    @property
    def namespace(self) -> Path:
        """File of the namespace, for `nsenter --net` and setns(2). Raises ClusterError before the start."""
        holder = self._site.ledger.process(self._owner, HOLDER)
        if holder is None or not holder.alive():
            raise ClusterError(f"{self._owner} has no network namespace\n{tail(self._log(HOLDER))}")
        return Path(f"/proc/{holder.pid}/ns/net")

    @property
    def prefix(self) -> list[str]:
        """Arguments before a command that runs inside."""
        return ["nsenter", f"--net={self.namespace}"]

    async def start(self) -> None:
        """Creates the namespace; it is removed with its last process, of which the first is in the ledger. Raises ClusterError."""
        if os.geteuid() != 0:
            raise ClusterError(f"{self._owner} needs root rights, because it is isolated")
        self._keep(spawn(HOLDER, ["unshare", "--net", "sleep", "infinity"], log=self._log(HOLDER)))

        async def made() -> bool:
            return self.namespace.stat().st_ino != Path("/proc/self/ns/net").stat().st_ino

        await wait_until(self._site.clock, made, what=f"{self._owner} has a network namespace", timeout=_READY_SECONDS)
        await run(*self.prefix, "ip", "link", "set", "lo", "up")

    async def forward(self, ports: Sequence[int]) -> None:
        """Leads these ports of the namespace's loopback to the same ports of this machine's. Raises ClusterError."""
        if self._site.ledger.process(self._owner, FORWARDER) is not None:
            raise ClusterError(f"{self._owner} has a forwarder already; name all ports at once")
        argv = [sys.executable, "-m", __name__, str(self.namespace), *map(str, ports)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._keep(spawn(FORWARDER, argv, log=self._log(FORWARDER), env=env))

        async def listens() -> bool:
            return all([await self.can_dial(LOOPBACK, port) for port in ports])

        try:
            await wait_until(self._site.clock, listens, what=f"{self._owner} reaches {ports}", timeout=_READY_SECONDS)
        except ClusterError as error:
            error.add_note(tail(self._log(FORWARDER)))
            raise

    def socket(self, family: int = socket.AF_INET) -> socket.socket:
        """Returns a TCP socket that belongs to the namespace, whatever the namespace of the process that uses it."""
        with entered(self.namespace):
            return socket.socket(family, socket.SOCK_STREAM)

    async def can_dial(self, host: str, port: int) -> bool:
        """Checks whether a program inside can connect to this address."""
        return await can_dial(self.socket(), host, port)

    def _keep(self, process: ProcessId) -> None:
        self._site.ledger.add_process(process, self._owner, kind=Kind.PROCESS)

    def _log(self, name: str) -> Path:
        return self._directory / "log" / f"{name}.log"


async def can_dial(line: socket.socket, host: str, port: int) -> bool:
    """Checks whether this socket can connect to an address; closes it."""
    with line:
        line.setblocking(False)
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                await asyncio.get_running_loop().sock_connect(line, (host, port))
        except (OSError, TimeoutError):
            return False
        return True


@contextmanager
def entered(namespace: Path) -> Iterator[None]:
    """Moves this thread to a network namespace and back; nothing may be awaited meanwhile. Raises OSError."""
    with open("/proc/thread-self/ns/net", "rb") as home, open(namespace, "rb") as there:
        _set_namespace(there.fileno())
        try:
            yield
        finally:
            _set_namespace(home.fileno())


def _set_namespace(descriptor: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, _NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# --- The forwarder ------------------------------------------------------------------------------------------------------------------------


def listeners(namespace: Path, ports: Sequence[int]) -> list[socket.socket]:
    """Listens inside of a namespace; connections arrive in the process that has the sockets."""
    with entered(namespace):
        return [socket.create_server((LOOPBACK, port)) for port in ports]


async def serve(listening: Sequence[socket.socket]) -> None:
    """Forwards each connection to the port of this machine with the same number, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for each in listening:
            port = each.getsockname()[1]
            server = await asyncio.start_server(partial(_forward, port), sock=each)
            group.create_task(server.serve_forever())


async def _forward(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        far_reader, far_writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        writer.transport.abort()
        return
    async with asyncio.TaskGroup() as group:
        group.create_task(_copy(reader, far_writer))
        group.create_task(_copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.close()
    except OSError:
        writer.transport.abort()


if __name__ == "__main__":
    asyncio.run(serve(listeners(Path(sys.argv[1]), [int(text) for text in sys.argv[2:]])))
