"""Each right of the process is taken away while it runs: it lives on, reports what it lacks, and continues when it has the right again.

What is refused is read from the audit logs; a right that nothing uses while the process runs is in NOT_USED, with the reason. Rights at the
start: tests/integration/kubeocean/safety/test_unknown_is_not_gone.py; what `kubeocean bind` and the manager find missing:
tests/integration/kubeocean/test_permissions.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import define, field, frozen
from kubernetes.client import ApiException

from kubeocean.rbac.permissions import hub_rules, worker_checks
from tests.faults.cut.choice import Choice
from tests.faults.cut.rights import LOG_ONLY, NOT_USED, Rights, roles_of, what_of
from tests.faults.cut.rounds import policies
from tests.faults.cut.uses import Workload
from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.outages import SHORT, all_nodes, is_released
from tests.support.audit import Audit
from tests.support.bound import get, items
from tests.support.cable import Cable
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of
from tests.support.witness import watching
from vkubelet.api.rbac import Check, checks_of
from vkubelet.testing.cluster import CommandFailed, ControlPlane

REFUSED_WITHIN = 40.0
"""Seconds in which a right is used by what the round does; one that is not used and not in NOT_USED is a failure."""
SLOWLY_USED = {"worker: patch configmaps": 100.0}
"""Seconds: of many changes, the ledger is stored once in half a minute on average."""
VISIBLE_WITHIN = 45.0
RECOVERED_WITHIN = 60.0
FORGOTTEN_WITHIN = 100.0
"""Seconds: a mirror that was refused is tried again after 60."""
LATER_THAN_LOG = 5.0
"""Seconds for which a condition or an Event may come later than the log."""
_CLUSTERS = {"hub": "the hub", "worker": "the worker cluster"}
"""As the condition RequestsPermitted names them."""
DEFAULT = 1
"""Rights of each cluster in the default run."""
SETTINGS = {**SHORT, "provider": {**SHORT["provider"], "unused_copy_after": 2.0}}


@frozen
class Row:
    """What became of one right: where its lack was shown, after how many seconds, and how long the way back took."""

    name: str
    shown: str
    reported: float = 0.0
    recovered: float = 0.0

    @property
    def channel(self) -> str:
        return self.shown.partition(":")[0].partition(" ")[0]


@define(eq=False)
class Table:
    """Of all rights of a run."""

    rows: list[Row] = field(factory=list)
    problems: list[str] = field(factory=list)
    forgetting: list[asyncio.Task[str]] = field(factory=list)
    """Beside the rounds after it, as the conditions name each right."""

    async def forget(self) -> None:
        for each in await asyncio.gather(*self.forgetting, return_exceptions=True):
            if isinstance(each, BaseException):
                self.problems.append(str(each))
            elif each > "  5":
                print(each)

    def print(self) -> None:
        width = max((len(row.name) for row in self.rows), default=0)
        for row in self.rows:
            times = f"{row.reported:5.1f} s  {row.recovered:5.1f} s  " if row.reported else " " * 18
            print(f"{row.name:{width}}  {times}{row.shown}")
        counts = Counter(row.channel for row in self.rows)
        print(f"{len(self.rows)} rights: {', '.join(f'{count} {channel}' for channel, count in counts.most_common())}")
        reasons = Counter(LOG_ONLY.get(row.name, "unexpected") for row in self.rows if row.channel == "log")
        print(*(f"log alone: {count} ({reason})" for reason, count in reasons.most_common()), sep="\n")
        slowest = sorted(self.rows, key=lambda row: row.reported)[-1:]
        last = sorted(self.rows, key=lambda row: row.recovered)[-1:]
        print(*(f"longest until reported: {row.reported:.1f} s ({row.name})" for row in slowest))
        print(*(f"longest until in step again: {row.recovered:.1f} s ({row.name})" for row in last))


@pytest.mark.parametrize("side", ["worker", "hub"])
async def test_right_that_is_taken_away_is_reported_and_missed_no_longer_than_it_lacks(
    hub: ControlPlane, worker: ControlPlane, scene: MakeScene, choice: Choice, tmp_path: Path, side: str
) -> None:
    with Cable(hub.port) as hub_cable, Cable(worker.port) as cable:

        def way(plane: ControlPlane, user: str) -> Path:
            path = tmp_path / f"{plane.name}-{user}.kubeconfig"
            line = hub_cable if plane is hub else cable
            path.write_text(plane.client_config(user).read_text().replace(f":{plane.port}", f":{line.port}"))
            return path

        made = await scene(nodes=2, way=way, settings=SETTINGS, policies=policies)
        try:
            await _each_right(made, _rights(made, side), choice, hub_cable if side == "hub" else cable)
        finally:
            await asyncio.to_thread(made.program.terminate)


def _rights(made: Scene, side: str) -> Rights:
    bound = made.bound
    if side == "hub":
        return Rights(bound.hub, side, bound.user, roles_of("hub-rbac.yaml", bound.name, {}), _asked(checks_of(hub_rules())))
    roles = roles_of("worker-rbac.yaml", bound.name, {"kubeocean-worker": bound.mount})
    return Rights(bound.worker, side, bound.user, roles, _asked(worker_checks(bound.mount)))


def _asked(checks: Sequence[Check]) -> list[Check]:
    """Without reviews, which the port of the kubelet needs: tests/integration/kubeocean/test_access.py."""
    return [check for check in checks if not check.resource.endswith("reviews")]


async def _each_right(made: Scene, rights: Rights, choice: Choice, line: Cable) -> None:
    bound, table = made.bound, Table()
    work = Workload(made, await Stage.of(bound, made.nodes))
    await work.lay()
    audit = Audit(rights.plane, rights.user)
    pid, stays = made.program.process.pid, uid_of(await work.stage.running("stays"))
    with watching(bound.hub.kubeconfig, "nodes", labels=f"kubeocean.io/cluster-binding={bound.name}") as nodes:
        for check in choice.part(rights.checks, DEFAULT):
            name = rights.name(check)
            if name in NOT_USED:
                table.rows.append(Row(name, f"unused: {NOT_USED[name]}"))
                continue
            try:
                table.rows.append(await _without(rights, check, work=work, line=line))
                print(table.rows[-1], flush=True)
                if table.rows[-1].channel == "log" and name not in LOG_ONLY:
                    table.problems.append(f"{name}: only the log shows it: {table.rows[-1].shown}")
            except (AssertionError, CommandFailed, ApiException) as error:
                table.problems.append(f"{name}: {error}")
                print(table.problems[-1], flush=True)
                await work.tidy()
            table.forgetting.append(asyncio.create_task(_forgotten(made, rights, check)))
            assert made.program.alive and made.program.process.pid == pid, f"{name}\n{made.program.tail()}"
    await table.forget()
    table.print()
    used = {(call.verb, call.what, space) for call in audit.calls() for space in ("", call.namespace)}
    idle = [each for each in rights.checks if rights.name(each) in NOT_USED]
    wrong = [rights.name(each) for each in idle if (each.verb, what_of(each), each.namespace) in used]
    assert not wrong, f"used, though NOT_USED names them: {wrong}"
    assert not table.problems, "\n".join(table.problems)
    assert uid_of(await work.stage.running("stays")) == stays
    assert not nodes.where(lambda event: event.kind == "DELETED" and event.object["metadata"]["name"] == made.vnodes[0])


async def _without(rights: Rights, check: Check, *, work: Workload, line: Cable) -> Row:
    made, name = work.scene, rights.name(check)
    steps = work.use(f"{rights.side} {check.verb} {what_of(check)}", check.namespace)
    await anext(steps)
    since, before, audit = datetime.now(UTC), len(made.program.messages()), Audit(rights.plane, rights.user)
    shown, waited, problem = "", 0.0, ""
    async with rights.without(check):
        line.break_once()
        await work.another()
        await anext(steps)
        began = time.monotonic()
        try:
            await eventually(lambda: _refused(audit, check), "used by this round", seconds=SLOWLY_USED.get(name, REFUSED_WITHIN), every=0.5)
            shown, seen = await _reported(work, rights, check, since=since, before=before)
            waited = seen - began
        except AssertionError as error:
            problem = f"{error} {work.answer}"
    back = time.monotonic()
    try:
        await anext(steps, None)
        await eventually(work.done, "the work is done with the right", seconds=RECOVERED_WITHIN, every=0.3)
        await all_nodes(made, is_released, what="Ready and open")
    except AssertionError as error:
        raise AssertionError(f"{problem} {error}\n{made.program.tail(60)}") from None
    assert not problem, problem
    return Row(name, shown, waited, time.monotonic() - back)


def _refused(audit: Audit, check: Check) -> bool:
    calls = [(call.verb, call.what, call.code) for call in audit.calls() if check.namespace in ("", call.namespace)]
    return (check.verb, what_of(check), 403) in calls


async def _reported(work: Workload, rights: Rights, check: Check, *, since: datetime, before: int) -> tuple[str, float]:
    """Where the lack can be read, and since when: in a condition, an Event, the answer to a caller, or else in the log."""
    logged: list[float] = []

    async def shown() -> str:
        if found := await _shown(work, rights, check, since=since):
            return found
        lines = [each for each in work.scene.program.messages()[before:] if each["level"] in ("WARNING", "ERROR")]
        line = next((each["message"] for each in lines if _names_it(json.dumps(each), rights, check)), "")
        if line:
            logged.append(time.monotonic())
        return f"log: {line}" if line and time.monotonic() - logged[0] > LATER_THAN_LOG else ""

    found = await eventually(shown, "reported", seconds=VISIBLE_WITHIN, every=0.5)
    return found, logged[0] if found.startswith("log") else time.monotonic()


async def _shown(work: Workload, rights: Rights, check: Check, *, since: datetime) -> str:
    texts = await _conditions(work.scene)
    for event in await items(work.hub, "events", "-A"):
        moment = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
        if datetime.fromisoformat(moment).timestamp() >= int(since.timestamp()):
            texts[f"Event {event['reason']}"] = str(event.get("message", ""))
    texts["answer to the caller"] = work.answer
    return next((where for where, text in texts.items() if _names_it(text, rights, check)), "")


async def _conditions(made: Scene) -> dict[str, str]:
    """The messages of the conditions of the binding, its virtual nodes and their pods."""
    hub, vnodes = made.bound.hub, made.vnodes
    bodies = [("binding", await get(hub, "clusterbinding", made.bound.name))]
    bodies += [("node", body) for body in await items(hub, "nodes", "-l", f"kubeocean.io/cluster-binding={made.bound.name}")]
    bodies += [("pod", body) for body in await items(hub, "pods", "-A") if body["spec"].get("nodeName") in vnodes]
    conditions = [(kind, each) for kind, body in bodies for each in body.get("status", {}).get("conditions") or ()]
    return {f"condition {each['type']} of the {kind}": str(each.get("message", "")) for kind, each in conditions}


async def _forgotten(made: Scene, rights: Rights, check: Check) -> str:
    """How long a condition names a right that is there again."""
    name = rights.name(check)
    began, naming = time.monotonic(), dict[str, str]()

    async def none_names_it() -> bool:
        naming.clear()
        naming.update({where: text for where, text in (await _conditions(made)).items() if _names_it(text, rights, check)})
        return not naming

    try:
        await eventually(none_names_it, f"no condition names the right {name}", seconds=FORGOTTEN_WITHIN, every=1.0)
    except AssertionError as error:
        raise AssertionError(f"{error}: {naming}") from None
    return f"{time.monotonic() - began:5.1f} s until no condition names {name}"


def _names_it(text: str, rights: Rights, check: Check) -> bool:
    """In the words of RequestsPermitted, of the API server, or with a remedy: `grant list and watch of events`."""
    if "lacks rights" in text:
        text = text.partition(f"{_CLUSTERS[rights.side]}: ")[2].partition(";")[0].replace(")", ",") + ","
        return re.search(rf"{re.escape(str(check))}( in namespace \S+?)?,", text) is not None
    remedy = "grant" in text and check.verb in text and check.resource.removesuffix("s") in text.lower()
    return remedy or f"cannot {check.verb} resource {what_of(check)} " in re.sub(r'[\\"]', "", text)
