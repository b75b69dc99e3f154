"""How pods reach the computing cluster: by its two LoadBalancer Services where the binding says nothing, and not at all without them.

Lines 126 to 132 of docs/reference/kubeocean-behaviour.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.integration.kubeocean.conftest import MakeScene
from tests.support.bound import Body
from tests.support.program import eventually
from tests.support.stage import Stage
from vkubelet.testing.cluster import ControlPlane

API_SERVER, DNS = ("kubernetes-intranet", "default"), ("kube-dns-intranet", "kube-system")
NAMES = ["kubernetes.default.svc", "kubernetes.default", "kubernetes", "kubernetes.default.svc.cluster.local"]
PODS_UNTIL_FOLLOWED = 10
"""Made one after the other, each as soon as the one before is there. Who does not follow the Services would know of a change only when he
lists them again, hundreds of pods later.
"""


@pytest.fixture
async def stage(scene: MakeScene, hub: ControlPlane) -> AsyncIterator[Stage]:
    """A binding that says nothing of access, in a hub without the Services."""
    made = await scene(spec={"apiServerAccess": None})
    stage = await Stage.of(made.bound, made.nodes)
    yield stage
    for name, namespace in (API_SERVER, DNS):
        await stage.home.delete("services", name, namespace)


async def load_balancer(stage: Stage, name: str, namespace: str, *, address: str, port: int) -> None:
    """The Service with an address, as a cloud would give it; made or moved."""
    if await stage.home.get("services", name, namespace) is None:
        spec = {"type": "LoadBalancer", "ports": [{"name": "p", "port": port, "protocol": "TCP"}]}
        await stage.home.create("services", {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
    status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    await stage.home.patch("services", name, status, namespace=namespace, subresource="status")


def dressed(stage: Stage, name: str) -> Body:
    """A pod that sets itself some of what is set for it."""
    own = [{"name": "KUBERNETES_SERVICE_PORT", "value": "mine"}, {"name": "HOSTNAME", "value": "mine"}, {"name": "MINE", "value": "kept"}]
    containers = [{"name": each, "image": "busybox", "env": own} for each in ("main", "side")]
    shown = ("metadata.name", "metadata.namespace", "spec.nodeName", "status.podIP")
    containers[0] = {**containers[0], "env": [*own, *({"name": _variable(path), "valueFrom": _field(path)} for path in shown)]}
    start = [{"name": "start", "image": "busybox", "env": own}]
    items = [{"path": _variable(path), **_field(path)} for path in shown[:2]]
    return stage.body(
        name,
        containers=containers,
        initContainers=start,
        hostAliases=[{"ip": "10.9.9.9", "hostnames": ["mine.example"]}],
        dnsConfig={"nameservers": ["10.9.9.8"], "searches": ["mine.example"], "options": [{"name": "timeout", "value": "1"}]},
        volumes=[{"name": "d", "downwardAPI": {"items": items}}],
    )


def _variable(path: str) -> str:
    return path.replace(".", "_")


def _field(path: str) -> Body:
    return {"fieldRef": {"fieldPath": path}}


def environment(container: Body) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env", ())}


async def made(stage: Stage, name: str, **spec: Any) -> Body:
    """The physical pod of a new one."""
    await stage.create(name, **spec)
    return await stage.until_physical(name, bool, "there")


async def follows(stage: Stage, prefix: str, wanted: Callable[[Body], bool]) -> int:
    """How many pods are made until one is made like that."""
    number = 0

    async def check() -> bool:
        nonlocal number
        number += 1
        return wanted(await made(stage, f"{prefix}-{number}"))

    await eventually(check, f"new pods follow: {prefix}", every=0.05)
    return number


def api_host(body: Body) -> str:
    return str(environment(body["spec"]["containers"][0]).get("KUBERNETES_SERVICE_HOST", ""))


async def test_pods_start_without_the_services_and_follow_them_when_they_come_move_and_go(stage: Stage) -> None:
    """Line 132: without the Services pods start with the worker's DNS, and an event says so. Then lines 126 to 131."""
    first = await made(stage, "alone")
    await stage.running("alone")
    assert environment(first["spec"]["containers"][0]) == {"HOSTNAME": "alone"}
    assert first["spec"]["dnsPolicy"] == "ClusterFirst" and "hostAliases" not in first["spec"]
    mirrors = [f"{stage.namespace}.{stage.bound.mount}.kubeocean.internal"]
    assert first["spec"]["dnsConfig"] == {"searches": mirrors, "options": [{"name": "ndots", "value": "6"}]}
    said = await stage.event(stage.bound.name, "NoApiServerAccess", namespace="default")
    assert "spec.apiServerAccess" in said["message"] and "kubernetes-intranet" in said["message"]

    linked = {"metadata": {"name": "db", "namespace": stage.namespace}, "spec": {"ports": [{"port": 5432}]}}
    await stage.home.create("services", linked)
    mirror = await eventually(lambda: stage.there.get("services", f"db--{stage.namespace}", stage.bound.mount), "the Service has a mirror")
    address = mirror["spec"]["clusterIP"]
    await load_balancer(stage, *API_SERVER, address="10.98.0.1", port=6443)
    await load_balancer(stage, *DNS, address="10.98.0.2", port=53)

    def is_connected(p: Body) -> bool:
        is_linked = environment(p["spec"]["containers"][0]).get("DB_PORT") == f"tcp://{address}:5432"
        return api_host(p) == "10.98.0.1" and p["spec"]["dnsPolicy"] == "None" and is_linked

    made_until = {"come": await follows(stage, "with", is_connected)}
    await stage.home.create("pods", dressed(stage, "dressed"))
    _is_led_home(await stage.until_physical("dressed", bool, "there"), stage)
    for policy in ("Default", "None"):
        config = {"nameservers": ["10.9.9.8"]}
        body = await made(stage, f"dns-{policy.lower()}", dnsPolicy=policy, dnsConfig=config)
        assert (body["spec"]["dnsPolicy"], body["spec"]["dnsConfig"]) == (policy, config), "line 129"

    await load_balancer(stage, *API_SERVER, address="10.98.0.7", port=6443)
    made_until["move"] = await follows(stage, "moved", lambda p: api_host(p) == "10.98.0.7")
    await stage.home.delete("services", *API_SERVER)
    made_until["go"] = await follows(stage, "gone", lambda p: api_host(p) == "")
    print("pods until one follows the Services:", made_until)
    assert max(made_until.values()) <= PODS_UNTIL_FOLLOWED, made_until
    # Those that run keep what they were made with.
    old = await stage.physical("dressed")
    assert old is not None and api_host(old) == "10.98.0.1"
    assert [each["restartCount"] for each in old["status"].get("containerStatuses", ())] in ([], [0, 0])


