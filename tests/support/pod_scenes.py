"""Scenes of single pods on two nodes: how they end and are told of, probes, hooks, a Service before them, crash loops.

Invariant: a scene gives what was seen on either node and judges nothing.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

from tests.support.bound import Body
from tests.support.program import eventually
from tests.support.sides import (
    CALM,
    QUICK,
    REST,
    Pair,
    Side,
    Sides,
    busy,
    condition,
    pod,
    ready,
    seconds,
    shell,
    status_of,
)

LAST_WORDS = "back-off 40s"
"""By which a crash loop has been seen long enough: what is told then comes true after the test."""

ENDS = {
    "done": pod("done", "printf bye > /dev/termination-log", restartPolicy="Never"),
    "failed": pod(
        "failed", "echo last words; exit 3", container={"terminationMessagePolicy": "FallbackToLogsOnError"}, restartPolicy="Never"
    ),
    "killed": pod("killed", "exit 137", restartPolicy="Never"),
    "hindered": pod("hindered", "true", initContainers=[busy("first", "exit 4")], restartPolicy="Never"),
    "overdue": pod("overdue", CALM, restartPolicy="Never"),
}
STAYS = {
    "whole": pod(
        "whole",
        CALM,
        initContainers=[busy("first", "true"), busy("side", CALM, restartPolicy="Always")],
        container={
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
            "readinessProbe": {**shell("true"), **QUICK},
        },
    ),
    "lacking": pod("lacking", CALM, container={"envFrom": [{"configMapRef": {"name": "nothing"}}]}),
}


async def statuses(sides: Sides) -> dict[str, tuple[Pair, Pair]]:
    """Status and events of pods that end and of pods that stay."""
    await sides.apply(*ENDS.values(), *STAYS.values())

    async def settled(side: Side) -> dict[str, tuple[Any, Any]]:
        await side.event("overdue", "Started")
        await side.kubectl("patch", "pod", "overdue", "--patch", json.dumps({"spec": {"activeDeadlineSeconds": 1}}))
        found = {name: await side.until(name, over, "ends") for name in ENDS}
        found["whole"] = await side.until("whole", ready, "is ready")
        found["lacking"] = await side.until("lacking", lambda body: waits(body) == "CreateContainerConfigError", "waits")
        await side.event("overdue", "Killing")
        last = ("spec.containers{main}", "Started", "Started container main")
        await eventually(lambda: last in side.events("whole"), f"{side.name}: all events of a pod that is ready")
        await side.event("lacking", "Failed")
        return {name: (side.view(body["status"]), side.events(name)) for name, body in found.items()}

    real, ours = await sides.both(settled)
    return {name: (real[name], ours[name]) for name in real}


def over(body: Body) -> bool:
    """Nothing is left of it, nor of what its containers shared."""
    return body["status"]["phase"] in ("Succeeded", "Failed") and condition(body, "PodReadyToStartContainers").get("status") == "False"


def waits(body: Body, container: str = "main") -> str:
    """Why."""
    return str((status_of(body, container).get("state") or {}).get("waiting", {}).get("reason", ""))


def waiting_text(body: Body, container: str = "main") -> str:
    return str((status_of(body, container).get("state") or {}).get("waiting", {}).get("message", ""))


SICK = "touch /state/well; echo run >> /state/runs; [ $(wc -l < /state/runs) -gt 1 ] || (sleep 3; rm /state/well) & trap 'exit 7' TERM; "
_PATIENT = {"periodSeconds": 2, "timeoutSeconds": 30}
"""Of probes whose command decides: a command that a loaded machine starts late would fail by its time, and with another text."""
LIVENESS = {**_PATIENT, **shell("test -e /state/well || { echo sick; exit 1; }"), "periodSeconds": 1, "failureThreshold": 2}
_AWAKE = "while true; do sleep 0.2; done"
"""Acts on a signal after at most this time; `wait` was seen to leave one pending for the whole grace, on a kubelet as well."""
RESTARTED = {
    "sick": pod("sick", SICK + _AWAKE, container={"livenessProbe": LIVENESS}),
    "stubborn": pod(
        "stubborn",
        SICK.replace("'exit 7'", "''") + _AWAKE,
        container={"livenessProbe": {**LIVENESS, "terminationGracePeriodSeconds": 1}},
        terminationGracePeriodSeconds=60,
    ),
    "slow": pod(
        "slow",
        "trap 'exit 0' TERM; " + _AWAKE,
        container={"startupProbe": {**_PATIENT, **shell("echo not yet; exit 1"), "failureThreshold": 3}},
    ),
}
RARE = {**QUICK, "periodSeconds": 10}
"""Not so often that one of them uses up the events of the pod before another has failed once."""

CLOSED = 9
"""A port where nobody listens."""
FAILING: dict[str, dict[str, Body]] = {
    "silent": {
        "http": {"httpGet": {"port": CLOSED, "path": "/x"}},
        "tcp": {"tcpSocket": {"port": CLOSED}},
        "grpc": {"grpc": {"port": CLOSED}, "timeoutSeconds": 1},
    },
    "unfit": {
        "exec": {**shell("echo no; echo never >&2; exit 5"), "timeoutSeconds": 30},
        "late": {**shell("sleep 9"), "timeoutSeconds": 1},
        "none": {"exec": {"command": ["/no/such/program"]}},
    },
}
"""By pod: a kubelet tells of 25 events of one, among them three for each container that starts, and then falls silent."""


def unready(name: str) -> Body:
    body = pod(name, CALM)
    body["spec"]["containers"] = [busy(each, CALM, readinessProbe={**RARE, **probe}) for each, probe in FAILING[name].items()]
    return body


async def probes(sides: Sides) -> dict[str, Any]:
    await sides.apply(*RESTARTED.values(), *map(unready, FAILING))

    async def restarted(side: Side) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in RESTARTED:
            body = await side.until(name, lambda body: runs(body) and "terminated" in status_of(body)["lastState"], "was restarted")
            await side.event(name, "Killing")
            found[name] = (side.course(name)[:2], calm(side.events(name)), *times(body))
        return found | {name: await failing(side, name) for name in FAILING}

    real, ours = await sides.both(restarted)
    return {name: (real[name], ours[name]) for name in real}


async def failing(side: Side, name: str) -> tuple[dict[str, str], Any]:
    """What is said of each container of one of those pods, and the conditions of the pod."""

    def told() -> dict[str, str]:
        return {where: in_common(text) for where, reason, text in side.events(name) if reason == "Unhealthy"}

    containers = {f"spec.containers{{{each}}}" for each in FAILING[name]}
    await eventually(lambda: told().keys() == containers, f"{side.name}: all probes of {name} failed")
    last = side.latest(name)
    assert last is not None
    return told(), side.view(last["status"]["conditions"])


def in_common(text: str) -> str:
    """Why a command could not be run at all is told in the words of the engine."""
    begin, errored, _ = text.removeprefix("(combined from similar events): ").partition(" errored and resulted in unknown state: ")
    return begin + errored


def calm(events: Sequence[tuple[str, str, str]]) -> Sequence[tuple[str, str, str]]:
    """Without the one that comes as soon as a container has ended often."""
    return [each for each in events if each[1] != "BackOff"]


def runs(body: Body, container: str = "main") -> bool:
    return "running" in (status_of(body, container).get("state") or {})


def times(body: Body) -> tuple[Body, float, float]:
    """How the run before the present one ended, how long it took, and the pause after it."""
    status = status_of(body)
    end = dict(status["lastState"]["terminated"])
    ran, paused = seconds(end["startedAt"], end["finishedAt"]), seconds(end["finishedAt"], status["state"]["running"]["startedAt"])
    return {key: end.get(key) for key in ("exitCode", "reason", "message")}, ran, paused


GRACE_OF_GATED = 20
GATED = pod(
    "gated",
    CALM,
    labels={"app": "gated"},
    container={
        "readinessProbe": {**shell("test -e /state/ready"), **QUICK},
        "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
    },
    terminationGracePeriodSeconds=GRACE_OF_GATED,
)
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "gated"},
    "spec": {"selector": {"app": "gated"}, "ports": [{"port": 80}]},
}
_FLAGS = ("ready", "serving", "terminating")
OPEN, SHUT, LEAVING, ENDED = (True, True, False), (False, False, False), (False, True, True), (False, False, True)


async def service(sides: Sides) -> Pair:
    """The conditions of a Service's endpoint in the order in which they were told, and after how many seconds each came."""
    await sides.apply(SERVICE)
    return await sides.both(gated)


