"""One real edge of time windows, and rule `reclaim-the-excess` at the hand-over: docs/reference/kubeocean-behaviour.md, lines 93 to 98.

Edges are whole minutes, so everything that happens at one is looked at on one: a window that ends, one that hands over to a smaller policy,
and one that opens again. What is done meanwhile is looked at by the same test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.integration.kubeocean.leases import CLOSED, patch_policy, policy_status, taints
from tests.support.audit import Audit, Call
from tests.support.bound import Body, Bound, apply, delete, get
from tests.support.program import PATIENCE, eventually, holds
from tests.support.stage import Stage
from tests.support.witness import Record, watching
from vkubelet.testing.cluster import ControlPlane

GRACE = 10
ACTS_WITHIN = 1.0
TIMES_ALONE = 10
"""On a machine where one write that waits for the same moment comes late, so many times as long: all three policies and nodes change at
once, and a look every so often would be seconds apart. Tries at several edges: test_policies.py.
"""
SOONEST = timedelta(seconds=20)
"""From setting the windows to the edge: both have to be in force by then."""

CLOSES, HANDS_OVER, OPENS = 0, 1, 2
"""Which physical node does what at the edge."""
FORCED = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": GRACE, "allowOutOfWindowPods": True}


@pytest.fixture(scope="module")
def lent(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Three nodes, each with a policy of its own that leases all of it all day, but for the last, whose policy is closed."""
    names: list[str] = []

    def policies(bound: Bound) -> list[Body]:
        names.extend(f"{what}-{bound.name}" for what in ("closes", "night", "opens"))
        made = [policy(bound, name, f"sim-{bound.name}-{number}") for number, name in enumerate(names)]
        made[OPENS]["spec"] |= windows(timedelta(hours=2), timedelta(hours=3))
        day = policy(bound, f"day-{bound.name}", f"sim-{bound.name}-{HANDS_OVER}", priority=-1)
        day["spec"] |= {"resourceLimits": [{"resource": "cpu", "percent": 25}], "forceReclaim": False}
        return [*made, day]

    with lasting_scene(hub, worker, tmp_path_factory.mktemp("edge"), nodes=3, policies=policies) as made:
        yield made


def policy(bound: Bound, name: str, node: str, **spec: Any) -> Body:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
    return bound.policy(name, nodeSelector=selector, timeZone="UTC", **FORCED, **spec)


def windows(start: timedelta, end: timedelta, *, about: datetime | None = None) -> Body:
    """One window; `end` is its last minute."""
    now = about or datetime.now(UTC)
    return {"timeWindows": [{"start": f"{now + start:%H:%M}", "end": f"{now + end:%H:%M}"}]}


@frozen
class At:
    """What the API server was asked at an edge, counted in seconds from it."""

    edge: datetime
    audit: Audit

    def seconds(self, call: Call) -> float:
        return (call.at - self.edge).total_seconds()

    def first(self, vnode: str) -> float:
        """The first write to a virtual node by us after the edge, which no heartbeat precedes."""
        calls = [call for call in self.audit.writes() if call.name == vnode and call.what in ("nodes", "nodes/status")]
        return min(self.seconds(call) for call in calls if self.seconds(call) >= -ACTS_WITHIN)


async def lay(stage: Stage, name: str, number: int, *, cpu: str = "1", **spec: Any) -> None:
    """A pod on one of the nodes, Running."""
    body = stage.body(name, labels={"name": name}, terminationGracePeriodSeconds=1, **spec)
    body["spec"]["nodeName"] = stage.bound.vnode(stage.nodes[number])
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    await stage.home.create("pods", body)
    await stage.running(name)


async def guard(stage: Stage, name: str) -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"name": name}}}
    metadata = {"name": name, "namespace": stage.namespace}
    await apply(stage.bound.hub, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec})

    async def counts() -> bool:
        budget = await get(stage.bound.hub, "pdb", name, "-n", stage.namespace)
        return bool(budget.get("status", {}).get("currentHealthy") == 1)

    await eventually(counts, f"the budget knows {name}")


