"""Killed at its writes while a pod is updated, a window closes, a binding ends and comes back, the process completes each of them.

Creation and deletion of pods: tests/integration/kubeocean/safety/test_crash_points.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from attrs import define

from tests.faults.cut.choice import Choice
from tests.faults.cut.crashes import Killer, Operation
from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.integration.kubeocean.leases import CLOSED, closed_now, open_now, patch_policy, policy_status, taints, vnode
from tests.integration.kubeocean.outages import SHORT
from tests.integration.kubeocean.test_unbinding import traces
from tests.support.audit import Audit
from tests.support.bound import apply, condition, get
from tests.support.gate import Gate
from tests.support.program import eventually
from tests.support.stage import Stage, physical_name, uid_of, virtual_uid
from tests.support.witness import Record, watching
from vkubelet.testing.cluster import ControlPlane

GRACE = 2
FORCED = {"forceReclaim": True, "gracefulReclaimPeriodSeconds": 3, "allowOutOfWindowPods": True}
UPDATED = ("one", "two")


@pytest.fixture(scope="module")
def killed(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, Gate]]:
    """A binding whose process reaches both clusters through one gate."""
    settings = {
        **SHORT,
        "pods": {"list_interval": 1.0},
        "server": {"node_address": hub.host_address, "main_port": 0, "certificate": "self-signed"},
    }
    settings["provider"] = {**SHORT["provider"], "unused_copy_after": 0.4}
    with Gate() as gate, lasting_scene(hub, worker, tmp_path_factory.mktemp("killed"), way=gate.way, settings=settings) as scene:
        yield scene, gate


@define(eq=False)
class Ground:
    """A namespace over the scene, and what the operations do in it."""

    scene: Scene
    stage: Stage
    revision: int = 0

    @classmethod
    async def of(cls, scene: Scene) -> Ground:
        return cls(scene, await Stage.of(scene.bound, scene.nodes))

    # --- update ---

    async def lay(self) -> None:
        """Two pods with copies, Running."""
        namespace = {"namespace": self.stage.namespace}
        await self.stage.home.create("configmaps", {"metadata": {"name": "settings", **namespace}, "data": {"revision": "0"}})
        await self.stage.home.create("secrets", {"metadata": {"name": "keys", **namespace}, "stringData": {"revision": "0"}})
        volumes = [{"name": "c", "configMap": {"name": "settings"}}, {"name": "s", "secret": {"secretName": "keys"}}]
        for name in UPDATED:
            await self.stage.create(name, volumes=volumes, terminationGracePeriodSeconds=GRACE)
        for name in UPDATED:
            await self.stage.running(name)

    async def update(self) -> None:
        self.revision += 1
        text = str(self.revision)
        change = {"metadata": {"labels": {"revision": text}, "annotations": {"example.com/revision": text}}}
        for name in UPDATED:
            await self.stage.home.patch("pods", name, change, namespace=self.stage.namespace)
        await self.stage.home.patch("configmaps", "settings", {"data": {"revision": text}}, namespace=self.stage.namespace)
        await self.stage.home.patch("secrets", "keys", {"stringData": {"revision": text}}, namespace=self.stage.namespace)

    async def updated(self) -> bool:
        text = str(self.revision)
        for name in UPDATED:
            found = await self.stage.physical(name)
            if found is None or found["metadata"]["labels"].get("revision") != text:
                return False
            if found["metadata"]["annotations"].get("example.com/revision") != text:
                return False
        copies = [await self.stage.physical(name, kind) for name, kind in (("settings", "configmaps"), ("keys", "secrets"))]
        originals = [
            await self.stage.home.get(kind, name, self.stage.namespace) for name, kind in (("settings", "configmaps"), ("keys", "secrets"))
        ]
        return all(copy and original and copy["data"] == original["data"] for copy, original in zip(copies, originals, strict=True))

    # --- a window that closes ---

    @property
    def policy(self) -> str:
        return f"all-of-{self.scene.bound.name}"

    async def open(self) -> None:
        """A pod that may stay, and one that leaves when the window closes."""
        await patch_policy(self.scene, self.policy, **FORCED, **open_now())
        await eventually(self._is_open, "the node is open")
        await self.stage.absent("leaves")
        await self.stage.create("leaves", terminationGracePeriodSeconds=1)
        if await self.stage.virtual("stays") is None:
            tolerations = [{"key": key, "operator": "Exists"} for key in ("kubeocean.io/vnode", CLOSED)]
            await self.stage.create("stays", tolerations=tolerations, terminationGracePeriodSeconds=GRACE)
        for name in ("leaves", "stays"):
            await self.stage.running(name)

    async def close(self) -> None:
        await patch_policy(self.scene, self.policy, **closed_now())

    async def closed(self) -> bool:
        node = await vnode(self.scene)
        status = await policy_status(self.scene, self.policy)
        gone = await self.stage.virtual("leaves") is None and await self.stage.physical("leaves") is None
        drives_out = node is not None and taints(node).get(CLOSED, {}).get("effect") == "NoExecute"
        return gone and drives_out and status.get("activeTimeWindow") is False

    async def _is_open(self) -> bool:
        node = await vnode(self.scene)
        return node is not None and CLOSED not in taints(node)

    # --- the end of the binding, and its return ---

    async def populate(self) -> None:
        await eventually(self.bound, "the binding is served")
        if await self.stage.virtual("one") is None:
            await self.stage.absent("one")
            volumes = [{"name": "c", "configMap": {"name": "settings"}}]
            await self.stage.create("one", volumes=volumes, terminationGracePeriodSeconds=GRACE)
        await self.stage.running("one")

    async def unbind(self) -> None:
        bound = self.scene.bound
        await bound.hub.kubectl("delete", "clusterbinding", bound.name, "--wait=false")

    async def unbound(self) -> bool:
        bound = self.scene.bound
        if await get(bound.hub, "clusterbinding", bound.name) is not None:
            return False
        return not await traces(bound.hub, self.scene) and not await traces(bound.worker, self.scene)

    async def bind(self) -> None:
        await apply(self.scene.bound.hub, self.scene.bound.binding())

    async def bound(self) -> bool:
        bound = self.scene.bound
        binding = await get(bound.hub, "clusterbinding", bound.name)
        node = await vnode(self.scene)
        policy = await get(bound.worker, "resourceleasingpolicies", self.policy)
        return bool(
            condition(binding or {}, "Ready") == "True"
            and node is not None
            and condition(node, "Ready") == "True"
            and policy["metadata"].get("finalizers")
        )


async def test_each_update_of_a_pod_arrives_and_its_containers_run_on(killed: tuple[Scene, Gate], choice: Choice) -> None:
    scene, gate = killed
    ground = await Ground.of(scene)
    await ground.lay()
    with watching(scene.bound.worker.kubeconfig, namespace=scene.bound.mount) as below:
        update = Operation(name="update", begin=ground.update, reached=ground.updated)
        await Killer(gate, scene.program, choice).at_each_write(update)
    assert not below.where(lambda event: event.kind in ("ADDED", "DELETED") or event.deleting or event.restarts > 0)
    assert not below.where(lambda event: event.phase != "Running")
    await _emptied(ground)


async def test_closing_window_reclaims_what_it_should_and_nothing_else(killed: tuple[Scene, Gate], choice: Choice) -> None:
    scene, gate = killed
    ground = await Ground.of(scene)
    home, there = Audit(scene.bound.hub, scene.bound.user), Audit(scene.bound.worker, scene.bound.user)
    with (
        watching(scene.bound.hub.kubeconfig, namespace=ground.stage.namespace) as above,
        watching(scene.bound.worker.kubeconfig, namespace=scene.bound.mount) as below,
    ):
        edge = Operation(name="edge", prepare=ground.open, begin=ground.close, reached=ground.closed)
        await Killer(gate, scene.program, choice).at_each_write(edge)
    for record, name in ((above, "stays"), (below, ground.stage.physical_name("stays"))):
        assert not record.where(
            lambda event, name=name: event.object["metadata"]["name"] == name and (event.deleting or event.restarts > 0)
        )
    _one_physical_pod_each(below)
    assert not [call for call in home.writes() if call.what in ("pods", "pods/eviction") and call.verb != "patch" and call.name == "stays"]
    assert not [call for call in there.writes() if call.verb == "delete" and call.name == physical_name(ground.stage.namespace, "stays")]
    await patch_policy(scene, ground.policy, **open_now())
    await _emptied(ground)


async def test_binding_that_ends_leaves_nothing_and_comes_back(killed: tuple[Scene, Gate], choice: Choice) -> None:
    scene, gate = killed
    ground = await Ground.of(scene)
    await ground.stage.home.create(
        "configmaps", {"metadata": {"name": "settings", "namespace": ground.stage.namespace}, "data": {"a": "b"}}
    )
    others = await _untouchable(ground)
    unbind = Operation(name="unbind", prepare=ground.populate, begin=ground.unbind, reached=ground.unbound)
    # Killed with the last write of an unbinding, the process finds no binding at its next start.
    bind = Operation(name="bind", begin=ground.bind, reached=ground.bound, ends_saying=f"ClusterBinding {scene.bound.name} does not exist")
    await Killer(gate, scene.program, choice).at_each_write(unbind, bind)
    assert await _untouchable(ground) == others


async def _untouchable(ground: Ground) -> list[str]:
    """UIDs of objects of others that an unbinding could take along."""
    stage = ground.stage
    local = {"metadata": {"name": "local", "namespace": stage.bound.mount}, "data": {"a": "b"}}
    if await stage.there.get("configmaps", "local", stage.bound.mount) is None:
        await stage.there.create("configmaps", local)
    found = [
        await stage.there.get("configmaps", "local", stage.bound.mount),
        await stage.home.get("configmaps", "settings", stage.namespace),
        await stage.there.get("namespaces", stage.bound.mount),
    ]
    return [uid_of(body) for body in found if body is not None]


def _one_physical_pod_each(below: Record) -> None:
    made = Counter(virtual_uid(event.object) for event in below.where(lambda event: event.kind == "ADDED"))
    assert set(made.values()) <= {1}, made


async def _emptied(ground: Ground) -> None:
    await ground.scene.bound.hub.kubectl("delete", "pods", "--all", "-n", ground.stage.namespace, f"--timeout={60}s")
