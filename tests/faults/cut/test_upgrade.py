"""The process of an earlier commit is replaced by the present one and the other way round while 200 pods run: no pod changes.

Killed at its writes after it replaced the earlier one, the present process completes what has changed meanwhile. `FAULTS_EARLIER` names
the commit.
"""

import asyncio
import io
import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from attrs import define

from tests.faults.cut.choice import Choice
from tests.faults.cut.crashes import Killer, Operation
from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.kubeocean.test_restarts import QUICK, assert_untouched, one_physical_pod_per_uid, settled, witnesses
from tests.support.audit import Audit
from tests.support.bound import ROOT, condition
from tests.support.gate import Gate
from tests.support.program import Program, eventually
from tests.support.stage import Stage, physical_name
from tests.support.witness import watching

EARLIER = os.environ.get("FAULTS_EARLIER", "HEAD~30")
PODS = 200
CALM = 10.0
"""Seconds in which a process that has started looks at everything once."""


@pytest.fixture
def earlier(tmp_path: Path) -> dict[str, str]:
    """The environment in which `kubeocean` is that of the earlier commit."""
    directory = tmp_path / "earlier"
    archive = subprocess.run(("git", "-C", str(ROOT), "archive", EARLIER, "kubeocean", "vkubelet"), check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    environment = {"PYTHONPATH": str(directory), "PYTHONSAFEPATH": "1"}
    where = (sys.executable, "-c", "import kubeocean, vkubelet; print(kubeocean.__path__[0], vkubelet.__path__[0])")
    found = subprocess.run(where, check=True, capture_output=True, text=True, env={**os.environ, **environment}).stdout.split()
    assert all(path.startswith(str(directory)) for path in found), found
    return environment


async def test_earlier_process_is_replaced_and_comes_back_and_no_pod_changes(
    scene: MakeScene, earlier: dict[str, str], tmp_path: Path
) -> None:
    made = await scene(nodes=2, start=False, settings=QUICK)
    old = Program("kubeocean", *made.program.arguments, log=tmp_path / "earlier.log", env=earlier)
    # A warm interpreter has imported the present one.
    old.cold = True
    old.start()
    try:
        await made.ready()
        stage = await Stage.of(made.bound, made.nodes)
        bodies = [stage.body(f"p{number}") for number in range(PODS)]
        for number, body in enumerate(bodies):
            body["spec"]["nodeName"] = made.vnodes[number % 2]
        await asyncio.gather(*(stage.home.create("pods", body) for body in bodies))
        await eventually(lambda: _ready(stage), f"{PODS} pods run", seconds=STARTS_WITHIN, every=0.5)
        with witnesses(made, stage.namespace) as seen:
            for before, after in ((old, made.program), (made.program, old), (old, made.program)):
                await _replaced(made, before, after)
    finally:
        if old.alive:
            old.terminate()
    assert_untouched(*seen)
    changes = [len(record.events) for record in seen[:2]]
    print(f"changes of virtual and physical pods: {changes}")
    assert changes == [0, 0]
    assert sum((await one_physical_pod_per_uid(made)).values()) == PODS


@define(eq=False)
class Upgrade:
    """Pods of one round after the other: what happens to them between the earlier process and the present one."""

    scene: Scene
    stage: Stage
    earlier: Program
    round: int = 0

    def _name(self, fate: str) -> str:
        return f"{fate}-{self.round}"

    async def prepare(self) -> None:
        """The earlier process has started the pods, and has stopped."""
        self.round += 1
        if self.scene.program.alive:
            # It may have been started a moment ago: until it has imported everything, the signal ends it.
            assert self.scene.program.terminate() in (0, -signal.SIGTERM), self.scene.program.tail()
        self.earlier.start()
        for fate in ("changed", "deleted"):
            await self.stage.create(self._name(fate), terminationGracePeriodSeconds=1)
        for fate in ("changed", "deleted"):
            await self.stage.running(self._name(fate), seconds=STARTS_WITHIN)
        assert self.earlier.terminate() == 0, self.earlier.tail()

    async def begin(self) -> None:
        change = {"metadata": {"labels": {"round": str(self.round)}}}
        await self.stage.home.patch("pods", self._name("changed"), change, namespace=self.stage.namespace)
        await self.stage.home.delete("pods", self._name("deleted"), self.stage.namespace)
        await self.stage.create(self._name("created"), terminationGracePeriodSeconds=1)
        self.scene.program.start()

    async def reached(self) -> bool:
        changed = await self.stage.physical(self._name("changed"))
        created = await self.stage.virtual(self._name("created"))
        if await self.stage.virtual(self._name("deleted")) is not None or await self.stage.physical(self._name("deleted")) is not None:
            return False
        is_labelled = changed is not None and changed["metadata"]["labels"].get("round") == str(self.round)
        return is_labelled and created is not None and bool(created["status"].get("podIP"))


async def test_process_that_is_killed_after_an_upgrade_completes_what_has_changed(
    scene: MakeScene, gate: Gate, choice: Choice, earlier: dict[str, str], tmp_path: Path
) -> None:
    made = await scene(start=False, settings=QUICK, way=gate.way)
    old = Program("kubeocean", *made.program.arguments, log=tmp_path / "earlier.log", env=earlier)
    old.cold = True
    upgrade = Upgrade(made, await Stage.of(made.bound, made.nodes), old)
    try:
        with watching(made.bound.worker.kubeconfig, namespace=made.bound.mount) as below:
            operation = Operation(name="upgrade", prepare=upgrade.prepare, begin=upgrade.begin, reached=upgrade.reached)
            await Killer(gate, made.program, choice).at_each_write(operation)
    finally:
        if old.alive:
            old.terminate()
    assert not below.where(lambda event: event.restarts > 0)
    gone = {event.object["metadata"]["name"] for event in below.where(lambda event: event.deleting or event.kind == "DELETED")}
    assert gone == {physical_name(upgrade.stage.namespace, f"deleted-{number}") for number in range(1, upgrade.round + 1)}
    assert set((await one_physical_pod_per_uid(made)).values()) == {1}


async def _replaced(made: Scene, before: Program, after: Program) -> None:
    audits = Audit(made.bound.hub, made.bound.user), Audit(made.bound.worker, made.bound.user)
    assert before.terminate() == 0, before.tail()
    after.start()
    await settled(made)
    await asyncio.sleep(CALM)
    writes = Counter(f"{call.verb} {call.what}" for audit in audits for call in audit.writes() if call.what != "leases")
    print(f"{'earlier' if after.cold else 'present'} process: {dict(writes)}")


async def _ready(stage: Stage) -> bool:
    pods = await stage.home.list("pods", stage.namespace)
    return len(pods) == PODS and all(condition(pod, "Ready") == "True" for pod in pods)
