"""Scenes of the real controllers with two nodes: Job, CronJob, Deployment, StatefulSet, DaemonSet.

Invariant: a scene gives what was seen on either node and judges nothing.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any

from tests.support.bound import Body, get, items
from tests.support.program import KUBECTL_TIMEOUT, eventually
from tests.support.sides import (
    BEARABLE,
    CALM,
    LABEL,
    QUICK,
    Pair,
    Side,
    Sides,
    busy,
    condition,
    pod,
    ready,
    shell,
    status_of,
    workload,
)

AGAIN = "if [ -e /state/tried ]; then exit 0; fi; touch /state/tried; exit 3"
JOBS = {
    "mended": workload("Job", "mended", {"completions": 3, "parallelism": 2}, pod("", AGAIN, restartPolicy="OnFailure")),
    "hopeless": workload("Job", "hopeless", {"backoffLimit": 1}, pod("", "exit 4", restartPolicy="Never")),
    "accompanied": workload(
        "Job", "accompanied", {}, pod("", "sleep 1", initContainers=[busy("side", CALM, restartPolicy="Always")], restartPolicy="Never")
    ),
    "indexed": workload(
        "Job",
        "indexed",
        {"completions": 2, "parallelism": 2, "completionMode": "Indexed"},
        pod("", 'printf "$JOB_COMPLETION_INDEX" > /dev/termination-log', restartPolicy="Never"),
    ),
    "given-up": workload(
        "Job",
        "given-up",
        {"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}},
        pod("", "exit 42", restartPolicy="Never"),
    ),
}


async def jobs(sides: Sides) -> Pair:
    await sides.apply(*JOBS.values())
    return await sides.both(finished)


async def finished(side: Side) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in JOBS:

        async def over(name: str = name) -> Body | None:
            job = await get(side.plane, "job", name, "-n", side.namespace)
            return job if condition(job, "Complete") or condition(job, "Failed") else None

        status = (await eventually(over, f"{side.name}: Job {name} is over", every=2))["status"]
        pods = await items(side.plane, "pods", "-n", side.namespace, "-l", f"job-name={name}")
        found[name] = {
            "conditions": [(each["type"], each["reason"]) for each in status["conditions"]],
            "counts": {key: status.get(key) for key in ("succeeded", "failed", "completedIndexes")},
            "pods": sorted(outcome(each) for each in pods),
        }
    return found


def outcome(body: Body) -> list[str]:
    """The phase of a pod, and how its containers ended."""
    status = body["status"]
    ends = [
        f"{each['name']} {each['state']['terminated']['exitCode']} {each['state']['terminated'].get('message', '')} {each['restartCount']}"
        for name in ("initContainerStatuses", "containerStatuses")
        for each in status.get(name) or ()
    ]
    return [status["phase"], *ends]


WEB = {"app": "web"}


def web(*, broken: bool = False) -> Body:
    test = "exit 1" if broken else "test -e /state/up"
    template = pod("", f"sleep 1; touch /state/up; {CALM}", container={"readinessProbe": {**shell(test), **QUICK, "failureThreshold": 3}})
    spec = {
        "replicas": 2,
        "progressDeadlineSeconds": 8 if broken else 120,
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
    }
    return workload("Deployment", "web", spec, template, labels=WEB)


async def deployment(sides: Sides) -> Pair:
    """Made, rolled out anew, rolled out with a mistake that is found out, and rolled back."""
    return await sides.both(rolled)


async def rolled(side: Side) -> dict[str, Any]:
    async def through(*change: str) -> None:
        if change:
            await side.kubectl("rollout", *change, "deployment/web")
        await side.kubectl("rollout", "status", "deployment/web", KUBECTL_TIMEOUT)

    async def progress(reason: str) -> str:
        async def check() -> str:
            found = condition(await get(side.plane, "deployment", "web", "-n", side.namespace), "Progressing")
            return f"{found.get('status')} {found.get('reason')}"

        await eventually(lambda: _same(check(), reason), f"{side.name}: {reason}", every=1)
        return reason

    await side.apply(web())
    await through()
    # The watch may be behind what kubectl knows.
    await eventually(lambda: fewest_ready(side, since=math.inf) == 2, f"{side.name}: both pods were seen ready")
    began = time.monotonic()
    await through("restart")
    took = time.monotonic() - began
    await side.apply(web(broken=True))
    story: list[Any] = [await progress("False ProgressDeadlineExceeded")]
    # A loaded node may still be ending a pod of the rollout before.
    pods = await items(side.plane, "pods", "-n", side.namespace)
    story.append(len([each for each in pods if not each["metadata"].get("deletionTimestamp")]))
    await through("undo")
    story += [await progress("True NewReplicaSetAvailable")]
    return {"story": story, "ready": fewest_ready(side, since=began), "took": took}


async def _same(found: Awaitable[str], wanted: str) -> bool:
    return await found == wanted


def fewest_ready(side: Side, *, since: float) -> int:
    """The smallest number of pods that were ready at the same time."""
    states: dict[str, bool] = {}
    counts = []
    for seen in side.history("web-"):
        states[seen.uid] = seen.kind != "DELETED" and ready(seen.object) and not seen.deleting
        if seen.at >= since:
            counts.append(sum(states.values()))
    return min(counts, default=sum(states.values()))


def database() -> Body:
    template = pod("", f"hostname > /dev/termination-log; sleep 1; touch /state/up; {CALM}")
    template["spec"]["containers"][0]["readinessProbe"] = {**shell("test -e /state/up"), **QUICK}
    return workload("StatefulSet", "db", {"replicas": 2, "serviceName": "db"}, template, labels={"app": "db"})


async def statefulset(sides: Sides) -> Pair:
    """Made in order, one pod deleted, all renewed."""
    return await sides.both(renewed)


async def renewed(side: Side) -> list[str]:
    await side.apply(database())
    await side.kubectl("rollout", "status", "statefulset/db", KUBECTL_TIMEOUT)
    [first] = {seen.uid for seen in side.history("db-0")}
    await side.kubectl("delete", "pod", "db-0", "--wait=false")
    await side.until("db-0", lambda body: ready(body) and body["metadata"]["uid"] != first, "is there again")
    await side.kubectl("rollout", "restart", "statefulset/db")
    await side.kubectl("rollout", "status", "statefulset/db", KUBECTL_TIMEOUT)
    # The watch may be behind what kubectl knows. Pods are renewed from the last to the first.
    await eventually(lambda: "db-0 #3 is ready" in milestones(side, "db-"), f"{side.name}: the last pod was seen ready")
    return milestones(side, "db-")


def milestones(side: Side, prefix: str) -> list[str]:
    """When each pod came, was ready and went, in the order of the watch."""
    told: dict[str, None] = {}
    number: Counter[str] = Counter()
    known: dict[str, str] = {}
    for seen in side.history(prefix):
        name = seen.object["metadata"]["name"]
        if seen.uid not in known:
            number[name] += 1
            known[seen.uid] = f"{name} #{number[name]}"
            told[f"{known[seen.uid]} comes"] = None
        if seen.kind == "DELETED":
            text = status_of(seen.object)["state"].get("terminated", {}).get("message", "")
            told[f"{known[seen.uid]} has gone: {seen.phase} {text}"] = None
        elif ready(seen.object) and not seen.deleting:
            told[f"{known[seen.uid]} is ready"] = None
    return list(told)


async def daemonset(sides: Sides) -> Any:
    """One for both nodes, rolled out anew."""
    names = [side.node for side in sides]
    template = pod("", CALM, container={"readinessProbe": {**shell("true"), **QUICK}})
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}}
    template["spec"] |= {"affinity": affinity, "tolerations": [*BEARABLE]}
    body = workload("DaemonSet", "each", {}, template, labels={"app": "each", LABEL: "each"})
    side, (plane, namespace) = sides.real, (sides.real.plane, sides.real.namespace)
    body["metadata"]["namespace"] = namespace
    await plane.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    async def there() -> Sequence[Body]:
        await side.kubectl("rollout", "status", "daemonset/each", KUBECTL_TIMEOUT)
        return await items(plane, "pods", "-n", namespace, "-l", "app=each")

    before = await there()
    await side.kubectl("rollout", "restart", "daemonset/each")
    after = await there()
    status = (await get(plane, "daemonset", "each", "-n", namespace))["status"]
    return before, after, status, [side.view(pod_on(after, node)["status"]) for node in names]


def pod_on(pods: Sequence[Body], node: str) -> Body:
    [found] = [each for each in pods if each["spec"].get("nodeName") == node and not each["metadata"].get("deletionTimestamp")]
    return found


async def cron_job(sides: Sides) -> Pair:
    await sides.apply(workload("CronJob", "minutely", {"schedule": "* * * * *"}, pod("", "date", restartPolicy="Never")))

    async def fired(side: Side) -> dict[str, Any]:
        found = await items(side.plane, "jobs", "-n", side.namespace)
        return {_due(each): (each["status"].get("succeeded"), _last(each)) for each in found if each["status"].get("succeeded")}

    async def common() -> Pair | None:
        real, ours = await sides.both(fired)
        return (real, ours) if real.keys() & ours.keys() else None

    found: Pair = await eventually(common, "the CronJob has fired on both at the same minute", seconds=130, every=2)
    return found


def _due(job: Body) -> str:
    return str(job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"])


def _last(job: Body) -> list[tuple[str, str]]:
    return [(each["type"], each["reason"]) for each in job["status"]["conditions"]]
