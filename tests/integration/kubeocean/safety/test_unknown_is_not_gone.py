"""Rule `unknown-is-not-gone`: what cannot be read is unknown, not deleted; mass deletions wait for a person's confirmation."""

from __future__ import annotations

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.kubeocean.leases import POLICY, listed, only_vnodes, patch_policy, vnode_names
from tests.integration.kubeocean.outages import all_pods, events_of, now, refused, running_pods, without_right
from tests.integration.kubeocean.test_restarts import ready
from tests.support.bound import Body, condition, delete, get
from tests.support.program import eventually
from tests.support.witness import watching

MANY = 20
SHARE = 2
"""A tenth of them."""


async def test_node_is_kept_while_its_end_can_not_be_confirmed(scene: MakeScene) -> None:
    made = await scene(nodes=2)
    bound, node = made.bound, made.nodes[1]
    namespace = await running_pods(made, 2)
    made.kubelet.kill()
    since = now()
    async with without_right(made, "nodes", "get"):
        await bound.worker.kubectl("delete", "node", node)
        await eventually(lambda: refused(made, since, verb="get", resource="nodes", name=node), "the node's end could not be confirmed")
        assert await vnode_names(made) == set(made.vnodes)
        await all_pods(made, namespace, ready, what="untouched", count=2)
    await only_vnodes(made, {0})
    await all_pods(made, namespace, ready, what="left", count=1)


async def test_nodes_are_kept_while_the_end_of_their_policy_can_not_be_confirmed(scene: MakeScene) -> None:
    made = await scene(nodes=2)
    bound, policy = made.bound, f"all-of-{made.bound.name}"
    namespace = await running_pods(made, 2)
    since = now()
    async with without_right(made, POLICY, "list"):
        await delete(bound.worker, POLICY, policy, "--wait=false")
        await eventually(lambda: refused(made, since, verb="list", resource=POLICY), "the policy's end could not be confirmed")
        assert await vnode_names(made) == set(made.vnodes)
        await all_pods(made, namespace, ready, what="untouched", count=2)
        assert await get(bound.worker, POLICY, policy) is not None
    await only_vnodes(made, set())
    assert not await listed(bound.hub, "pods", "-n", namespace)


async def test_nothing_is_declared_before_everything_was_listed(scene: MakeScene) -> None:
    made = await scene(start=False, settings={"provider": {"reconnect_interval": 1.0}})
    labels = f"kubeocean.io/cluster-binding={made.bound.name}"
    with watching(made.bound.hub.kubeconfig, "nodes", labels=labels) as nodes:
        async with without_right(made, POLICY, "list", "watch"):
            async with without_right(made, "nodes", "list", "watch"):
                made.program.start()
                what = f"the binding says that {POLICY} can not be read"
                await eventually(lambda: _names_what_it_lacks(made, POLICY), what, seconds=STARTS_WITHIN)
                await eventually(lambda: _names_what_it_lacks(made, "nodes"), "the binding says that nodes can not be read")
            await eventually(lambda: _names_only(made, POLICY), "the nodes could be read by now")
            assert not nodes.events
        await made.ready()
    assert await eventually(lambda: _served(made), "the binding is served")


async def _syncer_ready(scene: Scene) -> Body:
    found = await get(scene.bound.hub, "clusterbinding", scene.bound.name)
    conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
    return {"status": "", "message": "", **conditions.get("SyncerReady", {})}


async def _names_what_it_lacks(scene: Scene, resource: str) -> bool:
    said = await _syncer_ready(scene)
    return said["status"] == "False" and _complaint(resource) in said["message"] and "grant the rights" in said["message"]


def _complaint(resource: str) -> str:
    """In the words of the worker's API server."""
    return f'cannot watch resource "{resource}"'


async def _names_only(scene: Scene, resource: str) -> bool:
    return await _names_what_it_lacks(scene, resource) and _complaint("nodes") not in (await _syncer_ready(scene))["message"]


async def _served(scene: Scene) -> bool:
    return (await _syncer_ready(scene))["status"] == "True"


async def test_nodes_that_vanish_in_great_numbers_wait_for_confirmation(scene: MakeScene) -> None:
    made = await scene(nodes=MANY)
    bound = made.bound
    made.kubelet.kill()
    await bound.worker.kubectl("delete", "node", *made.nodes)
    said = await eventually(lambda: _all_decided(made), "each node is gone or waits")
    assert "kubeocean.io/confirm-retire=true" in said["message"]
    assert MANY - SHARE <= len(await vnode_names(made)) < MANY
    assert await eventually(lambda: events_of(made, "RetirementHeld"), "an event about it")
    # A cause read on a policy itself is nobody's accident and does not wait, nor does it let the others go.
    kept = await vnode_names(made)
    await patch_policy(made, f"all-of-{bound.name}", priority=1)
    assert await vnode_names(made) == kept
    await bound.hub.kubectl("annotate", "clusterbinding", bound.name, "kubeocean.io/confirm-retire=true")
    await only_vnodes(made, set())
    await eventually(lambda: _nothing_held(made), "nothing waits any more")
    # The agreement was for these nodes, not for ever.
    await eventually(lambda: _annotation_is_gone(made), "the annotation is taken off")


async def _all_decided(scene: Scene) -> Body | None:
    """The condition, once it counts every node that is still there."""
    kept = len(await vnode_names(scene))
    found = await get(scene.bound.hub, "clusterbinding", scene.bound.name)
    for each in found["status"]["conditions"]:
        if each["type"] == "RetirementHeld" and each["status"] == "True" and each["message"].startswith(f"{kept} physical nodes"):
            out: Body = each
            return out
    return None


async def _nothing_held(scene: Scene) -> bool:
    return condition(await get(scene.bound.hub, "clusterbinding", scene.bound.name), "RetirementHeld") == "False"


async def _annotation_is_gone(scene: Scene) -> bool:
    found = await get(scene.bound.hub, "clusterbinding", scene.bound.name)
    return "kubeocean.io/confirm-retire" not in found["metadata"].get("annotations", {})