def asked(record: Record, name: str) -> datetime | None:
    """When the deletion of a pod was asked for; the API server tells whole seconds."""
    for event in record.where(lambda event: event.deleting and event.object["metadata"]["name"] == name):
        meta = event.object["metadata"]
        return datetime.fromisoformat(meta["deletionTimestamp"]) - timedelta(seconds=meta["deletionGracePeriodSeconds"])
    return None


def of(record: Record, name: str, wanted: Callable[[Body], bool]) -> list[Body]:
    """The versions of a Node that are like that."""
    return [event.object for event in record.where(lambda event: event.object["metadata"]["name"] == name) if wanted(event.object)]


def _is_open(node: Body) -> bool:
    return CLOSED not in taints(node)


def _is_closed(node: Body) -> bool:
    return CLOSED in taints(node)


def _drives_out(node: Body) -> bool:
    return _is_closed(node) and taints(node)[CLOSED]["effect"] == "NoExecute"


def _is_a_quarter(node: Body) -> bool:
    return bool(node["status"]["allocatable"]["cpu"] == "16")


async def set_windows(scene: Scene) -> datetime:
    """Let all three policies change at the next whole minute that is far enough; which one."""
    edge = (datetime.now(UTC) + SOONEST + timedelta(minutes=1)).replace(second=0, microsecond=0)
    ends = windows(timedelta(hours=-2), timedelta(minutes=-1), about=edge)
    begins = windows(timedelta(), timedelta(hours=2), about=edge)
    changes = (("closes", ends), ("night", ends), ("opens", begins))
    await asyncio.gather(*(patch_policy(scene, f"{what}-{scene.bound.name}", **spec) for what, spec in changes))
    for what in ("closes", "night", "opens"):

        async def told(name: str = f"{what}-{scene.bound.name}") -> bool:
            status = await policy_status(scene, name)
            return bool(status.get("nextEdge")) and datetime.fromisoformat(status["nextEdge"]) == edge

        await eventually(told, f"the status of policy {what} names the edge")
    assert datetime.now(UTC) < edge, "too slow to look at this edge"
    return edge


