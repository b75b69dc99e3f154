"""etcd of either cluster is restored from a backup while pods run: no container is restarted, and both clusters are in step soon after.

What the API server has forgotten, and what it shows again, is settled by the rules of docs/explanation/safety-rules.md.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import define, field

from tests.faults.cut.choice import Choice
from tests.integration.kubeocean.conftest import Scene, scenes
from tests.integration.kubeocean.outages import SHORT, is_released
from tests.support.audit import Audit
from tests.support.bound import Body, condition
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of, virtual_uid
from vkubelet.testing.cluster import ControlPlane, Options, Site
from vkubelet.testing.fixtures import running

AGE, AGE_OF_MOST = 300.0, 15.0
"""Seconds between the backup and the restore, in the whole run and in others."""
IN_STEP_WITHIN = 30.0
EACH = 4
"""Pods of each fate: more come back with a worker than one sweep would delete as orphans."""
LOST = ("Failed", "PhysicalPodLost")
WANTED: dict[str, dict[str, tuple[str, str] | None]] = {
    "hub": {"stays": ("Running", ""), "finishes": ("Succeeded", ""), "deleted": LOST, "later": None, "again": LOST},
    "worker": {"stays": ("Running", ""), "finishes": ("Succeeded", ""), "deleted": None, "later": LOST, "again": LOST},
}
"""Phase and reason of the virtual pods, by the cluster that is restored and by what became of them after the backup; None: none is left."""
BACKED = ("stays", "finishes")
"""Whose physical pods are left."""
LABEL, SETTINGS = "revision", "settings"


@define(eq=False)
class Fates:
    """`uids` of the virtual pods that exist, by name."""

    scene: Scene
    stage: Stage
    uids: dict[str, str] = field(factory=dict)

    async def before(self) -> None:
        metadata = {"name": SETTINGS, "namespace": self.stage.namespace}
        await self.stage.home.create("configmaps", {"metadata": metadata, "data": {LABEL: "before"}})
        for name in _names("stays", "finishes", "deleted", "again"):
            await self._create(name)
        for name in _names("stays", "finishes", "deleted", "again"):
            await self.stage.running(name)

    async def after(self) -> None:
        """What happens between the backup and the restore."""
        for name in _names("stays"):
            await self.stage.home.patch("pods", name, {"metadata": {"labels": {LABEL: "after"}}}, namespace=self.stage.namespace)
        await self.stage.home.patch("configmaps", SETTINGS, {"data": {LABEL: "after"}}, namespace=self.stage.namespace)
        for name in _names("deleted", "again"):
            await self.stage.home.delete("pods", name, self.stage.namespace)
        await eventually(lambda: self._all_reflect("after"), "what was changed in the hub has reached the worker")
        for name in _names("finishes"):
            # The script of a simulated node ends the pod.
            await self.stage.until(name, lambda body: body["status"]["phase"] == "Succeeded", "has finished")
        for name in _names("deleted", "again"):
            await self.stage.absent(name)
            await self.stage.no_physical(name)
        for name in _names("later", "again"):
            await self._create(name)
        for name in _names("later", "again"):
            await self.stage.running(name)

    async def _create(self, name: str) -> None:
        script = {"run-for": "25"} if name.startswith("finishes") else {}
        volumes = [{"name": "c", "configMap": {"name": SETTINGS}}]
        body = self.stage.body(
            name, script=script, labels={LABEL: "before"}, restartPolicy="Never", terminationGracePeriodSeconds=1, volumes=volumes
        )
        body["spec"]["nodeName"] = self.scene.vnodes[int(name[-1]) % len(self.scene.vnodes)]
        self.uids[name] = uid_of(await self.stage.home.create("pods", body))

    async def containers(self) -> dict[str, object]:
        """What a kubelet reports of the containers that stay: id, start and restarts."""
        found = {name: await self.stage.physical(name) for name in _names("stays")}
        return {name: _container(body) for name, body in found.items()}

    async def _all_reflect(self, revision: str) -> bool:
        return not await self._reflects_not(revision)

    async def _reflects_not(self, revision: str) -> list[str]:
        """Which labels of physical pods and copies are not those of the hub."""
        found = {name: ((await self.stage.physical(name)) or {}).get("metadata", {}).get("labels", {}) for name in _names("stays")}
        copy = await self.stage.physical(SETTINGS, "configmaps")
        found[SETTINGS] = (copy or {}).get("data", {})
        return [name for name, values in found.items() if values.get(LABEL) != revision]

    async def new_events_are_mirrored(self) -> None:
        """Those of the worker about a physical pod, in the hub."""
        backing = await self.stage.physical("stays-0")
        assert backing is not None
        about = {"apiVersion": "v1", "kind": "Pod", **{key: backing["metadata"][key] for key in ("name", "namespace", "uid")}}
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"metadata": {"generateName": "e", "namespace": self.scene.bound.mount}, "involvedObject": about, "reason": "Restored"}
        times = {"firstTimestamp": moment, "lastTimestamp": moment, "count": 1}
        await self.stage.there.create("events", {**body, **times, "type": "Warning", "message": "after the restore"})
        await self.stage.event("stays-0", "Restored", seconds=IN_STEP_WITHIN)

    async def out_of_step(self, side: str) -> dict[str, object]:
        above = {body["metadata"]["name"]: body for body in await self.stage.home.list("pods", self.stage.namespace)}
        out: dict[str, object] = {}
        for fate, wanted in WANTED[side].items():
            for name in _names(fate):
                if (now := _state(above.get(name))) != wanted:
                    out[name] = now
        below = await self.stage.there.list("pods", self.scene.bound.mount)
        of = sorted(virtual_uid(body) for body in below)
        if of != sorted(self.uids[name] for name in _names(*BACKED)):
            out["physical pods"] = [body["metadata"]["name"] for body in below]
        nodes = [await self.stage.home.get("nodes", name) for name in self.scene.vnodes]
        if not all(node is not None and is_released(node) for node in nodes):
            out["nodes"] = "not Ready and open"
        ready = [name for name in _names("stays") if name in above and condition(above[name], "Ready") != "True"]
        stale = await self._reflects_not("before" if side == "hub" else "after")
        return out | ({"not ready": ready} if ready else {}) | ({"not as in the hub": stale} if stale else {})


def _names(*fates: str) -> list[str]:
    return [f"{fate}-{number}" for fate in fates for number in range(EACH)]


def _state(body: Body | None) -> tuple[str, str] | None:
    return None if body is None else (body["status"]["phase"], body["status"].get("reason", ""))


def _container(body: Body | None) -> object:
    assert body is not None
    return [(each["containerID"], each["restartCount"], each["state"]) for each in body["status"]["containerStatuses"]]


@pytest.mark.parametrize("side", sorted(WANTED))
async def test_cluster_that_is_restored_from_a_backup_is_in_step_again(
    side: str, cluster_site: Site, request: pytest.FixtureRequest, choice: Choice, tmp_path: Path
) -> None:
    other: ControlPlane = request.getfixturevalue("worker" if side == "hub" else "hub")
    options = Options(aggregation=False)
    with running(ControlPlane(f"restored-{side}", cluster_site, options=options), request) as own:
        async with AsyncExitStack() as stack:
            hub, worker = (own, other) if side == "hub" else (other, own)
            made = await scenes(stack, hub, worker, tmp_path)(nodes=2, settings=SHORT)
            fates = Fates(made, await Stage.of(made.bound, made.nodes))
            await _restored(side, own, fates, age=AGE if choice.whole else AGE_OF_MOST, backup=tmp_path / "backup")


async def _restored(side: str, own: ControlPlane, fates: Fates, *, age: float, backup: Path) -> None:
    made, pid = fates.scene, fates.scene.program.process.pid
    await fates.before()
    containers = await fates.containers()
    await asyncio.to_thread(own.back_up, backup)
    taken = time.monotonic()
    audits = Audit(made.bound.hub, made.bound.user), Audit(made.bound.worker, made.bound.user)
    await fates.after()
    await asyncio.sleep(max(0.0, taken + age - time.monotonic()))
    await own.restore(backup)
    print(f"{side}: restored to what it was {time.monotonic() - taken:.0f} s before")
    back, state = time.monotonic(), dict[str, object]()

    async def in_step() -> bool:
        state.clear()
        state.update(await fates.out_of_step(side))
        return not state

    try:
        await eventually(in_step, "both clusters are in step", seconds=6 * IN_STEP_WITHIN, every=1.0)
    except AssertionError as error:
        raise AssertionError(f"{side}: {error}\n{state}\n{made.program.tail()}") from None
    took = time.monotonic() - back
    print(f"{side}: in step {took:.0f} s after the restore")
    assert made.program.alive and made.program.process.pid == pid
    assert await fates.containers() == containers
    kept = {*_names("stays"), *map(fates.stage.physical_name, _names("stays"))}
    assert not [call for audit in audits for call in audit.writes() if (call.verb, call.what) == ("delete", "pods") and call.name in kept]
    assert took < IN_STEP_WITHIN, f"{side}: in step after {took:.0f} s"
    await fates.new_events_are_mirrored()
    # Both clusters serve as before.
    await fates.stage.create("new")
    await fates.stage.running("new")
