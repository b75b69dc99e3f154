"""A real control plane on loopback: etcd and kube-apiserver, with kube-controller-manager and kube-scheduler on demand.

Invariant: once started, the API responds on `port` and, when controllers run, the ServiceAccount `default` exists, so pods can be created.
"""

import json
import re
import shutil
import signal
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from attrs import asdict

from vkubelet.clock import Clock
from vkubelet.testing.cluster import components, isolation
from vkubelet.testing.cluster.ledger import Entry, Kind
from vkubelet.testing.cluster.pki import Authority, KeyFiles, service_account_keys, write_kubeconfig
from vkubelet.testing.cluster.processes import ClusterError, Lifetime, ProcessId, end, run, spawn, tail, wait_until
from vkubelet.testing.cluster.site import Site

READY_SECONDS = 60.0
# Open watches would keep it running for a minute.
GRACEFUL_SECONDS = 5.0
PLANE_FILE = "plane.json"
MASTERS = "system:masters"


class ControlPlane(Lifetime):
    """Control plane as an async context manager, or with `start` and `stop`; not tied to an event loop.

    `name` is the name of the cluster, its directory and its kubeconfig context. Without a `site` it creates a separate one. One that is
    `isolated` runs in a network namespace as if behind NAT: nothing outside can connect to it, not even by its kubeconfig, and it
    connects to nothing but what `let_dial` allows. It cannot have nodes.
    """

    def __init__(
        self, name: str = "hub", site: Site | None = None, *, options: components.Options | None = None, isolated: bool = False
    ) -> None:
        self.name = name
        self.options = options or components.Options()
        self._own_site = site is None
        self.site = site or Site()
        self.directory = self.site.directory / name
        self.kubeconfig = self.site.directory / f"{name}.kubeconfig"
        self._isolation = isolation.Isolation(name, self.site, self.directory) if isolated else None
        self._plane: components.Plane | None = None
        self._authority: Authority | None = None
        self._issued = 0

    # --- Addresses and files -------------------------------------------------------------------------------------------------------

    @property
    def plane(self) -> components.Plane:
        """Paths and ports. Raises ClusterError before the start."""
        if self._plane is None:
            raise ClusterError(f"the control plane {self.name} is not started")
        return self._plane

    @property
    def authority(self) -> Authority:
        """CA of this cluster. Raises ClusterError before the start."""
        if self._authority is None:
            raise ClusterError(f"the control plane {self.name} is not started")
        return self._authority

    @property
    def port(self) -> int:
        return self.plane.port

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def host_address(self) -> str:
        """Non-loopback address of this machine, for kubelet servers and for pods that call the API."""
        return self.plane.host_address

    @property
    def service_cidr(self) -> str:
        return self.plane.service_cidr

    @property
    def ca(self) -> Path:
        return self.directory / "pki" / "ca.crt"

    @property
    def kubelet_client(self) -> KeyFiles:
        """Client certificate that the apiserver presents to kubelets."""
        return KeyFiles(certificate=self.directory / "pki" / "kubelet-client.crt", key=self.directory / "pki" / "kubelet-client.key")

    @property
    def audit_log(self) -> Path:
        return self.log("audit")

    def log(self, name: str) -> Path:
        """Returns the log of one program, such as `kube-apiserver`."""
        return self.directory / "log" / f"{name}.log"

    @property
    def processes(self) -> dict[str, ProcessId]:
        """Last started process by name, running or not."""
        return {entry.name: entry.process for entry in self.site.ledger.entries(Kind.PROCESS, self.name)}

    # --- Start and stop ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts everything and waits until it is ready, at most `READY_SECONDS`. Raises ClusterError with the last log lines."""
        if self._own_site:
            await self.site.start()
        await self.site.binaries.ensure(self._programs())
        self._prepare()
        if self._isolation is not None:
            await self._isolation.start()
        await self._start_storage()
        await self._start_controllers()

    async def _start_storage(self) -> None:
        binaries, plane = await self.site.binaries.ensure([components.ETCD]), self.plane
        self._spawn(components.ETCD, [str(binaries[components.ETCD]), *components.etcd(plane)])
        await self.start_apiserver()

    async def _start_controllers(self) -> None:
        binaries, plane = await self.site.binaries.ensure(self._programs()), self.plane
        if self.options.controllers:
            self._spawn(components.CONTROLLERS, [str(binaries[components.CONTROLLERS]), *components.controllers(plane, self.options)])
        if self.options.scheduler:
            self._spawn(components.SCHEDULER, [str(binaries[components.SCHEDULER]), *components.scheduler(plane)])
        if self.options.controllers:
            await self._wait("/api/v1/namespaces/default/serviceaccounts/default", "the ServiceAccount default exists")

    async def attach(self) -> None:
        """Attaches to a control plane that another process has started in the site's directory."""
        fields = json.loads((self.directory / PLANE_FILE).read_text(encoding="utf-8"))
        self._plane = components.Plane(**{**fields, "directory": self.directory})
        self._authority = Authority.load(KeyFiles(self.ca, self.ca.with_suffix(".key")), self.site.clock)

    async def stop(self) -> None:
        """Stops the programs, and nodes that are left, and removes the data."""
        if self._own_site:
            await self.site.stop()
        else:
            await self.site.ledger.undo(self.site.clock, lambda entry: entry.owner.split("/")[0] == self.name)

    # --- Outages -------------------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pauses the apiserver: it stops responding while its connections stay open."""
        self.processes[components.APISERVER].signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.processes[components.APISERVER].signal(signal.SIGCONT)

    async def stop_apiserver(self, *, graceful: bool = False) -> None:
        """Stops the apiserver, by SIGKILL, or when `graceful` by SIGTERM and 5 s to finish; etcd keeps the data."""
        await end([self.processes[components.APISERVER]], self.site.clock, grace=GRACEFUL_SECONDS if graceful else 0.0)

    async def start_apiserver(self) -> None:
        """Starts the apiserver on its old port and waits until it is ready."""
        binary = (await self.site.binaries.ensure([components.APISERVER]))[components.APISERVER]
        self._spawn(components.APISERVER, [str(binary), *components.apiserver(self.plane, self.options)])
        await self._wait("/readyz", "the apiserver is ready")

    async def restart_controllers(self, *flags: str) -> None:
        """Restarts kube-controller-manager with these flags after all others; without any, as it was started first."""
        await end([self.processes[components.CONTROLLERS]], self.site.clock, grace=GRACEFUL_SECONDS)
        binary = (await self.site.binaries.ensure([components.CONTROLLERS]))[components.CONTROLLERS]
        self._spawn(components.CONTROLLERS, [str(binary), *components.controllers(self.plane, self.options), *flags])

    def back_up(self, target: Path) -> None:
        """Copies the data of etcd, as of one moment, to a directory that does not exist yet."""
        etcd = self.processes[components.ETCD]
        etcd.signal(signal.SIGSTOP)
        try:
            shutil.copytree(self._data, target)
        finally:
            etcd.signal(signal.SIGCONT)

    async def restore(self, backup: Path) -> None:
        """Stops everything, replaces the data of etcd by a backup, and starts everything again."""
        processes = self.processes
        controllers = [processes[name] for name in (components.CONTROLLERS, components.SCHEDULER) if name in processes]
        # They would act upon what they have read before, and must exist while the apiserver is waited for.
        for process in controllers:
            process.signal(signal.SIGSTOP)
        await end([processes[components.APISERVER], processes[components.ETCD]], self.site.clock)
        shutil.rmtree(self._data)
        shutil.copytree(backup, self._data)
        await self._start_storage()
        await end(controllers, self.site.clock)
        await self._start_controllers()

    @property
    def _data(self) -> Path:
        return self.directory / "etcd"

    # --- Use -----------------------------------------------------------------------------------------------------------------------

    async def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """Runs kubectl as admin and returns its output. Raises CommandFailed with its stderr."""
        binary = (await self.site.binaries.ensure(["kubectl"]))["kubectl"]
        cache = f"--cache-dir={self.directory / 'kubectl-cache'}"
        return await run(*self.inside, str(binary), f"--kubeconfig={self.kubeconfig}", cache, *args, stdin=stdin)

    async def namespace(self, prefix: str = "test") -> str:
        """Creates a namespace with a unique name and its ServiceAccount `default`; returns its name."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": f"{prefix}-"}}
        async with self._session() as session, session.post(f"{self.url}/api/v1/namespaces", json=body) as response:
            if response.status != 201:
                raise ClusterError(f"{self.name}: no namespace could be made: {await response.text()}")
            created: str = (await response.json())["metadata"]["name"]
        if self.options.controllers:
            await self._wait(f"/api/v1/namespaces/{created}/serviceaccounts/default", f"the ServiceAccount default of {created} exists")
        return created

    def client_config(self, user: str, groups: Sequence[str] = (), *, host: str = "127.0.0.1") -> Path:
        """Returns a kubeconfig with a new client certificate for this user; `host` is how its owner reaches the apiserver."""
        path = self.directory / "clients" / f"{self._file_name(user)}.kubeconfig"
        client = self.authority.client(user, groups)
        return write_kubeconfig(path, self.name, server=f"https://{host}:{self.port}", ca=self.ca.read_bytes(), client=client)

    def serving_certificate(self, name: str, hosts: Sequence[str], *, organizations: Sequence[str] = ("system:nodes",)) -> KeyFiles:
        """Issues a TLS server certificate for these addresses and DNS names, signed by the CA the apiserver trusts for kubelets."""
        pair = self.authority.server(name, hosts, organizations=organizations)
        return pair.write(self.directory / "servers", self._file_name(name))

    # --- Isolation -----------------------------------------------------------------------------------------------------------------

    @property
    def network(self) -> Path | None:
        """File of the network namespace of an isolated control plane. Raises ClusterError before the start."""
        return self._isolation.namespace if self._isolation is not None else None

    @property
    def inside(self) -> list[str]:
        """Arguments before a command that runs beside this control plane: none unless it is isolated."""
        return self._isolation.prefix if self._isolation is not None else []

    async def let_dial(self, *ports: int) -> None:
        """Lets an isolated control plane, and what runs beside it, connect to these ports of 127.0.0.1 outside. Raises ClusterError."""
        if self._isolation is None:
            raise ClusterError(f"the control plane {self.name} is not isolated; it can connect to every port already")
        await self._isolation.forward(ports)

    async def can_dial(self, host: str, port: int) -> bool:
        """Checks whether a program beside this control plane can connect to an address."""
        return await isolation.can_dial(self._socket(), host, port)

    # --- Inside --------------------------------------------------------------------------------------------------------------------

    def _programs(self) -> list[str]:
        optional = {components.CONTROLLERS: self.options.controllers, components.SCHEDULER: self.options.scheduler}
        return [components.ETCD, components.APISERVER, "kubectl", *(name for name, wanted in optional.items() if wanted)]

    def _file_name(self, text: str) -> str:
        self._issued += 1
        return f"{re.sub(r'[^A-Za-z0-9.-]', '-', text)}-{self._issued}"

    def _prepare(self) -> None:
        """Writes everything the programs read: directory, certificates, kubeconfigs, audit policy."""
        site = self.site
        for path in (self.directory, self.kubeconfig):
            site.ledger.add(Entry(kind=Kind.PATH, name=str(path), owner=self.name))
        self._plane = plane = components.Plane(
            directory=self.directory,
            number=_claim_number(site.directory, self.directory),
            port=site.free_port(),
            etcd_port=site.free_port(),
            etcd_peer_port=site.free_port(),
            host_address=site.network.host_address,
        )
        (self.directory / "log").mkdir()
        (self.directory / PLANE_FILE).write_text(json.dumps(asdict(plane), default=str), encoding="utf-8")
        (self.directory / "audit-policy.yaml").write_text(self.options.audit_policy, encoding="utf-8")
        self._authority = authority = Authority.create(f"{self.name}-ca", site.clock)
        _write_certificates(plane, authority, site.clock)
        for path, user, groups in (
            (self.kubeconfig, f"{self.name}-admin", [MASTERS]),
            (self.directory / "controller-manager.kubeconfig", "system:kube-controller-manager", []),
            (self.directory / "scheduler.kubeconfig", "system:kube-scheduler", []),
        ):
            client = authority.client(user, groups)
            write_kubeconfig(path, self.name, server=self.url, ca=authority.pair.certificate, client=client)

    def _spawn(self, name: str, argv: Sequence[str]) -> None:
        self.site.ledger.add_process(spawn(name, [*self.inside, *argv], log=self.log(name)), self.name)

    async def _wait(self, path: str, what: str) -> None:
        """Waits for a 200 at that path, but not for a control plane whose programs have exited."""
        async with self._session() as session:

            async def answers() -> bool:
                for process in self.processes.values():
                    if not process.alive():
                        raise ClusterError(f"{self.name}: {process.name} ended\n{tail(self.log(process.name))}")
                return await _status(session, self.url + path) == 200

            try:
                await wait_until(self.site.clock, answers, what=f"{self.name}: {what}", timeout=READY_SECONDS)
            except ClusterError as error:
                error.add_note("\n".join(f"--- {name}\n{tail(self.log(name))}" for name in self.processes))
                raise

    def _session(self) -> aiohttp.ClientSession:
        """Opens an HTTP session as admin."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.directory / "pki" / "admin.crt", self.directory / "pki" / "admin.key")
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, socket_factory=lambda info: self._socket(info[0])))

    def _socket(self, family: int = socket.AF_INET) -> socket.socket:
        """Returns a TCP socket beside this control plane."""
        return socket.socket(family, socket.SOCK_STREAM) if self._isolation is None else self._isolation.socket(family)


