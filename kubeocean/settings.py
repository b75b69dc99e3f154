"""Settings of the provider of one ClusterBinding, in addition to the binding itself.

Invariant: everything about the worker cluster is in the ClusterBinding; these are only its name and the pace of our own work.
"""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class KubeoceanSettings:
    """The section `provider:` of the settings file; all times are seconds."""

    binding: str = ""
    """Name of the ClusterBinding this process serves."""
    probe_interval: float = 10.0
    """Interval of the probes of the worker's API server."""
    unreachable_after: float = 40.0
    """Silence of the worker after which the nodes are retained: kept, but closed to new pods."""
    reconnect_interval: float = 10.0
    """Delay before a failed connection is retried; a change of the binding or of its Secret retries at once."""
    retire_share: float = 0.1
    """Share of the nodes that may be retired within a minute without confirmation, but always one."""
    evictions_per_second: float = 10.0
    """Rate of reclaiming, for the entire binding."""
    unscheduled_after: float = 300.0
    """A physical pod that the worker has not scheduled for so long is deleted, so that its pod is replaced elsewhere."""
    unused_copy_after: float = 300.0
    """A ConfigMap or Secret copy that no pod has used for so long is deleted."""
    pod_workers: int = 32
    """Number of physical pods that are reconciled concurrently."""
    time_zone: str = ""
    """IANA zone of time windows whose policy and binding name none; empty: `$TZ`, else UTC."""
    cluster_domain: str = "cluster.local"
    """DNS domain of the computing cluster."""
