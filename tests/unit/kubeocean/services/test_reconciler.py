"""Tests of kubeocean.services.reconciler: what is written, and what has to be known before a mirror is deleted."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import frozen

from kubeocean.model.keys import Owner
from kubeocean.pods.placement import ServiceLinks
from kubeocean.services.mirror import desired
from kubeocean.services.reconciler import ServiceMirror
from kubeocean.worker.cluster import Mount, WorkerCluster
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, binding, pod, unknown, worker_scope
from tests.unit.kubeocean.services.test_mirror import MOUNT, WEB, endpointslice, service
from tests.unit.kubeocean.world import listed
from vkubelet.api.objects import Json, Key, Unknown
from vkubelet.errors import Forbidden
from vkubelet.testing.host import RecordingHost

SERVICES, SLICES = "/api/v1/namespaces/mnt/services", "/apis/discovery.k8s.io/v1/namespaces/mnt/endpointslices"
HUB = "/api/v1/namespaces/shop/services"


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
    hub, worker = MemoryApi(), MemoryApi()
    host = RecordingHost(client=hub.client())
    cluster = WorkerCluster(worker.client(), Mount(OWNER, "mnt"), clock=host.clock, probe_interval=10)
    scope = worker_scope(host, cluster)
    scope.binding.current = binding({"serviceNamespaces": ["shop"]})
    scope.virtual.complete()
    links = ServiceLinks(host, cluster)
    mirror = ServiceMirror(scope, links.informer, has_dns=lambda: False)
    for informer in (links.informer, mirror.slices, cluster.services, cluster.endpointslices, cluster.pods):
        listed(informer)
    return Scene(hub, worker, cluster, links, mirror, host, scope)


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


async def test_namespace_out_of_scope_is_not_mirrored_and_a_pod_brings_it_in(scene: Scene) -> None:
    other = Key("ml", "db")
    scene.serve(service("db", "ml"))
    await scene.mirror.reconcile(other)
    assert scene.writes == []
    caller = pod(namespace="ml")
    scene.host.pods.put(caller)
    assert not scene.mirror._is_behind("ml") and scene.mirror._leased.note(caller)
    await scene.mirror.reconcile(other)
    assert scene.writes == [("POST", "services")]


async def test_pod_does_not_wait_for_mirrors_that_a_cluster_refuses(scene: Scene) -> None:
    scene.serve(service())
    assert scene.mirror._is_behind("shop")
    scene.cluster.services.last_error = Forbidden("list services", "forbidden", status=403)
    assert not scene.mirror._is_behind("shop")
    await scene.mirror.entering(pod(namespace="shop"))
