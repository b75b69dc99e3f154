"""Scenarios of one binding whose nodes are divided into shards, served by two replicas.

Invariant: each of the two nodes is in another shard; who serves which is left to the replicas.
"""

from __future__ import annotations

from typing import ClassVar

from kubeocean.provider import KubeoceanProvider
from tests.faults.simulation.kubeocean_world import KubeoceanWorld, settings_of
from tests.faults.simulation.network import address_of
from vkubelet.client.connection import Connection
from vkubelet.process import Runs
from vkubelet.sharding import ShardedReplica

SHARDS = 4


class ShardsWorld(KubeoceanWorld):
    """The scenarios of a shared worker namespace."""

    name = "shards"
    scenarios: ClassVar = {
        name: KubeoceanWorld.scenarios[name] for name in ("pods", "churn", "window", "bindings", "unbind", "return", "failover", "services")
    }
    replicas: ClassVar = dict.fromkeys(scenarios, 2)

    def make(self, role: str) -> Runs:
        own = self.own_settings()
        return ShardedReplica(
            connection=Connection(address_of("hub")),
            settings=settings_of(type(self), leads=True),
            count=SHARDS,
            make=lambda shard: KubeoceanProvider(own, shard),
            clock=self.clock,
            name=role,
        )
