"""The process provider: one node, the host it runs on, and every call and capability of the contract.

Invariant: containers run below keepers; this process can be killed, and finds all of them again in its directory.
"""

import asyncio
import fcntl
import importlib.metadata
import logging
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen

from vkubelet import provider
from vkubelet.api.objects import PODS, Json, JsonView
from vkubelet.api.quantity import Quantity
from vkubelet.api.scheduling import effective_requests
from vkubelet.control.recorder import ObjectReference
from vkubelet.stats import ContainerStats, NodeStats, PodStats, metrics, summary
from vkubelet.streams import relay
from vkubelet_providers.process import keepers, logs, machine, starting, volumes
from vkubelet_providers.process.attempts import Attempt, moment
from vkubelet_providers.process.cgroups import Cgroups, Limits
from vkubelet_providers.process.keeper.child import Order
from vkubelet_providers.process.keeper.logfile import numbers
from vkubelet_providers.process.local_pods import Container, LocalPod, LocalPods, erase
from vkubelet_providers.process.threads import in_thread
from vkubelet_providers.process.usage import Meters, group_of, logs_of
from vkubelet_providers.process.users import Identity, Own, Users, identity, not_kept

log = logging.getLogger(__name__)

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STARTS_AT_ONCE: Final = 8
_PLACE_SECONDS: Final = 2.0
"""Seconds for which a start may occupy a slot; an idle host starts a container in a tenth of a second."""


