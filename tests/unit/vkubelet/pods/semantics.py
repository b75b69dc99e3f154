"""The rules of phases, container states, conditions and other fields of a PodStatus, a row for each.

Invariant: a row says what was reported and published, and only that part of the status that its rule is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from attrs import field, frozen

from vkubelet.api.objects import Json
from vkubelet.pods.status import End
from vkubelet.provider import ContainerReport, PodFailure, Running, Terminated, Waiting

HOST_IP = "192.0.2.1"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
REASONS = (
    "ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"
)  # fmt: skip
RUNS, DONE, FAILED = Running(), Terminated(0), Terminated(3)
CRASHED = Waiting("CrashLoopBackOff")


def says(name: str, state: Any, **more: Any) -> ContainerReport:
    return ContainerReport(name, state, **more)


def published(state: Json, **more: Any) -> Json:
    """A status with this state of the container `a`."""
    return {"containerStatuses": [{"name": "a", "state": state, "restartCount": 1}], **more}


def crashed(name: str, code: int = 3) -> ContainerReport:
    return says(name, CRASHED, last=Terminated(code), restarts=1)


def unstarted(name: str) -> ContainerReport:
    return says(name, RUNS, started=False, ready=False)


@frozen(kw_only=True)
class Row:
    """One rule. `starting` names init containers, those with a "+" are sidecars; `status` was published before."""

    rule: str
    reports: Sequence[ContainerReport] | None = ()
    phase: str = ""
    policy: str = "Always"
    starting: str = ""
    apps: str = "a"
    deleted: bool = False
    gates: Sequence[str] = ()
    ips: Sequence[str] = ("10.0.0.1",)
    status: Json = field(factory=dict)
    failure: PodFailure | None = None
    end: End | None = None
    host_network: bool = False
    resizes: Sequence[Json] | None = None
    conditions: dict[str, str] = field(factory=dict)
    """By type: the status, with the reason after a space."""
    messages: dict[str, str] = field(factory=dict)
    states: dict[str, str] = field(factory=dict)
    """By container: kind of state and reason."""
    containers: dict[str, dict[str, Any]] = field(factory=dict)
    """By container, further fields of its status; `exit` and `last` are the codes of its states."""
    since: dict[str, str] = field(factory=dict)
    """By type of condition: its transition time."""
    order: str = ""
    """The names of all containers, as the status lists them."""
    top: dict[str, Any] = field(factory=dict)
    """Further fields of the status."""


PHASE = [
    Row(rule="1: failed init container, Never", policy="Never", starting="i", reports=[says("i", FAILED)], phase="Failed"),
    Row(rule="1: failed before, waiting now", policy="Never", starting="i", reports=[crashed("i")], phase="Failed"),
    Row(rule="1: only with Never", policy="OnFailure", starting="i", reports=[crashed("i")], phase="Pending"),
    Row(rule="2: nothing told yet", reports=None, phase="Pending"),
    Row(rule="2: init container runs", starting="i", reports=[says("i", RUNS)], phase="Pending"),
    Row(rule="2: second init container has not begun", starting="i j", reports=[says("i", DONE)], phase="Pending"),
    Row(rule="2: sidecar not started", starting="+s", reports=[unstarted("s")], phase="Pending"),
    Row(rule="2: sidecar not started, an app ran", starting="+s", reports=[unstarted("s"), says("a", RUNS)], phase="Running"),
    Row(
        rule="2: sidecar waits for the first time, an app ran",
        starting="+s",
        reports=[says("s", Waiting()), says("a", RUNS)],
        phase="Pending",
    ),
    Row(rule="2: init container runs once more, an app ran", starting="i", reports=[says("i", RUNS), crashed("a")], phase="Pending"),
    Row(rule="2: app waits for the first time", apps="a b", reports=[says("a", RUNS), says("b", Waiting())], phase="Pending"),
    Row(rule="3: something runs", reports=[says("a", RUNS)], phase="Running"),
    Row(rule="3: one runs, one backs off", apps="a b", reports=[says("a", RUNS), crashed("b")], phase="Running"),
    Row(rule="3: one runs, one ended, Never", policy="Never", apps="a b", reports=[says("a", RUNS), says("b", FAILED)], phase="Running"),
    Row(rule="4: torn down, all exited 0", deleted=True, reports=[says("a", DONE)], phase="Succeeded"),
    Row(rule="4: torn down, not all", deleted=True, apps="a b", reports=[says("a", DONE), says("b", FAILED)], phase="Failed"),
    Row(rule="4: torn down while one runs", deleted=True, apps="a b", reports=[says("a", RUNS), says("b", FAILED)], phase="Running"),
    Row(rule="4: Always", reports=[says("a", DONE)], phase="Running"),
    Row(rule="4: Always, failed", reports=[crashed("a")], phase="Running"),
    Row(rule="4: all exited 0", policy="OnFailure", apps="a b", reports=[says("a", DONE), says("b", DONE)], phase="Succeeded"),
    Row(rule="4: Never, one failed", policy="Never", apps="a b", reports=[says("a", DONE), says("b", FAILED)], phase="Failed"),
    Row(rule="4: OnFailure, one failed", policy="OnFailure", apps="a b", reports=[says("a", DONE), says("b", FAILED)], phase="Running"),
    Row(
        rule="4: ended sidecars do not count",
        policy="Never",
        starting="+s",
        reports=[says("s", FAILED), says("a", DONE)],
        phase="Succeeded",
    ),
    Row(
        rule="4: running sidecars hold the end", policy="Never", starting="+s", reports=[says("s", RUNS), says("a", DONE)], phase="Running"
    ),
    Row(rule="5: else", policy="Never", apps="a b", reports=[says("a", FAILED)], phase="Pending"),
    Row(
        rule="a terminal phase is withheld while a sidecar runs",
        policy="Never",
        starting="+s i",
        reports=[says("s", RUNS), says("i", FAILED)],
        phase="Pending",
    ),
    Row(
        rule="a failure as a whole is withheld while something runs",
        reports=[says("a", RUNS)],
        failure=PodFailure("DeadlineExceeded", "late"),
        phase="Running",
    ),
    Row(
        rule="a failure as a whole, when nothing runs any more",
        reports=[says("a", FAILED)],
        failure=PodFailure("DeadlineExceeded", "late"),
        phase="Failed",
        top={"reason": "DeadlineExceeded", "message": "late"},
        conditions={"Ready": "False PodFailed"},
    ),
    Row(
        rule="reason and message stay as long as the phase stays",
        reports=[says("a", RUNS)],
        status={"phase": "Running", "reason": "Why", "message": "so"},
        phase="Running",
        top={"reason": "Why", "message": "so"},
    ),
    Row(
        rule="reason and message go with the phase",
        reports=[says("a", RUNS)],
        status={"phase": "Pending", "reason": "Why", "message": "so"},
        phase="Running",
        top={"reason": None, "message": None},
    ),
    Row(rule="deleted before it ever ran: not terminal by itself", deleted=True, reports=[says("a", Waiting())], phase="Pending"),
    Row(
        rule="deleted before it ever ran: Failed before it goes",
        deleted=True,
        reports=[says("a", Waiting())],
        end=End(),
        phase="Failed",
        states={"a": "terminated ContainerStatusUnknown"},
    ),
    Row(
        rule="deleted before it had finished: Failed before it goes",
        deleted=True,
        reports=[says("a", RUNS)],
        end=End(),
        phase="Failed",
        states={"a": "terminated ContainerStatusUnknown"},
    ),
    Row(rule="deleted, all exited 0: Succeeded before it goes", deleted=True, reports=[says("a", DONE)], end=End(), phase="Succeeded"),
]

STATES = [
    Row(rule="first reason", reports=None, states={"a": "waiting ContainerCreating"}),
    Row(
        rule="first reason with init containers",
        starting="i",
        reports=None,
        states={"a": "waiting PodInitializing", "i": "waiting PodInitializing"},
    ),
    Row(
        rule="back-off tells the end as lastState",
        reports=[crashed("a")],
        states={"a": "waiting CrashLoopBackOff"},
        phase="Running",
        containers={"a": {"last": 3, "restartCount": 1, "ready": False, "started": False}},
    ),
    Row(
        rule="what was published as the end moves to lastState",
        reports=[says("a", CRASHED)],
        status=published({"terminated": {"exitCode": 7, "reason": "Error"}}),
        states={"a": "waiting CrashLoopBackOff"},
        containers={"a": {"last": 7}},
    ),
    *(
        Row(
            rule=f"why it can not start: {reason}", reports=[says("a", Waiting(reason))], states={"a": f"waiting {reason}"}, phase="Pending"
        )
        for reason in REASONS
    ),
    Row(
        rule="ran and vanished",
        reports=[],
        status=published({"running": {}}),
        states={"a": "terminated ContainerStatusUnknown"},
        containers={"a": {"exit": 137, "restartCount": 2}},
    ),
    Row(
        rule="ran and vanished while the pod is deleted",
        reports=[],
        deleted=True,
        status=published({"running": {}}),
        states={"a": "terminated ContainerStatusUnknown"},
        containers={"a": {"exit": 137, "restartCount": 1}},
    ),
    Row(
        rule="may not be restarted: stays terminated",
        policy="Never",
        reports=[says("a", RUNS)],
        status={"containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}, "restartCount": 0}]},
        states={"a": "terminated Error"},
        phase="Failed",
    ),
]

EARLIER = "2026-01-01T09:00:00Z"


def since(kind: str, status: str) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": EARLIER}


BOTH_FALSE = {"ContainersReady": "False ContainersNotReady", "Ready": "False ContainersNotReady"}
CONDITIONS = [
    Row(rule="no sandbox yet", reports=None, ips=(), conditions={"PodReadyToStartContainers": "False", "PodScheduled": "True"}),
    Row(rule="sandbox", reports=[says("a", Waiting())], conditions={"PodReadyToStartContainers": "True", "PodScheduled": "True"}),
    Row(rule="not initialised", starting="i", reports=[says("i", RUNS)], conditions={"Initialized": "False ContainersNotInitialized"}),
    Row(
        rule="not initialised: sidecar",
        starting="i +s",
        reports=[says("i", DONE), unstarted("s")],
        conditions={"Initialized": "False ContainersNotInitialized"},
        messages={"Initialized": "containers with incomplete status: [s]"},
    ),
    Row(rule="initialised", starting="i +s", reports=[says("i", DONE), says("s", RUNS)], conditions={"Initialized": "True"}),
    Row(rule="initialised for ever", starting="i", reports=[says("i", RUNS), says("a", RUNS)], conditions={"Initialized": "True"}),
    Row(rule="initialised, completed", policy="Never", reports=[says("a", DONE)], conditions={"Initialized": "True PodCompleted"}),
    Row(rule="ready", reports=[says("a", RUNS)], conditions={"ContainersReady": "True", "Ready": "True"}),
    Row(rule="not ready by its probe", reports=[says("a", RUNS, ready=False)], conditions=BOTH_FALSE),
    Row(
        rule="a sidecar counts as well",
        starting="+s",
        apps="a b",
        reports=[says("s", RUNS, ready=False), says("a", RUNS), says("b", RUNS, ready=False)],
        conditions=BOTH_FALSE,
        messages={"Ready": "containers with unready status: [s b]"},
    ),
    Row(
        rule="completed",
        policy="Never",
        reports=[says("a", DONE)],
        conditions={"ContainersReady": "False PodCompleted", "Ready": "False PodCompleted"},
    ),
    Row(
        rule="failed",
        policy="Never",
        reports=[says("a", FAILED)],
        conditions={"ContainersReady": "False PodFailed", "Ready": "False PodFailed"},
    ),
    Row(
        rule="gate without its condition",
        gates=["x/y"],
        reports=[says("a", RUNS)],
        conditions={"ContainersReady": "True", "Ready": "False ReadinessGatesNotReady"},
    ),
    Row(
        rule="gate that is open, and conditions of others stay",
        gates=["x/y"],
        reports=[says("a", RUNS)],
        status={"conditions": [{"type": "x/y", "status": "True"}, {"type": "z", "status": "False", "reason": "Theirs"}]},
        conditions={"Ready": "True", "x/y": "True", "z": "False Theirs"},
    ),
    *(
        Row(
            rule=f"a pod that is {phase} is not ready whatever its containers say",
            policy="Never",
            reports=[says("a", state, ready=True)],
            conditions={"ContainersReady": f"False {reason}", "Ready": f"False {reason}", "PodReadyToStartContainers": "False"},
        )
        for phase, state, reason in (("Succeeded", DONE, "PodCompleted"), ("Failed", FAILED, "PodFailed"))
    ),
    Row(
        rule="disrupted by us",
        reports=[says("a", RUNS)],
        end=End("Terminated", "node goes", failed=True, disrupts=True),
        conditions={"DisruptionTarget": "True TerminationByKubelet", "Ready": "False PodFailed"},
        top={"reason": "Terminated", "message": "node goes"},
    ),
    Row(rule="not disrupted by us", reports=[says("a", RUNS)], end=End("Lost", failed=True), conditions={"DisruptionTarget": ""}),
    Row(
        rule="a transition time stays with the status and moves with it",
        reports=[says("a", RUNS)],
        status={"conditions": [since("PodScheduled", "True"), since("Ready", "False"), since("z", "False")]},
        since={"PodScheduled": EARLIER, "Ready": "2026-01-01T12:00:00Z", "z": EARLIER},
    ),
    Row(
        rule="conditions are of the generation acted upon",
        reports=[says("a", RUNS)],
        status={"observedGeneration": 4},
        top={"observedGeneration": 4},
    ),
    Row(
        rule="resize waits",
        reports=[says("a", RUNS)],
        resizes=[{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
        conditions={"PodResizePending": "True Deferred", "Ready": "True"},
    ),
    Row(
        rule="resize is over",
        reports=[says("a", RUNS)],
        resizes=[],
        status={"conditions": [{"type": "PodResizeInProgress", "status": "True"}]},
        conditions={"PodResizeInProgress": ""},
    ),
    Row(
        rule="resize of a provider that does it all itself",
        reports=[says("a", RUNS)],
        status={"conditions": [{"type": "PodResizeInProgress", "status": "True"}]},
        conditions={"PodResizeInProgress": "True"},
    ),
]


FIELDS = [
    Row(
        rule="times are whole seconds",
        reports=[says("a", Running(NOW.replace(microsecond=999)))],
        containers={"a": {"since": "12:00:00Z"}},
    ),
    Row(
        rule="termination messages share twelve KiB",
        policy="Never",
        apps="a b",
        reports=[says("a", Terminated(1, message="x" * 20_000)), says("b", DONE)],
        containers={"a": {"message": "x" * 6144}},
    ),
    Row(
        rule="statuses are sorted, those of init containers as in the spec",
        starting="z +y x",
        apps="b a",
        reports=[says(name, DONE) for name in "xyz"] + [says("a", RUNS), says("b", RUNS)],
        order="z y x a b",
    ),
    Row(rule="the start time is set once", reports=None, status={"startTime": EARLIER}, top={"startTime": EARLIER}),
    Row(rule="the start time is now", reports=None, top={"startTime": "2026-01-01T12:00:00Z"}),
    Row(
        rule="addresses of pod and node",
        reports=[says("a", RUNS)],
        ips=("10.0.0.1", "fd00::1"),
        top={"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "hostIP": HOST_IP, "hostIPs": [{"ip": HOST_IP}]},
    ),
    Row(
        rule="on the host's network the node's addresses",
        host_network=True,
        reports=[says("a", RUNS)],
        ips=(),
        top={"podIP": HOST_IP, "podIPs": [{"ip": HOST_IP}]},
    ),
    Row(
        rule="class and claims stay",
        reports=[says("a", RUNS)],
        status={"qosClass": "Burstable", "resourceClaimStatuses": [{"name": "theirs"}]},
        top={"qosClass": "Burstable", "resourceClaimStatuses": [{"name": "theirs"}]},
    ),
    Row(
        rule="what is known of a container",
        reports=[says("a", RUNS, id="run://1", image_id="sha256:1", restarts=2, resources={"requests": {}}, allocated={"cpu": "1"})],
        containers={
            "a": {
                "containerID": "run://1", "image": "img", "imageID": "sha256:1", "restartCount": 2, "started": True, "ready": True,
                "resources": {"requests": {}}, "allocatedResources": {"cpu": "1"},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True, "recursiveReadOnly": "Disabled"}],
            }
        },
    ),
]  # fmt: skip


ROWS = [*PHASE, *STATES, *CONDITIONS, *FIELDS]
