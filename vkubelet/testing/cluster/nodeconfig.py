"""Configuration of containerd, the CNI plugins and the kubelet of a real node.

Invariant: pure; in the node's namespaces every path is the usual one (/var/lib/kubelet, /run/containerd), and none is the host's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

import yaml
from attrs import frozen

from vkubelet.testing.cluster.images import PAUSE

DOMAIN = "cluster.local"
"""DNS domain of a cluster."""
SOCKET = "/run/containerd/containerd.sock"
PLUGIN_DIRECTORIES = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
# The kubelet writes these for the entire machine (vm.panic_on_oom, kernel.panic …); it finds them set and changes nothing, because files of
# the node are mounted over them (kubelet: container manager, setupKernelTunables).
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


@frozen
class NodePlan:
    """Paths and addresses of one node; `cgroup` is the name of its cgroup in every hierarchy, `dns` that of the cluster's DNS, if any."""

    directory: Path
    name: str
    address: str
    gateway: str
    pod_cidr: str
    cgroup: str
    dns: str = ""

    def path(self, file: str) -> str:
        return str(self.directory / file)


def namespace_script(plan: NodePlan) -> str:
    """Returns the script of the node's first process: it makes directories private, then sleeps, with orphans reaped by the kernel.

    /sys stays the host's: the kubelet needs the cgroup mounts below it.
    """
    lines = [
        "set -e",
        "mount --make-rshared /",
        "mount -t proc proc /proc",
        "mount -t tmpfs -o mode=755 tmpfs /run",
        f"mount --bind {quote(plan.path('lib'))} /var/lib",
        f"mount --bind {quote(plan.path('log'))} /var/log",
        *(f"mount --bind {quote(plan.path(f'sysctl/{name}'))} /proc/sys/{name}" for name in SYSCTLS),
        f"touch {quote(plan.path('prepared'))}",
        "exec env --ignore-signal=CHLD sleep infinity",
    ]
    return "\n".join(lines) + "\n"


def containerd(plan: NodePlan, plugins: Path) -> str:
    """Returns the configuration with `restrict_oom_score_adj`, because without CAP_SYS_RESOURCE runc fails to lower the score of a
    container."""
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
  address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
  conf_dir = "{plan.path("cni")}"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def cni(plan: NodePlan) -> str:
    """Returns the CNI configuration: a bridge inside the node, addresses from its pod range."""
    return json.dumps(
        {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": plan.pod_cidr}]], "routes": [{"dst": "0.0.0.0/0"}]},
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        },
        indent=1,
    )


def kubelet(plan: NodePlan) -> str:
    """Returns a configuration as in a real cluster: TLS with a certificate of the CA, TokenReview and SubjectAccessReview for callers."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": plan.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": plan.path("pki/ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": plan.path("pki/kubelet.crt"),
            "tlsPrivateKeyFile": plan.path("pki/kubelet.key"),
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{plan.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "resolvConf": plan.path("resolv.conf"),
            **({"clusterDNS": [plan.dns], "clusterDomain": DOMAIN} if plan.dns else {}),
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            # Zero would be five, by the default of the client library.
            "eventRecordQPS": 200,
            "eventBurst": 400,
            # Complete logs, also where they are long.
            "containerLogMaxSize": "1Gi",
        },
        sort_keys=False,
    )


def kubelet_flags(plan: NodePlan, labels: Mapping[str, str]) -> list[str]:
    """Returns the flags that have no field in the configuration file."""
    flags = [
        f"--config={plan.path('kubelet.yaml')}",
        f"--kubeconfig={plan.path('kubelet.kubeconfig')}",
        "--root-dir=/var/lib/kubelet",
        f"--hostname-override={plan.name}",
        f"--node-ip={plan.address}",
        # With one, its collection each minute removes the container that exited while its successor is created and does not run yet: the
        # pod loses its last state and `kubectl logs --previous`.
        "--maximum-dead-containers-per-container=2",
    ]
    if labels:
        flags.append("--node-labels=" + ",".join(f"{key}={value}" for key, value in labels.items()))
    return flags


def proxy_flags(plan: NodePlan) -> list[str]:
    """Returns the command line of kube-proxy, which leaves the limits of connection tracking to the kernel: the machine has one of each."""
    untouched = ("max-per-core=0", "tcp-timeout-established=0s", "tcp-timeout-close-wait=0s")
    return [
        f"--kubeconfig={plan.path('kube-proxy.kubeconfig')}",
        f"--hostname-override={plan.name}",
        "--proxy-mode=nftables",
        *(f"--conntrack-{limit}" for limit in untouched),
    ]
