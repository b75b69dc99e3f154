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
    """How often the worker's API server is asked whether it lives."""
    unreachable_after: float = 40.0
    """Silence of the worker after which the nodes are held: kept, but closed to new pods."""
    reconnect_interval: float = 10.0
    """How often a connection that can not be made is tried again; a change of the binding or of its Secret tries at once."""
    retire_share: float = 0.1
    """Share of the nodes that may be retired within a minute without confirmation, but always one."""
    evictions_per_second: float = 10.0
    """Pace of reclaiming, for the whole binding."""
    unscheduled_after: float = 300.0
    """A physical pod the worker could not schedule for so long is given up."""
    unused_copy_after: float = 300.0
    """A ConfigMap or Secret copy that no pod has used for so long is deleted."""
    pod_workers: int = 32
    """How many physical pods are reconciled at the same time."""
    time_zone: str = ""
    """IANA zone of time windows whose policy and binding name none; empty: `$TZ`, else UTC."""
    cluster_domain: str = "cluster.local"
    """DNS domain of the computing cluster."""
