"""Pods that their node can not take, as a kubelet refuses them: by the real program, read back by kubectl and the `kubernetes` package."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.runtime.fleet import Body, Fleet
from tests.integration.runtime.test_pod_life import create, events
from tests.support.program import eventually
from tests.support.scrape import Scrape

NODE = {"cpu": "2", "memory": "1Gi", "pods": "4"}
MANY = 40
"""Pods at once, more than the cluster's own controllers are allowed requests for at once."""


def asking(**requests: str) -> list[Body]:
    return [{"name": "main", "image": "none", "resources": {"requests": requests}}]


async def all_events(fleet: Fleet, reason: str) -> list[Body]:
    found: list[Body] = json.loads(await fleet.kubectl("get", "events", "--field-selector", f"reason={reason}", "-o", "json"))["items"]
    return found


async def refused(fleet: Fleet, name: str, reason: str, text: str) -> None:
    async def failed() -> Body | None:
        pod = await fleet.pod(name)
        return pod if pod is not None and pod["status"]["phase"] == "Failed" else None

    status = (await eventually(failed, f"{name} is refused"))["status"]
    assert (status["reason"], status["message"], status["qosClass"]) == (reason, f"Pod was rejected: {text}", status["qosClass"])
    assert not any("running" in each["state"] or "terminated" in each["state"] for each in status.get("containerStatuses", ()))
    (event,) = await eventually(lambda: events(fleet, name, reason), f"an Event says so of {name}")
    assert (event["type"], event["message"]) == ("Warning", text)


async def test_what_a_node_can_not_take_fails_with_the_reasons_of_a_kubelet(fleet: Fleet) -> None:
    """V73, V75."""
    node = fleet.name("m")
    provider: dict[str, Any] = {"node": node, **NODE}
    port = [{**asking()[0], "ports": [{"containerPort": 80, "hostPort": 80}]}]
    metrics = f"127.0.0.1:{fleet.plane.site.free_port()}"
    health = {"health_address": "", "metrics_address": metrics}
    with fleet.program("mock", node={"taint": ""}, provider=provider, health=health) as program:
        await fleet.ready([node], program=program)
        await create(fleet, "first", containers=[{**asking(cpu="1", memory="512Mi")[0], "ports": port[0]["ports"]}])
        await fleet.running("first")
        enough = "Node didn't have enough resource"
        await create(fleet, "cpu", containers=asking(cpu="1500m"))
        await refused(fleet, "cpu", "OutOfcpu", f"{enough}: cpu, requested: 1500, used: 1000, capacity: 2000")
        await create(fleet, "memory", containers=asking(memory="600Mi"))
        await refused(fleet, "memory", "OutOfmemory", f"{enough}: memory, requested: 629145600, used: 536870912, capacity: 1073741824")
        await create(fleet, "affinity", nodeSelector={"disk": "ssd"})
        await refused(fleet, "affinity", "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
        await create(fleet, "port", containers=port)
        await refused(fleet, "port", "NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
        await create(fleet, "windows", os={"name": "windows"})
        await refused(fleet, "windows", "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
        for number in range(3):
            await create(fleet, f"more-{number}")
            await fleet.running(f"more-{number}")
        await create(fleet, "pods")
        await refused(fleet, "pods", "OutOfpods", f"{enough}: pods, requested: 1, used: 4, capacity: 4")
        reasons = ("OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity", "NodePorts", "PodOSNotSupported")
        counted = Scrape.of(metrics)
        assert {each: counted.value("kubelet_admission_rejections_total", reason=each) for each in reasons} == dict.fromkeys(reasons, 1)
        assert sum(counted.values("kubelet_admission_rejections_total")) == len(reasons)


async def test_a_node_that_evicts_takes_nothing_that_it_would_evict(fleet: Fleet) -> None:
    node = fleet.name("m")
    away = {"key": "example.com/away", "effect": "NoExecute"}
    with fleet.program("mock", node={"taint": ""}, provider={"node": node, "taints": [away]}) as program:
        await fleet.ready([node], program=program)
        # The controller that evicts deletes pods as well, and one that ends already is judged no more; of many it deletes some late.
        await fleet.create(*(f"taint-{number}" for number in range(MANY)), node=node)
        found = await eventually(lambda: all_events(fleet, "TaintToleration"), "Events say that they are not taken")
        assert {event["message"] for event in found} == {
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"
        }
        await create(fleet, "tolerant", tolerations=[{"key": "example.com/away", "operator": "Exists"}])
        await fleet.running("tolerant")


async def test_after_a_restart_pods_that_ran_keep_their_room(fleet: Fleet) -> None:
    """V74: the name of the new pod sorts before the old one's, and it was created while nobody looked."""
    node = fleet.name("m")
    options: dict[str, Any] = {"node": {"taint": ""}, "provider": {"node": node, **NODE}}
    with fleet.program("mock", **options) as program:
        await fleet.ready([node], program=program)
        await create(fleet, "old", containers=asking(cpu="1500m"))
        await fleet.running("old")
    await create(fleet, "a-new", containers=asking(cpu="1"))
    with fleet.program("mock", log="b", **options) as program:
        await eventually(program.text, "the program has begun")
        await refused(fleet, "a-new", "OutOfcpu", "Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000")
        old = await fleet.pod("old")
        assert old is not None and old["status"]["phase"] == "Running"
