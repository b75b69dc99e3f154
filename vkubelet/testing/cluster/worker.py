"""A real node: kubelet, containerd and pods in separate namespaces, as if the node were another machine.

Invariant: every process, mount and address of the node is in the namespaces of one first process, and is removed with it.
"""

import asyncio
import json
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from vkubelet.testing.cluster import cgroups, images, nodeconfig, processes
from vkubelet.testing.cluster.binaries import cache_directory
from vkubelet.testing.cluster.controlplane import ControlPlane
from vkubelet.testing.cluster.ledger import Entry, Kind
from vkubelet.testing.cluster.pki import write_kubeconfig

Condition = Callable[[], Awaitable[bool]]
READY_SECONDS = 90.0
HOST = "namespaces"
CONTAINERD = "containerd"
KUBELET = "kubelet"
PROXY = "kube-proxy"
# Covered inside the node's mount namespace, so files of the node cannot be in them.
COVERED = (Path("/run"), Path("/var/run"), Path("/var/lib"), Path("/var/log"), Path("/proc"))


class WorkerNode(processes.Lifetime):
    """Node as an async context manager, or with `start` and `stop`; needs root and a started control plane with controllers.

    Several nodes may join one cluster; pods of nodes of the same run reach one another and the host, nothing beyond. With `services`,
    kube-proxy runs too, so that the node and its pods reach Services of the cluster, and the pods use its DNS (`ClusterDNS`).
    """

    def __init__(self, name: str, cluster: ControlPlane, *, labels: Mapping[str, str] | None = None, services: bool = False) -> None:
        self.name = name
        self.cluster = cluster
        self.site = cluster.site
        self.labels = dict(labels or {})
        self.services = services
        self.directory = cluster.directory / "nodes" / name
        self._owner = f"{cluster.name}/{name}"
        self._plan: nodeconfig.NodePlan | None = None

    @property
    def plan(self) -> nodeconfig.NodePlan:
        """Paths and addresses. Raises ClusterError before the start."""
        if self._plan is None:
            raise processes.ClusterError(f"the node {self.name} is not started")
        return self._plan

    @property
    def address(self) -> str:
        """InternalIP of the node; the kubelet listens on its port 10250."""
        return self.plan.address

    @property
    def pod_cidr(self) -> str:
        return self.plan.pod_cidr

    def log(self, name: str) -> Path:
        """Returns the log of `kubelet`, `containerd` or `kube-proxy`."""
        return self.directory / "log" / f"{name}.log"

    # --- Start and stop ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the node and waits until it is Ready with all images, at most `READY_SECONDS`. Raises ClusterError with log lines."""
        binaries = await self.site.binaries.ensure([KUBELET, "agnhost", "kubectl", *([PROXY] if self.services else [])])
        archives = images.ensure_archives(cache_directory(), agnhost=binaries["agnhost"], kubectl=binaries["kubectl"])
        number = self.site.claim_node(self._owner)
        self._prepare(number)
        await self._enter(number)
        self._spawn(CONTAINERD, ["containerd", "--config", self.plan.path("containerd.toml")])
        await self._until(self._containerd_answers, "containerd answers")
        await self.load(archives[0])
        self._spawn(KUBELET, [str(binaries[KUBELET]), *nodeconfig.kubelet_flags(self.plan, self.labels)])
        async with asyncio.TaskGroup() as group:
            group.create_task(self.load(archives[1]))
            group.create_task(self._until(self._ready, "the node is Ready"))
        if self.services:
            self._spawn(PROXY, [str(binaries[PROXY]), *nodeconfig.proxy_flags(self.plan)])
            await self._until(self._proxies, "kube-proxy has its rules")

    async def stop(self) -> None:
        """Stops everything on the node and removes it from the machine; the Node object stays with its cluster."""
        await self.site.ledger.undo(self.site.clock, lambda entry: entry.owner == self._owner)

    # --- Use -----------------------------------------------------------------------------------------------------------------------

    async def run(self, *argv: str) -> str:
        """Runs a command inside the node's namespaces. Raises CommandFailed."""
        return await processes.run(*self._inside(), *argv)

    async def ctr(self, *args: str) -> str:
        """Runs `ctr` in the namespace of Kubernetes on the node's containerd. Raises CommandFailed."""
        return await self.run("ctr", "--namespace", "k8s.io", *args)

    async def load(self, archive: Path) -> None:
        """Loads the images of a docker-archive. Raises CommandFailed."""
        await self.ctr("images", "import", str(archive))

    async def kill(self, name: str) -> None:
        """Kills `kubelet` or `containerd` by SIGKILL; pods continue. Raises ClusterError when it was never started."""
        process = self.site.ledger.process(self._owner, name)
        if process is None:
            raise processes.ClusterError(f"{name} of {self.name} was never started")
        inner = processes.child_of(process.pid)
        doomed = [] if inner is None or processes.stat_fields(inner) is None else [processes.ProcessId.of(name, inner)]
        await processes.end([*doomed, process], self.site.clock)

    async def start_kubelet(self) -> None:
        """Starts the kubelet again after `kill`."""
        binaries = await self.site.binaries.ensure([KUBELET])
        self._spawn(KUBELET, [str(binaries[KUBELET]), *nodeconfig.kubelet_flags(self.plan, self.labels)])

    def pause(self) -> None:
        """Pauses the kubelet; its Node becomes NotReady after about 40 s while pods continue."""
        self._signal_kubelet(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_kubelet(signal.SIGCONT)

    # --- Inside --------------------------------------------------------------------------------------------------------------------

    def _signal_kubelet(self, number: signal.Signals) -> None:
        process = self.site.ledger.process(self._owner, KUBELET)
        inner = None if process is None else processes.child_of(process.pid)
        if inner is None:
            raise processes.ClusterError(f"the kubelet of {self.name} does not run")
        processes.ProcessId.of(KUBELET, inner).signal(number)

    def _prepare(self, number: int) -> None:
        network = self.site.network
        if any(self.directory.is_relative_to(covered) for covered in COVERED):
            raise processes.ClusterError(f"{self.directory} cannot hold a node; use a directory outside /run, /var/lib and /var/log")
        plugins = next((path for path in nodeconfig.PLUGIN_DIRECTORIES if (path / "bridge").exists()), None)
        if plugins is None:
            raise processes.ClusterError("the CNI plugins are missing; the package is containernetworking-plugins")
        if self.services and shutil.which("nft") is None:
            raise processes.ClusterError("the program nft is missing; the package is nftables")
        self.site.ledger.add(Entry(kind=Kind.PATH, name=str(self.directory), owner=self._owner))
        self._plan = plan = nodeconfig.NodePlan(
            directory=self.directory,
            name=self.name,
            address=network.node_address(number),
            gateway=network.host_address,
            pod_cidr=network.pod_cidr(number),
            cgroup=f"vkubelet-{network.number}-{number}",
            dns=self.cluster.plane.dns_address if self.services else "",
        )
        for name in ("lib", "log", "cni", "pki"):
            (self.directory / name).mkdir(parents=True)
        files = {
            "containerd.toml": nodeconfig.containerd(plan, plugins),
            "kubelet.yaml": nodeconfig.kubelet(plan),
            "cni/10-pods.conflist": nodeconfig.cni(plan),
            "namespaces.sh": nodeconfig.namespace_script(plan),
            "resolv.conf": "",
            "routes": network.pod_routes(number),
            **{f"sysctl/{name}": value + "\n" for name, value in nodeconfig.SYSCTLS.items()},
        }
        for name, text in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self._write_certificates(plan)

    def _write_certificates(self, plan: nodeconfig.NodePlan) -> None:
        authority = self.cluster.authority
        user = f"system:node:{self.name}"
        (self.directory / "pki" / "ca.crt").write_bytes(authority.pair.certificate)
        authority.server(user, [plan.address, self.name], organizations=["system:nodes"]).write(self.directory / "pki", "kubelet")
        server = f"https://{self.cluster.host_address}:{self.cluster.port}"
        for name, client in (
            (KUBELET, authority.client(user, ["system:nodes"])),
            *([(PROXY, authority.client("system:kube-proxy"))] if self.services else []),
        ):
            path = self.directory / f"{name}.kubeconfig"
            write_kubeconfig(path, self.cluster.name, server=server, ca=authority.pair.certificate, client=client)

    async def _enter(self, number: int) -> None:
        """Creates the cgroup and the namespaces and connects them to the bridge."""
        plan = self.plan
        self.site.ledger.add(Entry(kind=Kind.CGROUP, name=plan.cgroup, owner=self._owner))
        cgroups.create(plan.cgroup)
        unshare = ["unshare", "--net", "--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child", "sh"]
        self._spawn(HOST, [*unshare, plan.path("namespaces.sh")])

        async def prepared() -> bool:
            return (self.directory / "prepared").exists()

        await self._until(prepared, "its namespaces are made")
        first = str(self._first_process())
        self.site.ledger.add_process(processes.ProcessId.of("init", int(first)), self._owner, kind=Kind.NAMESPACE)
        link, bridge = self.site.network.host_link(number), self.site.network.bridge
        await processes.run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", first)
        await processes.run("ip", "link", "set", link, "master", bridge, "up")
        await processes.run("ip", "route", "replace", plan.pod_cidr, "via", plan.address, "dev", bridge)
        for command in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "address", "add", f"{plan.address}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
            ["ip", "route", "add", "default", "via", plan.gateway],
            ["ip", "-batch", plan.path("routes")],
            ["sysctl", "-qw", "net.ipv4.ip_forward=1"],
        ):
            await self.run(*command)

    def _first_process(self) -> int:
        process = self.site.ledger.process(self._owner, HOST)
        first = None if process is None else processes.child_of(process.pid)
        if first is None:
            raise processes.ClusterError(f"the node {self.name} does not run\n{processes.tail(self.log(HOST))}")
        return first

    def _inside(self) -> list[str]:
        # `ip netns exec` would mount /sys again, and the kubelet would not find the cgroups.
        return ["nsenter", "--target", str(self._first_process()), "--net", "--mount", "--pid"]

    def _spawn(self, name: str, argv: Sequence[str]) -> None:
        inside = [] if name == HOST else self._inside()
        self.site.ledger.add_process(processes.spawn(name, [*inside, *argv], log=self.log(name)), self._owner)

    async def _containerd_answers(self) -> bool:
        try:
            await self.ctr("version")
        except processes.CommandFailed:
            return False
        return True

    async def _proxies(self) -> bool:
        try:
            await self.run("nft", "list", "table", "ip", PROXY)
        except processes.CommandFailed:
            return False
        return True

    async def _ready(self) -> bool:
        try:
            text = await self.cluster.kubectl("get", "node", self.name, "-o", "json")
        except processes.CommandFailed:
            return False
        conditions = json.loads(text)["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    async def _until(self, condition: Condition, what: str) -> None:
        async def holds() -> bool:
            for entry in self.site.ledger.entries(Kind.PROCESS, self._owner):
                if not entry.process.alive():
                    raise processes.ClusterError(f"{self._owner}: {entry.name} ended\n{processes.tail(self.log(entry.name))}")
            return await condition()

        try:
            await processes.wait_until(self.site.clock, holds, what=f"{self._owner}: {what}", timeout=READY_SECONDS)
        except processes.ClusterError as error:
            error.add_note("\n".join(f"--- {name}\n{processes.tail(self.log(name))}" for name in (CONTAINERD, KUBELET, PROXY)))
            raise
