"""What one event of the pod watch costs a process whose nodes it does not concern: read, decoded, and dropped at the store's door."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.figures import Figure
from tests.benchmarks.planes import fleet_on_new_plane
from tests.support.load import Load, Request, pod
from tests.support.outside import Meter, Outside
from tests.support.program import eventually
from vkubelet.testing.cluster import Site

PODS = 300
CHANGES = 20
"""Of each pod."""


async def measure(site: Site) -> Sequence[Figure]:
    """Changes of pods of about 10 KB on a node of somebody else."""
    async with fleet_on_new_plane(site, "events") as fleet:
        load, node = Load(fleet.plane.kubeconfig), fleet.name("m")
        names = [f"p-{number}" for number in range(PODS)]
        await load.send(_large(pod(name, fleet.namespace, "nobody")) for name in names)
        with fleet.program("mock", provider={"node": node, "resolve": False}) as program:
            await fleet.ready([node], program=program)
            meter = Meter(Outside(program.process.pid))
            await load.send(_changes(fleet.namespace, names))
            # The last pod is one of its own: what came before it on the watch is done when it runs.
            await load.send([pod("last", fleet.namespace, node)])
            await eventually(lambda: fleet.running("last"), "the last event was seen")
            meter.stop()
    return [Figure(name="watch_event_cpu", value=meter.cpu / (PODS * CHANGES) * 1e6, unit="µs")]


def _large(request: Request) -> Request:
    """As large as pods of the field are: with an environment."""
    env = [{"name": f"SETTING_{number}", "value": "v" * 40} for number in range(30)]
    spec = request.body["spec"]
    spec = {**spec, "containers": [{**container, "env": env} for container in spec["containers"]]}
    return Request(request.method, request.path, {**request.body, "spec": spec})


def _changes(namespace: str, names: Sequence[str]) -> list[Request]:
    kind = "application/merge-patch+json"
    return [
        Request("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"labels": {"round": str(number)}}}, kind)
        for number in range(CHANGES)
        for name in names
    ]
