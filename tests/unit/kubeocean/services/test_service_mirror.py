"""Tests of kubeocean.services.service_mirror: what is written, and what has to be known before a mirror is deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from attrs import Factory, define, frozen

from kubeocean.copies.tenants import NOT_PREPARED
from kubeocean.mirrors.namespaces import MirroredNamespaces
from kubeocean.model.keys import PER_NAMESPACE, Owner
from kubeocean.pods.placement import Placement, ServiceLinks
from kubeocean.pods.translate import physical_pod
from kubeocean.services.mirror import desired
from kubeocean.services.service_mirror import ServiceMirror
from kubeocean.worker.cluster import Mount, WorkerCluster
from kubeocean.worker.spread import SpreadInformer
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, TARGET, binding, physical, pod, unknown, worker_scope
from tests.unit.kubeocean.services.test_mirror import MOUNT, WEB, endpointslice, service
from tests.unit.kubeocean.world import listed
from vkubelet.api.objects import Json, Key, Unknown
from vkubelet.control.informer import Change
from vkubelet.errors import Forbidden, ServerError, Unavailable
from vkubelet.testing.host import RecordingHost

SERVICES, SLICES = "/api/v1/namespaces/mnt/services", "/apis/discovery.k8s.io/v1/namespaces/mnt/endpointslices"
HUB = "/api/v1/namespaces/shop/services"
KINDS = (("/api/v1", "services"), ("/apis/discovery.k8s.io/v1", "endpointslices"))


@define
class Prepared:
    """Whether the worker's owner has prepared namespaces."""

    refusal: str = ""
    asked: list[str] = Factory(list)

    async def __call__(self, namespace: str) -> None:
        self.asked.append(namespace)
        if self.refusal:
            raise Unavailable(self.refusal, retry_after=1.0, waiting=NOT_PREPARED)


@frozen
class Scene:
    """A session whose lists are complete; `hub` and `worker` are what the clusters hold."""

    hub: MemoryApi
    worker: MemoryApi
    cluster: WorkerCluster
    links: ServiceLinks
    mirror: ServiceMirror
    host: RecordingHost
    scope: Any
    prepared: Prepared

    def serve(self, obj: Unknown, *slices: Unknown) -> None:
        """The watches of the hub show a Service and its EndpointSlices."""
        self.links.informer.adopt(versioned(obj))
        for each in slices:
            self.mirror.slices.adopt(versioned(each))

    def mirrored(self, body: Json, *, owner: Owner = OWNER) -> None:
        """The worker has a mirror, and its watch shows it."""
        kind = SERVICES if body["kind"] == "Service" else SLICES
        full = {
            **body,
            "metadata": {**body["metadata"], "uid": f"uid-{body['metadata']['name']}", "labels": {**body["metadata"]["labels"]}},
        }
        full["metadata"] |= {"annotations": {**full["metadata"]["annotations"], **owner.annotations}}
        self.worker.put(f"{kind}/{body['metadata']['name']}", full)
        informer = self.cluster.services if kind == SERVICES else self.cluster.endpointslices
        informer.adopt(unknown(self.worker.objects[f"{kind}/{body['metadata']['name']}"]))

    @property
    def namespaces(self) -> MirroredNamespaces:
        return self.mirror._namespaces

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [
            (each.method, each.path.removeprefix("/api/v1/namespaces/mnt/").rpartition("/v1/namespaces/mnt/")[2])
            for each in self.worker.writes
        ]


def versioned(obj: Unknown) -> Unknown:
    body = obj.body
    body["metadata"] |= {"uid": f"uid-{body['metadata']['name']}", "resourceVersion": "5"}
    return unknown(body)


@pytest.fixture
def scene() -> Scene:
    return scene_of(Mount(OWNER, "mnt"))


def scene_of(mount: Mount) -> Scene:
    hub, worker = MemoryApi(), MemoryApi()
    host = RecordingHost(client=hub.client())
    cluster = WorkerCluster(worker.client(), mount, clock=host.clock, probe_interval=10)
    scope = worker_scope(host, cluster)
    scope.binding.current = binding({"serviceNamespaces": ["shop"]})
    scope.virtual.complete()
    links = ServiceLinks(host, cluster)
    prepared = Prepared()
    mirror = ServiceMirror(scope, links.informer, namespaces=MirroredNamespaces(scope), prepare=prepared, has_dns=lambda: False)
    for informer in (links.informer, mirror.slices, cluster.pods):
        listed(informer)
    if mount.is_shared:
        for informer in (cluster.services, cluster.endpointslices):
            listed(informer)
    return Scene(hub, worker, cluster, links, mirror, host, scope, prepared)