class Process:
    """Provider; see the package."""

    @frozen(kw_only=True)
    class Settings:
        """The host as a node, and what its pods may do on it."""

        node: str = ""
        """Name of the node; empty: the host's name."""
        address: str = ""
        """Address of the node and of all its pods; empty: that of the interface with the default route."""
        directory: str = ""
        """Directory of pods, their logs and their volumes; empty: `/var/lib/vkubelet/process` for root, else
        `$XDG_STATE_HOME/vkubelet/process`. Containers are found again in it after a restart."""
        capacity: Mapping[str, str] = field(factory=dict)
        """Overrides what the host has: `cpu`, `memory`, `pods` (110), `ephemeral-storage`, or further resources."""
        allocatable: Mapping[str, str] = field(factory=dict)
        """Differences from the capacity."""
        labels: Mapping[str, str] = field(factory=dict)
        """Labels of the node."""
        annotations: Mapping[str, str] = field(factory=dict)
        """Annotations of the node."""
        taints: Sequence[provider.Taint] = ()
        """Taints of the node, in addition to the runtime's: `{key: …, value: …, effect: …}`."""
        allow_root: bool = False
        """Whether processes may run as root of the host, when vkubelet does; such a pod can do everything on it."""
        allow_privilege_escalation: bool = False
        """Whether set-user-ID programs such as `sudo` are effective in containers that set `allowPrivilegeEscalation` or `privileged`. A
        pod chooses the files that such a program trusts, so each pod that requests this can become root."""
        user: int | None = None
        """The user of pods that name none, when vkubelet runs as root; by default 65534 (`nobody`), or root where that is allowed."""
        groups: Sequence[int] = ()
        """Groups of the host that every pod may use. A pod may use numbers that are not groups of the host, and those of its user on the
        host; with `allow_root`, all."""
        host_paths: Sequence[str] = ()
        """Directories that `hostPath` volumes may name, with everything below; `/` allows all."""
        mounts: bool = True
        """Mount volumes at the paths in the pod's spec, in a mount namespace, where the host lets us; off: links below `$VKUBELET_ROOT`."""
        cgroup: str = "vkubelet"
        """Control group, from the top of each hierarchy, below which pods get theirs, where it can be written to; empty: none."""
        start_timeout: float = 30.0
        """Seconds for a container's process to start; after that it is killed and retried later, as when a disk does not respond."""
        path: str = _PATH
        """`PATH` of containers that set none."""
        log_size: int = 10 << 20
        """Bytes of one log file, of which each start of a container keeps `log_files`."""
        log_files: int = 5
        """Number of files that each start of a container keeps."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or self.Settings()
        self.node = self.settings.node or machine.hostname()
        self.directory = (Path(self.settings.directory) if self.settings.directory else _state_directory()).resolve()
        self._host: provider.Host | None = None
        self._pods: LocalPods | None = None
        self._ways: starting.Ways | None = None
        self._address = ""
        self._meters = Meters()
        self._measuring = asyncio.Lock()
        self._nursery = keepers.Nursery()
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)

    # --- the node ---

    async def run(self, host: provider.Host) -> None:
        """Adopts what runs, declares the node, and watches until the stop; containers continue then."""
        with self._locked(), logs.node_log_file(self.directory / "logs"):
            self._host = host
            self._address = self.settings.address or machine.address()
            self._ways = await in_thread(self._find_ways)
            cgroups = self._ways.cgroups
            pods = LocalPods(self.directory / "pods", cgroups=cgroups, clock=host.clock, address=self._address, on_terminated=host.report)
            try:
                await self._nursery.begin()
                await pods.load()
                for held in pods:
                    await in_thread(held.guard, private=self.ways.private)
                self._pods = pods
                for held in pods:
                    host.report(pods.report(held))
                host.set_node(self.describe())
                host.nodes_complete()
                await host.until_stopped()
            finally:
                pods.close()
                await self._nursery.close()
                self._host = self._pods = None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the directory: two processes in one directory would conflict over its pods. Raises SettingsError."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.directory.chmod(0o711)
            lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise provider.SettingsError(
                "provider.directory", f"cannot write to {self.directory} ({error.strerror}); choose another one"
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise provider.SettingsError(
                    "provider.directory", f"{self.directory} is in use by another vkubelet; choose another one"
                ) from error
            yield
        finally:
            os.close(lock)

    def _find_ways(self) -> starting.Ways:
        """Finds the features of the host. Raises SettingsError."""
        settings = self.settings
        try:
            cpu = Quantity.parse(self.describe().allocatable["cpu"]).milli()
        except ValueError as error:
            field = "allocatable" if "cpu" in settings.allocatable else "capacity"
            raise provider.SettingsError(f"provider.{field}", f"cpu: {error}") from error
        return starting.Ways(
            mounts=settings.mounts and os.getuid() == 0 and machine.can_mount(),
            path=settings.path,
            log_size=settings.log_size,
            log_files=settings.log_files,
            memory=machine.memory()["MemTotal"],
            host_paths=settings.host_paths,
            privilege_escalation=settings.allow_privilege_escalation,
            start_timeout=settings.start_timeout,
            cgroups=Cgroups.find(settings.cgroup and f"{settings.cgroup}/{self.node}", cpu=cpu),
        )

    def describe(self) -> provider.NodeDescription:
        settings = self.settings
        capacity = {**machine.capacity(self.directory), "pods": "110", **settings.capacity}
        return provider.NodeDescription(
            self.node,
            capacity,
            allocatable={**capacity, **settings.allocatable},
            labels=settings.labels,
            annotations=settings.annotations,
            taints=settings.taints,
            addresses=[{"type": "InternalIP", "address": self._address}, {"type": "Hostname", "address": machine.hostname()}],
            arch=machine.architecture(),
            info=machine.info(importlib.metadata.version("vkubelet")),
            # Root gives a process exactly the groups that its pod names; another user adds its own groups.
            features={"supplementalGroupsPolicy": os.getuid() == 0},
        )

    async def ping(self, node: str) -> None:
        """Checks the directory. Raises Unavailable when it cannot be written to."""
        if self._pods is None or not await in_thread(os.access, self.directory / "pods", os.W_OK):
            raise provider.Unavailable(f"cannot write to {self.directory}; check the permissions and the free space of its file system")

    @property
    def host(self) -> provider.Host:
        """Host of the running provider. Raises Unavailable while the provider does not run."""
        if self._host is None:
            raise provider.Unavailable("the process provider is not running")
        return self._host

    @property
    def pods(self) -> LocalPods:
        """Pods of the running provider. Raises Unavailable while the provider does not run."""
        if self._pods is None:
            raise provider.Unavailable("the process provider is not running")
        return self._pods

    @property
    def ways(self) -> starting.Ways:
        """Features of the host. Raises Unavailable while the provider does not run."""
        if self._ways is None:
            raise provider.Unavailable("the process provider is not running")
        return self._ways

    # --- pods and containers ---

    async def prepare_pod(self, pod: provider.Pod) -> provider.Sandbox:
        spec = pod.spec
        # It follows the links of hostPath volumes, perhaps on a disk that does not respond.
        await in_thread(volumes.check, spec, host_paths=self.settings.host_paths)
        group = (spec.get("securityContext") or {}).get("fsGroup")
        try:
            held = await self.pods.hold(pod.ref)
            await in_thread(held.guard, private=self.ways.private)
            if os.getuid() == 0:
                await in_thread(volumes.make_memory, spec, held.files)
            if not self.ways.mounts:
                await in_thread(volumes.make_read_only, spec, held.files)
            await in_thread(volumes.make_empty_dirs, spec, held.volumes, group=group, root=os.getuid() == 0)
        except OSError as error:
            raise provider.Unavailable(
                f"cannot create the pod's directory: {error}", event="FailedMount", waiting="ContainerCreating"
            ) from error
        return provider.Sandbox((self._address,), files=held.files)

    async def start_container(self, pod: provider.ResolvedPod, container: provider.ResolvedContainer, *, restarts: int) -> None:
        held, name = await self.pods.hold(pod.pod.ref), container.name
        known = held.containers.get(name)
        if known is None and held.attempts(name):
            # A start that was cancelled may have succeeded.
            known = await self.pods.adopt(held, name)
        if known is None or (not known.runs and known.attempt.number < restarts):
            await self._start(pod, container, held=held, attempt=held.attempt(name, restarts))
        self.host.report(self.pods.report(held))

    async def _start(self, pod: provider.ResolvedPod, container: provider.ResolvedContainer, *, held: LocalPod, attempt: Attempt) -> None:
        ways, settings = self.ways, self.settings
        starting.command_of(container)
        own = Own(os.getuid(), os.getgid(), os.getgroups())
        root, users = settings.allow_root, Users(starting.group_of_user, partial(starting.foreign_groups, allowed=settings.groups))
        who = await in_thread(identity, pod.pod.spec, container.spec, own=own, default=settings.user, allow_root=root, users=users)
        try:
            order = await in_thread(self._lay_out, pod, container, held=held, attempt=attempt, who=who)
            await self._launch(order, attempt)
        except (OSError, provider.Unavailable) as error:
            if not attempt.is_kept():
                await in_thread(erase, attempt.directory)
                await in_thread(ways.cgroups.remove, held.ref.uid, group_of(attempt))
            if isinstance(error, provider.Unavailable):
                raise
            raise provider.Unavailable(f"container {container.name}: {error}", event="Failed", waiting="CreateContainerError") from error
        if attempt.number == 0 and (fields := await in_thread(self._not_kept, pod.pod, container, who)):
            about = evolve(ObjectReference.of(PODS, pod.pod), field_path=f"spec.containers{{{container.name}}}")
            self.host.events.event(about, "NotIsolated", starting.described(fields), warning=True)
        await self.pods.adopt(held, container.name)
        for old in self.pods.prune(held, container.name):
            await in_thread(erase, old)

    def _lay_out(
        self, pod: provider.ResolvedPod, container: provider.ResolvedContainer, *, held: LocalPod, attempt: Attempt, who: Identity
    ) -> Order:
        """Writes all files that a start needs. Raises Unavailable, OSError."""
        attempt.make(starting.about(container), uid=who.uid)
        order = starting.order(pod, container, held=held, attempt=attempt, who=who, ways=self.ways)
        # Not sooner: until now the working directory was only ours.
        attempt.give(uid=who.uid)
        limits = Limits.of(container.spec)
        self.ways.cgroups.create(held.ref.uid, group_of(attempt), limits=limits, pod_cpu=_cpu_of(pod.pod))
        return order

    async def _launch(self, order: Order, attempt: Attempt) -> None:
        """Launches a keeper. Raises Unavailable, OSError."""
        await self._starts.acquire()
        with ExitStack() as stack:
            place = stack.enter_context(ExitStack())
            place.callback(self._starts.release)
            # A longer start waits for a disk, and must not block the others.
            stack.callback(asyncio.get_running_loop().call_later(_PLACE_SECONDS, place.close).cancel)
            lock = attempt.lock()
            stack.callback(os.close, lock)
            await self._nursery.launch(order, lock)

    def _not_kept(self, pod: provider.Pod, container: provider.ResolvedContainer, who: Identity) -> list[str]:
        """Returns the fields that have no effect on this host; reads its file system."""
        escalation = self.settings.allow_privilege_escalation
        fields = list(not_kept(pod.spec, container.spec, uid=who.uid, privilege_escalation=escalation))
        if not self.ways.mounts:
            fields += [f"mountPath {mount.path}" for mount in container.mounts if os.path.lexists(mount.path)]
        limits, groups = Limits.of(container.spec), self.ways.cgroups
        return fields + [f"resources.limits[{name}]" for name in ("cpu", "memory") if getattr(limits, name) and not groups.limits(name)]

    async def stop_container(self, pod: provider.PodRef, container: str, *, grace: float) -> None:
        held = self.pods.get(pod.uid)
        known = held.containers.get(container) if held is not None else None
        if held is not None and known is None:
            # A start that was cancelled may have succeeded.
            known = await self.pods.adopt(held, container)
        if known is not None and known.runs:
            with suppress(provider.NoSuchContainer):
                await keepers.stop(known.attempt.directory, grace)

    async def resize_container(self, pod: provider.PodRef, container: str, resources: JsonView) -> None:
        """Changes limits. Raises NoSuchPod, NoSuchContainer, Unavailable."""
        known, cgroups, stored = self._running(pod, container), self.ways.cgroups, self.host.pods.get(pod)
        if not cgroups.hierarchies:
            raise provider.Unavailable("cannot change limits: vkubelet may not write to any control group of this host; delegate one to it")
        try:
            limits, pod_cpu = Limits.of({"resources": resources}), _cpu_of(stored) if stored is not None else None
            # To lower a limit the kernel may have to write out memory.
            await in_thread(cgroups.update, pod.uid, group_of(known.attempt), limits=limits, pod_cpu=pod_cpu)
        except OSError as error:
            raise provider.Unavailable(f"cannot set the limits of container {container}: {error.strerror}") from error

    async def remove_pod(self, pod: provider.PodRef) -> None:
        await self.pods.remove(pod.uid)
        self._meters.forget([pod.uid])

    async def list_containers(self, node: str) -> Iterable[provider.PodReport]:
        pods = self.pods
        return [pods.report(held) for held in pods if held.ref.node == node]

    def _known(self, pod: provider.PodRef, container: str) -> Container:
        """Returns a container. Raises NoSuchPod, NoSuchContainer."""
        held = self.pods.get(pod.uid)
        if held is None:
            raise provider.NoSuchPod(f'pod "{pod.name}" does not exist')
        known = held.containers.get(container)
        if known is None:
            raise provider.NoSuchContainer(f'container not found ("{container}"): it was never started')
        return known

    def _running(self, pod: provider.PodRef, container: str) -> Container:
        """Returns a running container. Raises NoSuchPod, NoSuchContainer."""
        known = self._known(pod, container)
        if not known.runs:
            raise provider.NoSuchContainer(f'container not found ("{container}"): it does not run')
        return known

    # --- logs and streams ---

    async def stream_logs(self, pod: provider.PodRef, container: str, options: provider.LogOptions) -> AsyncIterator[bytes]:
        known = self._known(pod, container)
        attempt = known.attempt
        if options.previous:
            held = self.pods.get(pod.uid)
            before = [each for each in held.attempts(container) if each.number < attempt.number] if held is not None else []
            if not before:
                raise provider.BadRequest(f'previous terminated container "{container}" in pod "{pod.name}" not found')
            attempt = before[-1]

        def ended() -> bool:
            return attempt is not known.attempt or not known.runs or self._pods is None

        there = numbers(str(attempt.logs))
        begin = there[0] if there else 0
        if options.tail is not None:
            begin = await in_thread(logs.begin_of_tail, attempt.logs, options.tail)
        async for text in logs.read(attempt.logs, begin=begin, ended=ended if options.follow else None, clock=self.host.clock):
            yield text

    def node_logs(self, node: str, path: str) -> AsyncIterator[bytes]:
        return logs.read_node_log(self.directory / "logs", path)

    async def exec(self, pod: provider.PodRef, container: str, command: Sequence[str], io: provider.ContainerIO) -> int:
        return await keepers.execute(self._running(pod, container).attempt.directory, command, io)

    async def attach(self, pod: provider.PodRef, container: str, io: provider.ContainerIO) -> None:
        await keepers.attach_to(self._running(pod, container).attempt.directory, io)

    async def port_forward(self, pod: provider.PodRef, port: int, stream: provider.ByteStream) -> None:
        if self.pods.get(pod.uid) is None:
            raise provider.NoSuchPod(f'pod "{pod.name}" does not exist')
        try:
            server = await asyncio.open_connection("127.0.0.1", port)
        except OSError as refused:
            try:
                server = await asyncio.open_connection("::1", port)
            except OSError:
                raise refused from None
        await relay(stream, *server)

    # --- usage ---

    async def usage_of(self, node: str) -> NodeStats:
        """Measures in a thread: hundreds of containers take longer than other tasks should wait."""
        async with self._measuring:
            return await in_thread(self._usage_of, node)

    def _usage_of(self, node: str) -> NodeStats:
        pods = [self._pod_stats(held) for held in self.pods if held.ref.node == node]
        return evolve(machine.stats(self.node, self.directory), pods=[each for each in pods if each.containers])

    def _pod_stats(self, held: LocalPod) -> PodStats:
        running = [(name, one) for name, one in list(held.containers.items()) if one.runs]
        containers = [self._container_stats(held, name, one) for name, one in running]
        started = min((each.started_at for each in containers if each.started_at is not None), default=None)
        return PodStats(held.ref, containers, started_at=started)

    def _container_stats(self, held: LocalPod, name: str, one: Container) -> ContainerStats:
        now, cgroups = self.host.clock.monotonic(), self.ways.cgroups
        usage = self._meters.read(held.ref.uid, one.attempt, one.state, cgroups=cgroups, now=now)
        started = moment(one.state.started) if one.state.started else None
        identifier = f"process://{held.ref.uid}.{group_of(one.attempt)}"
        return ContainerStats(name, usage, started_at=started, id=identifier, image=one.attempt.about().image, logs=logs_of(one.attempt))

    async def stats_summary(self, node: str) -> Json:
        return summary(await self.usage_of(node), now=self.host.clock.now())

    async def metrics(self, node: str, endpoint: provider.MetricsEndpoint) -> bytes:
        return metrics(endpoint, await self.usage_of(node), now=self.host.clock.now())


def _cpu_of(pod: provider.Pod) -> int:
    """Returns its CPU requests, in thousandths of a core."""
    asked = effective_requests(pod.spec).get("cpu")
    return asked.milli() if asked is not None else 0


def _state_directory() -> Path:
    if os.getuid() == 0:
        return Path("/var/lib/vkubelet/process")
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "vkubelet" / "process"
