"""One of several worker nodes is lost for longer than its pods tolerate, and returns: only its pods notice, and none runs twice.

The node controller of the worker is quicker than usual; in the whole run the node is lost for six minutes nevertheless.
"""

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.faults.cut.choice import Choice
from tests.integration.kubeocean.conftest import STARTS_WITHIN, Scene, scenes
from tests.integration.kubeocean.outages import SHORT
from tests.support.audit import Audit
from tests.support.bound import Body, condition
from tests.support.program import Program, eventually
from tests.support.simulated import all_ready, simulated_nodes
from tests.support.stage import Stage
from tests.support.witness import watching
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.fixtures import running

LOST = "lost"
SILENT_FOR = 25
"""Seconds until the node controller reports a silent node."""
TOLERATED = 10
LOST_FOR = 360.0
NOTICED_WITHIN = 2 * SILENT_FOR
EVICTED_WITHIN = NOTICED_WITHIN + 4 * TOLERATED
IN_STEP_WITHIN = 30.0
SIMULATED = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "type", "operator": "In", "values": ["simulated"]}]}]}
_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")


def tolerations(seconds: int | None) -> list[Body]:
    bounded = {"tolerationSeconds": seconds} if seconds is not None else {}
    own = [{"key": key, "operator": "Exists", "effect": "NoExecute", **bounded} for key in _TAINTS]
    return [{"key": "kubeocean.io/vnode", "operator": "Exists"}, *own]


async def test_lost_node_costs_only_its_own_pods_and_none_runs_twice(
    cluster_site: Site, hub: ControlPlane, request: pytest.FixtureRequest, choice: Choice, tmp_path: Path
) -> None:
    options = Options(aggregation=False, controller_flags=(f"--node-monitor-grace-period={SILENT_FOR}s", "--node-monitor-period=1s"))
    with running(ControlPlane("losing", cluster_site, options=options), request) as worker:
        async with AsyncExitStack() as stack:
            made = await scenes(stack, hub, worker, tmp_path)(nodes=2, settings=SHORT, spec={"nodeSelector": SIMULATED})
            kubelet = stack.enter_context(simulated_nodes(worker, LOST, nodes=1, directory=tmp_path))
            await all_ready(hub, [made.bound.vnode(LOST)], seconds=STARTS_WITHIN)
            await _lost(made, kubelet, LOST_FOR if choice.whole else 0.0)


async def _lost(made: Scene, kubelet: Program, seconds: float) -> None:
    bound, vnode = made.bound, made.bound.vnode(LOST)
    stage = await Stage.of(bound, made.nodes)
    for name, node, bearable in (("evicted", vnode, TOLERATED), ("bears", vnode, None), ("elsewhere", made.vnodes[0], TOLERATED)):
        body = stage.body(name, tolerations=tolerations(bearable), terminationGracePeriodSeconds=1)
        body["spec"]["nodeName"] = node
        await stage.home.create("pods", body)
        await stage.running(name)
    home, there = Audit(bound.hub, bound.user), Audit(bound.worker, bound.user)
    with (
        watching(bound.worker.kubeconfig, namespace=bound.mount) as below,
        watching(bound.hub.kubeconfig, namespace=stage.namespace) as above,
        watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes,
    ):
        kubelet.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        try:
            await eventually(lambda: _is_unready(stage, vnode), "the virtual node is not Ready", seconds=NOTICED_WITHIN)
            print(f"the virtual node is not Ready after {time.monotonic() - began:.0f} s")
            await stage.until("evicted", _is_terminating, "is being deleted", seconds=EVICTED_WITHIN)
            await stage.until_physical("evicted", _is_terminating, "is being deleted", seconds=EVICTED_WITHIN)
            await asyncio.sleep(max(2.0 * TOLERATED, began + seconds - time.monotonic()))
            # Its containers may run still, so the pod stays, and with it its name.
            assert await stage.virtual("evicted") is not None and await stage.physical("evicted") is not None
        finally:
            kubelet.process.send_signal(signal.SIGCONT)
        back = time.monotonic()
        await eventually(lambda: _in_step(stage, vnode), "both clusters are in step", seconds=3 * IN_STEP_WITHIN, every=0.3)
        took = time.monotonic() - back
        print(f"lost for {back - began:.0f} s, in step {took:.1f} s after the return")
    assert made.program.alive, made.program.tail()
    kept = {"bears", "elsewhere", stage.physical_name("bears"), stage.physical_name("elsewhere")}
    for record in (above, below):
        assert not record.where(lambda event: event.restarts > 0 or event.kind == "ADDED")
        assert not record.where(lambda event: event.object["metadata"]["name"] in kept and (event.deleting or event.kind == "DELETED"))
    others = nodes.where(lambda event: event.object["metadata"]["name"] != vnode)
    assert not [event for event in others if event.kind == "DELETED" or event.condition("Ready") != "True"]
    assert not [call for audit in (home, there) for call in audit.writes() if call.verb == "delete" and call.name in kept]
    assert took < IN_STEP_WITHIN


async def _is_unready(stage: Stage, vnode: str) -> bool:
    node = await stage.home.get("nodes", vnode)
    return node is not None and condition(node, "Ready") != "True"


def _is_terminating(body: Body) -> bool:
    return "deletionTimestamp" in body["metadata"]


async def _in_step(stage: Stage, vnode: str) -> bool:
    pods = {body["metadata"]["name"]: body for body in await stage.home.list("pods", stage.namespace)}
    below = await stage.there.list("pods", stage.bound.mount)
    ready = all(condition(body, "Ready") == "True" for body in (*pods.values(), *below))
    return set(pods) == {"bears", "elsewhere"} and len(below) == 2 and ready and not await _is_unready(stage, vnode)
