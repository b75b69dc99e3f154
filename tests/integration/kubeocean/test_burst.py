"""Two hundred pods at once, and a restart with all of them running: how much is done for each, counted by both audit logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.support.audit import Audit, Call
from tests.support.load import Load, pod
from tests.support.moments import moments_of
from tests.support.program import eventually
from tests.support.stage import Stage, physical_name

PODS = 200
QUIET = timedelta(seconds=3)
CONTENT = ("pods", "secrets", "configmaps", "serviceaccounts")
LEDGER = "kubeocean-ledger"
"""Written for all pods together; `test_idle.py` and the ledger's own tests count how often."""


def _of_content(audit: Audit) -> list[Call]:
    return [call for call in audit.calls() if call.what.partition("/")[0] in CONTENT and call.name != LEDGER]


def _reads(audits: Sequence[Audit]) -> list[Call]:
    """Of single objects; lists and watches cost the same for any number of pods."""
    return [call for audit in audits for call in _of_content(audit) if call.verb == "get"]


def _writes(audits: Sequence[Audit]) -> list[Call]:
    return [call for audit in audits for call in _of_content(audit) if call.is_write]


async def _quiet(audits: Sequence[Audit], since: datetime) -> None:
    """Nothing was written for a while."""

    def check() -> bool:
        last = max([since, *(call.at for audit in audits for call in audit.writes() if call.what != "leases")])
        return datetime.now(UTC) - last > QUIET

    await eventually(check, "nothing more is written", seconds=60, every=0.5)


async def _burst(scene: Scene, stage: Stage, names: Sequence[str]) -> None:
    """All are created by 16 connections, and run."""
    hub, vnodes = scene.bound.hub.kubeconfig, scene.vnodes
    path = f"/api/v1/namespaces/{stage.namespace}/pods"
    with moments_of(hub, path, fields="status.phase=Running") as running:
        await Load(hub).send(pod(name, stage.namespace, vnodes[at % len(vnodes)]) for at, name in enumerate(names))
        await eventually(lambda: len(running) == len(names), f"{len(names)} pods run", seconds=120)


async def test_burst_takes_few_writes_and_no_reads_per_pod_and_a_restart_writes_to_none(scene: MakeScene) -> None:
    made = await scene(nodes=2)
    bound, stage = made.bound, await Stage.of(made.bound, made.nodes)
    # What pods share is made for the first.
    await _burst(made, stage, ["first"])
    await _burst_is_cheap(made, stage)
    await _restart_is_cheap(made, stage)
    assert len(await stage.there.list("pods", bound.mount)) == PODS + 2


async def _burst_is_cheap(made: Scene, stage: Stage) -> None:
    audits = [Audit(plane, made.bound.user) for plane in (made.bound.hub, made.bound.worker)]
    names = [f"p-{number}" for number in range(PODS)]
    await _burst(made, stage, names)
    await _quiet(audits, datetime.now(UTC))
    home, there = (_writes([audit]) for audit in audits)
    assert Counter((call.verb, call.what, call.code) for call in there) == {
        ("create", "secrets", 201): PODS,
        ("create", "pods", 201): PODS,
    }
    tokens = [call for call in home if call.what == "serviceaccounts/token"]
    statuses = Counter(call.name for call in home if (call.verb, call.what, call.code) == ("patch", "pods/status", 200))
    assert len(tokens) == PODS and len(home) == PODS + statuses.total(), Counter(map(str, home)).most_common(5)
    print(f"status writes per pod: {dict(Counter(statuses.values()))}; reads: {len(_reads(audits))}")
    # Token, its Secret, the physical pod, and what its kubelet says.
    assert set(statuses) == set(names) and max(statuses.values()) <= 3
    assert len(_reads(audits)) < PODS / 20, Counter(f"{call.verb} {call.what}" for call in _reads(audits))


async def _restart_is_cheap(made: Scene, stage: Stage) -> None:
    audits = [Audit(plane, made.bound.user) for plane in (made.bound.hub, made.bound.worker)]
    made.program.kill()
    made.program.start()
    await _burst(made, stage, ["new"])
    await _quiet(audits, datetime.now(UTC))
    mine = {"new", physical_name(stage.namespace, "new")}
    others = [str(call) for call in _writes(audits) if call.name not in mine and call.what not in ("secrets", "serviceaccounts/token")]
    made_secrets = [call for call in _writes(audits) if call.what in ("secrets", "serviceaccounts/token")]
    assert others == []
    assert [(call.verb, call.what) for call in made_secrets] == [("create", "serviceaccounts/token"), ("create", "secrets")]
    assert len(_reads(audits)) < PODS / 4, Counter(f"{call.verb} {call.what}" for call in _reads(audits))
