"""Outages in the middle of work: a worker that can not be reached for a minute, and a leader that is killed in a burst.

The minute begins with the first test of this module and is looked at by the last, so that it costs little of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene, lasting_scene
from tests.support.audit import Audit
from tests.support.bound import SYSTEM, Body, condition
from tests.support.cable import Cable
from tests.support.program import Program, eventually
from tests.support.stage import Stage, physical_name, uid_of, virtual_uid
from vkubelet.testing.cluster import ControlPlane

CUT = 60.0
RUN_FOR = 50
"""Seconds: who ends by itself does so in the minute, however long it takes until all run and the minute begins."""
EACH = 4
"""Pods of each fate."""
FATES = ("stays", "finishes", "fails", "deleted", "lost", "late")
PODS = 200
TAKEOVER_WITHIN = 20.0
"""Seconds: the Lease of the election is 15 s long and is checked every two. The Lease of a node, which is 40 s long, does not expire."""


@frozen(kw_only=True)
class Outage:
    """The worker of `stage` has been cut off since `began`; `uids` are those of the pods made before."""

    scene: Scene
    stage: Stage
    cable: Cable
    began: float
    uids: dict[str, str]
    home: Audit
    there: Audit


def _names(fate: str) -> list[str]:
    return [f"{fate}-{number}" for number in range(EACH)]


@pytest.fixture(scope="module")
def outage(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """Pods meet their fates while nothing of it can be seen."""
    with (
        Cable(worker.port) as cable,
        lasting_scene(hub, worker, tmp_path_factory.mktemp("cut"), nodes=2, through=cable.port) as scene,
        closing(asyncio.new_event_loop()) as loop,
    ):
        yield loop.run_until_complete(_begin(scene, cable))


async def _begin(scene: Scene, cable: Cable) -> Outage:
    stage = await Stage.of(scene.bound, scene.nodes)
    audits = Audit(scene.bound.hub, scene.bound.user), Audit(scene.bound.worker, scene.bound.user)
    scripts = {"finishes": {"run-for": str(RUN_FOR)}, "fails": {"run-for": str(RUN_FOR), "exit-code": "3"}}
    bodies = [_body(scene, stage, fate, number, scripts.get(fate, {})) for fate in FATES[:-1] for number in range(EACH)]
    made = await asyncio.gather(*(stage.home.create("pods", body) for body in bodies))
    for body in bodies:
        await stage.running(body["metadata"]["name"])
    cable.cut()
    began = time.monotonic()
    for number in range(EACH):
        await stage.home.delete("pods", f"deleted-{number}", stage.namespace)
        await stage.there.delete("pods", stage.physical_name(f"lost-{number}"), scene.bound.mount, grace=0)
        await stage.home.create("pods", _body(scene, stage, "late", number, {}))
    uids = {body["metadata"]["name"]: uid_of(body) for body in made}
    return Outage(scene=scene, stage=stage, cable=cable, began=began, uids=uids, home=audits[0], there=audits[1])


def _body(scene: Scene, stage: Stage, fate: str, number: int, script: dict[str, str]) -> Body:
    grace = {"terminationGracePeriodSeconds": 2}
    body = stage.body(f"{fate}-{number}", script=script, restartPolicy="Never", **grace)
    body["spec"]["nodeName"] = scene.vnodes[number % len(scene.vnodes)]
    return body


async def test_leader_killed_in_a_burst_is_followed_soon_and_no_pod_is_lost_or_made_twice(outage: Outage, scene: MakeScene) -> None:
    made = await scene(nodes=2, start=False, settings={"leader": {"enabled": True, "namespace": SYSTEM}})
    bound = made.bound
    other = bound.program()
    other.log = other.log.with_suffix(".other.log")
    with other, made.program as first:
        await made.ready()
        leader, follower = await _leading(first, other)
        await eventually(lambda: "another process leads" in follower.text(), "the other stands by", seconds=STARTS_WITHIN)
        stage, there = await Stage.of(bound, made.nodes), Audit(bound.worker, bound.user)
        bodies = [stage.body(f"p{number}", terminationGracePeriodSeconds=2) for number in range(PODS)]
        # The rest comes when the leader is dead, however fast it has been.
        burst = asyncio.gather(*(stage.home.create("pods", body) for body in bodies[: PODS // 2]))
        await eventually(lambda: len(_created(there)) >= PODS / 5, "a part of the physical pods is made", every=0.05)
        leader.kill()
        killed, amid = datetime.now().astimezone(), len(_created(there))
        rest = asyncio.gather(*(stage.home.create("pods", body) for body in bodies[PODS // 2 :]))
        uids = Counter(map(uid_of, [*await burst, *await rest]))
        await eventually(lambda: _led_since(follower), "the other leads")
        after = (_led_since(follower)[0] - killed).total_seconds()
        await eventually(lambda: _ready(stage, PODS), f"{PODS} pods run", seconds=STARTS_WITHIN, every=0.5)
        pods = await stage.there.list("pods", bound.mount)
    print(f"killed after {amid} of {PODS} pods, followed {after:.1f} s later")
    assert amid < PODS, "the kill came too late to be in the burst"
    assert after < TAKEOVER_WITHIN
    assert Counter(map(virtual_uid, pods)) == uids
    assert set(Counter(_created(there)).values()) == {1}
    assert not [call for call in there.calls() if (call.verb, call.what) == ("delete", "pods")]


async def _leading(first: Program, second: Program) -> tuple[Program, Program]:
    await eventually(lambda: _led_since(first) or _led_since(second), "one leads", seconds=STARTS_WITHIN)
    return (first, second) if _led_since(first) else (second, first)


def _led_since(program: Program) -> list[datetime]:
    return [datetime.fromisoformat(line["time"]) for line in program.messages() if line["message"] == "leading"]


def _created(there: Audit) -> list[str]:
    """Names of the physical pods that were made."""
    return [call.name for call in there.writes() if (call.verb, call.what, call.code) == ("create", "pods", 201)]


async def _ready(stage: Stage, count: int) -> bool:
    pods = await stage.home.list("pods", stage.namespace)
    return len(pods) == count and all(condition(pod, "Ready") == "True" for pod in pods)


@pytest.mark.last
async def test_worker_cut_off_for_a_minute_is_in_step_soon_after_and_nothing_is_lost(outage: Outage) -> None:
    stage = outage.stage
    await asyncio.sleep(max(0.0, outage.began + CUT - time.monotonic()))
    before = await _fates(stage)
    assert all(before[name]["phase"] == "Running" for fate in ("finishes", "fails", "lost") for name in _names(fate)), before
    outage.cable.mend()
    back = time.monotonic()
    # Sooner than the sweep of every minute would bring them there.
    await eventually(lambda: _in_step(outage), "both clusters are in step", every=0.3)
    print(f"in step {time.monotonic() - back:.1f} s after an outage of {back - outage.began:.0f} s")
    await eventually(lambda: len(_created(outage.there)) >= EACH * len(FATES), "the audit log has all of it")
    now = await _fates(stage)
    assert {name: found["uid"] for name, found in now.items() if name in outage.uids} == {
        name: uid for name, uid in outage.uids.items() if not name.startswith("deleted")
    }
    assert {now[name]["reason"] for name in _names("lost")} == {"PhysicalPodLost"}
    names = [physical_name(stage.namespace, name) for fate in FATES for name in _names(fate)]
    assert Counter(_created(outage.there)) == Counter(names), "one physical pod for each, and no second"

    def ended() -> set[str]:
        return {call.name for call in outage.home.writes() if (call.verb, call.what) == ("delete", "pods")}

    # The line of a deletion is written a moment after the pod is gone.
    await eventually(lambda: len(ended()) >= EACH, "the hub's audit log has the deletions")
    assert ended() == set(_names("deleted"))


async def _fates(stage: Stage) -> dict[str, dict[str, Any]]:
    pods = await stage.home.list("pods", stage.namespace)
    return {
        pod["metadata"]["name"]: {
            "uid": uid_of(pod),
            "phase": pod["status"]["phase"],
            "reason": pod["status"].get("reason"),
            "ready": condition(pod, "Ready"),
            "deleting": "deletionTimestamp" in pod["metadata"],
        }
        for pod in pods
    }


async def _in_step(outage: Outage) -> bool:
    """Every pod is where its fate leads, at home and in the worker."""
    stage = outage.stage
    wanted = {"stays": ("Running", "True"), "late": ("Running", "True")}
    wanted |= {"finishes": ("Succeeded", "False"), "fails": ("Failed", "False"), "lost": ("Failed", "False")}
    now = await _fates(stage)
    there = {body["metadata"]["name"] for body in await stage.there.list("pods", stage.bound.mount)}
    alive = {stage.physical_name(name) for fate in FATES if fate not in ("deleted", "lost") for name in _names(fate)}
    fates = {name: (found["phase"], found["ready"]) for name, found in now.items()}
    return fates == {name: how for fate, how in wanted.items() for name in _names(fate)} and there == alive
