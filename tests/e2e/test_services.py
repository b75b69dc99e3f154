"""Services between hub and worker with real pods: home EndpointSlices list leased pods, and the worker has them under our mirror."""

from __future__ import annotations

import pytest

from tests.support.bound import Body, Bound, apply, condition, get, items, pod, running
from tests.support.program import LONG, eventually

SERVER = ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.2; done"]


def addresses(slices: list[Body]) -> list[str]:
    return sorted(address for each in slices for endpoint in each.get("endpoints") or () for address in endpoint["addresses"])


@pytest.mark.timeout(300)
async def test_leased_pod_is_an_endpoint_in_the_hub_and_in_the_worker_and_is_reached(leased: Bound) -> None:
    namespace = await leased.hub.namespace("served")
    body = pod("server", namespace)
    body["metadata"]["labels"] = {"app": "server"}
    body["spec"]["containers"][0]["command"] = SERVER
    spec = {"selector": {"app": "server"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": namespace}, "spec": spec}
    await apply(leased.hub, service, body)
    address = (await running(leased, namespace, "server", seconds=LONG))["status"]["podIP"]

    async def in_hub() -> bool:
        return addresses(await items(leased.hub, "endpointslices", "-n", namespace)) == [address]

    async def in_worker() -> bool:
        mine = f"kubernetes.io/service-name=web--{namespace}"
        return addresses(await items(leased.worker, "endpointslices", "-n", leased.mount, "-l", mine)) == [address]

    await eventually(in_hub, "the hub lists the leased pod by its address in the worker")
    await eventually(in_worker, "the mirror lists it too")

    async def routed() -> bool:
        return condition(await get(leased.hub, "clusterbinding", leased.name), "PodNetworkRouted") == "True"

    await eventually(routed, "the process reaches the pod")
