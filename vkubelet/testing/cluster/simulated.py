"""Simulated nodes: KWOK reports them as Ready and their pods as running, and no container ever starts.

Invariant: only Nodes with the annotation below are changed, so real nodes of the same cluster are not affected.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from vkubelet.testing.cluster.controlplane import ControlPlane
from vkubelet.testing.cluster.processes import ClusterError, Lifetime, spawn, tail, wait_until

KWOK: Final = "kwok"
ANNOTATION: Final = "kwok.x-k8s.io/node"
LABEL: Final = "simulated"
READY_SECONDS: Final = 60.0
READY_SECONDS_EACH: Final = 0.05
# All at once would be one request of many megabytes.
_BATCH: Final = 200
HEARTBEAT: Final = 300
"""Seconds between two status updates of an unchanged node, as with a kubelet; KWOK's default is 20 to 25 s, at 1,000 nodes half a core."""
_PARALLEL: Final = 16
"""Pods that KWOK updates at once."""
_STATUS: Final = """
conditions:
{{ $now := Now }}
{{ $created := or .metadata.creationTimestamp $now }}
{{ range NodeConditions }}
- {type: {{ .type | Quote }}, status: {{ .status | Quote }}, reason: {{ .reason | Quote }}, message: {{ .message | Quote }},
   lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $created | Quote }}}
{{ end }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
daemonEndpoints: {kubeletEndpoint: {Port: {{ NodePort }}}}
nodeInfo: {architecture: amd64, operatingSystem: linux, kubeletVersion: kwok, kubeProxyVersion: kwok, kernelVersion: kwok, osImage: kwok,
  containerRuntimeVersion: kwok, bootID: "", machineID: "", systemUUID: ""}
"""


class SimulatedNodes(Lifetime):
    """Simulated nodes as an async context manager, or with `start` and `stop`; needs a started control plane, and no root rights.

    There are `count` Nodes `NAME-1` …, with the label `simulated=kwok` and without taints: the scheduler uses them like any other.
    `lease_seconds`: the duration of their Leases; KWOK renews at a quarter of it, and `--node-monitor-grace-period` of the cluster's
    kube-controller-manager (default 50 s) must be longer than that. `logs`: a file in the format of a container runtime, which is the log
    of every container; without it `kubectl logs` is an error.
    """

    def __init__(
        self, cluster: ControlPlane, count: int, *, name: str = "simulated", lease_seconds: int = 40, logs: Path | None = None
    ) -> None:
        self.cluster = cluster
        self.site = cluster.site
        self.names = [f"{name}-{number}" for number in range(1, count + 1)]
        self._owner = f"{cluster.name}/{KWOK}"
        self._lease_seconds = lease_seconds
        self._logs = logs
        self._config = cluster.directory / "kwok.yaml"

    async def start(self) -> None:
        """Creates missing nodes, starts KWOK unless it runs, and waits until all are Ready. Raises ClusterError with log lines."""
        binaries = await self.site.binaries.ensure([KWOK, "kubectl"])
        running = self.site.ledger.process(self._owner, KWOK)
        if running is None or not running.alive():
            self._config.write_text("\n---\n".join(json.dumps(body) for body in configuration(self._logs)))
            argv = [str(binaries[KWOK]), *self._flags()]
            self.site.ledger.add_process(spawn(KWOK, argv, log=self.cluster.log(KWOK)), self._owner)
        there = await self._ready(of_any_kind=True)
        absent = [name for name in self.names if name not in there]
        for start in range(0, len(absent), _BATCH):
            bodies = [node(name) for name in absent[start : start + _BATCH]]
            await self.cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))
        seconds = READY_SECONDS + READY_SECONDS_EACH * len(self.names)
        await wait_until(self.site.clock, self._all_ready, what=f"{len(self.names)} simulated nodes are Ready", timeout=seconds)

    async def stop(self) -> None:
        """Stops KWOK; the Node objects stay with their cluster."""
        await self.site.ledger.undo(self.site.clock, lambda entry: entry.owner == self._owner)

    @property
    def pid(self) -> int:
        """The process id of KWOK. Raises ClusterError before it is started."""
        process = self.site.ledger.process(self._owner, KWOK)
        if process is None:
            raise ClusterError(f"{KWOK} of {self.cluster.name} has not been started")
        return process.pid

    def _flags(self) -> list[str]:
        """Returns flags with a separate TLS server, so that `kubectl logs` gets an error that there are none, and does not wait."""
        address, port = self.cluster.host_address, self.site.free_port()
        serving = self.cluster.serving_certificate(KWOK, [address])
        return [
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--config={self._config}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={ANNOTATION}=fake",
            f"--node-ip={address}",
            f"--node-port={port}",
            f"--server-address={address}:{port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--node-lease-duration-seconds={self._lease_seconds}",
            "--v=WARN",
        ]

    async def _ready(self, *, of_any_kind: bool = False) -> set[str]:
        text = await self.cluster.kubectl("get", "nodes", "-l", f"{LABEL}={KWOK}", "-o", "json")
        return {item["metadata"]["name"] for item in json.loads(text)["items"] if of_any_kind or _is_ready(item)}

    async def _all_ready(self) -> bool:
        process = self.site.ledger.process(self._owner, KWOK)
        if process is None or not process.alive():
            raise ClusterError(f"{self._owner}: {KWOK} ended\n{tail(self.cluster.log(KWOK))}")
        return set(self.names) <= await self._ready()


def _is_ready(item: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", ()))


def configuration(logs: Path | None = None) -> Sequence[dict[str, Any]]:
    """Returns KWOK's configuration: how many pods it updates at once, when it writes the status of a node, and the log of all."""
    ready = {"key": '.status.conditions.[] | select(.type == "Ready") | .status', "values": ["True"]}
    delay = {"durationMilliseconds": HEARTBEAT * 1000, "jitterDurationMilliseconds": HEARTBEAT * 1100}
    options = {"podPlayStageParallelism": _PARALLEL}
    return [
        {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options},
        _stage("node-start", match=[{**ready, "operator": "NotIn"}]),
        _stage("node-heartbeat", delay=delay, match=[{**ready, "operator": "In"}]),
        *([] if logs is None else [_log_of_all(logs)]),
    ]


def _log_of_all(file: Path) -> dict[str, Any]:
    spec = {"logs": [{"logsFile": str(file), "follow": True}]}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "ClusterLogs", "metadata": {"name": "all"}, "spec": spec}


def _stage(name: str, *, match: Sequence[Any], **spec: Any) -> dict[str, Any]:
    reference = {"apiGroup": "v1", "kind": "Node"}
    spec |= {"resourceRef": reference, "selector": {"matchExpressions": match}, "next": {"statusTemplate": _STATUS}}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def node(name: str) -> dict[str, Any]:
    """Returns the Node as it is created; KWOK adds the conditions."""
    resources = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "1000"}
    labels = {LABEL: KWOK, "type": KWOK, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {ANNOTATION: "fake"}},
        "status": {"capacity": resources, "allocatable": resources},
    }
