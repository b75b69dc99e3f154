"""Uses of the rights on nodes and what belongs to them: policies, CSINodes, Leases, placeholders of host ports."""

from __future__ import annotations

import json

from attrs import define

from tests.faults.cut.rounds import Rounds, Steps, second_policy
from tests.integration.kubeocean.leases import POLICY, patch_policy
from tests.support.bound import apply, delete, get, pod
from tests.support.program import eventually


@define(eq=False, slots=False)
class NodeUses(Rounds):
    """The second node goes and returns; the first one changes."""

    async def taint_of_node(self) -> Steps:
        yield
        await self.worker.kubectl("taint", "node", self.scene.nodes[0], f"use.example.com/round={self.number}:PreferNoSchedule")
        yield
        await self.worker.kubectl("taint", "node", self.scene.nodes[0], "use.example.com/round-")

    async def size_of_lease(self) -> Steps:
        yield
        limits = [{"resource": "cpu", "quantity": str(20 + self.number % 40)}]
        await patch_policy(self.scene, f"all-of-{self.scene.bound.name}", resourceLimits=limits)
        yield

    async def node_that_returns(self) -> Steps:
        await self._second_goes()
        yield
        await apply(self.worker, second_policy(self.scene.bound))
        yield

    async def node_whose_name_is_taken(self) -> Steps:
        await self._second_goes()
        await apply(self.hub, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.scene.vnodes[1]}})
        yield
        await apply(self.worker, second_policy(self.scene.bound))
        yield
        await delete(self.hub, "node", self.scene.vnodes[1], "--ignore-not-found", "--wait=false")

    async def node_that_goes(self) -> Steps:
        body = pod(self.guest, self.stage.namespace, node=self.scene.vnodes[1], terminationGracePeriodSeconds=1)
        await self.stage.home.create("pods", body)
        await self.stage.running(self.guest)
        yield
        await delete(self.worker, POLICY, f"second-of-{self.scene.bound.name}", "--wait=false")
        yield
        await self._second_goes()
        await apply(self.worker, second_policy(self.scene.bound))

    async def _second_goes(self) -> None:
        await delete(self.worker, POLICY, f"second-of-{self.scene.bound.name}", "--ignore-not-found", "--wait=false")

        async def gone() -> bool:
            policy = await get(self.worker, POLICY, f"second-of-{self.scene.bound.name}")
            return policy is None and await get(self.hub, "node", self.scene.vnodes[1]) is None

        await eventually(gone, "the second virtual node is withdrawn")

    async def drivers_that_change(self) -> Steps:
        yield
        await self.worker.kubectl("apply", "-f", "-", stdin=json.dumps(self.csinode(self.scene.nodes[0], f"d{self.number}.example.com")))
        yield

    async def drivers_that_go(self) -> Steps:
        yield
        await delete(self.worker, "csinode", self.scene.nodes[1], "--wait=false")
        yield
        await apply(self.worker, self.csinode(self.scene.nodes[1]))

    async def lease_that_is_edited(self) -> Steps:
        yield
        await self.hub.kubectl("annotate", "lease", self.stage.vnode, "-n", "kube-node-lease", f"round={self.number}", "--overwrite")
        yield

    async def host_port(self) -> Steps:
        space = await self.worker.namespace("locals")
        body = pod("local", space, node=self.scene.nodes[0], terminationGracePeriodSeconds=1)
        body["spec"]["containers"][0]["ports"] = [{"containerPort": 7000 + self.number, "hostPort": 7000 + self.number}]
        yield
        await self.stage.there.create("pods", body)
        yield
        await self.stage.there.delete("pods", "local", space, grace=0)
