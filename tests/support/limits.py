"""What a number of nodes and pods costs, as arithmetic: the figures of docs/explanation/scale.md.

Invariant: every input is a constant of the code, a row of docs/reference/scale.md, or a default that the documentation of another project
states; each names its source.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from vkubelet.node.lease import _JITTER, IN_FLIGHT, LeaseSettings
from vkubelet.node.render import REPORT_EVERY
from vkubelet.server.settings import ServerSettings

NODES, PODS = 50_000, 1_000_000
CHANGES = 100
"""Pods created, and as many deleted, in a second: 1,000,000 pods that live for three hours on average."""
SHARDS = (1, 4, 6, 10)
REGISTRATION = {"POST nodes": 1, "PATCH nodes/status": 1, "GET leases": 1, "POST leases": 1}
"""Requests of a node that is registered for the first time."""
POD_EVENTS = 5
"""Events of the watch of all pods in the life of a pod: bound, running, terminating, terminated, deleted."""
COMPACTED = 2 * 300
"""Seconds of history that etcd keeps at most: an API server compacts every five minutes (`--etcd-compaction-interval`) what is older."""
_MIB, _GIB = 2**20, 2**30


@frozen
class Measured:
    """A figure of docs/reference/scale.md, and the beginning of its row."""

    value: float
    row: str


REST_CPU = Measured(0.275, "| CPU at rest, a minute and a half | 0.275 cores |")
REST_RSS = Measured(127.0, "| resident memory | 127 MiB | | 2.5 |")
REST_NODES = 5000
"""Nodes of both."""
SMALL_RSS, SMALL_NODES = Measured(80.0, "| resident memory | 80 MiB | < 300 MiB | 5.4 |"), 1000
LEASED_RSS, LEASED_PODS = Measured(182.0, "| 10,000 leased pods on 500 nodes: resident memory | 182 MiB |"), 10_000
FOREIGN_EVENT = Measured(145e-6, "| one event of the pod watch, pod of another node | 145 µs |")
API_SERVER = Measured(2.5, "| renewal of a Lease: CPU of the kube-apiserver | 2.5 of the process |")
ETCD = Measured(0.7, "| renewal of a Lease: CPU of etcd | 0.7 of the process |")
STORED_NODE = Measured(3008, "| a Node as etcd stores it | 3,008 bytes |")
STORED_LEASE = Measured(613, "| a Lease as etcd stores it | 613 bytes |")
STORED_POD = Measured(2506, "| a small pod as etcd stores it | 2,506 bytes |")
STUB = 430
"""Bytes that a process keeps of a pod of another node; `tests/faults/simulation/test_many_nodes.py` counts them."""


def interval() -> float:
    """Returns the mean seconds between two renewals of a Lease."""
    return LeaseSettings().renew_every * sum(_JITTER) / 2


def renewals(nodes: int) -> float:
    """Returns the renewals of Leases in a second."""
    return nodes / interval()


def statuses(nodes: int) -> float:
    """Returns the statuses of Nodes that are written in a second at rest."""
    return nodes / REPORT_EVERY.total_seconds()


def renewal_cpu() -> float:
    """Returns the seconds of CPU of our process for each renewal, with all that happens at rest."""
    return REST_CPU.value / renewals(REST_NODES)


def node_bytes() -> float:
    """Returns the resident memory of a node: by what 4,000 more nodes added."""
    return (REST_RSS.value - SMALL_RSS.value) * _MIB / (REST_NODES - SMALL_NODES)


def pod_bytes() -> float:
    """Returns the resident memory of a leased pod."""
    return (LEASED_RSS.value - SMALL_RSS.value) * _MIB / LEASED_PODS


def stored(nodes: int, pods: int) -> float:
    """Returns the bytes of all objects in etcd."""
    return nodes * (STORED_NODE.value + STORED_LEASE.value) + pods * STORED_POD.value


def history(nodes: int) -> float:
    """Returns the bytes of old versions that etcd keeps until they are compacted, of the writes at rest."""
    return COMPACTED * (renewals(nodes) * STORED_LEASE.value + statuses(nodes) * STORED_NODE.value)


@frozen
class Shard:
    """One of `count` processes that divide the nodes and pods evenly."""

    count: int

    @property
    def cores(self) -> float:
        """At rest, with what it receives of the pods of others."""
        return renewals(NODES) / self.count * renewal_cpu() + self.events * FOREIGN_EVENT.value

    @property
    def events(self) -> float:
        """Events of the pod watch in a second: every process receives those of all pods."""
        return CHANGES * POD_EVENTS

    @property
    def memory(self) -> float:
        fixed = SMALL_RSS.value * _MIB - SMALL_NODES * node_bytes()
        others = PODS * (1 - 1 / self.count) * STUB
        return fixed + NODES / self.count * node_bytes() + PODS / self.count * pod_bytes() + others

    @property
    def latency(self) -> float:
        """Milliseconds that a renewal may take at most, as so many are in flight."""
        return IN_FLIGHT / renewals(NODES) * self.count * 1000


def rows() -> Sequence[str]:
    """Returns the lines of all tables of the page that follow from the arithmetic."""
    return [*_rates(), *_servers(), *_shards()]


def _rates() -> Sequence[str]:
    own = ServerSettings()
    return [
        f"| renewals of Leases | {renewals(1) * 60:.2f} a minute | {renewals(NODES):,.0f} a second |",
        f"| statuses of Nodes | {statuses(1) * 60:.1f} a minute | {statuses(NODES):,.0f} a second |",
        f"| ports | 1 | {own.port_last - own.port_first + 1:,} in the default range |",
    ]


def _servers() -> Sequence[str]:
    cores = renewals(NODES) * renewal_cpu()
    small, large = 2, 8
    return [
        f"| CPU of the API servers for Leases | {cores * API_SERVER.value:.1f} cores |",
        f"| CPU of etcd for Leases | {cores * ETCD.value:.1f} cores |",
        f"| objects in etcd | {stored(NODES, PODS) / _GIB:.1f} GiB, of which {stored(NODES, 0) / _GIB:.2f} GiB are Nodes and Leases |",
        f"| old versions in etcd | {history(NODES) / _GIB:.1f} GiB |",
        f"| both, compared with its quota | {(stored(NODES, PODS) + history(NODES)) / _GIB:.1f} GiB of {small} GiB, or of {large} GiB |",
        f"| pods that a starting process receives | {PODS:,}, {PODS * FOREIGN_EVENT.value:.0f} s of its CPU |",
    ]


def _shards() -> Sequence[str]:
    return [
        f"| {each.count} | {NODES // each.count:,} | {each.cores:.2f} cores | {each.memory / _GIB:.1f} GiB | {each.latency:.0f} ms "
        f"| {each.count * each.events:,.0f} |"
        for each in map(Shard, SHARDS)
    ]
