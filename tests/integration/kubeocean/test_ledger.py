"""What was lent equals the times of the pods in the worker, also of those that ended while the process was killed."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.integration.kubeocean.conftest import MakeScene
from tests.support.bound import get
from tests.support.command import run_command
from tests.support.pages import Shell, block
from tests.support.program import LONG, eventually
from tests.support.scrape import Scrape
from tests.support.stage import Stage, away
from vkubelet.testing.cluster import ControlPlane

LEDGER = "kubeocean-ledger"
CPU = {"keeps": 0.5, "done": 0.25, "ends-meanwhile": 1.0, "deleted": 0.75}
Body = dict[str, Any]
Span = tuple[datetime, datetime | None, datetime | None]
"""When a pod was bound, and the earliest and latest time at which it stopped; None while it runs."""
Times = Mapping[str, Span]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def bound_at(pod: Mapping[str, Any]) -> datetime:
    conditions = {each["type"]: each for each in pod["status"].get("conditions", ())}
    return instant(conditions["PodScheduled"]["lastTransitionTime"])


def finished_at(pod: Mapping[str, Any]) -> datetime:
    return max(instant(each["state"]["terminated"]["finishedAt"]) for each in pod["status"]["containerStatuses"])


async def stored(stage: Stage) -> Body | None:
    found = await stage.there.get("configmaps", LEDGER, stage.bound.mount)
    return found["data"] if found else None


async def stored_after(stage: Stage, moment: datetime) -> Body:
    """The ledger, once it is complete until after that moment."""

    async def check() -> Body | None:
        data = await stored(stage)
        return data if data is not None and instant(data["through"]) > moment else None

    out: Body = await eventually(check, f"the ledger is stored after {moment}", seconds=90)
    return out


def totals(data: Mapping[str, str], name: str = "total") -> dict[tuple[str, str], float]:
    """By namespace and resource."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for row in csv.DictReader(io.StringIO(data[name])):
        for resource in ("cpu", "memory", "pods"):
            sums[row["namespace"], resource] += float(row[resource] or 0)
    return sums


async def create(stage: Stage, name: str, **script: str) -> None:
    requests = {"cpu": f"{CPU[name] * 1000:g}m", "memory": "64Mi"}
    containers = [{"name": "main", "image": "registry.invalid/app", "resources": {"requests": requests}}]
    body = stage.body(name, script=script, restartPolicy="Never", containers=containers)
    await stage.home.create("pods", body)


@pytest.fixture
def address(hub: ControlPlane) -> str:
    return f"127.0.0.1:{hub.site.free_port()}"


async def test_ledger_equals_the_times_of_the_pods_also_after_a_kill(
    scene: MakeScene, address: str, hub: ControlPlane, tmp_path: Path
) -> None:
    made = await scene(nodes=2, settings={"health": {"health_address": "127.0.0.1:0", "metrics_address": address}})
    stage = await Stage.of(made.bound, made.nodes)
    times: dict[str, Span] = {}
    await create(stage, "done", **{"run-for": "6"})
    await create(stage, "deleted")
    await create(stage, "keeps")
    await create(stage, "ends-meanwhile", **{"run-for": "25"})
    for name in ("deleted", "keeps", "ends-meanwhile"):
        await stage.running(name)
    done = await stage.until_physical("done", lambda pod: pod["status"]["phase"] == "Succeeded", "has completed")
    times["done"] = bound_at(done), finished_at(done), finished_at(done)

    victim = await stage.physical("deleted")
    assert victim is not None
    asked = datetime.now(UTC)
    await stage.home.delete("pods", "deleted", stage.namespace)
    await stage.no_physical("deleted")
    # Nothing in the API shows when it stopped, so the clock has to do.
    vanished = datetime.now(UTC)
    times["deleted"] = bound_at(victim), asked, vanished
    # Of a pod that has vanished, a crash loses what was not written yet.
    before = await stored_after(stage, vanished)
    with away(made.program):
        ended = await stage.until_physical("ends-meanwhile", lambda pod: pod["status"]["phase"] == "Succeeded", "has completed")
    times["ends-meanwhile"] = bound_at(ended), finished_at(ended), finished_at(ended)
    keeps = await stage.physical("keeps")
    assert keeps is not None
    times["keeps"] = bound_at(keeps), None, None
    data = await stored_after(stage, max(finished_at(ended), instant(before["through"])))
    await check_totals(stage, data, times)
    await check_readers(stage, times, address, hub)
    shell = await Shell.of(tmp_path, {"hub": hub, "worker": stage.bound.worker})
    name = stage.bound.name
    replaced = {
        "status --ledger": f"status {name} --ledger",
        "demo": name,
        "night": f"all-of-{name}",
        "kubeocean-worker": stage.bound.mount,
    }
    out = await shell.run(block("lease/ledger.md", 0), replaced)
    assert "CPU (core-h)" in out and '"lastDay"' in out and "through:" in out
    assert (tmp_path / "lent.csv").read_text().startswith("hour,binding,policy")


