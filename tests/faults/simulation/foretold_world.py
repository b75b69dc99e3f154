"""Random leases of one binding that are foretold by `kubeocean plan` and `kubeocean explain`, and then happen.

Invariant: what is foretold comes from the objects of both API servers, read as the commands read them, and never from the process; the
person who reads writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from attrs import define, field, frozen

from kubeocean.commands import reading
from kubeocean.commands.calendar import Plan, Question, plans_of
from kubeocean.commands.explain import surroundings
from kubeocean.explain.node import NodeExplanation, explain_node
from kubeocean.explain.pod import PodExplanation, explain_pod
from kubeocean.explain.policy import PolicyExplanation, explain_policy
from kubeocean.model import crds, keys
from tests.faults.simulation.actors import NAMESPACE, path_of, pod_body
from tests.faults.simulation.branches import Branch
from tests.faults.simulation.kubelet import node_body
from tests.faults.simulation.kubeocean_world import POLICIES_PATH, KubeoceanWorld
from tests.faults.simulation.loop import START
from tests.faults.simulation.network import address_of
from vkubelet.api.objects import PODS, Key
from vkubelet.api.quantity import parse_resources
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.commands.clusters import Choice
from vkubelet.commands.reading import Reader

Body = dict[str, Any]
GRID = 30
"""Seconds: everything that is foretold happens at a multiple."""
BEFORE, AFTER = 8, 22
"""Seconds after an instant of the grid between which clusters are read: what happened at the instant is over, the next is still to come."""
HORIZON = 6 * 60
ZONES = ("", "UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York", "Pacific/Pitcairn")
"""In the last one it is midnight when the simulation starts."""
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
LIMITS: Sequence[Body] = ({"percent": 50}, {"quantity": "1"}, {"percent": 0}, {"percent": 30, "quantity": "2"}, {"percent": 75})
PODS_EXPLAINED = 3
GUARDED = "guarded"
"""Label of the pods that a PodDisruptionBudget protects from evictions."""


@frozen(kw_only=True)
class Observed:
    """A virtual node, a policy and a pod as the clusters have them, beside what is explained at the same moment."""

    seconds: float
    nodes: Sequence[tuple[NodeExplanation, Body | None]]
    policies: Sequence[tuple[PolicyExplanation, Body]]
    pods: Sequence[tuple[PodExplanation, Body, Body | None]]
    """With the pod of the hub, and the one of the worker."""


@define
class Foretold:
    """What was read and computed in one run."""

    second: float = 0.0
    """When the calendar was computed."""
    plan: Plan | None = None
    observed: list[Observed] = field(factory=list)
    uids: dict[str, str] = field(factory=dict)
    """UID of each pod of the hub then, by name."""
    guarded: set[str] = field(factory=set)
    """Names of pods that may not be evicted."""


class ForetoldWorld(KubeoceanWorld):
    """One scenario; each seed has other policies, nodes and pods."""

    name = "foretold"
    scenarios: ClassVar = {"leases": "leases"}
    # Nothing is repaired here, and nothing has to calm down. Renewals of Leases are not what is compared.
    local: ClassVar = {"lease": {"renew_every": 30.0}}
    settles_within = 0.0
    summed_within = 0.0
    quiet_for = 0.0

    def __init__(self, branch: Branch) -> None:
        super().__init__(branch)
        self.foretold = Foretold()

    async def leases(self) -> None:
        """Leases change by the clock alone, once pods run and the clusters were read."""
        self._lend()
        await self.pause(9.0)
        for number in range(self.rng.randint(2, 9)):
            self._start_pod(f"pod-{number}")
            await self.pause(self.rng.choice((0.0, 0.0, 3.0)))
        await self._pause_until(self._between(self.loop.time() + self.rng.choice((0, 0, 60))))
        self._drop_unscheduled()
        await self._pause_until(self._between(self.loop.time() + GRID))
        await self._foretell()
        until = self.foretold.second + HORIZON
        await self._pause_until(self._between(self.rng.uniform(self.loop.time(), until - 2 * GRID)))
        self.foretold.observed.append(await self._observe())
        await self._pause_until(until)

    # --- people ---

    def _lend(self) -> None:
        self.worker.attempt("owner", "DELETE", f"{POLICIES_PATH}/all")
        names = ["one", "two", "three"][: self.rng.randint(2, 3)]
        if "three" in names:
            self.worker.model.call("POST", "/api/v1/nodes", node_body("three"), user="kubelet")
            self.worker.merge("/api/v1/nodes/three", {"spec": {"taints": None}}, user="node-controller")
        for name in names:
            amounts = {"cpu": self.rng.choice(("4", "2", "3500m")), "memory": self.rng.choice(("8Gi", "3Gi")), "pods": "20"}
            self.worker.merge(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": amounts}}, user="kubelet", strategic=True)
            if self.rng.random() < 0.5:
                local = pod_body(f"local-{name}", nodeName=name, tolerations=[{"operator": "Exists"}])
                local["spec"]["containers"][0]["resources"] = {"requests": {"cpu": self.rng.choice(("300m", "1", "2500m"))}}
                self.worker.model.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", local, user="owner")
        for number in range(self.rng.randint(1, 4)):
            self.policy(f"p{number}", self._terms(names, opens=number == 0))
        if self.rng.random() < 0.3:
            self._guard()

    def _terms(self, nodes: Sequence[str], *, opens: bool) -> Body:
        """Returns the spec of a policy; with `opens`, its first window is open from the start, for some minutes."""
        rng, zone = self.rng, self.rng.choice(ZONES)
        limits = [{"resource": "cpu", **rng.choice(LIMITS)}] if rng.random() < 0.6 else []
        if rng.random() < 0.3:
            limits.append({"resource": "memory", "percent": rng.choice((0, 40, 100))})
        spec: Body = {
            "timeWindows": [self._window(zone or "UTC", opens=opens and not at) for at in range(rng.choice((0, 1, 1, 1, 2, 2)))],
            "resourceLimits": limits,
            "priority": rng.randint(-1, 1),
            "forceReclaim": rng.random() < 0.8,
            "gracefulReclaimPeriodSeconds": rng.choice((0, 30, 60, 90, 180)),
            "allowOutOfWindowPods": rng.random() < 0.3,
        }
        if zone:
            spec["timeZone"] = zone
        if rng.random() < 0.3:
            chosen = {"key": "kubernetes.io/hostname", "operator": "In", "values": [rng.choice(nodes)]}
            spec["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [chosen]}]}
        return spec

    def _window(self, zone: str, *, opens: bool) -> Body:
        """Returns a window of some minutes by the clock of the zone."""
        rng = self.rng
        start = START + timedelta(minutes=rng.randint(-4, 0) if opens else rng.randint(-4, 7))
        end = start + timedelta(minutes=rng.randint(4, 8) if opens else rng.choice((0, 1, 2, 4, 60)))
        local = [each.astimezone(ZoneInfo(zone)) for each in (start, end)]
        right, other = f"{local[0]:%A}", rng.choice(DAYS)
        days = rng.choice(((), (right,), (right, other)) if opens else ((), (right,), (right, other), (other,)))
        return {"start": f"{local[0]:%H:%M}", "end": f"{local[1]:%H:%M}", "days": sorted(set(days))}

    def _guard(self) -> None:
        """A budget that allows no eviction, as the disruption controller reports it."""
        path = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
        spec = {"maxUnavailable": 0, "selector": {"matchLabels": {GUARDED: "yes"}}}
        self.hub.model.call("POST", path, {"metadata": {"name": GUARDED}, "spec": spec}, user="person")
        status = {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
        self.hub.merge(f"{path}/{GUARDED}/status", {"status": status}, user="disruption-controller")
        self.foretold.guarded.add("")

    def _start_pod(self, name: str) -> None:
        rng = self.rng
        body = pod_body(name, priority=None)
        if rng.random() < 0.3:
            body["spec"]["tolerations"].append({"key": keys.TAINT_CLOSED, "operator": "Exists"})
        requests = {"cpu": rng.choice(("100m", "500m", "1", "1500m")), "memory": rng.choice(("64Mi", "1Gi"))}
        body["spec"]["containers"][0]["resources"] = {"requests": requests}
        if self.foretold.guarded and rng.random() < 0.5:
            body["metadata"]["labels"] = {GUARDED: "yes"}
            self.foretold.guarded.add(name)
        self.hub.create_pod(body)

    def _drop_unscheduled(self) -> None:
        """Deletes the pods that wait for a node: they would run as soon as a window opens."""
        for pod in self.hub.pods(NAMESPACE):
            if not pod["spec"].get("nodeName"):
                self.hub.attempt("person", "DELETE", path_of(pod), {})

    # --- a person who asks ---

    def _between(self, second: float) -> float:
        """Returns a moment at or after a second at which nothing is about to happen."""
        return (second // GRID + 1) * GRID + self.rng.uniform(BEFORE, AFTER)

    async def _pause_until(self, second: float) -> None:
        await self.pause(max(0.0, second - self.loop.time()))

    async def _foretell(self) -> None:
        self.foretold.observed.append(await self._observe())
        async with Client(Connection(address_of("hub")), clock=self.clock) as client:
            seen = await self._snapshot(client)
            self.foretold.second = self.loop.time()
            (self.foretold.plan,) = plans_of([seen], Question(days=1), self.clock)
        self.foretold.uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.hub.pods(NAMESPACE)}

    async def _snapshot(self, client: Client) -> reading.Snapshot:
        reader = Reader(client, _HUB)
        (binding,) = await reading.bindings(reader)
        return await reading.snapshot(reader, binding)

    async def _observe(self) -> Observed:
        """Explains everything, and takes down what the API servers have at that moment."""
        async with Client(Connection(address_of("hub")), clock=self.clock) as client:
            seen = await self._snapshot(client)
            instant, virtual = self.clock.now(), {node["metadata"]["name"]: node for node in self.hub.nodes()}
            nodes = [
                (
                    explain_node(seen.lease, each, instant=instant, shown=_allocatable(seen.virtual.get(each.virtual))),
                    virtual.get(each.virtual),
                )
                for each in seen.lease.nodes
            ]
            stored = {
                each["metadata"]["name"]: each for each in self.worker.model.objects(crds.GROUP, crds.VERSION, "resourceleasingpolicies")
            }
            policies = [(explain_policy(seen.lease, each, instant=instant), stored[each.name]) for each in seen.policies]
            names = sorted(pod["metadata"]["name"] for pod in self.hub.pods(NAMESPACE))
            pods = [await self._pod(client, name) for name in self.rng.sample(names, min(len(names), PODS_EXPLAINED))]
        return Observed(seconds=self.loop.time(), nodes=nodes, policies=policies, pods=pods)

    async def _pod(self, client: Client, name: str) -> tuple[PodExplanation, Body, Body | None]:
        reader = Reader(client, _HUB)
        pod = await reader.get(PODS, Key(NAMESPACE, name))
        assert pod is not None
        made = explain_pod(pod, await surroundings(reader, pod, worker=None))
        namespace, _, physical = made.physical_pod.partition("/")
        live = self.hub.pod(name)
        assert live is not None
        return made, live, self.worker.pod(physical, namespace) if physical else None


_HUB = Choice("computing cluster", "--context")


def _allocatable(node: Any) -> Mapping[str, Any] | None:
    return parse_resources(node.status.get("allocatable") or {}) if node is not None else None
