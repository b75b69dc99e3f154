"""The workload under which rights are taken away: rounds of a pod with copies, on one of two nodes that have a policy each.

Invariant: a round that is done has left two pods in each cluster.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from attrs import define, field

from tests.integration.kubeocean.conftest import Scene
from tests.support.bound import Body, Bound, apply, condition, items
from tests.support.program import eventually
from tests.support.stage import Stage
from vkubelet.testing.cluster import ControlPlane

Steps = AsyncGenerator[None, None]
"""Prepares while all rights are there, uses one that is missing, and undoes that."""
Use = Callable[[], Steps]

DRIVER = "disks.example.com"
LABEL = "kubeocean.io/managed-by"
"""By it the process watches its copies and mirrors."""
_SLICE = "kubernetes.io/service-name"


def policies(bound: Bound) -> list[Body]:
    """One for each of the two nodes, so that the second can be withdrawn alone."""
    return [bound.policy(nodeSelector=_only(f"sim-{bound.name}-0")), second_policy(bound)]


def second_policy(bound: Bound) -> Body:
    """Leases the second node, and reclaims it by eviction and then by deletion."""
    spec = {"nodeSelector": _only(f"sim-{bound.name}-1"), "forceReclaim": True, "gracefulReclaimPeriodSeconds": 2}
    return bound.policy(f"second-of-{bound.name}", **spec)


def _only(node: str) -> Body:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


@define(eq=False, slots=False)
class Rounds:
    """Each round creates a pod with copies, changes it, and deletes that of the last."""

    scene: Scene
    stage: Stage
    number: int = 0
    answer: str = field(default="", init=False)
    """What the API server of the hub returned to the caller of a stream."""

    @property
    def name(self) -> str:
        return f"round-{self.number}"

    @property
    def guest(self) -> str:
        """Name of what only the use of this round needs."""
        return f"guest-{self.number}"

    @property
    def hub(self) -> ControlPlane:
        return self.scene.bound.hub

    @property
    def worker(self) -> ControlPlane:
        return self.scene.bound.worker

    async def lay(self) -> None:
        await self.stage.create("stays", terminationGracePeriodSeconds=2)
        await self.stage.running("stays")
        await apply(self.worker, *(self.csinode(node) for node in self.scene.nodes))
        await self.serve("web", "10.1.0.1")
        await eventually(lambda: self.mirror("services"), "the Service is mirrored")

    async def another(self) -> None:
        stage, last = self.stage, f"round-{self.number - 1}"
        space = {"namespace": stage.namespace}
        await stage.home.create("configmaps", {"metadata": {"name": self.name, **space}, "data": {"a": "1"}})
        await stage.home.create("secrets", {"metadata": {"name": self.name, **space}, "stringData": {"a": "1"}})
        volumes = [{"name": "c", "configMap": {"name": self.name}}, {"name": "s", "secret": {"secretName": self.name}}]
        await stage.create(self.name, volumes=volumes, terminationGracePeriodSeconds=2)
        await stage.home.patch("pods", "stays", {"metadata": {"labels": {"round": str(self.number)}}}, namespace=stage.namespace)
        if self.number > 1:
            await stage.home.delete("pods", last, stage.namespace)

    async def tidy(self) -> None:
        """Deletes pods that a use has left, as it failed."""
        for body in await self.stage.home.list("pods", self.stage.namespace):
            if body["metadata"]["name"].startswith("guest-"):
                await self.stage.home.delete("pods", body["metadata"]["name"], self.stage.namespace)

    async def done(self) -> bool:
        """The new pod is Ready, the change has arrived, the pod of the last round is deleted everywhere."""
        pods = {body["metadata"]["name"]: body for body in await self.stage.home.list("pods", self.stage.namespace)}
        stays = await self.stage.physical("stays")
        below = await self.stage.there.list("pods", self.scene.bound.mount)
        return bool(
            set(pods) == {"stays", self.name}
            and all(condition(body, "Ready") == "True" for body in pods.values())
            and stays is not None
            and stays["metadata"]["labels"].get("round") == str(self.number)
            and len(below) == len(pods)
        )

    async def round_alone(self) -> Steps:
        """The round itself uses the right."""
        yield
        yield

    def csinode(self, node: str, *more: str) -> Body:
        drivers = [{"name": each, "nodeID": "machine", "topologyKeys": None} for each in (DRIVER, *more)]
        return {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}, "spec": {"drivers": drivers}}

    async def serve(self, name: str, address: str) -> None:
        space = {"namespace": self.stage.namespace}
        service = {"metadata": {"name": name, **space}, "spec": {"ports": [{"name": "http", "port": 80}]}}
        await apply(self.hub, {"apiVersion": "v1", "kind": "Service", **service}, self.endpoints_of(name, address))

    def endpoints_of(self, service: str, address: str) -> Body:
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": service, "namespace": self.stage.namespace, "labels": {_SLICE: service}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": "http", "port": 8080}],
        }

    async def mirror(self, kind: str, service: str = "web") -> str:
        """Name of the mirror of a Service or of its slice; "" when there is none."""
        name = f"{service}--{self.stage.namespace}"
        found = await items(self.worker, kind, "-n", self.scene.bound.mount)
        metas = [body["metadata"] for body in found if name in (body["metadata"]["name"], body["metadata"].get("labels", {}).get(_SLICE))]
        return str(metas[0]["name"]) if metas else ""
