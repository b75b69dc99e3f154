"""The two clusters of `make up`: `hub`, and `worker` with real and simulated nodes, outliving the command that starts them.

Invariant: `up` exits with everything ready or with nothing left; `down` stops exactly what the state file of the directory names.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from vkubelet.testing.cluster import binaries, packages
from vkubelet.testing.cluster.controlplane import ControlPlane
from vkubelet.testing.cluster.ledger import Kind
from vkubelet.testing.cluster.processes import with_progress
from vkubelet.testing.cluster.simulated import KWOK, SimulatedNodes
from vkubelet.testing.cluster.site import Site
from vkubelet.testing.cluster.worker import WorkerNode

HUB = "hub"
WORKER = "worker"


async def up(directory: Path, *, nodes: int, simulated: int = 0, say: Callable[[str], None]) -> None:
    """Starts what does not run yet. Raises ClusterError, after removing what was started."""
    site = Site(directory, detached=True, say=say)
    if site.ledger.entries() and not runs(site):
        say(f"the clusters in {site.directory} have ended without `down`; starting them anew")
        await site.stop()
    wanted = [f"node-{number}" for number in range(1, nodes + 1)]
    absent = [name for name in wanted if not site.ledger.entries(owner=f"{WORKER}/{name}")]
    fresh = not site.ledger.entries()
    if not fresh and not absent and not simulated:
        say("already running")
        return
    begins = simulated > 0 and not site.ledger.entries(owner=f"{WORKER}/{KWOK}")
    if fresh or absent or begins:
        programs = [*binaries.CONTROL_PLANE, *(binaries.NODE if absent else ()), *((KWOK,) if begins else ())]
        announce(site, programs, nodes=len(absent), simulated=simulated)
        await packages.install(packages.missing(nodes=bool(absent)), say=say, clock=site.clock)
        await site.binaries.ensure(programs)
    async with AsyncExitStack() as stack:
        if fresh:
            stack.push_async_callback(site.stop)
        await _start(site, absent, fresh=fresh, simulated=simulated)
        stack.pop_all()
    say(f"running; stop with: python -m vkubelet.testing.cluster down --dir {directory}")


async def _start(site: Site, nodes: list[str], *, fresh: bool, simulated: int) -> None:
    await site.start()
    hub, worker = ControlPlane(HUB, site), ControlPlane(WORKER, site)
    if fresh:
        await with_progress(_together(hub.start, worker.start), "starting the control planes", say=site.say, clock=site.clock)
    else:
        await worker.attach()
    for name in nodes:
        await with_progress(_whole(WorkerNode(name, worker)), f"starting {name} of worker", say=site.say, clock=site.clock)
    if simulated:
        text = f"simulating {simulated} node{'s' if simulated > 1 else ''} of worker"
        await with_progress(_whole(SimulatedNodes(worker, simulated)), text, say=site.say, clock=site.clock)


async def _whole(node: WorkerNode | SimulatedNodes) -> None:
    """Starts a node, or all simulated ones; one that does not become ready is removed while the others stay."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(node.stop)
        await node.start()
        stack.pop_all()


async def _together(*starts: Callable[[], Coroutine[object, object, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for start in starts:
            group.create_task(start())


def runs(site: Site) -> bool:
    """Checks whether every recorded process still runs."""
    recorded = [entry for entry in site.ledger.entries() if entry.kind in (Kind.PROCESS, Kind.NAMESPACE)]
    return bool(recorded) and all(entry.process.alive() for entry in recorded)


async def down(directory: Path, *, say: Callable[[str], None]) -> None:
    """Stops everything that `up` started in the directory. Raises ClusterError when that fails."""
    site = Site(directory, detached=True, say=say)
    if not site.ledger.entries():
        say("nothing runs")
        return
    await with_progress(site.stop(), f"taking down {len(site.ledger.entries())} things", say=say, clock=site.clock)
    try:
        site.directory.rmdir()
    except OSError:
        # It contains files of another owner.
        say(f"kept {site.directory}")


def announce(site: Site, programs: Sequence[str], *, nodes: int, simulated: int) -> None:
    """Prints what will be installed or changed on this machine."""
    say, absent = site.say, site.binaries.missing(programs)
    say("This will make, and `down` will remove again:")
    say(f"  processes   etcd, kube-apiserver, kube-controller-manager, kube-scheduler of two clusters, data in {site.directory}")
    if simulated:
        say(f"              kwok, which says of {simulated} node(s) that they are Ready and that their pods run")
    bridge = "a bridge vkb<n> with 10.77.<n>.0/24" if os.geteuid() == 0 else "nothing new: the machine's own address is used"
    say(f"  network     {bridge}" + (f", {nodes} node(s) in namespaces with veth pairs vk<n>n<k>" if nodes else ""))
    if nodes:
        say("  cgroups     vkubelet-<n>-<k> for each node")
    say("  sysctls     none of the machine's are changed")
    say("and this stays:")
    say(f"  packages    {' '.join(packages.missing(nodes=bool(nodes))) or 'none to install'}")
    say(f"  binaries    {', '.join(absent) + ' to ' if absent else 'all found, nothing new in '}{binaries.cache_directory()}")
