"""Each right of the process is taken away while it runs: it lives on, says what it lacks, and continues when it has the right again.

What is refused is read from the audit logs. Rights at the start: tests/integration/kubeocean/safety/test_unknown_is_not_gone.py; what
`kubeocean bind` and the manager find missing: tests/integration/kubeocean/test_permissions.py.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from attrs import define, field

from kubeocean.rbac.permissions import hub_rules, worker_checks
from tests.faults.cut.choice import Choice
from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.outages import SHORT, all_nodes, is_released
from tests.support.audit import Audit
from tests.support.bound import SAMPLES, Body, condition, get, items
from tests.support.cable import Cable
from tests.support.program import eventually
from tests.support.roles import narrowed
from tests.support.stage import Stage, uid_of
from tests.support.witness import watching
from vkubelet.api.codec import decode_yaml_documents
from vkubelet.api.rbac import Check, checks_of
from vkubelet.testing.cluster import ControlPlane

REFUSED_WITHIN = 12.0
"""Seconds in which a right is used by what the round does; one that is not used is reported as such."""
VISIBLE_WITHIN = 45.0
RECOVERED_WITHIN = 60.0
REPORTS = ("events", "clusterbindings/status")
"""Without them a condition or an Event cannot be written; then the log is where the lack is shown."""
DEFAULT = 1
"""Rights of each cluster in the default run."""


@define(eq=False)
class Rights:
    """The rights of the process in one cluster, which its roles `kinds` grant."""

    plane: ControlPlane
    user: str
    roles: Sequence[tuple[str, str, str]]
    """Kind, namespace and name."""
    checks: Sequence[Check]

    @asynccontextmanager
    async def without(self, check: Check) -> AsyncIterator[None]:
        """The owner of the cluster takes one right away while the block runs."""
        before = {role: await self._rules(role) for role in self.roles}
        for role, rules in before.items():
            left = narrowed(rules, check)
            if left != rules:
                await self._set(role, left)
        try:
            await eventually(lambda: self._may(check, False), f"{check} is forbidden", seconds=20)
            yield
        finally:
            for role, rules in before.items():
                await self._set(role, rules)
        await eventually(lambda: self._may(check, True), f"{check} is allowed", seconds=20)

    async def _rules(self, role: tuple[str, str, str]) -> list[Body]:
        return list((await get(self.plane, *_place(role)))["rules"])

    async def _set(self, role: tuple[str, str, str], rules: list[Body]) -> None:
        await self.plane.kubectl("patch", *_place(role), "--type=merge", "-p", json.dumps({"rules": rules}))

    async def _may(self, check: Check, answer: bool) -> bool:
        attributes = {
            "verb": check.verb,
            "group": check.group,
            "resource": check.resource,
            "subresource": check.subresource,
            "namespace": check.namespace,
            "name": check.name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": self.user, "resourceAttributes": attributes},
        }
        out = json.loads(await self.plane.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
        return bool(out["status"]["allowed"]) is answer


def _place(role: tuple[str, str, str]) -> list[str]:
    kind, namespace, name = role
    return [kind.lower(), name, *(["-n", namespace] if namespace else [])]


def _roles(sample: str, name: str, namespaces: dict[str, str]) -> list[tuple[str, str, str]]:
    found = []
    for body in decode_yaml_documents((SAMPLES / sample).read_text()):
        if body["kind"] in ("Role", "ClusterRole"):
            space = body["metadata"].get("namespace", "")
            found.append((body["kind"], namespaces.get(space, space), f"{body['metadata']['name']}-{name}"))
    return found


@define(eq=False)
class Rounds:
    """A workload that uses the rights of the process: each round creates a pod with copies, changes it, and deletes that of the last."""

    scene: Scene
    stage: Stage
    number: int = 0
    lines: list[str] = field(factory=list)

    @property
    def name(self) -> str:
        return f"round-{self.number}"

    async def lay(self) -> None:
        await self.stage.create("stays", terminationGracePeriodSeconds=2)
        await self.stage.running("stays")

    async def another(self) -> None:
        stage, last = self.stage, self.name
        self.number += 1
        space = {"namespace": stage.namespace}
        await stage.home.create("configmaps", {"metadata": {"name": self.name, **space}, "data": {"a": "1"}})
        await stage.home.create("secrets", {"metadata": {"name": self.name, **space}, "stringData": {"a": "1"}})
        volumes = [{"name": "c", "configMap": {"name": self.name}}, {"name": "s", "secret": {"secretName": self.name}}]
        await stage.create(self.name, volumes=volumes, terminationGracePeriodSeconds=2)
        await stage.home.patch("pods", "stays", {"metadata": {"labels": {"round": str(self.number)}}}, namespace=stage.namespace)
        if self.number > 1:
            await stage.home.delete("pods", last, stage.namespace)

    async def done(self) -> bool:
        """The new pod is Ready, the change has arrived, the pod of the last round is deleted everywhere."""
        pods = {body["metadata"]["name"]: body for body in await self.stage.home.list("pods", self.stage.namespace)}
        stays = await self.stage.physical("stays")
        below = await self.stage.there.list("pods", self.scene.bound.mount)
        return bool(
            set(pods) == {"stays", self.name}
            and all(condition(body, "Ready") == "True" for body in pods.values())
            and stays is not None
            and stays["metadata"]["labels"].get("round") == str(self.number)
            and len(below) == len(pods)
        )


async def test_right_that_is_taken_away_is_reported_and_missed_no_longer_than_it_lacks(
    hub: ControlPlane, worker: ControlPlane, scene: MakeScene, choice: Choice, tmp_path: Path
) -> None:
    with Cable(hub.port) as hub_cable, Cable(worker.port) as cable:

        def way(plane: ControlPlane, user: str) -> Path:
            path = tmp_path / f"{plane.name}-{user}.kubeconfig"
            line = hub_cable if plane is hub else cable
            path.write_text(plane.client_config(user).read_text().replace(f":{plane.port}", f":{line.port}"))
            return path

        made = await scene(nodes=1, way=way, settings=SHORT)
        try:
            await _each_right(made, {hub.name: hub_cable, worker.name: cable}, choice)
        finally:
            await asyncio.to_thread(made.program.terminate)


async def _each_right(made: Scene, lines: dict[str, Cable], choice: Choice) -> None:
    bound = made.bound
    rounds = Rounds(made, await Stage.of(bound, made.nodes))
    await rounds.lay()
    of_worker = _roles("worker-rbac.yaml", bound.name, {"kubeocean-worker": bound.mount})
    both = [
        Rights(bound.worker, bound.user, of_worker, list(worker_checks(bound.mount))),
        Rights(bound.hub, bound.user, _roles("hub-rbac.yaml", bound.name, {}), list(checks_of(hub_rules()))),
    ]
    pid, stays = made.program.process.pid, uid_of(await rounds.stage.running("stays"))
    unreported: list[str] = []
    with watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes:
        for rights in both:
            for check in choice.part([each for each in rights.checks if not each.resource.endswith("reviews")], DEFAULT):
                try:
                    await _without(made, rights, check, rounds=rounds, line=lines[rights.plane.name])
                except AssertionError as error:
                    unreported.append(str(error))
                assert made.program.alive and made.program.process.pid == pid, f"{check}\n{made.program.tail()}"
    print(*rounds.lines, sep="\n")
    assert not unreported, "\n".join(unreported)
    assert uid_of(await rounds.stage.running("stays")) == stays
    assert not nodes.where(lambda event: event.kind == "DELETED")


async def _without(made: Scene, rights: Rights, check: Check, *, rounds: Rounds, line: Cable) -> None:
    since, before, audit = datetime.now(UTC), len(made.program.messages()), Audit(rights.plane, rights.user)
    where = f"{rights.plane.name}: {check}"
    async with rights.without(check):
        line.break_once()
        await rounds.another()
        began = time.monotonic()
        shown = ""
        try:
            await eventually(lambda: _refused(audit, check), "refused", seconds=REFUSED_WITHIN, every=0.5)
        except AssertionError:
            rounds.lines.append(f"{where}: not used within {REFUSED_WITHIN:g} s")
        else:
            shown = await eventually(
                lambda: _shown(made, check, since=since, before=before), f"{where} is reported", seconds=VISIBLE_WITHIN
            )
        waited = time.monotonic() - began
    back = time.monotonic()
    try:
        await eventually(rounds.done, f"{where}: the work is done with the right", seconds=RECOVERED_WITHIN, every=0.3)
        await all_nodes(made, is_released, what="Ready and open")
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}\n{made.program.tail(60)}") from None
    rounds.lines.append(f"{where}: {shown or 'unused'}; without it {waited:.0f} s, recovered after {time.monotonic() - back:.1f} s")


def _refused(audit: Audit, check: Check) -> bool:
    what = f"{check.resource}/{check.subresource}" if check.subresource else check.resource
    return any((call.verb, call.what, call.code) == (check.verb, what, 403) for call in audit.calls())


async def _shown(made: Scene, check: Check, *, since: datetime, before: int) -> str:
    """Where the lack can be read: in a condition of the binding, an Event, a status, or the log where nothing else can be written."""
    texts = {
        f"{kind} {each['type']}": str(each.get("message", ""))
        for kind, bodies in (
            ("binding", [await get(made.bound.hub, "clusterbinding", made.bound.name)]),
            ("node", await items(made.bound.hub, "nodes", "-l", f"kubeocean.io/cluster-binding={made.bound.name}")),
        )
        for body in bodies
        for each in body.get("status", {}).get("conditions") or ()
    }
    for event in await items(made.bound.hub, "events", "-A"):
        moment = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
        if datetime.fromisoformat(moment).timestamp() >= int(since.timestamp()):
            texts[f"Event {event['reason']}"] = str(event.get("message", ""))
    for where, text in texts.items():
        if _names_it(text, check):
            return where
    for message in made.program.messages()[before:]:
        if message["level"] in ("WARNING", "ERROR") and _names_it(json.dumps(message), check):
            return f"log: {message['message']}"
    return ""


def _names_it(text: str, check: Check) -> bool:
    return check.resource in text and ("forbidden" in text.lower() or f"cannot {check.verb} resource" in text)
