"""A kubelet and the scheduler of a simulated worker cluster: they run the containers of physical pods, and record when they live.

Invariant: containers stop only when their kubelet stops them; a pod whose object disappears keeps running until its kubelet notices.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attrs import define

from tests.faults.simulation.actors import ControlPlane, path_of
from tests.faults.simulation.history import Workload
from vkubelet.clock import parse_rfc3339, rfc3339

if TYPE_CHECKING:
    from tests.faults.simulation.world import World

Body = dict[str, Any]
RUN_FOR = "simulation/run-for"
EXIT_CODE = "simulation/exit-code"
STOP_DELAY = "simulation/stop-delay"
_LEASED = ("kubeocean.io/virtual-pod-namespace", "kubeocean.io/virtual-pod-name", "kubeocean.io/virtual-pod-uid")


@define
class Containers:
    """What runs for one pod; `stops_at` once it is to stop."""

    name: str
    uid: str
    started: float
    run_for: float
    stop_delay: float
    stops_at: float | None = None
    ended: bool = False


class Kubelets:
    """The kubelets of all nodes of a worker."""

    def __init__(self, world: World, plane: ControlPlane) -> None:
        self.world = world
        self.plane = plane
        self.running: dict[str, Containers] = {}
        """Containers by the UID of their physical pod."""

    def run(self) -> None:
        self.world.every(0.5, self.plane.name, self.sync)

    def live(self) -> list[str]:
        """Names of the virtual pods that have containers."""
        return [each.name for each in self.running.values() if not each.ended]

    def sync(self) -> bool:
        """One round over all pods of all nodes; returns whether containers are about to end."""
        pods = {pod["metadata"]["uid"]: pod for pod in self.plane.pods() if pod["spec"].get("nodeName")}
        for uid, found in list(self.running.items()):
            if uid not in pods:
                self._stop_vanished(uid, found)
        for uid, pod in pods.items():
            self._sync_pod(uid, pod)
        return any(each.stops_at is not None or math.isfinite(each.run_for) for each in self.running.values() if not each.ended)

    def _sync_pod(self, uid: str, pod: Body) -> None:
        now, meta = self.world.loop.time(), pod["metadata"]
        found = self.running.get(uid)
        if meta.get("deletionTimestamp"):
            self._terminate(uid, pod, found)
        elif found is None and pod["status"].get("phase") == "Pending":
            self._start(uid, pod)
        elif found is not None and not found.ended and now >= found.started + found.run_for:
            self._stop(uid, found, by_itself=True)
            self._report_end(pod, int(_note(pod, EXIT_CODE) or 0))

    def _start(self, uid: str, pod: Body) -> None:
        notes = pod["metadata"].get("annotations") or {}
        namespace, name, virtual = (notes.get(key, "") for key in _LEASED)
        run_for = float(_note(pod, RUN_FOR) or "inf")
        whole = f"{namespace}/{name}" if virtual else path_of(pod)
        self.running[uid] = Containers(whole, virtual or uid, self.world.loop.time(), run_for, float(_note(pod, STOP_DELAY) or 1.0))
        self._note("start", uid)
        started = rfc3339(self.world.now())
        statuses = [_status(each, {"running": {"startedAt": started}}, ready=True) for each in pod["spec"]["containers"]]
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": started} for kind in ("Ready", "ContainersReady", "Initialized")
        ]
        ip = f"10.9.{self.world.rng.randrange(250)}.{self.world.rng.randrange(250)}"
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": statuses, "startTime": started, "podIP": ip}
        self._write(pod, {**status, "podIPs": [{"ip": ip}], "hostIP": "10.8.0.1"})

    def _terminate(self, uid: str, pod: Body, found: Containers | None) -> None:
        now = self.world.loop.time()
        if found is not None and not found.ended:
            if found.stops_at is None:
                found.stops_at = now + found.stop_delay
            deadline = parse_rfc3339(pod["metadata"]["deletionTimestamp"]).timestamp() - self.world.now().timestamp()
            if now < found.stops_at and deadline > 0:
                return
            killed = now < found.stops_at
            self._stop(uid, found, by_itself=False, killed=killed)
            self._report_end(pod, 137 if killed else 0)
            return
        self.running.pop(uid, None)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        self.plane.attempt("kubelet", "DELETE", path_of(pod), options)

    def _stop_vanished(self, uid: str, found: Containers) -> None:
        """Ends containers whose pod was removed at once: they get their time all the same."""
        now = self.world.loop.time()
        found.stops_at = now + found.stop_delay if found.stops_at is None else found.stops_at
        if found.ended or now >= found.stops_at:
            self._stop(uid, found, by_itself=False)
            del self.running[uid]

    def _stop(self, uid: str, found: Containers, *, by_itself: bool, killed: bool = False) -> None:
        if not found.ended:
            found.ended = True
            self._note("end", uid, by_itself=by_itself, killed=killed)

    def _report_end(self, pod: Body, code: int) -> None:
        ended = rfc3339(self.world.now())
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": ended}}
        statuses = [_status(each, state, ready=False) for each in pod["spec"]["containers"]]
        ready = [{"type": kind, "status": "False", "lastTransitionTime": ended} for kind in ("Ready", "ContainersReady")]
        phase = "Succeeded" if code == 0 else "Failed"
        self._write(pod, {"phase": phase, "conditions": ready, "containerStatuses": statuses})

    def _write(self, pod: Body, status: Body) -> None:
        self.plane.merge(
            f"{path_of(pod)}/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}, user="kubelet", strategic=True
        )

    def _note(self, what: str, uid: str, *, by_itself: bool = False, killed: bool = False) -> None:
        found = self.running[uid]
        event = Workload(self.world.loop.time(), what, uid, found.name, found.uid, by_itself=by_itself, killed=killed)
        self.world.history.workloads.append(event)


def _note(pod: Body, key: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(key, ""))


def _status(container: Body, state: Body, *, ready: bool) -> Body:
    name = container["name"]
    return {"name": name, "image": container["image"], "imageID": "", "restartCount": 0, "ready": ready, "state": state, "started": ready}


def node_body(name: str) -> Body:
    """A worker's node, Ready."""
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "20", "ephemeral-storage": "20Gi"}
    conditions = [
        {"type": kind, "status": status, "reason": "Simulated", "lastHeartbeatTime": None, "lastTransitionTime": None}
        for kind, status in (("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"))
    ]
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    info = {"kubeletVersion": "v1.34.4", "operatingSystem": "linux", "architecture": "amd64"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "nodeInfo": info}
    addresses = [{"type": "InternalIP", "address": "10.8.0.1"}, {"type": "Hostname", "address": name}]
    return {"metadata": {"name": name, "labels": labels}, "status": {**status, "addresses": addresses}}
