"""The real CoreDNS of a cluster, in a pod of a node, with the objects by which kubeadm installs it.

Invariant: it resolves names of the cluster alone, and sends nothing to other servers.
"""

import json
from typing import Any

from vkubelet.testing.cluster.binaries import cache_directory
from vkubelet.testing.cluster.images import COREDNS, ensure_coredns
from vkubelet.testing.cluster.nodeconfig import DOMAIN
from vkubelet.testing.cluster.processes import Lifetime
from vkubelet.testing.cluster.worker import WorkerNode

NAME = "coredns"
NAMESPACE = "kube-system"
SERVICE = "kube-dns"
READY_SECONDS = 60
_LABELS = {"k8s-app": SERVICE}
_RBAC = "rbac.authorization.k8s.io"
COREFILE = f"""\
.:53 {{
    errors
    health {{
       lameduck 5s
    }}
    ready
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }}
    cache 30 {{
       disable success {DOMAIN}
       disable denial {DOMAIN}
    }}
    reload
    loadbalance
}}
"""
"""That of kubeadm without the plugins `forward` and `loop`, as no other server is asked, and `prometheus`."""


class ClusterDNS(Lifetime):
    """CoreDNS as an async context manager, or with `start` and `stop`; one per cluster.

    `node` is a started node with `services`: the pod reaches the API server by the Service `kubernetes`.
    """

    def __init__(self, node: WorkerNode) -> None:
        self.node = node
        self.cluster = node.cluster

    async def start(self) -> None:
        """Starts it and waits until it is ready, at most `READY_SECONDS`. Raises CommandFailed."""
        binary = (await self.cluster.site.binaries.ensure([NAME]))[NAME]
        await self.node.load(ensure_coredns(cache_directory(), binary))
        bodies = [*_identity(), *_objects(self.node.name, self.cluster.plane.dns_address)]
        await self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))
        await self.cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{NAME}", f"--timeout={READY_SECONDS}s")

    async def stop(self) -> None:
        """Deletes its Deployment and its Service; the pod is deleted by the controllers of the cluster."""
        objects = (f"deployment/{NAME}", f"service/{SERVICE}")
        await self.cluster.kubectl("-n", NAMESPACE, "delete", *objects, "--ignore-not-found", "--wait=false")


def _identity() -> list[dict[str, Any]]:
    """Returns a ServiceAccount that may read what has names."""
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": f"system:{NAME}"}
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    metadata = {"name": f"system:{NAME}"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAMESPACE}},
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules},
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": role, "subjects": [subject]},
    ]


def _objects(node: str, address: str) -> list[dict[str, Any]]:
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": _LABELS}
    spec = {
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": _pod(node)},
    }
    ports = [{"name": name, "port": 53, "protocol": protocol} for name, protocol in (("dns", "UDP"), ("dns-tcp", "TCP"))]
    service = {"selector": _LABELS, "clusterIP": address, "ports": ports}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"Corefile": COREFILE}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {**metadata, "name": SERVICE}, "spec": service},
    ]


def _pod(node: str) -> dict[str, Any]:
    """Returns the pod, which is Ready once CoreDNS has read the cluster."""
    config = {"name": "config", "configMap": {"name": NAME, "items": [{"key": "Corefile", "path": "Corefile"}]}}
    container = {
        "name": NAME,
        "image": COREDNS,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
    }
    return {
        "serviceAccountName": NAME,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        # Otherwise CoreDNS would be its own upstream server.
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": [config],
    }
