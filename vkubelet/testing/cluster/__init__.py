"""Real Kubernetes clusters on loopback, for development, demonstrations and tests.

Invariant: everything created is removed on leaving; only missing apt packages and a cache of binaries stay on the machine.

    async with Site() as site, ControlPlane("worker", site) as worker, WorkerNode("node-1", worker) as node:
        print(await worker.kubectl("get", "nodes"))
"""

from vkubelet.testing.cluster.components import Options
from vkubelet.testing.cluster.controlplane import ControlPlane
from vkubelet.testing.cluster.dns import ClusterDNS
from vkubelet.testing.cluster.metrics_server import MetricsServer
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed
from vkubelet.testing.cluster.simulated import SimulatedNodes
from vkubelet.testing.cluster.site import Site
from vkubelet.testing.cluster.worker import WorkerNode

__all__ = [
    "ClusterDNS",
    "ClusterError",
    "CommandFailed",
    "ControlPlane",
    "MetricsServer",
    "Options",
    "SimulatedNodes",
    "Site",
    "WorkerNode",
]