async def gated(side: Side) -> tuple[list[Any], list[float]]:
    def told() -> list[Body]:
        return [each for each in list(side.told.slices) if each["metadata"]["namespace"] == side.namespace]

    def flags(body: Body) -> list[Any]:
        return [tuple(bool(each["conditions"].get(key)) for key in _FLAGS) for each in body["endpoints"] or ()]

    async def after(count: int, state: Any) -> float:
        """When that was told first, after so many other words: it may be over before anybody looks."""
        what = f"{side.name}: the endpoint is {state}"
        found = await eventually(lambda: [each for each in told()[count:] if flags(each) == state], what, every=0.1)
        return float(found[0]["seen"])

    await side.apply(GATED)
    await side.until("gated", runs, "runs")
    await after(0, [SHUT])
    delays = []
    for change, state in (("touch", OPEN), ("rm", SHUT), ("touch", OPEN)):
        before = len(told())
        await side.kubectl("exec", "gated", "--", "busybox", change, "/state/ready")
        changed = time.monotonic()
        delays.append(await after(before, [state]) - changed)
    before, began = len(told()), time.monotonic()
    await side.kubectl("delete", "pod", "gated", "--wait=false")
    delays += [await after(before, state) - began for state in ([LEAVING], [])]
    known = [key for key, _ in itertools.groupby(flags(each) for each in told())]
    # Between its end and its deletion no time need pass, and then nobody tells of it.
    steps = [step for step in known if step != [ENDED]]
    return steps[steps.index([SHUT]) :], delays


