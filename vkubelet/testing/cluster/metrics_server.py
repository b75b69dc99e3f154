"""The real metrics-server beside a control plane, for `kubectl top` and autoscalers.

Invariant: it has no secret but the token of a ServiceAccount with the rights of metrics-server's manifests, and verifies every kubelet.
"""

import base64
import json
from typing import Any

from vkubelet.testing.cluster.controlplane import ControlPlane
from vkubelet.testing.cluster.pki import write_kubeconfig
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed, Lifetime, spawn, tail, wait_until

NAME = "metrics-server"
NAMESPACE = "kube-system"
API = "v1beta1.metrics.k8s.io"
READY_SECONDS = 60.0
RESOLUTION = "10s"
"""Its shortest resolution; a kubelet measures as often."""

_RBAC = "rbac.authorization.k8s.io"
_SERVICE = f"{NAME}.{NAMESPACE}.svc"


class MetricsServer(Lifetime):
    """Metrics-server as an async context manager, or with `start` and `stop`; one per control plane, which needs its controllers.

    It connects to kubelets at the port in their Nodes, with its token, and the apiserver reaches it at this machine's address. `nodes` is a
    label selector; without one, all Nodes are scraped.
    """

    def __init__(self, cluster: ControlPlane, *, nodes: str = "") -> None:
        self.cluster = cluster
        self._nodes = nodes
        self._owner = f"{cluster.name}/{NAME}"

    async def start(self) -> None:
        """Starts it and waits until the API is served, at most `READY_SECONDS`. Raises ClusterError with the last log lines."""
        cluster = self.cluster
        binary = (await cluster.site.binaries.ensure([NAME]))[NAME]
        port = cluster.site.free_port()
        await self._apply(*_identity(), *_endpoint(cluster.host_address, port))
        token = (await cluster.kubectl("create", "token", NAME, "-n", NAMESPACE, "--duration=24h")).strip()
        config = cluster.directory / f"{NAME}.kubeconfig"
        write_kubeconfig(config, cluster.name, server=cluster.url, ca=cluster.ca.read_bytes(), client=token)
        serving = cluster.serving_certificate(NAME, [_SERVICE, cluster.host_address], organizations=())
        flags = [
            *(f"--{name}={config}" for name in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")),
            f"--bind-address={cluster.host_address}",
            f"--secure-port={port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            "--kubelet-use-node-status-port",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={cluster.ca}",
            "--kubelet-request-timeout=8s",
            f"--metric-resolution={RESOLUTION}",
            *([f"--node-selector={self._nodes}"] if self._nodes else []),
        ]
        cluster.site.ledger.add_process(spawn(NAME, [str(binary), *flags], log=cluster.log(NAME)), self._owner)
        await self._apply(_api_service(cluster.ca.read_bytes()))
        await self._until_served()

    async def stop(self) -> None:
        """Stops it, and removes its API, which would otherwise fail for clients that list all APIs of the cluster."""
        try:
            await self.cluster.kubectl("delete", "apiservice", API, "--ignore-not-found")
        finally:
            await self.cluster.site.ledger.undo(self.cluster.site.clock, lambda entry: entry.owner == self._owner)

    async def _apply(self, *bodies: dict[str, Any]) -> None:
        await self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(bodies)}))

    async def _until_served(self) -> None:
        log = self.cluster.log(NAME)

        async def served() -> bool:
            process = self.cluster.site.ledger.process(self._owner, NAME)
            if process is None or not process.alive():
                raise ClusterError(f"{self._owner} ended\n{tail(log)}")
            try:
                return "PodMetrics" in await self.cluster.kubectl("get", "--raw", "/apis/metrics.k8s.io/v1beta1")
            except CommandFailed:
                return False

        try:
            await wait_until(self.cluster.site.clock, served, what=f"{self._owner}: the API is served", timeout=READY_SECONDS)
        except ClusterError as error:
            error.add_note(tail(log))
            raise


def _identity() -> list[dict[str, Any]]:
    """Returns a ServiceAccount that may read Nodes, Pods and the usage that kubelets report, and review its callers."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]
    reader = {"kind": "Role", "name": "extension-apiserver-authentication-reader"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAMESPACE}},
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": rules},
        _binding("ClusterRoleBinding", {"name": NAME}, {"kind": "ClusterRole", "name": NAME}),
        _binding("ClusterRoleBinding", {"name": f"{NAME}-delegator"}, {"kind": "ClusterRole", "name": "system:auth-delegator"}),
        _binding("RoleBinding", {"name": f"{NAME}-auth-reader", "namespace": NAMESPACE}, reader),
    ]


def _binding(kind: str, metadata: dict[str, str], role: dict[str, str]) -> dict[str, Any]:
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata, "roleRef": {"apiGroup": _RBAC, **role}, "subjects": [subject]}


def _endpoint(address: str, port: int) -> list[dict[str, Any]]:
    """Returns a Service without selector: its backend is not a pod."""
    metadata = {"name": NAME, "namespace": NAMESPACE}
    slice_metadata = {**metadata, "labels": {"kubernetes.io/service-name": NAME}}
    ports = [{"name": "https", "port": 443, "targetPort": port}]
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": slice_metadata,
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address]}],
            "ports": [{"name": "https", "port": port}],
        },
    ]


def _api_service(ca: bytes) -> dict[str, Any]:
    spec = {
        "group": "metrics.k8s.io",
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"name": NAME, "namespace": NAMESPACE},
        "caBundle": base64.b64encode(ca).decode("ascii"),
    }
    return {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": API}, "spec": spec}
