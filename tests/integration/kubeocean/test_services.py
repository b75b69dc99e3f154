"""Services of the hub in the worker: created, changed and deleted with their originals. Judged by the package `kubernetes`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s

from kubeocean.model.dns import corefile
from kubeocean.model.keys import Identity
from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.tries import median_within
from tests.support.audit import Audit, Call
from tests.support.bound import Body, delete, get
from tests.support.pages import Shell, block
from tests.support.program import eventually
from tests.support.stage import Stage, away, physical_name
from tests.support.witness import api_client
from vkubelet.testing.cluster import ControlPlane

SLICE = {"service": "kubernetes.io/service-name", "managed": "endpointslice.kubernetes.io/managed-by"}
SERVICES = 1000
FOLLOWS_WITHIN = 2.0
"""Seconds, the promise."""


class Network:
    """Services and EndpointSlices of one cluster."""

    def __init__(self, cluster: ControlPlane) -> None:
        api = api_client(cluster.kubeconfig)
        self.services, self.slices = k8s.CoreV1Api(api), k8s.DiscoveryV1Api(api)

    async def service(self, name: str, namespace: str) -> Any:
        found = await self.all_services(namespace)
        return found.get(name)

    async def all_services(self, namespace: str) -> dict[str, Any]:
        listed = await asyncio.to_thread(self.services.list_namespaced_service, namespace)
        return {each.metadata.name: each for each in listed.items}

    async def endpoints(self, service: str, namespace: str) -> list[str]:
        """The addresses of a Service, as a proxy finds them."""
        listed = await asyncio.to_thread(
            self.slices.list_namespaced_endpoint_slice, namespace, label_selector=f"{SLICE['service']}={service}"
        )
        return sorted(address for each in listed.items for one in each.endpoints or () for address in one.addresses)

    async def all_slices(self, namespace: str) -> list[Any]:
        return list((await asyncio.to_thread(self.slices.list_namespaced_endpoint_slice, namespace)).items)

    async def create(self, name: str, namespace: str, **spec: Any) -> Any:
        body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"ports": [{"name": "http", "port": 80}], **spec}}
        return await asyncio.to_thread(self.services.create_namespaced_service, namespace, body)

    async def delete(self, name: str, namespace: str) -> None:
        await asyncio.to_thread(self.services.delete_namespaced_service, name, namespace)

    async def point(self, service: str, namespace: str, *addresses: str, name: str = "", **more: Any) -> None:
        """Creates an EndpointSlice of a Service, or replaces it."""
        body = slice_body(name or service, namespace, service, *addresses, **more)
        try:
            await asyncio.to_thread(self.slices.create_namespaced_endpoint_slice, namespace, body)
        except k8s.ApiException as error:
            if error.status != 409:
                raise
            await asyncio.to_thread(self.slices.replace_namespaced_endpoint_slice, body["metadata"]["name"], namespace, body)


def slice_body(name: str, namespace: str, service: str, *addresses: str, **more: Any) -> Body:
    endpoint = {"conditions": {"ready": True}, "nodeName": "somewhere", "targetRef": {"kind": "Pod", "name": "p", "namespace": namespace}}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {SLICE["service"]: service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [each], **endpoint, **more} for each in addresses],
        "ports": [{"name": "http", "port": 8080}],
    }


@pytest.fixture
async def mirrored(scene: MakeScene, hub: ControlPlane) -> AsyncIterator[tuple[Scene, Stage]]:
    """A binding that names a namespace of the hub, which the stage has; unused mirrors do not stay."""
    namespace = await hub.namespace("shop")
    made = await scene(spec={"serviceNamespaces": [namespace]}, settings={"provider": {"unused_copy_after": 2.0}})
    yield made, await Stage.of(made.bound, made.nodes, namespace=namespace)


async def until(check: Callable[[], Any], what: str) -> Any:
    return await eventually(check, what, every=0.05)


async def timed(change: Any, check: Callable[[], Any], what: str) -> float:
    await change
    began = time.monotonic()
    await until(check, what)
    return time.monotonic() - began


async def condition(stage: Stage, kind: str) -> Mapping[str, Any]:
    found = await get(stage.bound.hub, "clusterbinding", stage.bound.name)
    return next((dict(each) for each in found["status"].get("conditions", ()) if each["type"] == kind), {})


async def test_mirrors_follow_services_and_endpoints(mirrored: tuple[Scene, Stage]) -> None:
    made, stage = mirrored
    ours, home, there = stage.namespace, Network(made.bound.hub), Network(made.bound.worker)
    mount = made.bound.mount
    numbers = iter(range(100))

    async def come() -> float:
        name = f"web{next(numbers)}"

        async def check() -> bool:
            return await there.service(f"{name}--{ours}", mount) is not None

        return await timed(home.create(name, ours), check, f"{name} has a mirror")

    await median_within(FOLLOWS_WITHIN, come, "a Service is mirrored")

    async def endpoints() -> float:
        address = f"10.1.0.{next(numbers) + 1}"

        async def check() -> bool:
            return await there.endpoints(f"web0--{ours}", mount) == [address]

        return await timed(home.point("web0", ours, address), check, "endpoints follow")

    await median_within(FOLLOWS_WITHIN, endpoints, "endpoints of a mirror follow")

    async def ports() -> float:
        port = 1000 + next(numbers)
        changed = {"spec": {"ports": [{"name": "http", "port": port}]}}

        async def check() -> bool:
            mirror = await there.service(f"web0--{ours}", mount)
            return [each.port for each in mirror.spec.ports] == [port]

        return await timed(stage.home.patch("services", "web0", changed, namespace=ours), check, "ports follow")

    await median_within(FOLLOWS_WITHIN, ports, "ports of a mirror follow")
    mirror = await there.service(f"web0--{ours}", mount)
    assert mirror.spec.selector is None and mirror.spec.type == "ClusterIP" and mirror.spec.cluster_ip not in ("", "None")
    (copy,) = [each for each in await there.all_slices(mount) if each.metadata.labels[SLICE["service"]] == f"web0--{ours}"]
    assert copy.metadata.labels[SLICE["managed"]] == "kubeocean" and copy.metadata.name == physical_name(ours, "web0")
    assert all(each.node_name is None and each.target_ref is None and each.conditions.ready for each in copy.endpoints)
    assert (await condition(stage, "ServicesMirrored"))["status"] == "True"


async def test_mirror_is_deleted_with_its_service(mirrored: tuple[Scene, Stage]) -> None:
    made, stage = mirrored
    ours, home, there, mount = stage.namespace, Network(made.bound.hub), Network(made.bound.worker), made.bound.mount
    for number in range(5):
        await home.create(f"web{number}", ours)
        await home.point(f"web{number}", ours, "10.1.0.1")
    await until(lambda: there.endpoints(f"web4--{ours}", mount), "the last one has endpoints")

    async def go() -> float:
        name = (await until(lambda: _some(home, ours), "a Service is left"))[0]

        async def check() -> bool:
            found = await there.all_services(mount)
            return f"{name}--{ours}" not in found and await there.endpoints(f"{name}--{ours}", mount) == []

        return await timed(home.delete(name, ours), check, "the mirror of a deleted Service is deleted")

    await median_within(FOLLOWS_WITHIN, go, "a mirror is deleted")


async def _some(network: Network, namespace: str) -> list[str]:
    return sorted(await network.all_services(namespace))


async def test_kinds_of_services_are_what_they_are_in_the_hub(mirrored: tuple[Scene, Stage]) -> None:
    made, stage = mirrored
    ours, home, there, mount = stage.namespace, Network(made.bound.hub), Network(made.bound.worker), made.bound.mount
    await home.create("headless", ours, clusterIP="None", publishNotReadyAddresses=True)
    await home.create("alias", ours, type="ExternalName", externalName="db.example.com", ports=None)
    await home.create("sticky", ours, sessionAffinity="ClientIP", type="NodePort")

    async def check() -> dict[str, Any] | None:
        found = await there.all_services(mount)
        wanted = {name: found.get(f"{name}--{ours}") for name in ("headless", "alias", "sticky")}
        return wanted if all(wanted.values()) else None

    found = await until(check, "all have mirrors")
    assert found["headless"].spec.cluster_ip == "None" and found["headless"].spec.publish_not_ready_addresses
    assert (found["alias"].spec.type, found["alias"].spec.external_name) == ("ExternalName", "db.example.com")
    assert (found["sticky"].spec.type, found["sticky"].spec.session_affinity) == ("ClusterIP", "ClientIP")
    assert found["sticky"].spec.session_affinity_config.client_ip.timeout_seconds == 10800

    await home.delete("headless", ours)
    await home.create("headless", ours)

    async def has_address() -> bool:
        mirror = await there.service(f"headless--{ours}", mount)
        return mirror is not None and mirror.spec.cluster_ip not in ("", "None")

    await until(has_address, "a Service that got an address is replaced")


async def test_foreign_service_of_the_name_is_left_alone_and_reported(mirrored: tuple[Scene, Stage]) -> None:
    made, stage = mirrored
    ours, home, there, mount = stage.namespace, Network(made.bound.hub), Network(made.bound.worker), made.bound.mount
    before = await there.create(f"web--{ours}", mount, ports=[{"name": "theirs", "port": 7}])
    await home.create("web", ours)
    await home.create("other", ours)

    async def reported() -> bool:
        found = await condition(stage, "ServicesMirrored")
        return found.get("status") == "False" and f"web--{ours}" in found["message"] and found["reason"] == "Incomplete"

    await until(reported, "the condition names the Service")
    await until(lambda: there.service(f"other--{ours}", mount), "the other one is mirrored")
    await home.delete("web", ours)

    async def cleared() -> bool:
        return (await condition(stage, "ServicesMirrored")).get("status") == "True"

    await until(cleared, "the problem is gone with the Service")
    after = await there.service(f"web--{ours}", mount)
    assert after.metadata.resource_version == before.metadata.resource_version


async def test_namespace_of_leased_pods_is_mirrored_for_as_long_as_it_has_pods(scene: MakeScene, hub: ControlPlane) -> None:
    made = await scene(settings={"provider": {"unused_copy_after": 2.0}})
    stage = await Stage.of(made.bound, made.nodes)
    ours, home, there, mount = stage.namespace, Network(hub), Network(made.bound.worker), made.bound.mount
    await home.create("web", ours)
    assert await there.all_services(mount) == {}
    await stage.create("caller")
    physical = await stage.until_physical("caller", bool, "there")
    mirror = await there.service(f"web--{ours}", mount)
    variables = {each["name"]: each.get("value") for each in physical["spec"]["containers"][0]["env"]}
    assert variables["WEB_SERVICE_HOST"] == mirror.spec.cluster_ip and variables["WEB_PORT"] == f"tcp://{mirror.spec.cluster_ip}:80"
    assert physical["spec"]["dnsPolicy"] == "ClusterFirst"
    assert physical["spec"]["dnsConfig"]["searches"] == [f"{ours}.{mount}.kubeocean.internal"]
    await stage.running("caller")
    await stage.home.delete("pods", "caller", ours, grace=0)

    async def gone() -> bool:
        return await there.all_services(mount) == {}

    await until(gone, "the mirror is deleted after the last pod")


async def test_restart_writes_nothing_and_unbinding_leaves_what_is_not_ours(mirrored: tuple[Scene, Stage]) -> None:
    made, stage = mirrored
    ours, home, there, mount = stage.namespace, Network(made.bound.hub), Network(made.bound.worker), made.bound.mount
    await home.create("web", ours)
    await home.point("web", ours, "10.1.0.1", "10.1.0.2")
    await there.create("theirs", mount)
    await there.point("theirs", mount, "10.2.0.1")

    async def complete() -> bool:
        return await there.endpoints(f"web--{ours}", mount) == ["10.1.0.1", "10.1.0.2"]

    await until(complete, "mirrored")
    with away(made.program):
        audit = Audit(made.bound.worker, made.bound.user)
        await home.create("later", ours)

    async def later() -> bool:
        return any("later" in each.name for each in _mirrors(audit))

    await eventually(later, "the new process mirrors", seconds=STARTS_WITHIN)
    assert [str(each) for each in _mirrors(audit) if not each.name.startswith("later")] == []
    await delete(made.bound.hub, "clusterbinding", made.bound.name, "--wait=false")

    async def unbound() -> bool:
        return await get(made.bound.hub, "clusterbinding", made.bound.name) is None

    await eventually(unbound, "unbound", seconds=STARTS_WITHIN)
    assert sorted(await there.all_services(mount)) == ["theirs"]
    assert [
        each.metadata.name for each in await there.all_slices(mount) if each.metadata.name.startswith(("web", physical_name(ours, "web")))
    ] == []
    assert await there.endpoints("theirs", mount) == ["10.2.0.1"]
    assert sorted(await home.all_services(ours)) == ["later", "web"]


async def test_a_thousand_services_are_written_once_each_and_a_change_once_more(mirrored: tuple[Scene, Stage]) -> None:
    made, stage = mirrored
    ours, home, there, mount = stage.namespace, Network(made.bound.hub), Network(made.bound.worker), made.bound.mount
    audit = Audit(made.bound.worker, made.bound.user)
    places = asyncio.Semaphore(16)

    async def make(number: int) -> None:
        async with places:
            await home.create(f"many-{number}", ours, clusterIP="None")
            await home.point(f"many-{number}", ours, *(f"10.1.{number % 250}.{host}" for host in range(1, 11)))

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(SERVICES):
            group.create_task(make(number))
    created = time.monotonic()

    async def complete() -> bool:
        slices = await there.all_slices(mount)
        return sum(len(each.endpoints) for each in slices) == 10 * SERVICES and len(await there.all_services(mount)) == SERVICES

    await eventually(complete, "all are mirrored", every=0.5)
    done = time.monotonic()
    await home.point("many-7", ours, "10.1.7.77")
    await until(lambda: there.endpoints(f"many-7--{ours}", mount), "it has endpoints")

    async def changed() -> bool:
        return await there.endpoints(f"many-7--{ours}", mount) == ["10.1.7.77"]

    await until(changed, "a change follows")

    async def logged() -> bool:
        return any(each.verb == "update" for each in _mirrors(audit))

    await until(logged, "the change is in the audit log")
    writes = _mirrors(audit)
    count = {verb: sum(each.verb == verb for each in writes) for verb in ("create", "update", "patch", "delete")}
    print(f"{SERVICES} Services in {created - began:.1f} s, mirrored {done - created:.1f} s later: {count}")
    assert count["create"] == 2 * SERVICES and count["update"] == 1 and count["patch"] == count["delete"] == 0, count


def _mirrors(audit: Audit) -> list[Call]:
    return [each for each in audit.writes() if each.what in ("services", "endpointslices") and each.code < 300]


async def test_the_page_names_a_namespace_and_prints_the_rewrites(scene: MakeScene, hub: ControlPlane, tmp_path: Path) -> None:
    made = await scene()
    name, namespace = made.bound.name, await hub.namespace("shop")
    await Network(hub).create("web", namespace)
    shell = await Shell.of(tmp_path, {"hub": hub, "worker": made.bound.worker})
    patch, read = block("use/services.md", 0).text.splitlines(keepends=True)
    await shell.run(patch.replace("demo", name).replace('"shop"', f'"{namespace}"'))

    async def reported() -> bool:
        return f"Services of {namespace} have mirrors in namespace {made.bound.mount}" in await shell.run(read.replace("demo", name))

    await eventually(reported, "the condition names the namespace", every=0.5)
    out = await shell.run(block("use/services.md", 1), {"demo": name})
    assert out == corefile(Identity("", made.bound.mount), hub_domain="cluster.local", worker_domain="cluster.local")