async def test_everything_that_happens_at_an_edge_happens_within_a_second_of_it(lent: Scene) -> None:
    stage, hub = await Stage.of(lent.bound, lent.nodes), lent.bound.hub
    await lay(stage, "stays", HANDS_OVER, cpu="10")
    older = datetime.now(UTC)
    for name in ("free", "guarded"):
        await lay(stage, name, CLOSES)
    # The youngest goes first, and the age of a pod counts whole seconds.
    await eventually(lambda: datetime.now(UTC) - older > timedelta(seconds=1.1), "a second has passed")
    await lay(stage, "excess", HANDS_OVER, cpu="10")
    tolerations = [{"key": "kubeocean.io/vnode", "operator": "Exists"}, {"key": CLOSED, "operator": "Exists"}]
    await lay(stage, "tolerant", CLOSES, tolerations=tolerations)
    await guard(stage, "guarded")
    await holds(lambda: _is_told_in_the_table(lent))
    vnodes = lent.vnodes
    with (
        watching(hub.kubeconfig, namespace=stage.namespace) as pods,
        watching(hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={lent.bound.name}") as nodes,
    ):
        edge = await set_windows(lent)
        at = At(edge, Audit(hub, lent.bound.user))
        assert not pods.where(lambda event: event.deleting)

        alone = await own_write(stage, edge)
        await eventually(lambda: of(nodes, vnodes[OPENS], _is_open), "open again")
        await eventually(lambda: of(nodes, vnodes[CLOSES], _is_closed), "closed")
        first = of(nodes, vnodes[CLOSES], _is_closed)[0]
        assert taints(first)[CLOSED]["effect"] == "NoSchedule", "NoExecute only after the grace"
        await eventually(lambda: of(nodes, vnodes[HANDS_OVER], _is_a_quarter), "handed over")
        for name in ("free", "excess", "guarded"):
            await eventually(lambda name=name: asked(pods, name), f"{name} is ended", seconds=GRACE + PATIENCE)
        await eventually(lambda: of(nodes, vnodes[CLOSES], _drives_out), "closed to running pods")
    late = {"closed": at.first(vnodes[CLOSES]), "handed over": at.first(vnodes[HANDS_OVER]), "opened": at.first(vnodes[OPENS])}
    print("acted after the edge:", {what: f"{seconds:.3f} s" for what, seconds in late.items()}, f"a write of our own: {alone:.3f} s")
    assert min(late.values()) >= 0, late
    assert max(late.values()) < max(ACTS_WITHIN, TIMES_ALONE * alone), late

    after = {name: (when - edge).total_seconds() for name in ("free", "excess", "guarded") if (when := asked(pods, name))}
    print("ended after the edge:", after)
    # Whole seconds, rounded down.
    assert 0 <= after["free"] < GRACE and 0 <= after["excess"] < GRACE, after
    assert GRACE - 1 <= after["guarded"] < GRACE + 10, "the budget holds until the deadline, and no longer"
    for name in ("tolerant", "stays"):
        assert (await stage.running(name))["metadata"].get("deletionTimestamp") is asked(pods, name) is None, name
    # The new policy does not force; the one that ended did.
    assert CLOSED not in taints((await stage.home.get("nodes", vnodes[HANDS_OVER])) or {"spec": {}})
    evicted = [call for call in at.audit.writes() if call.what == "pods/eviction" and call.namespace == stage.namespace]
    assert {call.name for call in evicted} == {"free", "excess", "guarded"}
    assert {call.code for call in evicted if call.name == "guarded"} == {429}
    await holds(lambda: _is_in_the_descriptions(hub, vnodes))
    assert "has ended" in (await stage.event("free", "Reclaiming"))["message"]
    await delete(hub, "pods,pdb", "--all", "-n", stage.namespace, "--wait=false")


async def _is_in_the_descriptions(hub: ControlPlane, vnodes: Sequence[str]) -> None:
    for number, reason in ((CLOSES, "LeaseClosed"), (HANDS_OVER, "LeaseChanged"), (OPENS, "LeaseOpened")):
        assert reason in (await hub.kubectl("describe", "node", vnodes[number])).partition("Events:")[2], reason


async def own_write(stage: Stage, edge: datetime) -> float:
    """Seconds after the edge until something that waits for it has written something."""
    await asyncio.sleep(max(0.0, (edge - datetime.now(UTC)).total_seconds()))
    await stage.home.create("configmaps", {"metadata": {"name": "at-the-edge", "namespace": stage.namespace}})
    return (datetime.now(UTC) - edge).total_seconds()


async def _is_told_in_the_table(scene: Scene) -> None:
    """Line 4 of kubeocean-behaviour.md, and ours how many nodes and the next edge; with `-o wide`, how much is leased."""
    worker, name = scene.bound.worker, f"night-{scene.bound.name}"
    plain = (await worker.kubectl("get", "rlp", name)).splitlines()
    assert plain[0].split() == ["NAME", "CLUSTER", "PHASE", "ACTIVE", "NODES", "NEXT", "EDGE", "AGE"]
    assert plain[1].split()[1:5] == [scene.bound.name, "Active", "true", "1"]
    status = await policy_status(scene, name)
    assert status.get("leased", {}).get("cpu") == "20", "the status says how much is leased"
    assert (status["nodes"], status["decidingNodes"]) == ([scene.nodes[HANDS_OVER]], 1)
    assert (status["offered"]["cpu"], status["leased"]["pods"], status["timeZone"]) == ("64", "2", "UTC")
    wide = (await worker.kubectl("get", "rlp", name, "-o", "wide")).splitlines()
    assert wide[0].split()[8:] == ["PRIORITY", "LEASED", "CPU", "LEASED", "MEMORY", "ZONE", "MESSAGE"]
    assert {"20", "UTC", "valid"} <= set(wide[1].split())
