"""Objects of a fleet for unit tests."""

from typing import Any

from fleet.api import clusters
from fleet.clusters.hub import Hub
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Unknown
from vkubelet.client.rest import Client
from vkubelet.control.recorder import Recorder
from vkubelet.metrics import Metrics
from vkubelet.testing.clock import ManualClock

Body = dict[str, Any]
SINCE = "2026-01-01T00:00:00Z"


def unknown(body: Body) -> Unknown:
    return decode_object(Unknown, encode_json(body))


def condition(type_: str, status: str, reason: str = "Some", **more: Any) -> Body:
    return {"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": SINCE, **more}


def managed(name: str = "w1", *, spec: Any = None, status: Any = None, **metadata: Any) -> clusters.ManagedCluster:
    return clusters.ManagedCluster.parse(unknown({"metadata": {"name": name, "uid": "u1", **metadata}, "spec": spec, "status": status}))


def member(name: str = "w1", *, spec: Any = None, status: Any = None, **metadata: Any) -> clusters.MemberCluster:
    spec = {"identity": {"kind": "User", "name": "agent"}} if spec is None else spec
    return clusters.MemberCluster.parse(unknown({"metadata": {"name": name, "uid": "u2", **metadata}, "spec": spec, "status": status}))


def hub_of(client: Client, clock: ManualClock | None = None) -> Hub:
    """A hub whose API server is that of the client; its Events are recorded and not sent."""
    clock = clock or ManualClock()
    return Hub(client, Recorder(client, "fleet-hub", clock=clock), clock, Metrics())