TOLD = "trap 'echo term >> /state/told; cat /state/told > /dev/termination-log; exit 5' TERM; "
HOOKED = {
    # On a busy machine the hook of the real node took longer than the five seconds of other pods.
    "polite": pod(
        "polite",
        TOLD + REST,
        container={"lifecycle": {"preStop": shell("sleep 2; echo hook >> /state/told")}},
        terminationGracePeriodSeconds=300,
    ),
    "endless": pod(
        "endless",
        "trap '' TERM; while true; do sleep 0.2; done",
        container={"lifecycle": {"preStop": shell("sleep 100")}},
        terminationGracePeriodSeconds=3,
    ),
    "failing": pod("failing", TOLD + REST, container={"lifecycle": {"preStop": shell("echo no; exit 3")}}),
    "deaf": pod("deaf", "trap '' TERM; while true; do sleep 0.2; done", terminationGracePeriodSeconds=1),
}
UNHOOKED = pod("unhooked", CALM, container={"lifecycle": {"postStart": shell("echo no; exit 3")}})


async def hooks(sides: Sides) -> dict[str, Any]:
    """How pods with hooks end when they are deleted, and how one whose postStart fails begins."""
    await sides.apply(*HOOKED.values(), UNHOOKED)

    async def deleted(side: Side) -> dict[str, Any]:
        for name in HOOKED:
            await side.until(name, ready, "runs")
        began = time.monotonic()
        await side.kubectl("delete", "pods", *HOOKED, "--wait=false")
        found: dict[str, Any] = {}
        for name in HOOKED:
            took = await side.gone(name) - began
            end = side.history(name)[-1].object["status"]
            state = dict(end["containerStatuses"][0]["state"]["terminated"])
            outcome = (end["phase"], *(state.get(key) for key in ("exitCode", "reason", "message")))
            await side.event(name, "FailedPreStopHook" if name in ("failing", "endless") else "Killing")
            found[name] = (outcome, end["observedGeneration"], side.view(end["conditions"]), side.events(name), took)
        body = await side.until("unhooked", lambda body: waits(body) == "PostStartHookError", "tells of its hook")
        await side.until("unhooked", lambda body: status_of(body).get("restartCount", 0) >= 1, "is started again")
        found["unhooked"] = (calm(side.events("unhooked")), side.view(status_of(body)["state"]), body["status"]["phase"])
        return found

    real, ours = await sides.both(deleted)
    return {name: (real[name], ours[name]) for name in real}


async def crash_loop(sides: Sides) -> Pair:
    await sides.apply(pod("crash", "echo run; sleep 2; exit 3"))
    return await sides.both(crashed)


async def crashed(side: Side) -> dict[str, Any]:
    await side.until("crash", lambda body: LAST_WORDS in waiting_text(body), "crashed often", seconds=120)
    gaps: dict[int, float] = {}
    for seen in side.history("crash"):
        if runs(seen.object) and (restarts := status_of(seen.object)["restartCount"]) and restarts not in gaps:
            gaps[restarts] = times(seen.object)[2]
    waiting = [each for each in side.history("crash") if waits(each.object) == "CrashLoopBackOff"]
    return {
        "course": side.course("crash"),
        "gaps": gaps,
        "waiting": side.view(waiting[-1].object["status"]),
        "events": side.events("crash"),
    }
