"""A process that serves one shard of a binding: what it does about its own nodes, and what it leaves to the other shards."""

from __future__ import annotations

import pytest
from attrs import evolve

from kubeocean.binding.conditions import RETIREMENT_HELD
from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.copies.dependents import Dependents
from kubeocean.model import keys
from kubeocean.nodes.reclaim import Reclaimer
from kubeocean.nodes.withdrawal import Withdrawal
from kubeocean.pods.physical import PhysicalPodReconciler
from kubeocean.pods.translate import physical_pod
from kubeocean.service.unbinding import Unbinding
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, TARGET, physical, pod, scope, unknown, worker_scope
from tests.unit.kubeocean.world import World, node_of, policy_body, process
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Json, Key, Node, Pod, Unknown
from vkubelet.api.podspec import Kind
from vkubelet.control.shards import Shard, shard_of
from vkubelet.provider import NodeDescription
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

COUNT = 2
FIRST, SECOND = Shard(0, COUNT), Shard(1, COUNT)
BINDING = "/apis/cloud.tencent.com/v1beta1/clusterbindings/demo"


def of(shard: Shard, nodes: int) -> list[str]:
    names = [f"vnode-demo-node-{number}" for number in range(nodes)]
    return [name for name in names if shard_of(name, shard.count) == shard.index]


# --- nodes ---


async def test_every_node_is_declared_by_its_shard_alone() -> None:
    declared = []
    for shard in (FIRST, SECOND):
        world = World(nodes=12, policies={"p": policy_body("p")})
        async with process(world, shard=shard) as made:
            await world.clock.advance(1)
            assert sorted(world.host.nodes) == sorted(of(shard, 12))
            assert made.virtual.is_complete, "nodes of other shards are not waited for"
        declared += world.host.nodes
    assert len(declared) == len(set(declared)) == 12


async def test_nodes_of_another_shard_are_neither_withdrawn_nor_changed() -> None:
    # The worker has lost its nodes, and no policy leases any.
    world = World(nodes=6, policies={"p": policy_body("p")})
    async with process(world):
        await world.clock.advance(1)
    world.write_nodes()
    world.host.nodes.clear()
    world.nodes = 0
    async with process(world, shard=SECOND) as made:
        await world.clock.advance(1)
        assert not [name for name in world.host.removed if not SECOND.owns(name)]
        assert not [each for each in set(made.virtual.keys()) if not SECOND.owns(each)]


async def test_the_first_shard_counts_what_all_shards_offer_for_the_policies() -> None:
    world = World(nodes=6, pods=1, cpu="4", policies={"p": policy_body("p")})
    async with process(world):
        await world.clock.advance(1)
    world.write_nodes()
    async with process(world) as whole:
        await world.clock.advance(1)
        expected = whole.nodes.amounts_of("p")
        decided = sorted(whole.nodes.decided_by("p"))
    async with process(world, shard=FIRST) as made:
        await world.clock.advance(1)
        assert made.nodes.amounts_of("p") == expected and expected is not None and expected.offered
        assert sorted(made.nodes.decided_by("p")) == decided and len(decided) == 6


# --- binding ---


def stored(version: int, **annotations: str) -> Unknown:
    spec = {"clusterID": "demo", "mountNamespace": "mnt", "secretRef": {"name": "k", "namespace": "n"}}
    meta = {
        "name": "demo",
        "uid": "uid-b",
        "resourceVersion": str(version),
        "annotations": {k.replace("_", "/"): v for k, v in annotations.items()},
    }
    return unknown({"metadata": meta, "spec": spec, "status": {}})


def memory_host(api: MemoryApi) -> RecordingHost:
    return RecordingHost(client=api.client())


async def test_only_the_first_shard_writes_the_status_and_events_of_the_binding() -> None:
    api = MemoryApi()
    for shard, writes in ((SECOND, 0), (FIRST, 1)):
        host = memory_host(api)
        bound = BindingReconciler(host, "demo", shard=shard)
        api.put(BINDING, {"metadata": {"name": "demo", "uid": "uid-b"}, "spec": {}})
        bound.informer.adopt(stored(2))
        bound.set_unreachable("silence")
        bound.set_reachable()
        bound.set_unreachable("silence")
        await bound.reconcile("demo")
        assert len(api.writes) == writes
        assert bool(host.events.events) is bool(writes)


async def test_retirements_that_wait_in_any_shard_are_reported_by_the_first() -> None:
    api = MemoryApi()
    host = memory_host(api)
    api.put(BINDING, {"metadata": {"name": "demo", "uid": "uid-b"}, "spec": {}})
    second = BindingReconciler(host, "demo", shard=SECOND)
    second.informer.adopt(stored(2))
    second.set_held("2 physical nodes disappeared")
    await second.reconcile("demo")
    (written,) = api.writes
    key = keys.retirement_held(1)
    assert written.body["metadata"]["annotations"] == {key: "2 physical nodes disappeared"}
    api.writes.clear()
    first = BindingReconciler(host, "demo", shard=FIRST)
    first.informer.adopt(stored(3, **{key.replace("/", "_"): "2 physical nodes disappeared"}))
    first.set_held("one disappeared")
    await first.reconcile("demo")
    condition = next(each for each in api.writes[0].body["status"]["conditions"] if each["type"] == RETIREMENT_HELD)
    assert condition["message"] == "one disappeared; 2 physical nodes disappeared"


