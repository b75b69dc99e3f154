"""What the worker says of a physical pod in Events is said of its virtual pod at home; judged by the `kubernetes` package on both sides."""

from __future__ import annotations

import itertools
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.support.program import eventually
from tests.support.stage import Stage, away, physical_name
from vkubelet.clock import rfc3339

SECONDS = 5.0
"""In the median: a machine that runs other tests stands still now and then."""
_numbers = itertools.count(1)
PORT = {"containerPort": 7654, "hostPort": 7654}

Body = dict[str, Any]


async def say(stage: Stage, about: Body, reason: str, message: str, *, ago: float = 0.0, **more: Any) -> Body:
    """An Event as a kubelet of the worker writes it."""
    at = rfc3339(datetime.now(UTC) - timedelta(seconds=ago))
    meta = about["metadata"]
    body = {
        "metadata": {"name": f"e{next(_numbers)}-{meta['uid']}", "namespace": meta["namespace"]},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "count": 1,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "source": {"component": "kubelet", "host": stage.nodes[0]},
        **more,
    }
    return await stage.there.create("events", body)


async def told(stage: Stage, name: str, reason: str) -> list[Body]:
    """The Events at home about a pod."""
    return await stage.home.list("events", stage.namespace, fields=f"reason={reason},involvedObject.name={name}")


async def backed(stage: Stage, name: str, **spec: Any) -> tuple[Body, Body]:
    """A running pod, and its physical one."""
    await stage.create(name, **spec)
    virtual = await stage.running(name)
    physical = await stage.physical(name)
    assert physical is not None
    return virtual, physical


async def test_mirrored_event_comes_within_five_seconds_in_the_names_of_home(stage: Stage) -> None:
    """Line 11 of kubeocean-behaviour.md: and a repeated one is counted on the same object."""
    metadata = {"name": "settings", "namespace": stage.namespace}
    await stage.home.create("configmaps", {"metadata": metadata, "data": {"a": "b"}})
    virtual, physical = await backed(stage, "web", volumes=[{"name": "c", "configMap": {"name": "settings"}}])
    mount, there = physical["metadata"]["namespace"], physical["metadata"]["name"]
    copy = physical_name(stage.namespace, "settings")
    text = f'back-off in pod {there}_{mount}({physical["metadata"]["uid"]}) on {stage.nodes[0]}: configmap "{copy}" of {mount}/{there}'

    about = {"involvedObject": {**(await involved(physical)), "fieldPath": "spec.containers{main}"}}
    tries, made = [], {}
    for number in range(5):
        began = time.monotonic()
        made = await say(stage, physical, f"BackOff{number}", text, type=("Warning", "Normal")[number % 2], **about)
        (event,) = await eventually(lambda n=number: told(stage, "web", f"BackOff{n}"), "the event is told at home")
        tries.append(time.monotonic() - began)
    print(f"mirrored after {max(tries):.2f} s at the latest")
    assert statistics.median(tries) <= SECONDS, tries
    uid, node = virtual["metadata"]["uid"], stage.vnode
    assert event["message"] == f'back-off in pod web_{stage.namespace}({uid}) on {node}: configmap "settings" of {stage.namespace}/web'
    wanted = {"name": "web", "namespace": stage.namespace, "uid": uid, "kind": "Pod", "fieldPath": "spec.containers{main}"}
    assert {key: event["involvedObject"][key] for key in wanted} == wanted
    assert (event["type"], event["count"], event["lastTimestamp"]) == ("Warning", 1, made["lastTimestamp"])
    assert (event["source"], event["reportingComponent"]) == ({"component": "kubelet", "host": node}, "kubeocean")

    tries = [await counted_after(stage, made, count) for count in (7, 8, 9)]
    print(f"counted after {max(tries):.2f} s at the latest")
    # The same again is told no sooner than three seconds after the last time, which leaves little of the five.
    assert min(tries) <= SECONDS, tries


async def counted_after(stage: Stage, made: Body, count: int) -> float:
    """Seconds until an event of the worker that is repeated is told so often."""
    again = {"count": count, "lastTimestamp": rfc3339(datetime.now(UTC) + timedelta(seconds=1))}
    began = time.monotonic()
    await stage.there.patch("events", made["metadata"]["name"], again, namespace=made["metadata"]["namespace"])

    async def counted() -> bool:
        (found,) = await told(stage, "web", made["reason"])
        return (found["count"], found["lastTimestamp"]) == (count, again["lastTimestamp"])

    await eventually(counted, "the count is told")
    return time.monotonic() - began