def bodies(*slices: Unknown) -> tuple[Json, list[Json]]:
    made = desired(service(), slices, MOUNT)
    assert made is not None
    return made.service, list(made.slices)


async def test_service_and_slices_are_created_once(scene: Scene) -> None:
    scene.serve(service(), endpointslice())
    assert await scene.mirror.reconcile(WEB) is None
    assert [method for method, _ in scene.writes] == ["POST", "POST"]
    assert scene.worker.objects[f"{SERVICES}/web--shop"]["spec"]["type"] == "ClusterIP"
    await scene.mirror.reconcile(WEB)
    assert len(scene.writes) == 2


async def test_nothing_is_written_before_every_list_is_complete(scene: Scene) -> None:
    scene.serve(service(), endpointslice())
    scene.mirror.slices.ever_synced = False
    assert await scene.mirror.reconcile(WEB) is not None and scene.writes == []


async def test_mirrors_of_a_deleted_service_are_deleted(scene: Scene) -> None:
    main, (part,) = bodies(endpointslice())
    scene.mirrored(main)
    scene.mirrored(part)
    assert await scene.mirror.reconcile(WEB) is None
    assert scene.writes == [("DELETE", "services/web--shop"), ("DELETE", f"endpointslices/{part['metadata']['name']}")]


async def test_mirror_whose_service_a_live_read_finds_is_kept(scene: Scene) -> None:
    """Rule `unknown-is-not-gone`."""
    scene.mirrored(bodies()[0])
    scene.hub.put(f"{HUB}/web", service().body)
    assert await scene.mirror.reconcile(WEB) is not None and scene.writes == []


async def test_mirrors_are_kept_until_the_pods_of_the_hub_are_known(scene: Scene) -> None:
    scene.mirrored(bodies()[0])
    scene.scope.binding.current = binding()
    scene.scope.virtual._complete = False
    assert await scene.mirror.reconcile(WEB) is not None and scene.writes == []
    scene.scope.virtual._complete = True
    assert await scene.mirror.reconcile(WEB) is None and scene.writes == [("DELETE", "services/web--shop")]


async def test_surplus_slice_is_deleted_and_the_service_stays(scene: Scene) -> None:
    main, parts = bodies(endpointslice("one"), endpointslice("two"))
    for body in (main, *parts):
        scene.mirrored(body)
    scene.serve(service(), endpointslice("one"))
    await scene.mirror.reconcile(WEB)
    gone = next(each for each in parts if each["metadata"]["annotations"]["kubeocean.io/virtual-name"] == "two")
    assert scene.writes == [("DELETE", f"endpointslices/{gone['metadata']['name']}")]


async def test_object_of_another_owner_is_left_alone_and_reported(scene: Scene) -> None:
    scene.mirrored(bodies()[0], owner=Owner("another-hub", "demo"))
    scene.serve(service())
    assert await scene.mirror.reconcile(WEB) == 60.0
    assert scene.writes == [("POST", "services")] and "another owner" in scene.mirror._problems[WEB]
    scene.links.informer.store.remove(WEB)
    await scene.mirror.reconcile(WEB)
    assert scene.writes == [("POST", "services")] and WEB not in scene.mirror._problems


async def test_a_list_that_fails_from_the_start_is_reported(scene: Scene) -> None:
    scene.mirror.slices.ever_synced, scene.mirror.slices.last_error = False, ServerError("list endpointslices", "etcd is down", status=500)
    reporting = asyncio.create_task(scene.mirror._report())
    await scene.host.clock.advance(1)
    state = scene.scope.binding._health.services
    assert state is not None and (state.holds, state.reason) == (False, "NotListed")
    assert state.message.startswith("Services are not mirrored: list endpointslices: etcd is down; ")
    scene.mirror.slices.ever_synced, scene.mirror.slices.last_error = True, None
    await scene.host.clock.advance(1)
    assert scene.scope.binding._health.services.holds
    reporting.cancel()


