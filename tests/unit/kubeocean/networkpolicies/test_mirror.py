"""Tests of kubeocean.networkpolicies.mirror: what is written, what must be known before a deletion, and what pods wait for."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import Any

import pytest
from attrs import frozen

from kubeocean.copies.dependents import Dependents
from kubeocean.model import keys
from kubeocean.networkpolicies.desired import WITHIN
from kubeocean.networkpolicies.mirror import NetworkPolicyMirror
from kubeocean.pods.translate import physical_pod
from kubeocean.rbac.tenants import isolation
from kubeocean.worker.cluster import Mount, WorkerCluster
from kubeocean.worker.spread import SpreadInformer
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, TARGET, binding, physical, pod, unknown, worker_scope
from tests.unit.kubeocean.networkpolicies.test_translate import policy
from tests.unit.kubeocean.world import listed
from vkubelet.api.objects import Json, Key, Unknown
from vkubelet.client.transport import Call
from vkubelet.control.informer import Change, Informer
from vkubelet.errors import Forbidden, Unreachable
from vkubelet.testing.host import RecordingHost

HUB, WORKER = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies", "/apis/networking.k8s.io/v1/namespaces/mnt-shop/networkpolicies"
MIRROR = keys.physical_name("shop", "web")
_versions = itertools.count(1)
FORBIDDEN = Forbidden("list networkpolicies", "forbidden", status=403)


@frozen
class Scene:
    """A session whose lists are complete, with a worker namespace for `shop`."""

    hub: MemoryApi
    worker: MemoryApi
    cluster: WorkerCluster
    mirror: NetworkPolicyMirror
    host: RecordingHost
    scope: Any

    def part(self) -> Informer[Unknown]:
        assert isinstance(self.cluster.networkpolicies, SpreadInformer)
        found = self.cluster.networkpolicies.part("mnt-shop")
        assert found is not None
        return found

    def decree(self, obj: Unknown) -> None:
        """The watch of the hub shows a policy."""
        self.mirror.policies.adopt(versioned(obj))

    def exists(self, body: Json, *, uid: str = "u") -> None:
        """The worker has a policy, and its watch shows it."""
        path = f"{WORKER}/{body['metadata']['name']}"
        self.worker.put(path, {**body, "metadata": {**body["metadata"], "uid": uid}})
        self.part().adopt(unknown(self.worker.objects[path]))

    def disappears(self, obj: Unknown) -> None:
        """The watch of the hub shows that a policy is deleted."""
        old = self.mirror.policies.store.remove(obj.key)
        self.mirror._add(obj.metadata.namespace)
        assert old is not None

    async def settle(self) -> float | None:
        """Reconciles the namespace; the watch of the worker shows what was deleted."""
        self.worker.writes.clear()
        again = await self.mirror.reconcile("shop")
        for method, name in self.writes:
            if method == "DELETE":
                self.part()._remove(unknown({"metadata": {"name": name, "namespace": "mnt-shop", "resourceVersion": "900"}}))
        return again

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(each.method, each.body.get("metadata", {}).get("name") or each.path.rpartition("/")[2]) for each in self.worker.writes]


def versioned(obj: Unknown) -> Unknown:
    body = obj.body
    body["metadata"] |= {"uid": f"uid-{body['metadata']['name']}", "resourceVersion": str(next(_versions))}
    return unknown(body)


def space(name: str, **labels: str) -> Unknown:
    return unknown({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}})


@pytest.fixture
def scene() -> Scene:
    return scene_of(MemoryApi(), MemoryApi())


def scene_of(hub: MemoryApi, worker: MemoryApi) -> Scene:
    """A session that has listed what the clusters hold."""
    host = RecordingHost(client=hub.client())
    cluster = WorkerCluster(worker.client(), Mount(OWNER, "mnt", keys.PER_NAMESPACE), clock=host.clock, probe_interval=10)
    scope = worker_scope(host, cluster)
    scope.binding.current = binding()
    mirror = NetworkPolicyMirror(scope)
    for informer in (mirror.policies, mirror.namespaces, cluster.pods, cluster.namespaces):
        listed(informer)
    for name in ("shop", "ml"):
        mirror.namespaces.adopt(space(name, team=name))
    cluster.namespaces.adopt(space("mnt-shop"))
    made = Scene(hub, worker, cluster, mirror, host, scope)
    for path, body in worker.objects.items():
        if path.startswith(WORKER):
            made.part().adopt(unknown(body))
    listed(made.part())
    return made


async def test_policies_are_written_once_and_a_change_once_more(scene: Scene) -> None:
    scene.exists(isolation("mnt-shop"))
    scene.decree(policy(podSelector={"matchLabels": {"app": "web"}}, policyTypes=["Ingress"]))
    assert await scene.settle() is None
    assert scene.writes == [("POST", MIRROR), ("POST", WITHIN)]
    await scene.settle()
    assert scene.writes == []
    scene.decree(evolved := policy(policyTypes=["Ingress"], ingress=[{}], podSelector={"matchLabels": {"app": "web"}}))
    await scene.settle()
    assert scene.writes == [("PUT", MIRROR)]
    assert scene.worker.objects[f"{WORKER}/{MIRROR}"]["spec"]["ingress"] == evolved.body["spec"]["ingress"]
    assert f"{WORKER}/kubeocean-tenant" in scene.worker.objects


async def test_what_another_client_changes_is_restored(scene: Scene) -> None:
    scene.decree(policy(policyTypes=["Ingress"]))
    await scene.settle()
    opened = scene.worker.objects[f"{WORKER}/{MIRROR}"]
    scene.exists({**opened, "spec": {**opened["spec"], "ingress": [{}]}}, uid=opened["metadata"].get("uid", ""))
    await scene.settle()
    assert scene.writes == [("PUT", MIRROR)]
    assert "ingress" not in scene.worker.objects[f"{WORKER}/{MIRROR}"]["spec"]


async def test_mirror_is_deleted_with_its_policy_after_a_live_read(scene: Scene) -> None:
    """Rule `unknown-is-not-gone`."""
    given = policy()
    scene.exists(isolation("mnt-shop"))
    scene.decree(given)
    await scene.settle()
    scene.hub.put(f"{HUB}/web", given.body)
    scene.disappears(given)
    assert await scene.settle() is not None and ("DELETE", MIRROR) not in scene.writes
    scene.hub.delete(f"{HUB}/web")
    await scene.settle()
    assert scene.writes == [("DELETE", MIRROR)] and f"{WORKER}/{WITHIN}" in scene.worker.objects


@pytest.mark.parametrize("where", ["hub", "worker"])
async def test_a_mirror_that_cannot_be_deleted_is_named_and_keeps_no_pod_waiting(scene: Scene, where: str) -> None:
    for name in ("a", "b"):
        scene.decree(policy(name))
    await scene.settle()
    for name in ("a", "b"):
        scene.disappears(policy(name))
    api, client = (scene.hub, scene.host.client) if where == "hub" else (scene.worker, scene.cluster.client)
    Refusing({"hub": "GET", "worker": "DELETE"}[where]).lend_to(client)
    assert await scene.mirror.reconcile("shop") == 60.0
    for name, problem in zip(("a", "b"), sorted(scene.mirror._problems["shop"]), strict=True):
        assert keys.physical_name("shop", name) in problem and "stays: " in problem and "no right" in problem
    await scene.mirror.entering("shop")
    api.lend_to(client)
    assert await scene.settle() is None
    assert [method for method, _ in scene.writes] == ["DELETE", "DELETE"] and not scene.mirror._problems["shop"]


async def test_nothing_is_deleted_while_a_list_is_not_complete(scene: Scene) -> None:
    """Rule `unknown-is-not-gone`."""
    given = policy()
    scene.decree(given)
    await scene.settle()
    scene.disappears(given)
    scene.mirror.policies._synced.clear()
    assert await scene.settle() is not None and scene.writes == []
    scene.mirror.policies._synced.set()
    await scene.settle()
    assert scene.writes == [("DELETE", MIRROR)]


async def test_nothing_is_written_before_the_namespace_is_listed(scene: Scene) -> None:
    scene.decree(policy())
    scene.part().ever_synced = False
    assert await scene.settle() is not None and scene.writes == []
    scene.cluster.namespaces.store.remove(Key("", "mnt-shop"))
    assert await scene.settle() is None and scene.writes == [], "a namespace without consent"


async def test_policies_of_others_stay_and_one_in_the_way_is_reported(scene: Scene) -> None:
    other = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
    for name in ("theirs", MIRROR):
        scene.exists({**other, "metadata": {"name": name, "namespace": "mnt-shop"}})
    before = dict(scene.worker.objects)
    scene.decree(policy())
    assert await scene.settle() == 60.0
    assert scene.worker.objects == before
    (problem,) = scene.mirror._problems["shop"]
    assert f"mnt-shop/{MIRROR} of the worker has another owner" in problem and "rename or delete" in problem


async def test_a_change_of_labels_of_a_namespace_changes_the_peers_of_others(scene: Scene) -> None:
    scene.cluster.namespaces.adopt(space("mnt-ml"))
    scene.decree(policy(policyTypes=["Ingress"], ingress=[{"from": [{"namespaceSelector": {"matchLabels": {"team": "blue"}}}]}]))
    await scene.settle()
    assert "ingress" not in scene.worker.objects[f"{WORKER}/{MIRROR}"]["spec"]
    changed = unknown({"metadata": {"name": "ml", "uid": "ml", "resourceVersion": "2", "labels": {"team": "blue"}}})
    scene.mirror.namespaces.adopt(changed)
    assert "shop" in scene.mirror.controller.queue and scene.mirror._is_behind("shop")
    await scene.settle()
    (rule,) = scene.worker.objects[f"{WORKER}/{MIRROR}"]["spec"]["ingress"]
    assert rule["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"] == ["mnt-ml"]


async def test_pods_of_a_deleted_binding_keep_their_policies_until_they_are_deleted(scene: Scene) -> None:
    scene.decree(policy())
    await scene.settle()
    caller = running(scene)
    scene.scope.binding.gone = True
    assert await scene.settle() is not None and scene.writes == []
    scene.cluster.pods.store.remove(caller)
    await scene.settle()
    assert scene.writes == [("DELETE", MIRROR)]
    await scene.settle()
    assert scene.writes == [], "not created again"


def running(scene: Scene) -> Key:
    """A physical pod in the namespace of the tenant; returns its key."""
    body = physical_pod(pod(name="caller", namespace="shop"), TARGET)
    body["metadata"]["namespace"] = "mnt-shop"
    found = physical(body)
    scene.cluster.pods.store.put(found)
    assert scene.cluster.backed(found) is not None
    return found.key


async def test_policies_are_withdrawn_for_another_mapping_and_written_again(scene: Scene) -> None:
    scene.decree(policy())
    await scene.settle()
    scene.mirror.withdraw(withdrawn=True)
    await scene.settle()
    assert scene.writes == [("DELETE", MIRROR)]
    scene.mirror.withdraw(withdrawn=False)
    await scene.settle()
    assert scene.writes == [("POST", MIRROR)]


async def test_where_the_hub_refuses_its_lists_pods_of_a_namespace_reach_one_another(scene: Scene) -> None:
    scene.exists(isolation("mnt-shop"))
    for informer in (scene.mirror.policies, scene.mirror.namespaces):
        informer.ever_synced, informer.last_error = False, FORBIDDEN
    assert await scene.settle() == 5.0, "the rights may be granted, and nothing else reports that the lists are complete"
    assert scene.writes == [("POST", WITHIN)]
    await scene.mirror.entering("shop")
    for informer in (scene.mirror.policies, scene.mirror.namespaces):
        informer.ever_synced, informer.last_error = True, None
    assert await scene.settle() is None


async def test_mirrors_of_an_earlier_process_stay_where_the_hub_refuses_its_lists(scene: Scene) -> None:
    scene.exists(isolation("mnt-shop"))
    scene.decree(policy())
    await scene.settle()
    scene.mirror.policies.ever_synced, scene.mirror.policies.last_error = False, FORBIDDEN
    await scene.settle()
    assert scene.writes == []


async def test_a_pod_waits_until_the_policies_of_its_namespace_apply(scene: Scene) -> None:
    scene.decree(policy())
    waiting = asyncio.create_task(scene.mirror.entering("shop"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await scene.settle()
    await waiting
    scene.decree(policy("later"))
    assert scene.mirror._is_behind("shop"), "a policy that has been observed, and is not mirrored yet"


async def test_a_pod_waits_for_the_round_in_flight_and_requests_no_further_one(scene: Scene) -> None:
    scene.decree(policy())
    await scene.settle()
    scene.decree(policy("later"))
    slow = Slow(scene)
    running = asyncio.create_task(scene.mirror.reconcile("shop"))
    await slow.asked.wait()
    waiting = asyncio.create_task(scene.mirror.entering("shop"))
    await asyncio.sleep(0)
    assert not waiting.done() and f"{WORKER}/{keys.physical_name('shop', 'later')}" not in scene.worker.objects
    assert not scene.mirror._pending, "pods that keep coming would let no round be the last"
    slow.answers.set()
    await running
    await waiting
    assert f"{WORKER}/{keys.physical_name('shop', 'later')}" in scene.worker.objects


async def test_a_reconcile_that_fails_leaves_the_namespace_behind(scene: Scene) -> None:
    scene.decree(policy())
    await scene.settle()
    scene.decree(policy("later"))
    broken = Failing(scene)
    with pytest.raises(Unreachable):
        await scene.mirror.reconcile("shop")
    assert scene.mirror._is_behind("shop")
    broken.restore()
    await scene.settle()
    assert not scene.mirror._is_behind("shop")


class Refusing(MemoryApi):
    """A cluster that grants no right for calls of one method."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    async def fetch(self, call: Call, timeout: float) -> bytes:
        assert call.method == self.method
        raise Forbidden(call.attempt, "no right", status=403)