async def involved(physical: Body) -> Body:
    meta = physical["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}


async def test_why_the_workers_scheduler_has_no_place_is_told_at_home(stage: Stage) -> None:
    """A real event of the worker's own kube-scheduler, which writes the newer form with a series. The lease has room for the pod."""
    here = {"nodeName": stage.nodes[0], "containers": [{**physical_spec()["containers"][0], "ports": [PORT]}]}
    local = await stage.there.create("pods", {"metadata": {"name": f"port-{stage.namespace}", "namespace": "default"}, "spec": here})
    try:
        await stage.create("nowhere", containers=[{"name": "main", "image": "localhost/busybox:dev", "ports": [PORT]}])
        (event, *_) = await eventually(lambda: told(stage, "nowhere", "FailedScheduling"), "FailedScheduling at home")
    finally:
        await stage.there.delete("pods", local["metadata"]["name"], "default", grace=0)
    assert event["source"]["component"] == "default-scheduler"
    assert "nodes are available" in event["message"] and "free ports" in event["message"]


async def test_restart_repeats_nothing_and_tells_what_was_said_meanwhile(common: Scene, stage: Stage) -> None:
    _, physical = await backed(stage, "web")
    await say(stage, physical, "Before", "said before")
    (before,) = await eventually(lambda: told(stage, "web", "Before"), "told before the restart")
    with away(common.program):
        await say(stage, physical, "Meanwhile", "said while we were away")
        await say(stage, physical, "LongAgo", "said in another time", ago=1800)
    await eventually(lambda: told(stage, "web", "Meanwhile"), "told after the restart", seconds=60)
    await say(stage, physical, "After", "said after")
    await eventually(lambda: told(stage, "web", "After"), "told as ever")
    assert await told(stage, "web", "Before") == [before]
    assert await told(stage, "web", "LongAgo") == []


async def test_nothing_is_told_of_pods_that_are_not_ours_or_are_another_incarnation(stage: Stage) -> None:
    _, physical = await backed(stage, "web")
    mount = physical["metadata"]["namespace"]
    other = await stage.there.create("pods", {"metadata": {"name": "web", "namespace": mount}, "spec": physical_spec()})
    await say(stage, other, "Foreign", "of a pod that somebody else made")
    earlier = {"metadata": {**physical["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}}
    await say(stage, earlier, "Earlier", "of an earlier pod of this name")
    # What is said later is told; by then the others would have been.
    await say(stage, physical, "Ours", "of ours")
    await eventually(lambda: told(stage, "web", "Ours"), "told of ours")
    await say(stage, physical, "OursAgain", "of ours, seconds later")
    await eventually(lambda: told(stage, "web", "OursAgain"), "told of ours again")
    assert await told(stage, "web", "Foreign") == await told(stage, "web", "Earlier") == []
    await stage.there.delete("pods", "web", mount, grace=0)


def physical_spec() -> Body:
    return {"nodeSelector": {"no": "node"}, "containers": [{"name": "main", "image": "localhost/busybox:dev"}]}


async def test_without_the_right_only_this_is_missing_and_the_binding_says_so_once(scene: MakeScene) -> None:
    made = await scene(start=False)
    stage = await Stage.of(made.bound, made.nodes)
    role = f"kubeocean-syncer-{made.bound.name}"
    rules = (await made.bound.worker.kubectl("get", "role", role, "-n", made.bound.mount, "-o", "jsonpath={.rules[*].resources}")).split()
    (index,) = [number for number, text in enumerate(rules) if '"events"' in text]
    patch = f'[{{"op": "remove", "path": "/rules/{index}"}}]'
    await made.bound.worker.kubectl("patch", "role", role, "-n", made.bound.mount, "--type=json", "-p", patch)
    made.program.start()
    await made.ready()
    _, physical = await backed(stage, "web")
    await say(stage, physical, "Unheard", "nobody hears this")
    event = await stage.event(made.bound.name, "EventsForbidden", namespace="default")
    assert "grant list and watch" in event["message"] and event["count"] == 1
    said = [line for line in made.program.messages() if "not allowed to watch the events" in line["message"]]
    assert len(said) == 1 and said[0]["level"] == "WARNING"
    assert await told(stage, "web", "Unheard") == []