async def test_namespace_out_of_scope_is_not_mirrored_and_a_pod_brings_it_in(scene: Scene) -> None:
    other = Key("ml", "db")
    scene.serve(service("db", "ml"))
    await scene.mirror.reconcile(other)
    assert scene.writes == []
    caller = pod(namespace="ml")
    scene.host.pods.put(caller)
    assert not scene.mirror._is_behind("ml")
    scene.namespaces.entering(caller)
    await scene.mirror.reconcile(other)
    assert scene.writes == [("POST", "services")]


async def test_pod_does_not_wait_for_mirrors_that_a_cluster_refuses(scene: Scene) -> None:
    scene.serve(service())
    assert scene.mirror._is_behind("shop")
    scene.cluster.services.last_error = Forbidden("list services", "forbidden", status=403)
    assert not scene.mirror._is_behind("shop")
    await scene.mirror.entering(pod(namespace="shop"))


async def test_pods_of_a_tenant_without_rights_do_not_wait_one_after_the_other(spread: Scene) -> None:
    spread.serve(service())
    for part in spread.cluster.mirrors_of("shop"):
        part.ever_synced, part.last_error = False, Forbidden("list services", "forbidden", status=403)
    spread.mirror._entrance._wait = 0.01
    await spread.mirror.entering(pod(namespace="shop"))
    spread.mirror._entrance._wait = 60.0
    async with asyncio.timeout(1):
        await spread.mirror.entering(pod(namespace="shop"))


@pytest.fixture
def spread() -> Scene:
    """A worker with a namespace for each of two tenants, whose lists are complete."""
    scene = scene_of(Mount(OWNER, "mnt", PER_NAMESPACE))
    listed(scene.cluster.namespaces)
    for name in ("mnt-shop", "mnt-other"):
        scene.cluster.namespaces.adopt(unknown({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}}))
    for informer in (scene.cluster.services, scene.cluster.endpointslices):
        assert isinstance(informer, SpreadInformer)
        for part in informer._parts.values():
            listed(part)
    scene.scope.binding.current = binding({"serviceNamespaces": ["shop", "other"]})
    return scene


async def test_mirrors_of_tenants_keep_their_names_in_separate_namespaces(spread: Scene) -> None:
    for namespace in ("shop", "other"):
        spread.serve(service("web", namespace), endpointslice("part", namespace=namespace))
        await spread.mirror.reconcile(Key(namespace, "web"))
    spaces = [each.path for each in spread.worker.writes]
    assert spaces == [f"{base}/namespaces/mnt-{name}/{kind}" for name in ("shop", "other") for base, kind in KINDS]
    assert spread.prepared.asked == ["shop", "other"]
    parts = {each.key: each.metadata.labels["kubernetes.io/service-name"] for each in spread.cluster.endpointslices.store}
    assert {key.namespace: name for key, name in parts.items()} == {"mnt-shop": "web", "mnt-other": "web"}

    spread.worker.writes.clear()
    spread.links.informer.store.remove(WEB)
    await spread.mirror.reconcile(WEB)
    deleted = [each.path.rpartition("/")[0] for each in spread.worker.writes if each.method == "DELETE"]
    assert deleted == [f"{base}/namespaces/mnt-shop/{kind}" for base, kind in KINDS], "nothing of the other tenant"


async def test_variables_contain_the_address_in_the_namespace_of_the_tenant(spread: Scene) -> None:
    for namespace, address in (("shop", "10.9.0.1"), ("other", "10.9.0.2")):
        obj = service("web", namespace)
        spread.serve(obj)
        made = desired(obj, (), spread.cluster.mount)
        assert made is not None
        body = {**made.service, "spec": {**made.service["spec"], "clusterIP": address}}
        body["metadata"] |= {"uid": namespace, "resourceVersion": "1"}
        spread.cluster.services.adopt(unknown(body))
        assert spread.links.known(pod(namespace=namespace))["WEB_SERVICE_HOST"] == address


async def test_an_unprepared_namespace_is_a_problem_until_it_is_prepared(spread: Scene) -> None:
    spread.prepared.refusal = "the worker cluster has no namespace mnt-shop"
    spread.serve(service())
    assert await spread.mirror.reconcile(WEB) == 60.0 and spread.writes == []
    assert spread.mirror._problems[WEB] == "Services of namespace shop are not mirrored: the worker cluster has no namespace mnt-shop"
    assert not spread.mirror._is_behind("shop"), "pods do not wait for it"
    spread.prepared.refusal = ""
    spread.mirror.controller.queue.discard(WEB)
    changed = {"name": "mnt-shop", "uid": "mnt-shop", "resourceVersion": "2"}
    spread.cluster.namespaces.adopt(unknown({"metadata": changed}))
    assert spread.mirror.controller.queue.is_due(WEB), "the namespace is noticed at once"
    await spread.mirror.reconcile(WEB)
    assert WEB not in spread.mirror._problems and [each.method for each in spread.worker.writes] == ["POST"]


