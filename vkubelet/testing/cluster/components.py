"""Command lines of the programs of a control plane.

Invariant: pure; every path, port and address comes from the `Plane`, and nothing is started or written here.
"""

import ipaddress
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

ETCD = "etcd"
APISERVER = "kube-apiserver"
CONTROLLERS = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
FRONT_PROXY = "front-proxy-client"

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
# The body of a deletion says with which uid and grace.
- level: Request
  verbs: [delete, deletecollection]
- level: Metadata
"""


@frozen
class Options:
    """Components of a control plane, and their options.

    controllers, scheduler: also run kube-controller-manager and kube-scheduler; without controllers no
        ServiceAccount is created, so pods are refused.
    verify_kubelets: the apiserver verifies serving certificates of kubelets with the cluster's CA.
    aggregation: the apiserver serves aggregated APIs, such as metrics-server.
    apiserver_flags: appended last, such as `--feature-gates=…` or `--runtime-config=…`.
    controller_flags: the same for kube-controller-manager.
    audit_policy: YAML of an audit `Policy` instead of metadata of every request and the options of deletions.
    """

    controllers: bool = True
    scheduler: bool = True
    verify_kubelets: bool = True
    aggregation: bool = True
    apiserver_flags: Sequence[str] = ()
    controller_flags: Sequence[str] = ()
    audit_policy: str = AUDIT_POLICY


@frozen
class Plane:
    """Paths and ports of one control plane: `number` makes its service range unique among the clusters of a run."""

    directory: Path
    number: int
    port: int
    etcd_port: int
    etcd_peer_port: int
    host_address: str

    @property
    def service_cidr(self) -> str:
        return f"10.{96 + self.number}.0.0/16"

    @property
    def first_service_address(self) -> str:
        """ClusterIP of the Service `kubernetes`."""
        return str(ipaddress.IPv4Network(self.service_cidr)[1])

    @property
    def dns_address(self) -> str:
        """ClusterIP of the Service `kube-dns`."""
        return str(ipaddress.IPv4Network(self.service_cidr)[10])

    def pki(self, file: str) -> str:
        return str(self.directory / "pki" / file)

    def config(self, file: str) -> str:
        return str(self.directory / file)


def etcd(plane: Plane) -> list[str]:
    """Returns the command without fsync: the data need not survive a power failure, and starting takes a fraction of the time."""
    client = f"http://127.0.0.1:{plane.etcd_port}"
    peer = f"http://127.0.0.1:{plane.etcd_peer_port}"
    return [
        f"--data-dir={plane.directory / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
    ]


def apiserver(plane: Plane, options: Options) -> list[str]:
    """Returns the command with certificates, both authorizers of a real cluster, and InternalIP first for connections to kubelets."""
    flags = [
        f"--etcd-servers=http://127.0.0.1:{plane.etcd_port}",
        f"--secure-port={plane.port}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={plane.host_address}",
        f"--service-cluster-ip-range={plane.service_cidr}",
        f"--client-ca-file={plane.pki('ca.crt')}",
        f"--tls-cert-file={plane.pki('apiserver.crt')}",
        f"--tls-private-key-file={plane.pki('apiserver.key')}",
        f"--kubelet-client-certificate={plane.pki('kubelet-client.crt')}",
        f"--kubelet-client-key={plane.pki('kubelet-client.key')}",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={plane.pki('service-account.crt')}",
        f"--service-account-signing-key-file={plane.pki('service-account.key')}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--profiling=false",
        f"--audit-policy-file={plane.config('audit-policy.yaml')}",
        f"--audit-log-path={plane.config('log/audit.log')}",
        # Megabytes, as long as the plane runs: the default of 100 would start a new file while a test reads the old one.
        "--audit-log-maxsize=100000",
    ]
    if options.verify_kubelets:
        flags.append(f"--kubelet-certificate-authority={plane.pki('ca.crt')}")
    if options.aggregation:
        flags += _aggregation(plane)
    return [*flags, *options.apiserver_flags]


def _aggregation(plane: Plane) -> list[str]:
    """Returns flags for API servers behind this one, such as metrics-server; they are dialled at their Endpoints, as nothing serves
    ClusterIPs."""
    return [
        f"--requestheader-client-ca-file={plane.pki('front-proxy-ca.crt')}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={plane.pki('front-proxy.crt')}",
        f"--proxy-client-key-file={plane.pki('front-proxy.key')}",
        "--enable-aggregator-routing",
    ]


def controllers(plane: Plane, options: Options) -> list[str]:
    """Returns the command with rates above the default 20 requests/s, which a benchmark would measure otherwise; autoscaling within
    seconds.

    It signs serving certificates of kubelets and certificates of clients. Each further signer would use one more of the 128 inotify
    instances that Linux gives to a user.
    """
    signers = [
        f"--cluster-signing-{name}-{kind}-file={plane.pki(file)}"
        for name in ("kubelet-serving", "kube-apiserver-client")
        for kind, file in (("cert", "ca.crt"), ("key", "ca.key"))
    ]
    return [
        f"--kubeconfig={plane.config('controller-manager.kubeconfig')}",
        f"--root-ca-file={plane.pki('ca.crt')}",
        f"--service-account-private-key-file={plane.pki('service-account.key')}",
        *signers,
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--horizontal-pod-autoscaler-sync-period=2s",
        "--horizontal-pod-autoscaler-downscale-stabilization=5s",
        *options.controller_flags,
    ]


def scheduler(plane: Plane) -> list[str]:
    """Returns the command with rates raised for the same reason."""
    return [
        f"--kubeconfig={plane.config('scheduler.kubeconfig')}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
    ]
