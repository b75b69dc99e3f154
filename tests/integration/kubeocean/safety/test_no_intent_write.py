"""Rule `no-intent-write`: few writes per pod, none of them an intent; judged by both audit logs and a watch."""

from __future__ import annotations

import statistics
from collections import Counter
from datetime import UTC, datetime, timedelta

from attrs import frozen

from tests.support.audit import Audit, Call
from tests.support.program import eventually
from tests.support.stage import Stage
from tests.support.witness import Record, watching

PODS = 10
MOST_WRITES = 6
"""Of objects, until a pod runs: token, its Secret, physical pod, and the status when it is scheduled, taken up and running there."""
NAME, UID = "kubeocean.io/physical-pod-name", "kubeocean.io/physical-pod-uid"
QUIET = timedelta(seconds=2)


@frozen
class Wave:
    """What was written for each pod of a wave of them, and what a watch at home saw."""

    pods: list[str]
    home: dict[str, list[Call]]
    there: dict[str, list[Call]]
    seen: Record


async def wave(stage: Stage) -> Wave:
    """Pods that are started after a while, as those of a real kubelet."""
    # What pods share (root certificates, the priority class) is made for the first.
    await stage.create("first")
    await stage.running("first")
    home, there = Audit(stage.bound.hub, stage.bound.user), Audit(stage.bound.worker, stage.bound.user)
    names = [f"p{number}" for number in range(PODS)]
    with watching(stage.bound.hub.kubeconfig, namespace=stage.namespace) as seen:
        for name in names:
            await stage.create(name, script={"start-delay": "1"})
        for name in names:
            await stage.until(name, _is_ready, "Ready")

        def quiet() -> bool:
            own = [call for call in _of_pods(home) if call.namespace == stage.namespace]
            return datetime.now(UTC) - max(call.at for call in (*own, *_of_pods(there))) > QUIET

        await eventually(quiet, "nothing more is written for pods", every=0.2)
    owners = {stage.physical_name(name): name for name in names}
    tokens = {each["metadata"]["name"]: each["metadata"]["annotations"] for each in await stage.there.list("secrets", stage.bound.mount)}
    owners |= {
        secret: notes["kubeocean.io/virtual-pod-name"]
        for secret, notes in tokens.items()
        if notes.get("kubeocean.io/virtual-pod-namespace") == stage.namespace
    }
    calls = _of_pods(home)
    # The audit log names the account of a token, not the pod; there is one token per pod.
    asked = [call for call in calls if call.what == "serviceaccounts/token" and call.namespace == stage.namespace]
    assert len(asked) == PODS, [str(call) for call in asked]
    return Wave(
        pods=names,
        home={name: [call for call in calls if call.name == name] + [asked[at]] for at, name in enumerate(names)},
        there={name: [call for call in _of_pods(there) if owners.get(call.name) == name] for name in names},
        seen=seen,
    )


def _is_ready(pod: dict[str, object]) -> bool:
    status = pod["status"]
    assert isinstance(status, dict)
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))


def _of_pods(audit: Audit) -> list[Call]:
    return [call for call in audit.writes() if call.what.partition("/")[0] in ("pods", "secrets", "configmaps", "serviceaccounts")]


async def test_writes_of_a_pod_until_it_runs_are_few_and_none_is_an_intent(stage: Stage) -> None:
    seen = await wave(stage)
    counts = Counter(len(seen.home[name]) + len(seen.there[name]) for name in seen.pods)
    print(f"writes per pod: {dict(counts)}")
    assert max(counts) <= MOST_WRITES, [str(call) for name in seen.pods for call in (*seen.home[name], *seen.there[name])]
    for name in seen.pods:
        assert [(call.verb, call.what) for call in seen.there[name]] == [("create", "secrets"), ("create", "pods")]
        made = seen.there[name][-1]
        mine = [call for call in seen.home[name] if call.what.startswith("pods")]
        assert {(call.verb, call.what) for call in mine} == {("patch", "pods/status")}, [str(call) for call in mine]
        assert min(call.at for call in mine) > made.at
        assert all(call.code < 300 for call in (*seen.there[name], *mine))
        _assert_places_came_with_the_first_status(seen.seen, f"{stage.namespace}/{name}")


def _assert_places_came_with_the_first_status(record: Record, key: str) -> None:
    versions = [event.object for event in record.where(lambda event: event.key == key)]
    assert "startTime" not in versions[0]["status"] and NAME not in versions[0]["metadata"]["annotations"]
    first = versions[1]
    assert first["status"].get("startTime") and NAME in first["metadata"]["annotations"] and UID in first["metadata"]["annotations"]


async def test_pod_that_runs_at_once_takes_two_status_writes_at_most(stage: Stage) -> None:
    """Scheduled, taken up, running: what comes within 50 ms is one write."""
    await stage.create("first")
    await stage.running("first")
    home = Audit(stage.bound.hub, stage.bound.user)
    for number in range(PODS):
        await stage.create(f"p{number}")
    for number in range(PODS):
        await stage.until(f"p{number}", _is_ready, "Ready")

    names = {f"p{number}" for number in range(PODS)}

    def writes() -> Counter[str]:
        """Of the first one something may still be written."""
        own = [call for call in home.writes() if call.what == "pods/status" and call.namespace == stage.namespace]
        return Counter(call.name for call in own if call.name in names)

    await eventually(lambda: len(writes()) == PODS, "the audit log has them")
    print(f"status writes per pod: {dict(Counter(writes().values()))}")
    # Where the worker is busy, its scheduler and kubelet say one after the other what they would say at once.
    assert statistics.median(writes().values()) <= 2 and max(writes().values()) <= 3, writes()
