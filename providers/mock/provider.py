"""The mock provider: its nodes, and every call and capability of the contract, served from memory.

Invariant: nothing here waits for anything but the clock and the client of a stream.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import field, frozen

from vkubelet import provider
from vkubelet.api.objects import Json
from vkubelet.stats import NodeStats, metrics, summary
from vkubelet_providers.mock.exec import KILLED, Session, either, serve
from vkubelet_providers.mock.pods import MockPod, Stage, address_of
from vkubelet_providers.mock.runner import Backend, Runner
from vkubelet_providers.mock.script import PREFIX, Script
from vkubelet_providers.mock.usage import node_stats

JOURNAL: Final = "mock.log"
"""Log of a node, below `/logs/`."""


class Mock:
    """Provider; see the package. `backend` outlives `run`, as a real one would."""

    @frozen(kw_only=True)
    class Settings:
        """Number of nodes, and their descriptions; in texts `{node}` and `{number}` are replaced by name and number of each."""

        node: str = "mock"
        """Name of the node; with several, the prefix of each before `-0`, `-1`, …"""
        nodes: int = 1
        """Number of nodes."""
        cpu: str = "64"
        """CPU of each node."""
        memory: str = "256Gi"
        """Memory of each node."""
        pods: str = "1000"
        """Number of pods that each node can run."""
        capacity: Mapping[str, str] = field(factory=dict)
        """Further resources, such as `nvidia.com/gpu: "8"`."""
        allocatable: Mapping[str, str] = field(factory=dict)
        """Differences from the capacity."""
        labels: Mapping[str, str] = field(factory=dict)
        """Labels of each node, which override the runtime's own."""
        annotations: Mapping[str, str] = field(factory=dict)
        """Annotations of each node."""
        taints: Sequence[provider.Taint] = ()
        """Taints of each node, in addition to the runtime's: `{key: …, value: …, effect: …}`."""
        os: str = "linux"
        """Operating system that each node shows."""
        arch: str = "amd64"
        """Architecture that each node shows."""
        provider_id: str = ""
        """`spec.providerID` of each node."""
        info: Mapping[str, str] = field(factory=dict)
        """Fields that override the runtime's own `status.nodeInfo`, such as `kubeletVersion`."""
        poll_interval: float = 0.0
        """More than zero: the backend reports no changes and is polled at this interval in seconds."""
        resolve: bool = True
        """Read the ConfigMaps, Secrets and tokens that pods reference, and let pods wait for mandatory ones that are missing, as a real
        node does; false for load tests."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or self.Settings()
        numbers = range(self.settings.nodes)
        self._nodes = {self.settings.node: 0} if len(numbers) == 1 else {f"{self.settings.node}-{number}": number for number in numbers}
        self.backend = Backend()
        self.failing: set[str] = set()
        """Nodes whose ping fails and whose pods cannot be listed."""
        if self.settings.poll_interval > 0:
            self.poll_interval = self.settings.poll_interval
        self._host: provider.Host | None = None
        self._runner: Runner | None = None
        self._failures: dict[str, int] = {}
        self._since: tuple[datetime, float] | None = None

    @property
    def pods(self) -> dict[str, MockPod]:
        """Pods by UID."""
        return self.backend.pods

    @property
    def host(self) -> provider.Host:
        """Host of the running provider. Raises Unavailable while the provider does not run."""
        if self._host is None:
            raise provider.Unavailable("the mock provider is not running")
        return self._host

    @property
    def _active(self) -> Runner:
        if self._runner is None:
            raise provider.Unavailable("the mock provider is not running")
        return self._runner

    # --- nodes ---

    def describe(self, name: str) -> provider.NodeDescription:
        """Returns the description of a node. Raises KeyError for an unknown node."""
        settings, number = self.settings, self._nodes[name]
        capacity = {"cpu": settings.cpu, "memory": settings.memory, "pods": settings.pods, **settings.capacity}

        def filled(text: str) -> str:
            return text.replace("{node}", name).replace("{number}", str(number))

        return provider.NodeDescription(
            name,
            capacity,
            allocatable={**capacity, **settings.allocatable},
            labels={key: filled(value) for key, value in settings.labels.items()},
            annotations={key: filled(value) for key, value in settings.annotations.items()},
            taints=settings.taints,
            os=settings.os,
            arch=settings.arch,
            provider_id=filled(settings.provider_id),
            info={key: filled(value) for key, value in settings.info.items()},
        )

    async def run(self, host: provider.Host) -> None:
        """Declares the nodes, then runs the scripts until the stop; pods stay unchanged then."""
        try:
            async with asyncio.TaskGroup() as group:
                self._host = host
                self._runner = Runner(self.backend, host, group, reports=self.settings.poll_interval <= 0)
                self._since = self._since or (host.clock.now(), host.clock.monotonic())
                for pod in self.pods.values():
                    self._runner.start(pod)
                for name in self._nodes:
                    host.set_node(self.describe(name))
                host.nodes_complete()
                await host.until_stopped()
                self._runner.cancel_all()
        finally:
            self._host = self._runner = None

    async def ping(self, node: str) -> None:
        if node in self.failing:
            raise provider.Unavailable(f"node {node} is set to fail")

    # --- pods ---

    async def sync_pod(self, pod: provider.Pod) -> None:
        """Creates or updates a pod.

        Raises what `host.resolve` raises, so that a pod whose ConfigMap or Secret is missing waits as on a real node.
        """
        script, uid = Script.of(pod.metadata.annotations), pod.ref.uid
        if script.reject:
            raise provider.PodRejected(script.reject, f"annotation {PREFIX}reject of the pod requests it")
        self._failures[uid] = self._failures.get(uid, 0) + 1
        if self._failures[uid] <= script.sync_failures:
            raise provider.Unavailable(f"annotation {PREFIX}sync-failures of the pod requests it")
        if self.settings.resolve:
            ips = () if pod.spec.get("hostNetwork") else (address_of(uid),)
            await self.host.resolve(pod, files=self.backend.directory(pod), pod_ips=ips)
        known = self.pods.get(uid)
        if known is None:
            known = MockPod.of(pod, script, now=self.host.clock.monotonic())
            self.backend.add(known)
            self._active.start(known)
        known.syncs += 1
        self._active.update(known, script, added=known.add_ephemeral(pod))

    async def delete_pod(self, pod: provider.PodRef, grace: float) -> None:
        self._failures.pop(pod.uid, None)
        known = self.pods.get(pod.uid)
        if known is None:
            self.backend.drop_directory(pod.uid)
            self._active.report_gone(pod)
        else:
            self._active.stop(known, grace)

    async def list_pods(self, node: str) -> Iterable[provider.PodReport]:
        await self.ping(node)
        return [pod.report() for pod in self.backend.on_node(node)]

    def drop_pod(self, uid: str) -> None:
        """Removes a pod as if the backend had dropped it."""
        self._active.drop(self.pods[uid])

    def _known(self, pod: provider.PodRef) -> MockPod:
        """Returns a pod. Raises NoSuchPod."""
        known = self.pods.get(pod.uid)
        if known is None:
            raise provider.NoSuchPod(f'pod "{pod.name}" does not exist')
        return known

    # --- logs ---

    async def stream_logs(self, pod: provider.PodRef, container: str, options: provider.LogOptions) -> AsyncIterator[bytes]:
        known = self._known(pod)
        known.runs(container)
        runs = known.logs.get(container, [])
        number = -2 if options.previous else -1
        if len(runs) < -number:
            which = "previous terminated" if options.previous else "started"
            raise provider.BadRequest(f'{which} container "{container}" in pod "{pod.name}" not found')
        async for line in known.lines(runs[number], follow=options.follow):
            yield line

    async def node_logs(self, node: str, path: str) -> AsyncIterator[bytes]:
        """Serves one file, which lists starts and terminations of pods. Raises FileNotFoundError for others."""
        if not path:
            yield f'<pre>\n<a href="{JOURNAL}">{JOURNAL}</a>\n</pre>\n'.encode()
            return
        if path != JOURNAL:
            raise FileNotFoundError(path)
        for line in list(self.backend.journals.get(node, ())):
            yield line

    # --- streams ---

    async def exec(self, pod: provider.PodRef, container: str, command: Sequence[str], io: provider.ContainerIO) -> int:
        known = self._running_in(pod, container)
        code = await either(self._exec(known, container, command, io), self._until_ended(known, container))
        return KILLED if code is None else code

    async def _exec(self, known: MockPod, container: str, command: Sequence[str], io: provider.ContainerIO) -> int:
        script = known.script
        await self.host.clock.sleep(script.exec_delay)
        if script.exec_output is None and script.exec_exit_code is None:
            return await self._session(known, container, io).run(command)
        await io.write_stdout((script.exec_output or "").encode())
        return script.exec_exit_code or 0

    async def attach(self, pod: provider.PodRef, container: str, io: provider.ContainerIO) -> None:
        """Attaches to the log from now on, and echoes the client's input; an ephemeral container is a shell."""
        known = self._running_in(pod, container)
        if io.stdin is None:
            await self._follow(known, container, io)
        elif container not in known.ephemeral:
            await either(_echo(io), self._follow(known, container, io))
        else:
            shell = self._session(known, container, io).run(["sh"])
            code = await either(shell, self._until_ended(known, container))
            if code is not None:
                self._active.end_ephemeral(known, container, code)

    async def _follow(self, known: MockPod, container: str, io: provider.ContainerIO) -> None:
        run = known.logs[container][-1]
        async for line in known.lines(run, follow=True, start=len(run.lines)):
            text = line.partition(b" ")[2]
            await io.write_stdout(text.replace(b"\n", b"\r\n") if io.tty else text)

    def _session(self, known: MockPod, container: str, io: provider.ContainerIO) -> Session:
        return Session(io=io, hostname=known.hostname, files=known.files_of(container), clock=self.host.clock)

    def _running_in(self, pod: provider.PodRef, container: str) -> MockPod:
        """Returns the pod of a running container. Raises NoSuchPod, NoSuchContainer."""
        known = self._known(pod)
        if not known.runs(container):
            raise provider.NoSuchContainer(f'container not found ("{container}"): it does not run')
        return known

    async def _until_ended(self, known: MockPod, container: str) -> None:
        """Waits until this run of the container is over."""
        run = known.logs[container][-1]
        while not run.ended and self.pods.get(known.ref.uid) is known:
            await known.changed.wait()

    async def port_forward(self, pod: provider.PodRef, port: int, stream: provider.ByteStream) -> None:
        known = self._known(pod)
        answer = "echo" if known.script.ports is None else known.script.ports.get(port)
        if answer is None or known.stage is not Stage.RUNNING:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"connection to port {port} of pod {pod.namespace}/{pod.name} was refused")
        await either(serve(answer, stream, name=pod.name), self._until_ended(known, known.containers[0]))

    # --- usage ---

    def usage_of(self, node: str) -> NodeStats:
        clock = self.host.clock
        started, since = self._since or (clock.now(), clock.monotonic())
        wall, now = clock.now(), clock.monotonic()
        pods = [pod.stats(wall=wall, now=now) for pod in self.backend.on_node(node) if pod.stage is Stage.RUNNING]
        spent = self.backend.spent.get(node, 0.0)
        return node_stats(self.describe(node), pods, spent=spent, uptime=now - since, started=started)

    async def stats_summary(self, node: str) -> Json:
        return summary(self.usage_of(node), now=self.host.clock.now())

    async def metrics(self, node: str, endpoint: provider.MetricsEndpoint) -> bytes:
        return metrics(endpoint, self.usage_of(node), now=self.host.clock.now())


async def _echo(io: provider.ContainerIO) -> None:
    assert io.stdin is not None
    async for data in io.stdin:
        await io.write_stdout(data.replace(b"\r", b"\r\n") if io.tty else data)