def check(seconds: float, times: Times, through: datetime, *, weights: Mapping[str, float] = CPU, ago: float = 0) -> None:
    """Checks the resource-seconds until a moment, or until at most `ago` seconds before it, to 1 % and a second."""
    least = most = 0.0
    for name, (start, earliest, latest) in times.items():
        counted = through - timedelta(seconds=ago)
        least += weights[name] * max(0.0, (min(earliest or counted, counted) - start).total_seconds())
        most += weights[name] * max(0.0, (min(latest or through, through) - start).total_seconds())
    assert 0.99 * least - 1 <= seconds <= 1.01 * most + 1, (least, seconds, most, times)


async def check_totals(stage: Stage, data: Body, times: Times) -> None:
    lent, through = totals(data), instant(data["through"])
    check(lent[stage.namespace, "cpu"], times, through)
    for seconds in (lent[stage.namespace, "pods"], lent[stage.namespace, "memory"] / (64 << 20)):
        check(seconds, times, through, weights=dict.fromkeys(CPU, 1.0))
    hours = [totals(data, name) for name in data if name.endswith("Z") and name[:2] == "20"]
    assert sum(each[stage.namespace, "cpu"] for each in hours) == pytest.approx(lent[stage.namespace, "cpu"], abs=0.1)


async def check_readers(stage: Stage, times: Times, address: str, hub: ControlPlane) -> None:
    """The metric, the policy's status and the command show the same, each until its own time."""
    name = stage.bound.name
    values = Scrape.of(address).values("kubeocean_lent_resource_seconds_total", namespace=stage.namespace, resource="cpu")
    # It is counted every five seconds.
    check(sum(values), times, datetime.now(UTC), ago=10)

    policy = await get(stage.bound.worker, "resourceleasingpolicies", f"all-of-{name}")
    ledger = policy["status"]["ledger"]
    assert instant(ledger["since"]) <= instant(ledger["from"]) <= instant(ledger["through"])
    assert [each["name"] for each in ledger["namespaces"]] == [stage.namespace]
    check(float(ledger["lastDay"]["cpu"]), times, instant(ledger["through"]))

    async def show(*flags: str) -> str:
        ran = await run_command("kubeocean", "status", name, "--ledger", "--kubeconfig", str(hub.kubeconfig), *flags, within=LONG)
        assert ran.code == 0, ran.stderr
        return ran.stdout.decode()

    (shown,) = json.loads(await show("-o", "json"))["ledgers"]
    assert {(row["policy"], row["node"], row["namespace"]) for row in shown["lastDay"]} == {
        (f"all-of-{name}", stage.nodes[0], stage.namespace)
    }
    check(sum(float(row["lent"]["cpu"]) for row in shown["lastDay"]), times, instant(shown["through"]))
    table = await show()
    assert stage.namespace in table and "CPU (core-h)" in table
    lines = list(csv.DictReader(io.StringIO(await show("--csv"))))
    assert {line["binding"] for line in lines} == {name}
    check(sum(float(line["resource_seconds"]) for line in lines if line["resource"] == "cpu"), times, instant(shown["through"]))