def _claim_number(site: Path, directory: Path) -> int:
    """Claims the smallest number that no other cluster of the run has, by creating the directory."""
    used = {int(json.loads(path.read_text(encoding="utf-8"))["number"]) for path in site.glob(f"*/{PLANE_FILE}")}
    directory.mkdir()
    return min(set(range(len(used) + 1)) - used)


def _write_certificates(plane: components.Plane, authority: Authority, clock: Clock) -> None:
    directory = plane.directory / "pki"
    hosts = ["localhost", "127.0.0.1", "::1", plane.host_address, plane.first_service_address]
    hosts += [f"kubernetes{suffix}" for suffix in ("", ".default", ".default.svc", ".default.svc.cluster.local")]
    authority.pair.write(directory, "ca")
    authority.server("kube-apiserver", hosts).write(directory, "apiserver")
    authority.client("admin", [MASTERS]).write(directory, "admin")
    authority.client("kube-apiserver-kubelet-client", [MASTERS]).write(directory, "kubelet-client")
    service_account_keys().write(directory, "service-account")
    # A separate CA: otherwise any client certificate could be used to impersonate others.
    front_proxy = Authority.create("front-proxy-ca", clock)
    front_proxy.pair.write(directory, "front-proxy-ca")
    front_proxy.client(components.FRONT_PROXY).write(directory, "front-proxy")


async def _status(session: aiohttp.ClientSession, url: str) -> int | None:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
            return response.status
    except (aiohttp.ClientError, TimeoutError):
        return None
