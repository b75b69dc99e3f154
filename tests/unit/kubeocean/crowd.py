"""Many virtual nodes with pods, in the store that the runtime has, for tests of what a pass over them costs.

Invariant: the pods are found by the same indexes as in a process, and each lookup is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.kubeocean.builders import at
from vkubelet.api.objects import Json, Pod
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.control.store import Store
from vkubelet.pods.dispatch import PodCache
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost, make_pod

PODS = 20
"""On each node."""


def _spec(cpu: str) -> Json:
    return {
        "priority": 0,
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("not-ready", "unreachable")
        ],
        "containers": [{"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}],
    }


class CountedPods(PodCache):
    """The pods; `lookups` by uid and `listed` pods of nodes so far."""

    def __init__(self, pods: Store[Pod]) -> None:
        super().__init__(pods, lambda node: True)
        self.lookups = 0
        self.listed = 0

    def by_uid(self, uid: str) -> Pod | None:
        self.lookups += 1
        return super().by_uid(uid)

    def on_node(self, node: str) -> Sequence[Pod]:
        pods = super().on_node(node)
        self.listed += len(pods)
        return pods


class CrowdedHost(RecordingHost):
    """A host with `nodes` times 20 pods; `pods` counts what is asked of it."""

    pods: CountedPods  # type: ignore[assignment]

    def __init__(self, nodes: int, *, pods: int = PODS, cpu: str = "100m") -> None:
        super().__init__(clock=ManualClock(at("2026-01-05 09:00")), client=Client(Connection("https://hub.invalid")))
        self.store: Store[Pod] = Store(
            indexes={
                "uid": lambda pod: [pod.metadata.uid],
                "node": lambda pod: [pod.node],
                "namespace": lambda pod: [pod.metadata.namespace],
            }
        )
        self.pods = CountedPods(self.store)
        self.names = [vnode(number) for number in range(nodes)]
        for name in self.names:
            for number in range(pods):
                self.store.put(make_pod(f"{name}-{number}", node=name, spec=_spec(cpu)))


def vnode(number: int) -> str:
    return f"vnode-demo-node-{number}"
