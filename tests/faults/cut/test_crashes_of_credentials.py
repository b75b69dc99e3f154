"""Killed at its writes while tokens are renewed and while its kubeconfig is rotated, the process completes both, and no pod is affected."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from attrs import define, field

from tests.faults.cut.choice import Choice
from tests.faults.cut.crashes import Killer, Operation
from tests.faults.cut.test_crashes_of_kubeocean import killed
from tests.integration.kubeocean.conftest import Scene
from tests.integration.kubeocean.safety.test_tokens_without_storms import EXPIRY, expiry, token_secrets
from tests.support.audit import Audit
from tests.support.bound import Body, apply, roles_for
from tests.support.gate import Gate
from tests.support.stage import Stage
from tests.support.witness import watching

__all__ = ["killed"]

BEARERS = ("one", "two")
LIFE, LEFT = 7200, 600.0
"""Seconds for which tokens are requested, and which are left when they are made to be due."""


@define(eq=False)
class Tokens:
    """Pods with tokens that a test makes due; `rounds`: how often."""

    stage: Stage
    uids: list[str] = field(factory=list)
    rounds: int = 0

    async def lay(self) -> None:
        source = {"serviceAccountToken": {"path": "t", "audience": "x", "expirationSeconds": LIFE}}
        for name in BEARERS:
            volumes = [{"name": "t", "projected": {"sources": [source]}}]
            made = await self.stage.create(name, automountServiceAccountToken=False, volumes=volumes)
            self.uids.append(made["metadata"]["uid"])
        for name in BEARERS:
            await self.stage.running(name)

    async def secrets(self) -> list[Body]:
        return [secret for uid in self.uids for secret in await token_secrets(self.stage, uid)]

    async def make_due(self) -> None:
        self.rounds += 1
        stamp = (datetime.now(UTC) + timedelta(seconds=LEFT)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for secret in await self.secrets():
            change = {"metadata": {"annotations": {EXPIRY: stamp}}}
            await self.stage.there.patch("secrets", secret["metadata"]["name"], change, namespace=self.stage.bound.mount)

    async def renewed(self) -> bool:
        found = await self.secrets()
        return len(found) == len(BEARERS) and all(expiry(each) > datetime.now(UTC) + timedelta(seconds=2 * LEFT) for each in found)


@define(eq=False)
class Kubeconfigs:
    """Two users with the same rights in the worker, whose kubeconfigs are used in turn; each time a pod has to start."""

    scene: Scene
    stage: Stage
    gate: Gate
    texts: list[str] = field(factory=list)
    rounds: int = 0
    since: Audit = field(init=False)

    @property
    def users(self) -> list[str]:
        user = self.scene.bound.user
        return [user, f"{user}-renewed"]

    async def lay(self) -> None:
        bound, namespaces = self.scene.bound, {"kubeocean-worker": self.scene.bound.mount}
        await apply(bound.worker, *roles_for(self.users[1], "worker-rbac.yaml", name=f"{bound.name}-renewed", namespaces=namespaces))
        self.texts = [self.gate.way(bound.worker, user).read_text() for user in self.users]
        await self.stage.create("stays")
        await self.stage.running("stays")

    async def rotate(self) -> None:
        self.rounds += 1
        self.since = Audit(self.scene.bound.worker, self.users[self.rounds % 2])
        await apply(self.scene.bound.hub, self.scene.bound.kubeconfig_secret(self.texts[self.rounds % 2]))
        await self.stage.create(self._name)

    @property
    def _name(self) -> str:
        return f"round-{self.rounds}"

    async def rotated(self) -> bool:
        body = await self.stage.virtual(self._name)
        is_running = body is not None and body["status"]["phase"] == "Running" and bool(body["status"].get("podIP"))
        return is_running and any(call.what == "nodes" for call in self.since.calls())


async def test_tokens_that_are_due_are_renewed_once_each(killed: tuple[Scene, Gate], choice: Choice) -> None:
    scene, gate = killed
    tokens = Tokens(await Stage.of(scene.bound, scene.nodes))
    await tokens.lay()
    names = [secret["metadata"]["name"] for secret in await tokens.secrets()]
    there = Audit(scene.bound.worker, scene.bound.user)
    with watching(scene.bound.worker.kubeconfig, namespace=scene.bound.mount) as below:
        renew = Operation(name="renew", begin=tokens.make_due, reached=tokens.renewed)
        await Killer(gate, scene.program, choice).at_each_write(renew)
    assert not below.where(lambda event: event.kind in ("ADDED", "DELETED") or event.deleting or event.restarts > 0)
    written = Counter(call.name for call in there.writes() if call.what == "secrets" and call.code == 200 and call.name in names)
    assert written == dict.fromkeys(names, tokens.rounds), written
    await scene.bound.hub.kubectl("delete", "pods", "--all", "-n", tokens.stage.namespace, "--timeout=60s")


async def test_rotated_kubeconfig_is_used_and_pods_start_once(killed: tuple[Scene, Gate], choice: Choice) -> None:
    scene, gate = killed
    configs = Kubeconfigs(scene, await Stage.of(scene.bound, scene.nodes), gate)
    await configs.lay()
    with (
        watching(scene.bound.hub.kubeconfig, namespace=configs.stage.namespace) as above,
        watching(scene.bound.worker.kubeconfig, namespace=scene.bound.mount) as below,
    ):
        rotate = Operation(name="rotate", begin=configs.rotate, reached=configs.rotated)
        await Killer(gate, scene.program, choice).at_each_write(rotate)
    for record in (above, below):
        assert not record.where(lambda event: event.kind == "DELETED" or event.deleting or event.restarts > 0)
    made = [event.object["metadata"]["annotations"]["kubeocean.io/virtual-pod-uid"] for event in below.where(lambda e: e.kind == "ADDED")]
    assert len(made) == len(set(made)) == configs.rounds, made
    await apply(scene.bound.hub, scene.bound.kubeconfig_secret(configs.texts[0]))
    await scene.bound.hub.kubectl("delete", "pods", "--all", "-n", configs.stage.namespace, "--timeout=60s")
