"""Objects as an API server would send them, for tests of pure kubeocean code.

Invariant: every builder returns what the real decoder makes of JSON, never a stand-in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.binding.virtual_nodes import VirtualNodes
from kubeocean.metrics import SyncerMetrics
from kubeocean.model.crds import ClusterBinding, ResourceLeasingPolicy
from kubeocean.model.identity import Target
from kubeocean.model.keys import Owner
from kubeocean.model.windows import TimeWindow
from kubeocean.scope import Scope, WorkerScope
from kubeocean.settings import KubeoceanSettings
from kubeocean.worker.cluster import Mount, WorkerCluster
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import NODES, Json, JsonView, Node, Pod, Unknown
from vkubelet.control.guard import MassGuard
from vkubelet.control.informer import Informer
from vkubelet.control.reach import Reach
from vkubelet.provider import Host

OWNER = Owner("hub-uid-1", "demo")
TARGET = Target(owner=OWNER, node="node-1", namespace="mnt")


def at(text: str) -> datetime:
    """An instant in UTC, such as "2026-01-05 09:00" (a Monday)."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def pod(spec: JsonView | None = None, *, status: JsonView | None = None, **metadata: object) -> Pod:
    """A virtual pod default/web with uid "uid-1", generation 1, on vnode-demo-node-1, unless said otherwise."""
    full = {"nodeName": "vnode-demo-node-1", "containers": [{"name": "main", "image": "app:1"}], **(spec or {})}
    meta = {"namespace": "default", "name": "web", "uid": "uid-1", "generation": 1, **metadata}
    return decode_object(Pod, encode_json({"metadata": meta, "spec": full, "status": status or {}}))


def physical(body: JsonView, *, status: JsonView | None = None, generation: int = 1, **metadata: object) -> Pod:
    """What the worker's API server makes of the body that `physical_pod` gives."""
    meta = {**body["metadata"], "uid": "physical-uid", "generation": generation, **metadata}
    return decode_object(Pod, encode_json({"metadata": meta, "spec": body["spec"], "status": status or {}}))


def node(spec: JsonView | None = None, *, status: JsonView | None = None, **metadata: object) -> Node:
    """A physical node node-1."""
    meta = {"name": "node-1", "uid": "node-uid", **metadata}
    return decode_object(Node, encode_json({"metadata": meta, "spec": spec or {}, "status": status or {}}))


def unknown(body: JsonView) -> Unknown:
    return decode_object(Unknown, encode_json(body))


def binding(spec: JsonView | None = None, **metadata: object) -> ClusterBinding:
    """A sound binding "demo"."""
    full: Json = {
        "clusterID": "demo",
        "secretRef": {"name": "kubeconfig", "namespace": "kubeocean-system"},
        "mountNamespace": "mnt",
        **(spec or {}),
    }
    return ClusterBinding.parse(unknown({"metadata": {"name": "demo", **metadata}, "spec": full}))


def policy(name: str = "p", spec: JsonView | None = None, **metadata: object) -> ResourceLeasingPolicy:
    """A sound policy for the binding "demo", made on the first of January 2026."""
    meta = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z", **metadata}
    return ResourceLeasingPolicy.parse(unknown({"metadata": meta, "spec": {"cluster": "demo", **(spec or {})}}))


def window(start: str, end: str, *days: str) -> TimeWindow:
    return TimeWindow(start, end, days)


def limit(resource: str, **bounds: object) -> Json:
    return {"resource": resource, **bounds}


def named(containers: Sequence[Mapping[str, object]], name: str) -> Json:
    """The container of this name."""
    return next(dict(container) for container in containers if container["name"] == name)


def scope(host: Host, **parts: Any) -> Scope:
    """The scope of the binding "demo", with nothing observed yet; `parts` replace its fields."""
    made = {
        "settings": KubeoceanSettings(binding="demo"),
        "process_zone": "UTC",
        "binding": BindingReconciler(host, "demo"),
        "virtual": VirtualNodes(host),
        "hub_nodes": Informer(host.client, NODES, clock=host.clock),
        "reach": Reach(host.clock, "worker cluster", lost_after=40, ask_every=10),
        "metrics": SyncerMetrics(CollectorRegistry(), binding="demo"),
        "guard": MassGuard(clock=host.clock),
    }
    return Scope(host=host, **{**made, **parts})


def worker_scope(host: Host, worker: WorkerCluster | None = None, **parts: Any) -> WorkerScope:
    """The scope of a connection to `worker`, by default one that nothing answers for, with the mount namespace "mnt"."""
    worker = worker or WorkerCluster(host.client, Mount(OWNER, "mnt"), clock=host.clock, probe_interval=10)
    return scope(host, **parts).with_worker(worker)
