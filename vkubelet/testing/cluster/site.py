"""One run of development clusters: its directory, its bridge, its binaries, and the record of everything to undo.

Invariant: everything a cluster or node of the run creates is in the run's ledger, so leaving the site leaves nothing behind.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from vkubelet.clock import Clock, SystemClock
from vkubelet.testing.cluster import network
from vkubelet.testing.cluster.binaries import Binaries
from vkubelet.testing.cluster.ledger import Entry, Kind, Ledger, start_guard
from vkubelet.testing.cluster.network import Network
from vkubelet.testing.cluster.processes import ClusterError, Lifetime, ProcessId, wait_until

STATE_FILE = "state.json"
GUARD_SECONDS = 10.0


def quiet(line: str) -> None:
    """Discards progress."""


class Site(Lifetime):
    """Site as an async context manager, or with `start` and `stop`; both may run in different event loops.

    `directory` is created in the temporary directory when none is given, and removed on exit. With `detached`, the clusters outlive this
    process and are removed by `Site(directory).stop()` of another one; otherwise a guard does it if this process is killed. `say` is called
    with progress, one line at a time.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        detached: bool = False,
        say: Callable[[str], None] = quiet,
        clock: Clock | None = None,
    ) -> None:
        self._own_directory = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="vkubelet-")) if directory is None else directory.absolute()
        self.say = say
        self.clock = clock or SystemClock()
        self.ledger = Ledger(self.directory / STATE_FILE)
        self.binaries = Binaries(say=say, clock=self.clock)
        self.ports: set[int] = set()
        self._detached = detached
        self._network: Network | None = None
        self._guard: tuple[ProcessId, int] | None = None

    @property
    def network(self) -> Network:
        """Network of the run. Raises ClusterError before the site is started."""
        if self._network is None:
            raise ClusterError("the site is not started")
        return self._network

    async def start(self) -> None:
        """Creates the directory and the bridge; clusters and nodes are started separately."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.ledger.entries():
            self._network = network.recall(self.ledger)
            return
        if self._own_directory:
            self.ledger.add(Entry(kind=Kind.PATH, name=str(self.directory)))
        if not self._detached:
            self._guard = start_guard(self.ledger.path, self.directory / "guard.log")
        self._network = await network.claim(self.ledger)

    async def stop(self) -> None:
        """Removes everything of the run. Raises ClusterError when that fails."""
        try:
            await self.ledger.undo(self.clock)
        finally:
            if self._guard is not None:
                process, descriptor = self._guard
                self._guard = None
                os.close(descriptor)
                await wait_until(self.clock, lambda: _ended(process), what="the guard ended", timeout=GUARD_SECONDS)

    def free_port(self) -> int:
        """Returns a port that neither this run nor another program uses."""
        return network.free_port(self.ports)

    def claim_node(self, owner: str) -> int:
        """Numbers a new node, counted over all clusters of the run. Raises ClusterError when none is left, or without root."""
        if self.network.number is None:
            raise ClusterError("real nodes need root rights")
        used = {entry.name for entry in self.ledger.entries(Kind.LINK)}
        for node in range(network.FIRST_NODE, network.LAST_NODE + 1):
            if self.network.host_link(node) not in used:
                self.ledger.add(Entry(kind=Kind.LINK, name=self.network.host_link(node), owner=owner))
                return node
        raise ClusterError("no node number left")


async def _ended(process: ProcessId) -> bool:
    return not process.alive()
