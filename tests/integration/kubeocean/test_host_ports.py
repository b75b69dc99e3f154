"""Host ports that pods of the worker use are taken on the virtual node, by one placeholder that nobody else stumbles over."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import MakeScene
from tests.support.bound import Body, condition, delete, get, pod
from tests.support.core import Core
from tests.support.program import eventually
from tests.support.stage import Stage, physical_name, uid_of
from tests.support.witness import watching
from vkubelet.testing.cluster import ControlPlane

FAKE = "kubeocean-fake"
LABELS = {"kubeocean.io/hostport-fake-pod": "true", "kubeocean.io/managed-by": "kubeocean"}
Port = tuple[str, str, int]


@frozen
class Locals:
    """Pods of the worker's own on one node."""

    core: Core
    namespace: str
    node: str

    async def create(self, name: str, *ports: Body, init: bool = False, script: dict[str, str] | None = None, **spec: Any) -> None:
        body = pod(name, self.namespace, node=self.node, terminationGracePeriodSeconds=1, **spec)
        body["metadata"]["annotations"] = {f"mock.vkubelet.io/{key}": value for key, value in (script or {}).items()}
        main = body["spec"]["containers"][0]
        if init:
            body["spec"]["initContainers"] = [{**main, "name": "init", "command": ["true"], "ports": list(ports)}]
        else:
            main["ports"] = list(ports)
        await self.core.create("pods", body)

    async def delete(self, name: str) -> None:
        await self.core.delete("pods", name, self.namespace, grace=0)


@pytest.fixture
async def local_pods(stage: Stage) -> AsyncIterator[Locals]:
    worker = stage.bound.worker
    made = Locals(stage.there, await worker.namespace("locals"), stage.nodes[0])
    yield made
    await delete(worker, "pods", "--all", "-n", made.namespace, "--grace-period=0", "--force", "--wait=false")


def port(number: int, **more: Any) -> Body:
    return {"containerPort": more.pop("inside", number), "hostPort": number, **more}


def taken(placeholder: Body) -> list[Port]:
    (container,) = placeholder["spec"]["containers"]
    return [(each["hostIP"], each["protocol"], each["hostPort"]) for each in container.get("ports", ())]


async def placeholders(hub: ControlPlane, vnode: str) -> list[Body]:
    found = json.loads(await hub.kubectl("get", "pods", "-n", FAKE, "-o", "json", "--field-selector", f"spec.nodeName={vnode}"))
    return list(found["items"])


async def until_taken(stage: Stage, *ports: Port) -> Body:
    """The one placeholder of the node, as soon as it has exactly these ports and says that it is scheduled."""

    async def check() -> Body | None:
        found = await placeholders(stage.bound.hub, stage.vnode)
        right = len(found) == 1 and taken(found[0]) == list(ports) and condition(found[0], "PodScheduled") == "True"
        return found[0] if right else None

    out: Body = await eventually(check, f"one placeholder with {ports}")
    return out


async def until_none(stage: Stage) -> None:
    async def check() -> bool:
        return not await placeholders(stage.bound.hub, stage.vnode)

    await eventually(check, "no placeholder")


async def test_host_ports_of_local_pods_stand_on_one_placeholder(stage: Stage, local_pods: Locals) -> None:
    """Lines 108, 109, 110, 112 and 113 of kubeocean-behaviour.md."""
    await local_pods.create("done", port(6000), script={"run-for": "0.1"}, restartPolicy="Never")

    async def has_ended() -> bool:
        found = await stage.there.get("pods", "done", local_pods.namespace)
        return found is not None and found["status"]["phase"] == "Succeeded"

    # Before the others come: else a placeholder with the ports of all others could be seen that is yet to be replaced twice.
    await eventually(has_ended, "the pod that is done has ended")
    await local_pods.create("plain", port(8081, inside=80), port(8080), port(8080, protocol="UDP"))
    await local_pods.create("addresses", port(8090, hostIP="10.1.2.3"), port(8090, hostIP="10.1.2.4"))
    await local_pods.create("early", port(7000), init=True)
    # An init container has ended before another pod's container takes the same port.
    await local_pods.create("later", port(7000, inside=81))
    await local_pods.create("host-network", {"containerPort": 9100}, hostNetwork=True)
    body = stage.body("leased")
    body["spec"]["containers"][0]["ports"] = [port(8095)]
    await stage.home.create("pods", body)
    everywhere = ("0.0.0.0", "TCP")
    wanted = [(*everywhere, number) for number in (7000, 8080, 8081, 9100)]
    wanted += [("0.0.0.0", "UDP", 8080), ("10.1.2.3", "TCP", 8090), ("10.1.2.4", "TCP", 8090)]
    found = await until_taken(stage, *wanted)
    assert (await stage.running("leased"))["spec"]["containers"][0]["ports"][0]["hostPort"] == 8095
    physical = await stage.physical("leased")
    assert physical is not None and physical["spec"]["containers"][0]["ports"][0]["hostPort"] == 8095
    looks_as_upstream(found)
    assert await stage.there.get("pods", physical_name(FAKE, found["metadata"]["name"]), stage.bound.mount) is None
    assert uid_of(await until_taken(stage, *wanted)) == uid_of(found)


