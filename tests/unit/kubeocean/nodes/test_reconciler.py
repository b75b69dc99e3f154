"""Tests of kubeocean.nodes.reconciler: whose pods are reclaimed."""

from __future__ import annotations

import pytest

from kubeocean.model import keys
from kubeocean.pods.translate import physical_pod
from tests.unit.kubeocean.builders import TARGET, physical
from tests.unit.kubeocean.world import World, policy_body, process
from vkubelet.api.objects import Json
from vkubelet.testing.host import make_pod

FORCED: Json = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 600, "timeWindows": [{"start": "08:00", "end": "09:29"}]}
NODE = "vnode-demo-node-0"
HIDDEN: Json = {
    "placeholder": {"labels": {keys.HOSTPORT_FAKE_POD: "true"}},
    "daemonset": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d"}]},
}


@pytest.mark.parametrize("runs", [True, False], ids=["in-the-worker", "in-the-hub"])
@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
async def test_what_has_a_physical_pod_is_reclaimed_whatever_its_user_made_it_look_like(hidden: Json, runs: bool) -> None:
    world = World(pods=0, policies={"p": policy_body("p", **FORCED)})
    disguised = make_pod("web", node=NODE, metadata=hidden)
    async with process(world) as made:
        if runs:
            body = physical_pod(make_pod("web", node=NODE), TARGET)
            made.worker.pods.adopt(physical(body, resourceVersion="8"))
        world.host.store.put(disguised)
        await world.clock.advance(31 * 60)
        assert list(made.orders()) == (["web"] if runs else [])