def _is_led_home(body: Body, stage: Stage) -> None:
    spec = body["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        found = environment(container)
        wanted = {"HOSTNAME": "mine", "KUBERNETES_SERVICE_HOST": "10.98.0.1", "KUBERNETES_SERVICE_PORT": "mine", "MINE": "kept"}
        assert found.items() >= wanted.items(), f"line 126, container {container['name']}"
    aliases = {alias["ip"]: alias["hostnames"] for alias in spec["hostAliases"]}
    assert aliases == {"10.9.9.9": ["mine.example"], "10.98.0.1": NAMES}, "line 127"
    dns, home = spec["dnsConfig"], stage.namespace
    assert spec["dnsPolicy"] == "None", "line 128"
    assert dns["nameservers"] == ["10.98.0.2", "10.9.9.8"], "lines 128 and 130"
    assert dns["searches"] == [f"{home}.svc.cluster.local", "svc.cluster.local", "cluster.local", "mine.example"], "lines 128 and 130"
    assert {each["name"]: each["value"] for each in dns["options"]} == {"ndots": "5", "timeout": "1"}, "lines 128 and 130"
    notes = body["metadata"]["annotations"]
    paths = {name: value["fieldRef"]["fieldPath"] for name, value in environment(spec["containers"][0]).items() if isinstance(value, dict)}
    (volume,) = (each for each in spec["volumes"] if "downwardAPI" in each)
    for path, shown in (("metadata_name", "dressed"), ("metadata_namespace", home), ("spec_nodeName", stage.vnode)):
        assert notes[paths[path].removeprefix("metadata.annotations['").removesuffix("']")] == shown, f"line 131, {path}"
    assert paths["status_podIP"] == "status.podIP"
    for item in volume["downwardAPI"]["items"]:
        assert item["fieldRef"]["fieldPath"] == paths[item["path"]], "line 131, volume"