def looks_as_upstream(found: Body) -> None:
    spec = found["spec"]
    assert found["metadata"]["name"].startswith("fake-pod-for-hostport-")
    assert found["metadata"]["labels"] == LABELS
    assert [each for each in spec["tolerations"] if each == {"operator": "Exists"}]
    assert (spec["priorityClassName"], spec["priority"]) == ("system-node-critical", 2000001000)
    (container,) = spec["containers"]
    assert container["name"] == "fake-container" and not container.get("resources")
    assert [each["name"] for each in container["ports"]] == [f"port-{number}" for number in range(len(container["ports"]))]
    assert {each["hostPort"]: each["containerPort"] for each in container["ports"]}[8081] == 80


async def test_placeholder_is_replaced_without_a_gap_and_goes_with_the_last_port(stage: Stage, local_pods: Locals) -> None:
    """Line 111 of kubeocean-behaviour.md."""
    await local_pods.create("first", port(8080))
    before = await until_taken(stage, ("0.0.0.0", "TCP", 8080))
    with watching(stage.bound.hub.kubeconfig, namespace=FAKE) as seen:
        await local_pods.create("second", port(8443))
        await until_taken(stage, ("0.0.0.0", "TCP", 8080), ("0.0.0.0", "TCP", 8443))
        await local_pods.delete("first")
        after = await until_taken(stage, ("0.0.0.0", "TCP", 8443))
        # One that somebody deletes comes back, and one too many goes.
        await stage.home.delete("pods", after["metadata"]["name"], FAKE)
        assert uid_of(await until_taken(stage, ("0.0.0.0", "TCP", 8443))) != uid_of(after)
        await stage.home.create("pods", pod("fake-pod-for-hostport-xyz", FAKE, node=stage.vnode) | {"metadata": copy_of(after)})
        await eventually(lambda: seen.where(lambda e: e.key.endswith("-xyz")), "the copy was there")
        await until_taken(stage, ("0.0.0.0", "TCP", 8443))
        await local_pods.delete("second")
        await until_none(stage)

    def moment(kind: str, uid: str) -> float:
        return next(event.at for event in seen.events if (event.kind, event.uid) == (kind, uid))

    made = [event.uid for event in seen.events if event.kind == "ADDED"]
    assert moment("ADDED", made[0]) < moment("DELETED", uid_of(before))
    assert moment("ADDED", uid_of(after)) < moment("DELETED", made[0])


def copy_of(placeholder: Body) -> Body:
    """As Kubeocean (Go) would have made it."""
    return {"name": "fake-pod-for-hostport-xyz", "namespace": FAKE, "labels": placeholder["metadata"]["labels"]}


async def test_schedulers_and_drains_see_the_placeholder_for_what_it_is(stage: Stage, local_pods: Locals) -> None:
    """Line 112 of kubeocean-behaviour.md: no pod of the hub is sent where the port is taken, and none waits for the placeholder."""
    await local_pods.create("busy", port(8080))
    before = await until_taken(stage, ("0.0.0.0", "TCP", 8080))
    for name, number in (("unlucky", 8080), ("lucky", 8081)):
        body = pod(name, stage.namespace, nodeSelector={"kubernetes.io/hostname": stage.vnode})
        body["spec"]["containers"][0]["ports"] = [port(number)]
        await stage.home.create("pods", body)
    await stage.running("lucky")
    told = await stage.until("unlucky", lambda p: condition(p, "PodScheduled") == "False", "is not scheduled")
    (said,) = [each["message"] for each in told["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert "free ports" in said
    hub = stage.bound.hub
    try:
        await hub.kubectl("delete", "pod", "lucky", "unlucky", "-n", stage.namespace, "--wait")
        await eventually(lambda: alone(stage), "nothing else is on the node")
        # Without --force: that is for pods nobody makes anew.
        drained = await hub.kubectl("drain", stage.vnode, "--timeout=40s")
        assert before["metadata"]["name"] not in drained
    finally:
        await hub.kubectl("uncordon", stage.vnode)
    assert uid_of(await until_taken(stage, ("0.0.0.0", "TCP", 8080))) == uid_of(before)
    assert not await stage.home.list("events", FAKE, fields=f"involvedObject.uid={uid_of(before)},type=Warning")


async def alone(stage: Stage) -> bool:
    """Pods of tests before may still be ending."""
    return {each["metadata"]["namespace"] for each in await stage.home.list("pods", fields=f"spec.nodeName={stage.vnode}")} == {FAKE}


async def test_placeholder_goes_with_its_node(scene: MakeScene) -> None:
    """Line 111 of kubeocean-behaviour.md, and what is left of a lease that ended: nothing."""
    made = await scene()
    stage = await Stage.of(made.bound, made.nodes)
    local_pods = Locals(stage.there, await made.bound.worker.namespace("locals"), made.nodes[0])
    await local_pods.create("busy", port(8080))
    first = await until_taken(stage, ("0.0.0.0", "TCP", 8080))
    # A Node that somebody deleted comes back with its ports.
    await stage.home.delete("nodes", stage.vnode)

    async def of_another_node() -> bool:
        found = await placeholders(made.bound.hub, stage.vnode)
        return len(found) == 1 and uid_of(found[0]) != uid_of(first) and condition(found[0], "PodScheduled") == "True"

    await eventually(of_another_node, "the new Node has a placeholder")
    await delete(made.bound.worker, "resourceleasingpolicy", f"all-of-{made.bound.name}", "--wait=false")

    async def gone() -> bool:
        return await get(made.bound.hub, "node", stage.vnode) is None and not await placeholders(made.bound.hub, stage.vnode)

    await eventually(gone, "node and placeholder are gone")
    await local_pods.delete("busy")
