"""Nothing in a process grows with what is gone: pods of every kind of life, their objects, Services, namespaces and nodes come and go.

Invariant: every dict, set, list and deque that is reachable from the process is counted, and every object of the product.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from kubeocean.model import keys
from tests.faults.simulation.actors import NAMESPACE, ControlPlane, path_of, pod_body
from tests.faults.simulation.branches import Branch
from tests.faults.simulation.census import census
from tests.faults.simulation.kubelet import EXIT_CODE, RUN_FOR, STOP_DELAY, node_body
from tests.faults.simulation.kubeocean_world import MOUNT, KubeoceanWorld
from tests.faults.simulation.mock_world import SCRIPT, MockWorld
from tests.faults.simulation.schedule import Schedule
from tests.faults.simulation.world import World
from vkubelet.process import Runs

PODS = 24
"""Pods of a wave, each with a name of its own."""
WAVES = (3, 5)
"""Waves after which the process is counted. Faults happen in the first one, and everything gets its size. What is remembered for a while
is dropped when there is more to remember, so there are not more waves before the second count than before the first."""
BETWEEN, KEPT = 700.0, 7_500.0
"""Seconds between two waves, and until a count: longer than anything is remembered on purpose."""
NOISE = 1
"""Elements by which anything may be larger: what is in progress at the moment of a count."""
RECENT = ("Informer._deleted",)
"""Remembered for minutes and dropped with the next deletion: its size is that of the last minutes with a deletion, at most of one wave."""
FAULTS = (
    "",
    "cut@worker:9:600 cut@hub:12:50",
    "broken@worker:8:90 lag@hub:20:45 dropped@hub:60:3 dropped@worker:60:3",
    "refused:60:409 refused:80:500 lost:100:1 lost:120:0 unsent:140:0 expired@hub:20:0 expired@worker:20:0",
)
FAULTS_OF_HUB = "broken@hub:8:30 lag@hub:60:45 dropped@hub:60:3 refused:60:409 refused:80:500 lost:100:1 lost:120:0 unsent:140:0"
RECORDS = (
    "Ledger",
    "Cell",
    "Quantity",
    "Summaries",
    "Texts",
    "ResourceLeasingPolicyReconciler._last_sent[]",
    "ResourceLeasingPolicy.status[]",
)
"""The ledger counts by hours, and for nodes and namespaces that no longer exist; its size has a limit of its own."""


class Waves(World):
    """A process whose pods come and go."""

    hub: ControlPlane
    notes: ClassVar[Mapping[str, str]]
    """Annotations by which pods stop late, run for a while, and fail."""

    def make(self, role: str) -> Runs:
        self.process = super().make(role)
        return self.process

    async def waves(self) -> None:
        self.counts: list[Counter[str]] = []
        await self.pause(5.0)
        for number in range(max(WAVES)):
            await self.wave(number)
            await self.pause(BETWEEN)
            if number + 1 in WAVES:
                await self.pause(KEPT)
                gc.collect()
                self.counts.append(census(self.process))

    async def _settle(self, since: float, *, brief: bool, within: float) -> None:
        """Nothing is judged but what is counted."""

    async def wave(self, number: int, namespace: str = NAMESPACE) -> None:
        for index in range(PODS):
            self._create(f"wave-{number}-{index}", index, namespace)
            await self.pause(0.2)
        await self.pause(20.0)
        for index in range(PODS):
            self._delete(f"wave-{number}-{index}", index, namespace)
            await self.pause(0.1)

    def _create(self, name: str, index: int, namespace: str) -> None:
        """Kinds of pods in turn: plain, finite, failing, with a ConfigMap of its own, that cannot start, deleted at once."""
        late, finite, failing = self.notes
        spec: dict[str, Any] = {}
        notes = {late: "0.5"}
        match index % 6:
            case 1:
                spec["restart"], notes[finite] = "Never", "3"
            case 2:
                spec["restart"], notes[finite], notes[failing] = "Never", "2", "3"
            case 3:
                path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
                self.hub.model.apply(path, {"metadata": {"name": name}, "data": {"value": name}}, user="person")
                spec["volumes"] = [{"name": "settings", "configMap": {"name": name}}]
            case 4:
                spec["volumes"] = [{"name": "settings", "configMap": {"name": "missing"}}]
        self.hub.create_pod(pod_body(name, annotations=notes, **spec), namespace=namespace)
        if index % 6 == 5:
            self.network.later(self.rng.choice((0.1, 0.6, 0.8)), lambda: self.hub.delete_pod(name, namespace=namespace))

    def _delete(self, name: str, index: int, namespace: str) -> None:
        """Ways to end in turn: with the grace period of the pod, a short one, forced, or first in the backend."""
        if index % 4 == 3:
            self.remove_from_backend(name)
        self.hub.delete_pod(name, namespace=namespace, grace=(None, 1, 0, None)[index % 4])
        if index % 6 == 3:
            self.hub.attempt("person", "DELETE", f"/api/v1/namespaces/{namespace}/configmaps/{name}")

    def remove_from_backend(self, name: str) -> None:
        """Removes the workload of a pod, as its owner does."""
        raise NotImplementedError

    def left(self) -> list[Any]:
        """Returns what of the waves still exists."""
        return list(self.hub.pods())


class WavesOfBinding(Waves, KubeoceanWorld):
    """The process of a binding; in the scenario `places` namespaces, nodes and Services come and go too."""

    scenarios: ClassVar = {"pods": "waves", "places": "waves"}
    notes: ClassVar = {STOP_DELAY: "", RUN_FOR: "", EXIT_CODE: ""}

    async def wave(self, number: int, namespace: str = NAMESPACE) -> None:
        if self.scenario == "pods":
            await super().wave(number)
            return
        node, service, namespace = f"/api/v1/nodes/extra-{number}", f"service-{number}", f"space-{number}"
        self.worker.model.call("POST", "/api/v1/nodes", node_body(f"extra-{number}"), user="kubelet")
        self.worker.merge(node, {"spec": {"taints": None}}, user="node-controller")
        self.hub.model.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}, user="person")
        self.serve(service, 80, "10.8.0.1")
        await super().wave(number, namespace)
        self.hub.attempt("person", "DELETE", f"/api/v1/namespaces/{NAMESPACE}/services/{service}")
        self.hub.attempt("endpoint-controller", "DELETE", f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{service}")
        await self.pause(300.0)
        self.hub.attempt("person", "DELETE", f"/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt")
        self.hub.attempt("person", "DELETE", f"/api/v1/namespaces/{namespace}")
        self.worker.attempt("admin", "DELETE", node)

    def remove_from_backend(self, name: str) -> None:
        for pod in self.worker.pods(MOUNT):
            if pod["metadata"]["annotations"].get(keys.VIRTUAL_POD_NAME) == name:
                self.worker.attempt("owner", "DELETE", path_of(pod), {})

    def left(self) -> list[Any]:
        return [*super().left(), *self.worker.pods(MOUNT), *self.worker.nodes()[2:], *self.hub.nodes()[2:]]


class WavesOfMock(Waves, MockWorld):
    """The runtime with the mock provider."""

    scenarios: ClassVar = {"pods": "waves"}
    notes: ClassVar = {f"{SCRIPT}stop-delay": "", f"{SCRIPT}run-for": "", f"{SCRIPT}exit-code": ""}

    def remove_from_backend(self, name: str) -> None:
        """Does nothing: the provider runs its workloads itself, and loses none."""

    def left(self) -> list[Any]:
        return [*super().left(), *self.backend.pods]


def grown(waves: type[Waves], scenario: str, faults: str) -> dict[str, tuple[int, int]]:
    """Runs the waves; returns what is larger in the process after the last than after the first ones."""
    world = waves(Branch([Schedule.parse(f"growth/{scenario} seed=1 {faults}")]))
    world.run()
    assert not world.left(), "a wave has not ended"
    before, after = world.counts
    assert before["StatusWriter"] == 1 and before["Informer"] > 1, "the census has not found the process"
    names = [name for name in after if after[name] - before[name] > (PODS if name in RECENT else NOISE) and not name.startswith(RECORDS)]
    return {name: (before[name], after[name]) for name in names}


@pytest.mark.parametrize("faults", FAULTS)
def test_nothing_in_the_process_of_a_binding_grows_with_pods_that_are_gone(faults: str) -> None:
    assert not grown(WavesOfBinding, "pods", faults)


@pytest.mark.parametrize("faults", ["", FAULTS_OF_HUB])
def test_nothing_in_a_runtime_grows_with_pods_that_are_gone(faults: str) -> None:
    assert not grown(WavesOfMock, "pods", faults)


def test_nothing_in_the_process_of_a_binding_grows_with_places_that_are_gone() -> None:
    assert not grown(WavesOfBinding, "places", "")