class Slow(MemoryApi):
    """A worker whose API server answers when it is told to."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.scene, self.asked, self.answers = scene, asyncio.Event(), asyncio.Event()
        self.lend_to(scene.cluster.client)

    async def fetch(self, call: Call, timeout: float) -> bytes:
        self.asked.set()
        await self.answers.wait()
        return await self.scene.worker.fetch(call, timeout)


class Failing(MemoryApi):
    """A worker whose API server is not available; it accepts some writes, and the answer to the last one is lost."""

    def __init__(self, scene: Scene, *, accepts: int = 0) -> None:
        super().__init__()
        self.scene, self.left = scene, accepts
        self.lend_to(scene.cluster.client)

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if self.left:
            answer = await self.scene.worker.fetch(call, timeout)
            self.left -= 1
            if self.left:
                return answer
        raise Unreachable(call.attempt, "the API server is not available")

    def restore(self) -> None:
        self.scene.worker.lend_to(self.scene.cluster.client)


@pytest.mark.parametrize("after", [1, 2, 3, 4])
async def test_a_process_that_stops_after_any_write_leaves_what_the_next_completes(scene: Scene, after: int) -> None:
    first, second = (policy(name, podSelector={"matchLabels": {"app": name}}, policyTypes=["Ingress"]) for name in ("one", "two"))
    scene.exists(isolation("mnt-shop"))
    scene.decree(first)
    await scene.settle()
    scene.disappears(first)
    scene.decree(policy("three", podSelector={"matchLabels": {"app": "three"}}, policyTypes=["Ingress"]))
    scene.decree(second)
    Failing(scene, accepts=after)
    with suppress(Unreachable):
        await scene.mirror.reconcile("shop")

    later = scene_of(scene.hub, scene.worker)
    for each in (second, policy("three", podSelector={"matchLabels": {"app": "three"}}, policyTypes=["Ingress"])):
        later.decree(each)
    assert await later.settle() is None
    found = {path.rpartition("/")[2]: body["spec"] for path, body in later.worker.objects.items()}
    assert set(found) == {"kubeocean-tenant", WITHIN, *(keys.physical_name("shop", name) for name in ("two", "three"))}
    values = [value for each in found[WITHIN]["podSelector"]["matchExpressions"] for value in each["values"]]
    assert sorted(values) == ["three", "two"]
    await later.settle()
    assert later.writes == []


async def test_one_mapping_for_all_waits_for_nothing(scene: Scene) -> None:
    cluster = WorkerCluster(scene.worker.client(), Mount(OWNER, "mnt"), clock=scene.host.clock, probe_interval=10)
    shared = NetworkPolicyMirror(worker_scope(scene.host, cluster))
    await shared.entering("shop")
    await shared.run()
    assert cluster.networkpolicies not in cluster._informers() and scene.worker.writes == []


async def test_state_of_a_namespace_is_dropped_with_it(scene: Scene) -> None:
    scene.decree(policy())
    await scene.settle()
    old = scene.cluster.namespaces.store.remove(Key("", "mnt-shop"))
    assert old is not None
    scene.mirror._space_changed(Change(old.key, old, None))
    await scene.settle()
    assert not (scene.mirror._problems or scene.mirror._done or scene.mirror._pending)


async def test_pods_enter_a_namespace_that_exists_and_whose_policies_apply(scene: Scene) -> None:
    dependents, asked = Dependents(scene.scope), list[str]()

    async def entering(namespace: str) -> None:
        asked.append(namespace)

    dependents.entering = entering
    await dependents.enter("shop")
    assert asked == ["shop"]