async def test_nothing_is_deleted_while_the_namespace_of_its_tenant_is_not_listed(spread: Scene) -> None:
    """Rule `unknown-is-not-gone`."""
    body = desired(service(), (), spread.cluster.mount)
    assert body is not None
    body.service["metadata"] |= {"uid": "web", "resourceVersion": "1"}
    spread.cluster.services.adopt(unknown(body.service))
    (part, _) = spread.cluster.mirrors_of("shop")
    part.ever_synced = False
    assert await spread.mirror.reconcile(WEB) is not None and spread.worker.writes == []
    part.ever_synced = True
    (other, _) = spread.cluster.mirrors_of("other")
    other.ever_synced, other.last_error = False, Forbidden("list services", "forbidden", status=403)
    await spread.mirror.reconcile(WEB)
    assert [each.method for each in spread.worker.writes] == ["DELETE"], "another tenant's list prevents nothing"


async def test_pod_of_a_tenant_waits_while_the_rights_in_its_namespace_take_effect(spread: Scene) -> None:
    (part, _) = spread.cluster.mirrors_of("shop")
    part.ever_synced, part.last_error = False, Forbidden("list services", "forbidden", status=403)
    assert spread.mirror._is_behind("shop") and not spread.mirror._is_behind("other")


async def test_mirrors_of_named_namespaces_are_withdrawn_and_created_again(scene: Scene) -> None:
    scene.serve(service())
    scene.mirrored(bodies()[0])
    assert scene.namespaces.withdraw(withdrawn=True)
    await scene.mirror.reconcile(WEB)
    assert scene.writes == [("DELETE", "services/web--shop")]
    scene.cluster.services.store.remove(Key("mnt", "web--shop"))
    assert scene.namespaces.withdraw(withdrawn=False)
    await scene.mirror.reconcile(WEB)
    assert [method for method, _ in scene.writes] == ["DELETE", "POST"]


async def test_mirrors_of_leased_namespaces_stay_when_named_ones_are_withdrawn(scene: Scene) -> None:
    caller = pod(namespace="shop")
    scene.host.pods.put(caller)
    scene.namespaces.entering(caller)
    scene.serve(service())
    scene.mirrored(bodies()[0])
    assert scene.namespaces.withdraw(withdrawn=True)
    await scene.mirror.reconcile(WEB)
    assert scene.writes == []


async def test_pods_of_a_tenant_search_mirrors_once_its_own_lists_are_complete(spread: Scene) -> None:
    placement = Placement(scope=spread.scope)
    (unlisted, _) = spread.cluster.mirrors_of("other")
    unlisted.ever_synced = False
    assert placement._zone(pod(namespace="shop")) == "mnt.kubeocean.internal" and placement._zone(pod(namespace="other")) == ""


async def test_a_reconcile_while_a_namespace_is_still_in_use_is_repeated_when_it_is_not(scene: Scene) -> None:
    """One that was due anyway takes the place of that which the deletion of the last pod has queued for later."""
    found = physical(physical_pod(pod(name="caller", namespace="ml"), TARGET))
    scene.cluster.pods.store.put(found)
    scene.namespaces._pod_changed(Change(found.key, None, found))
    scene.serve(service("db", "ml"))
    made = desired(service("db", "ml"), (), MOUNT)
    assert made is not None
    scene.mirrored(made.service)
    db = Key("ml", "db")
    assert await scene.mirror.reconcile(db) is None
    scene.cluster.pods.store.remove(found.key)
    scene.namespaces._pod_changed(Change(found.key, found, None))
    await scene.host.clock.advance(1.0)
    left = await scene.mirror.reconcile(db)
    assert left == scene.scope.settings.unused_copy_after - 1.0 and scene.writes == []
    await scene.host.clock.advance(left)
    assert await scene.mirror.reconcile(db) is None
    assert scene.writes == [("DELETE", "services/db--ml")]