async def test_next_holder_of_a_shard_keeps_waiting_retirements_until_confirmed() -> None:
    host = memory_host(MemoryApi())
    bound = BindingReconciler(host, "demo", shard=SECOND)
    key = keys.retirement_held(1).replace("/", "_")
    bound.informer.adopt(stored(2, **{key: "2 physical nodes disappeared"}))
    connected = worker_scope(host, binding=bound, shard=SECOND)
    Withdrawal(connected).restore()
    assert not connected.guard.allow("node-1", 10)
    confirmed = list[bool]()
    bound.on_confirm(lambda: confirmed.append(True))
    note = keys.CONFIRM_RETIRE.replace("/", "_")
    bound.informer.adopt(stored(3, **{note: "true"}))
    bound.informer.adopt(stored(4))
    assert confirmed == [True], "also if the first shard removes the annotation before a reconcile"


# --- pods ---


@pytest.mark.parametrize("shard", [FIRST, SECOND])
async def test_physical_pods_of_another_shard_are_neither_published_nor_found_lost(shard: Shard) -> None:
    host = memory_host(MemoryApi())
    connected = worker_scope(host, shard=shard)
    reconciler = PhysicalPodReconciler(scope=connected, released=lambda ref: None)
    virtual = pod()
    body = physical_pod(virtual, TARGET)
    found = physical(body, resourceVersion="5")
    connected.worker.pods.adopt(found)
    assert (virtual.ref in reconciler.controller.queue) is shard.owns(virtual.node)


# --- copies ---


async def unused_copy(shard: Shard, *pods: Json) -> tuple[MemoryApi, float | None]:
    """Reconciles the copy of a ConfigMap that no pod of the shard and no physical pod names; `pods` are listed in the hub."""
    api, clock = MemoryApi(), ManualClock()
    host = RecordingHost(clock=clock, client=api.client())
    connected = worker_scope(host, shard=shard)
    connected.virtual.complete()
    connected.worker.pods.ever_synced = True
    dependents = Dependents(connected)
    copies, key = dependents.copies[Kind.CONFIGMAP], Key("default", "conf")
    for number, body in enumerate(pods):
        api.put(f"/api/v1/namespaces/default/pods/p{number}", body)
    api.put("/api/v1/namespaces/default/configmaps/conf", {"metadata": {"name": "conf", "namespace": "default", "uid": "o"}, "data": {}})
    await copies.ensure(key)
    api.writes.clear()
    await copies.reconcile(key)
    await clock.advance(connected.settings.unused_copy_after)
    return api, await copies.reconcile(key)


def naming(name: str) -> Json:
    volumes = [{"name": "c", "configMap": {"name": name}}]
    meta = {"name": "p0", "namespace": "default", "uid": "p0", "resourceVersion": "3"}
    return {
        "metadata": meta,
        "spec": {"nodeName": "vnode-demo-node-1", "containers": [], "volumes": volumes},
        "status": {"phase": "Pending"},
    }


async def test_unused_copies_are_deleted_by_the_first_shard_alone() -> None:
    api, _ = await unused_copy(FIRST, naming("another"))
    assert any(each.method == "DELETE" and "/namespaces/mnt/configmaps/" in each.path for each in api.writes)
    api, again = await unused_copy(SECOND)
    assert not api.writes and again is None


async def test_copy_that_a_pod_of_another_shard_is_about_to_need_stays() -> None:
    api, again = await unused_copy(FIRST, naming("conf"))
    assert not api.writes and again


# --- unbinding ---


def live_node(name: str) -> Node:
    return node_of(NodeDescription(name, {"cpu": "1"}), "5")


async def test_a_shard_waits_for_its_own_nodes_and_the_first_for_all() -> None:
    host = RecordingHost(client=MemoryApi().client())
    other = next(name for name in (f"vnode-demo-node-{number}" for number in range(9)) if FIRST.owns(name))
    for shard, left in ((FIRST, 1), (SECOND, 0)):
        made = scope(host, shard=shard)
        made.hub_nodes.adopt(live_node(other))
        unbinding = Unbinding(made, reclaimer=Reclaimer(host, per_second=10))
        assert (await unbinding.without_worker("silence")).nodes == left
        await unbinding.give_up_nodes(since=host.clock.now())
        assert made.virtual.is_retired(other) is shard.is_first


async def test_only_the_first_shard_removes_the_finalizer() -> None:
    api = MemoryApi()
    host = memory_host(api)
    api.put(BINDING, {"metadata": {"name": "demo", "uid": "u", "finalizers": [keys.FINALIZER_SYNCER]}, "spec": {}})
    for shard, writes in ((SECOND, 0), (FIRST, 1)):
        made = scope(host, shard=shard, binding=BindingReconciler(host, "demo", shard=shard))
        left = await Unbinding(made, reclaimer=Reclaimer(host, per_second=10)).release()
        assert left.is_nothing and len(api.writes) == writes


# --- the worker ---


async def test_a_shard_keeps_the_pods_of_its_own_nodes_whoever_created_them() -> None:
    client = MemoryApi().client()
    worker = WorkerCluster(client, Mount(OWNER, "mnt"), clock=ManualClock(), probe_interval=10, owns=SECOND.owns)
    for number in range(8):
        meta = {"name": f"local-{number}", "namespace": "elsewhere", "uid": f"l{number}", "resourceVersion": "5"}
        worker.pods.adopt(decode_object(Pod, encode_json({"metadata": meta, "spec": {"nodeName": f"node-{number}", "containers": []}})))
        virtual = pod({"nodeName": f"vnode-demo-node-{number}"}, name=f"web-{number}", uid=f"v{number}")
        body = physical_pod(virtual, evolve(TARGET, node=f"node-{number}"))
        body["spec"].pop("nodeName", None)
        worker.pods.adopt(physical(body, uid=f"p{number}", resourceVersion="5"))
    ours = of(SECOND, 8)
    kept = {each.metadata.uid for each in worker.pods.store}
    assert kept == {f"{kind}{node.removeprefix('vnode-demo-node-')}" for node in ours for kind in "lp"}
    assert 0 < len(kept) < 16
