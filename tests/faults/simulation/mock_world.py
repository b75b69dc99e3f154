"""The runtime with the mock provider: one hub, one process, a backend that outlives it.

Invariant: the backend is the only place where workloads run, and each start and end of one is recorded.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import define, field

from tests.faults.simulation.actors import ControlPlane, pod_body
from tests.faults.simulation.branches import Branch
from tests.faults.simulation.churn import churn
from tests.faults.simulation.history import Workload
from tests.faults.simulation.network import address_of
from tests.faults.simulation.world import LIST_INTERVAL, World
from vkubelet.client.connection import Connection
from vkubelet.process import Runs
from vkubelet.runtime import Runtime
from vkubelet.server.settings import ServerSettings
from vkubelet.settings import HealthSettings, PodSettings, Settings
from vkubelet_providers.mock import Mock
from vkubelet_providers.mock.pods import MockPod
from vkubelet_providers.mock.runner import Backend

SCRIPT = "mock.vkubelet.io/"
TEXT = f"{SCRIPT}log-text"
SERVER = ServerSettings(node_address="10.1.1.1", main_port=False, certificate="self-signed", token_review=True)
HEALTH = HealthSettings(health_address="", metrics_address="")


@define
class RecordedBackend(Backend):
    """The backend of all processes of one world."""

    world: Any = field(default=None, kw_only=True)

    def add(self, pod: MockPod) -> None:
        super().add(pod)
        self._note("start", pod)

    def remove(self, pod: MockPod) -> None:
        if pod.ref.uid in self.pods:
            self._note("end", pod)
        super().remove(pod)

    def _note(self, what: str, pod: MockPod) -> None:
        now, since = self.world.loop.time(), pod.stopping_since
        killed = what == "end" and since is not None and now < since + pod.script.stop_delay
        event = Workload(now, what, pod.ref.uid, str(pod.ref.key), pod.ref.uid, by_itself=since is None, killed=killed)
        self.world.history.workloads.append(event)


class MockWorld(World):
    """Scenarios of the runtime."""

    name = "mock"
    scenarios: ClassVar = {"pods": "pods", "churn": "churn"}

    def __init__(self, branch: Branch) -> None:
        super().__init__(branch)
        self.backend = RecordedBackend(world=self)

    def build(self) -> None:
        self.hub = ControlPlane(self, "hub")
        self.hub.publish_client_ca()
        self.hub.run()
        self.start("vkubelet")

    def make(self, role: str) -> Runs:
        provider = Mock(Mock.Settings(node="mock", nodes=2, resolve=False))
        provider.backend = self.backend
        settings = Settings(server=SERVER, health=HEALTH, pods=PodSettings(list_interval=LIST_INTERVAL))
        return Runtime(provider, settings, connection=Connection(address_of("hub")), clock=self.clock)

    async def pods(self) -> None:
        """Pods of a StatefulSet, one that completes, one that fails, one that is deleted and created again under its name."""
        hub = self.hub
        self.history.finite |= {"job", "bad"}
        await self.pause(5.0)
        hub.stateful("web", replicas=2, annotations={f"{SCRIPT}start-delay": "0.5"})
        hub.create_pod(pod_body("job", restart="Never", annotations={f"{SCRIPT}run-for": "3"}))
        hub.create_pod(pod_body("bad", restart="Never", annotations={f"{SCRIPT}run-for": "2", f"{SCRIPT}exit-code": "3"}))
        hub.create_pod(pod_body("long", annotations={f"{SCRIPT}stop-delay": "4"}))
        await self.pause(4.0)
        hub.mark_node("mock-0")
        await self.pause(8.0)
        hub.delete_pod("web-0")
        hub.delete_pod("long", grace=10)
        await self.pause(1.0)
        hub.label_pod("web-1", "step", "two")
        await self.pause(10.0)
        hub.create_pod(pod_body("long"))
        hub.delete_pod("job")
        await hub.created("long")
        await self.pause(6.0)
        hub.delete_pod("long", grace=0)
        self.wish("StatefulSet web", lambda: hub.unready(["web-0", "web-1"]))
        self.wish("pod bad", lambda: hub.unphased("bad", "Failed"))
        self.wish("deleted pods", lambda: hub.existing(["job", "long"]))
        self._always()

    async def churn(self) -> None:
        """Pods are created, changed, deleted and created again faster than the process can act; the first sync of each pod fails."""
        hub, names = self.hub, ("one", "two", "three")
        notes = {f"{SCRIPT}stop-delay": "0.5", f"{SCRIPT}sync-failures": "1", TEXT: "first"}
        await self.pause(5.0)
        await churn(
            hub,
            names,
            actions=30,
            body=lambda name: pod_body(name, annotations=notes),
            change=lambda name, value: hub.annotate_pod(name, TEXT, value),
        )
        self.wish("pods", lambda: hub.unready(names))
        self._always()

    def _always(self) -> None:
        self.wish("nodes", lambda: self.hub.unready_nodes(2))
        self.wish("backend", self._leftovers)
        self.wish("scripts", self._outdated)

    def _leftovers(self) -> str | None:
        known = {body["metadata"]["uid"] for body in self.hub.pods()}
        left = [str(pod.ref.key) for pod in self.backend.pods.values() if pod.ref.uid not in known]
        return f"workloads without pods: {left}" if left else None

    def _outdated(self) -> str | None:
        """Returns which workloads have not received the last change of their pods."""
        texts = {body["metadata"]["uid"]: body["metadata"].get("annotations", {}).get(TEXT, "") for body in self.hub.pods()}
        bad = [str(pod.ref.key) for uid, pod in self.backend.pods.items() if pod.script.log_text != texts.get(uid, pod.script.log_text)]
        return f"run with an earlier script: {bad}" if bad else None
