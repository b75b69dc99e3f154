"""Computes the phase and the conditions of a pod from the states of its containers. Pure.

Invariant: the rules are the kubelet's (pkg/kubelet/kubelet_pods.go getPhase and pkg/kubelet/status/generate.go); a terminal phase is
reached only when no container can be running.
"""

from collections.abc import Iterable, Mapping, Sequence

from vkubelet.api.objects import Json, JsonView
from vkubelet.pods.containers import LISTS, Containers, ever_ran, exit_code

TERMINAL = frozenset({"Succeeded", "Failed"})


def by_name(status: JsonView) -> dict[str, JsonView]:
    """Returns the container statuses of all three lists by name."""
    return {entry["name"]: entry for name in LISTS for entry in status.get(name, ())}


def pod_phase(spec: JsonView, statuses: Mapping[str, JsonView], *, terminating: bool) -> str:
    """Returns Pending, Running, Succeeded or Failed. `terminating`: the pod is being terminated, so nothing is restarted any more."""
    kinds = Containers.of(spec)
    policy = spec.get("restartPolicy", "Always")
    init = [statuses.get(c["name"], {}) for c in kinds.init]
    if policy == "Never" and any(_last_exit(status) not in (None, 0) for status in init):
        return "Failed"
    apps = [statuses.get(c["name"], {}) for c in kinds.apps]
    sidecars = [statuses.get(c["name"], {}) for c in kinds.sidecars]
    if _is_pending(init, sidecars, apps):
        return "Pending"
    if any("running" in status.get("state", {}) for status in (*apps, *sidecars)):
        return "Running"
    ends = [_last_exit(status) for status in apps]
    if None in ends:
        return "Pending"
    clean = all(code == 0 for code in ends)
    if terminating:
        return "Succeeded" if clean else "Failed"
    if policy == "Always":
        return "Running"
    if clean:
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def _is_pending(init: Sequence[JsonView], sidecars: Sequence[JsonView], apps: Sequence[JsonView]) -> bool:
    if any("running" in status.get("state", {}) for status in init):
        return True
    if not any(ever_ran(status) for status in apps):
        if any(not _init_done(status) for status in init):
            return True
        if any(not status.get("started") and exit_code(status) is None for status in sidecars):
            return True
    return any("running" not in status.get("state", {}) and _last_exit(status) is None for status in (*sidecars, *apps))


def _init_done(status: JsonView) -> bool:
    return exit_code(status) == 0


def _last_exit(status: JsonView) -> int | None:
    """Returns the exit code of the current state, or of the last run of a container that waits."""
    code = exit_code(status)
    if code is None and "waiting" in status.get("state", {}):
        code = status.get("lastState", {}).get("terminated", {}).get("exitCode")
    return code


def pod_conditions(spec: JsonView, status: JsonView, *, foreign: Iterable[JsonView], has_address: bool) -> list[Json]:
    """Returns the runtime's conditions for a status whose phase and container lists are set.

    `foreign` are the conditions of other controllers, for the readiness gates. `has_address`: the pod has its IP, so its sandbox exists.
    Transition times are not set.
    """
    statuses = by_name(status)
    phase = status["phase"]
    terminal = phase in TERMINAL
    sandbox = not terminal and (has_address or any(ever_ran(entry) for entry in statuses.values()))
    containers_ready = _containers_ready(Containers.of(spec), statuses, phase)
    return [
        _condition("PodReadyToStartContainers", sandbox),
        _initialized(Containers.of(spec), statuses, phase),
        ready(spec, containers_ready, foreign=foreign),
        containers_ready,
        _condition("PodScheduled", True),
    ]


def _condition(kind: str, true: bool, reason: str = "", message: str = "") -> Json:
    parts = {"type": kind, "status": "True" if true else "False", "reason": reason, "message": message}
    return {key: value for key, value in parts.items() if value}


def _initialized(kinds: Containers, statuses: Mapping[str, JsonView], phase: str) -> Json:
    if phase == "Succeeded":
        return _condition("Initialized", True, "PodCompleted")
    if any(ever_ran(statuses.get(c["name"], {})) for c in kinds.apps):
        return _condition("Initialized", True)
    open_ones = [c["name"] for c in kinds.init if not _init_done(statuses.get(c["name"], {}))]
    open_ones += [c["name"] for c in kinds.sidecars if not statuses.get(c["name"], {}).get("started")]
    if open_ones:
        return _condition("Initialized", False, "ContainersNotInitialized", f"containers with incomplete status: {_names(open_ones)}")
    return _condition("Initialized", True)


def _containers_ready(kinds: Containers, statuses: Mapping[str, JsonView], phase: str) -> Json:
    if phase in TERMINAL:
        return _condition("ContainersReady", False, completed_reason(phase))
    serving = [c["name"] for c in (*kinds.sidecars, *kinds.apps)]
    unknown = [name for name in serving if name not in statuses]
    unready = [name for name in serving if name in statuses and not statuses[name].get("ready")]
    texts = [f"containers with unknown status: {_names(unknown)}"] if unknown else []
    texts += [f"containers with unready status: {_names(unready)}"] if unready else []
    return _condition("ContainersReady", False, "ContainersNotReady", ", ".join(texts)) if texts else _condition("ContainersReady", True)


def completed_reason(phase: str) -> str:
    """Returns the reason why a pod in a terminal phase is not ready."""
    return "PodCompleted" if phase == "Succeeded" else "PodFailed"


def _names(names: Sequence[str]) -> str:
    """Formats names in the order of the spec."""
    return f"[{' '.join(names)}]"


def ready(spec: JsonView, containers_ready: JsonView, *, foreign: Iterable[JsonView]) -> Json:
    """Returns the Ready condition: all containers are ready, and so is every readiness gate."""
    if containers_ready["status"] != "True":
        return {**containers_ready, "type": "Ready"}
    found = {condition["type"]: condition for condition in foreign}
    texts = []
    for gate in spec.get("readinessGates", ()):
        kind = gate["conditionType"]
        if kind not in found:
            texts.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif found[kind].get("status") != "True":
            texts.append(f'the status of pod readiness gate "{kind}" is not "True", but {found[kind].get("status")}')
    return _condition("Ready", False, "ReadinessGatesNotReady", ", ".join(texts)) if texts else _condition("Ready", True)
