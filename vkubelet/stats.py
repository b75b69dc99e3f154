"""Resource usage of a node, its pods and its containers, as plain numbers, and the documents of a kubelet computed from them.

Invariant: an unknown value is omitted, never reported as zero; everything here is pure.

A provider that knows such numbers needs a few lines:

    async def stats_summary(self, node: str) -> Json:
        return summary(self.usage_of(node), now=self.host.clock.now())

    async def metrics(self, node: str, endpoint: MetricsEndpoint) -> bytes:
        return metrics(endpoint, self.usage_of(node), now=self.host.clock.now())
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeVar

from attrs import evolve, field, fields, frozen

from vkubelet.api.objects import Json, PodRef
from vkubelet.clock import rfc3339
from vkubelet.provider import MetricsEndpoint

T = TypeVar("T", int, float)

# --- Usage -------------------------------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Usage:
    """CPU and memory in use at the time `at` (UTC; None: when the document is rendered). `cpu_seconds` only grows; `cpu_cores` is its
    recent rate. `memory_bytes` is the working set: memory that cannot be reclaimed without harm."""

    at: datetime | None = None
    cpu_seconds: float | None = None
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_usage_bytes: int | None = None
    rss_bytes: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    swap_bytes: int | None = None
    swap_limit_bytes: int | None = None


@frozen(kw_only=True)
class Filesystem:
    """A filesystem, or the part of one in use by an object."""

    used_bytes: int | None = None
    available_bytes: int | None = None
    capacity_bytes: int | None = None
    inodes_used: int | None = None
    inodes_free: int | None = None
    inodes: int | None = None


@frozen
class Network:
    """Counters of one interface."""

    interface: str
    received_bytes: int | None = field(default=None, kw_only=True)
    receive_errors: int | None = field(default=None, kw_only=True)
    sent_bytes: int | None = field(default=None, kw_only=True)
    send_errors: int | None = field(default=None, kw_only=True)


@frozen
class ProbeCount:
    """Number of results of one type of probe."""

    kind: Literal["Liveness", "Readiness", "Startup"]
    successful: int = field(default=0, kw_only=True)
    failed: int = field(default=0, kw_only=True)
    unknown: int = field(default=0, kw_only=True)


@frozen
class ContainerStats:
    """One running container. `id` and `image` are as in its status."""

    name: str
    usage: Usage = Usage()
    started_at: datetime | None = field(default=None, kw_only=True)
    id: str = field(default="", kw_only=True)
    image: str = field(default="", kw_only=True)
    rootfs: Filesystem | None = field(default=None, kw_only=True)
    logs: Filesystem | None = field(default=None, kw_only=True)
    probes: Sequence[ProbeCount] = field(default=(), kw_only=True)


@frozen
class PodStats:
    """One pod; without a separate `usage` it is the sum of its containers. `volumes` are reported by name."""

    pod: PodRef
    containers: Sequence[ContainerStats] = ()
    usage: Usage | None = field(default=None, kw_only=True)
    started_at: datetime | None = field(default=None, kw_only=True)
    network: Network | None = field(default=None, kw_only=True)
    volumes: Mapping[str, Filesystem] = field(factory=dict, kw_only=True)
    ephemeral_storage: Filesystem | None = field(default=None, kw_only=True)
    processes: int | None = field(default=None, kw_only=True)

    @property
    def total(self) -> Usage:
        return self.usage or total_usage(container.usage for container in self.containers)


@frozen
class NodeStats:
    """One node; without a separate `usage` it is the sum of its pods. `cores` and `memory_bytes` are those of the machine."""

    name: str
    pods: Sequence[PodStats] = ()
    usage: Usage | None = field(default=None, kw_only=True)
    started_at: datetime | None = field(default=None, kw_only=True)
    network: Network | None = field(default=None, kw_only=True)
    filesystem: Filesystem | None = field(default=None, kw_only=True)
    cores: float | None = field(default=None, kw_only=True)
    memory_bytes: int | None = field(default=None, kw_only=True)

    @property
    def total(self) -> Usage:
        total = self.usage or total_usage(pod.total for pod in self.pods)
        return total if total.memory_limit_bytes is not None else evolve(total, memory_limit_bytes=self.memory_bytes)


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Returns the sum; a number that is unknown everywhere stays unknown. Limits are not added up: unlimited parts would be missing."""
    parts = list(usages)
    summed = [a.name for a in fields(Usage) if a.name not in ("at", "memory_limit_bytes", "swap_limit_bytes")]
    times = [part.at for part in parts if part.at is not None]
    return Usage(at=min(times, default=None), **{name: _sum(getattr(part, name) for part in parts) for name in summed})


def _sum(values: Iterable[T | None]) -> T | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


# --- /stats/summary ----------------------------------------------------------------------------------------------------------------------


def summary(node: NodeStats, *, now: datetime) -> Json:
    """Returns the document of `/stats/summary`."""
    known: Json = {"nodeName": node.name, **_times(node.started_at), **_usage(node.total, now)}
    if node.network is not None:
        known["network"] = _network(node.network, now)
    if node.filesystem is not None:
        known["fs"] = _filesystem(node.filesystem, now)
    return {"node": known, "pods": [_pod(pod, now) for pod in node.pods]}


def _pod(pod: PodStats, now: datetime) -> Json:
    ref = pod.pod
    body: Json = {"podRef": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}, **_times(pod.started_at)}
    body["containers"] = [_container(container, now) for container in pod.containers]
    body |= _usage(pod.total, now)
    if pod.network is not None:
        body["network"] = _network(pod.network, now)
    if pod.volumes:
        body["volume"] = [{"name": name, **_filesystem(volume, now)} for name, volume in pod.volumes.items()]
    if pod.ephemeral_storage is not None:
        body["ephemeral-storage"] = _filesystem(pod.ephemeral_storage, now)
    if pod.processes is not None:
        body["process_stats"] = {"process_count": pod.processes}
    return body


def _container(container: ContainerStats, now: datetime) -> Json:
    body: Json = {"name": container.name, **_times(container.started_at), **_usage(container.usage, now)}
    for name, filesystem in (("rootfs", container.rootfs), ("logs", container.logs)):
        if filesystem is not None:
            body[name] = _filesystem(filesystem, now)
    return body


def _times(started_at: datetime | None) -> Json:
    return {} if started_at is None else {"startTime": rfc3339(started_at)}


def _usage(usage: Usage, now: datetime) -> Json:
    cpu = {"usageNanoCores": _nano(usage.cpu_cores), "usageCoreNanoSeconds": _nano(usage.cpu_seconds)}
    memory = {
        "availableBytes": _left(usage.memory_limit_bytes, usage.memory_bytes),
        "usageBytes": usage.memory_usage_bytes,
        "workingSetBytes": usage.memory_bytes,
        "rssBytes": usage.rss_bytes,
        "pageFaults": usage.page_faults,
        "majorPageFaults": usage.major_page_faults,
    }
    swap = {"swapAvailableBytes": _left(usage.swap_limit_bytes, usage.swap_bytes), "swapUsageBytes": usage.swap_bytes}
    at = {"time": rfc3339(usage.at or now)}
    parts = {"cpu": _known(cpu), "memory": _known(memory), "swap": _known(swap)}
    return {name: at | part for name, part in parts.items() if part}


def _network(network: Network, now: datetime) -> Json:
    counters = _known(
        {
            "rxBytes": network.received_bytes,
            "rxErrors": network.receive_errors,
            "txBytes": network.sent_bytes,
            "txErrors": network.send_errors,
        }
    )
    one = {"name": network.interface, **counters}
    return {"time": rfc3339(now), **one, "interfaces": [one]}


def _filesystem(filesystem: Filesystem, now: datetime) -> Json:
    numbers = {
        "availableBytes": filesystem.available_bytes,
        "capacityBytes": filesystem.capacity_bytes,
        "usedBytes": filesystem.used_bytes,
        "inodesFree": filesystem.inodes_free,
        "inodes": filesystem.inodes,
        "inodesUsed": filesystem.inodes_used,
    }
    return {"time": rfc3339(now), **_known(numbers)}


def _known(values: Mapping[str, int | None]) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _nano(value: float | None) -> int | None:
    return None if value is None else round(value * 1_000_000_000)


def _left(limit: int | None, used: int | None) -> int | None:
    return None if limit is None or used is None else max(0, limit - used)


# --- /metrics/resource, /metrics/cadvisor, /metrics/probes --------------------------------------------------------------------------------

Labels = Mapping[str, str]
Sample = tuple[Labels, float | None, datetime | None]
"""Labels in the order they are printed in, a value, and when it was taken; without a value the sample is omitted."""


def metrics(endpoint: MetricsEndpoint, node: NodeStats, *, now: datetime) -> bytes:
    """Renders one of the kubelet's endpoints for Prometheus beside `/metrics` (text format 0.0.4)."""
    families = {
        MetricsEndpoint.RESOURCE: _resource_families,
        MetricsEndpoint.CADVISOR: _cadvisor_families,
        MetricsEndpoint.PROBES: _probe_families,
    }
    return b"".join(families[endpoint](node, now))


def family(name: str, kind: Literal["counter", "gauge"], text: str, *, samples: Iterable[Sample]) -> bytes:
    """Renders one family in text format 0.0.4; nothing when no sample has a value. Labels keep their order, unlike in most libraries."""
    lines = [_line(name, labels, value, at=at) for labels, value, at in samples if value is not None]
    return "\n".join((f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines, "")).encode() if lines else b""


def _line(name: str, labels: Labels, value: float, *, at: datetime | None) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    braces = f"{{{inside}}}" if inside else ""
    moment = f" {round(at.timestamp() * 1000)}" if at is not None else ""
    return f"{name}{braces} {float(value)!r}{moment}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _resource_families(node: NodeStats, now: datetime) -> Iterator[bytes]:
    # Some readers take the second label of a pod's and of a container's series for the name of the pod, whatever it is called.
    pods = [({"namespace": pod.pod.namespace, "pod": pod.pod.name}, pod.total) for pod in node.pods]
    containers = [(_of_container(pod, container), container.usage) for pod in node.pods for container in pod.containers]
    for level, usages in (("node", [({}, node.total)]), ("pod", pods), ("container", containers)):
        yield from _usage_families(level, usages, now)
    limits = [(labels, usage.swap_limit_bytes, usage.at or now) for labels, usage in containers]
    yield family("container_swap_limit_bytes", "gauge", "Swap that the container may use.", samples=limits)
    started = [(_of_container(pod, c), c.started_at.timestamp(), None) for pod in node.pods for c in pod.containers if c.started_at]
    yield family("container_start_time_seconds", "gauge", "Unix time at which the container started.", samples=started)
    for name in ("resource_scrape_error", "scrape_error"):
        yield family(name, "gauge", "1 if the usage could not be determined, else 0.", samples=[({}, 0, None)])


def _usage_families(level: str, usages: Sequence[tuple[Labels, Usage]], now: datetime) -> Iterator[bytes]:
    def samples(attribute: str) -> Iterator[Sample]:
        return ((labels, getattr(usage, attribute), usage.at or now) for labels, usage in usages)

    yield family(f"{level}_cpu_usage_seconds_total", "counter", f"CPU time used by the {level}.", samples=samples("cpu_seconds"))
    yield family(f"{level}_memory_working_set_bytes", "gauge", f"Working set of the {level}.", samples=samples("memory_bytes"))
    yield family(f"{level}_swap_usage_bytes", "gauge", f"Swap used by the {level}.", samples=samples("swap_bytes"))


def _of_container(pod: PodStats, container: ContainerStats) -> Labels:
    return {"container": container.name, "pod": pod.pod.name, "namespace": pod.pod.namespace}


_CADVISOR: Sequence[tuple[str, Literal["counter", "gauge"], str, str]] = (
    ("container_cpu_usage_seconds_total", "counter", "CPU time used by the container.", "cpu_seconds"),
    ("container_memory_working_set_bytes", "gauge", "Working set of the container.", "memory_bytes"),
    ("container_memory_usage_bytes", "gauge", "Memory in use, including reclaimable memory.", "memory_usage_bytes"),
    ("container_memory_rss", "gauge", "Resident anonymous memory.", "rss_bytes"),
    ("container_memory_swap", "gauge", "Swap in use.", "swap_bytes"),
    ("container_spec_memory_limit_bytes", "gauge", "Memory that may be used.", "memory_limit_bytes"),
)


def _cadvisor_families(node: NodeStats, now: datetime) -> Iterator[bytes]:
    known = [(_of_cadvisor(pod, c), c) for pod in node.pods for c in pod.containers]
    for name, kind, text, attribute in _CADVISOR:
        samples = [(labels, getattr(c.usage, attribute), c.usage.at or now) for labels, c in known]
        yield family(name, kind, text, samples=samples)
    started = [(labels, c.started_at.timestamp(), None) for labels, c in known if c.started_at]
    yield family("container_start_time_seconds", "gauge", "Unix time at which the container started.", samples=started)
    yield from _network_families(node, now)
    yield family("machine_cpu_cores", "gauge", "Cores of the machine.", samples=[({}, node.cores, now)])
    yield family("machine_memory_bytes", "gauge", "Memory of the machine.", samples=[({}, node.memory_bytes, now)])


def _of_cadvisor(pod: PodStats, container: ContainerStats) -> Labels:
    ref = pod.pod
    inner = {"id": container.id, "name": container.id, "image": container.image}
    return {"container": container.name, **inner, "namespace": ref.namespace, "pod": ref.name}


def _network_families(node: NodeStats, now: datetime) -> Iterator[bytes]:
    known = [
        ({"container": "", "interface": pod.network.interface, "namespace": pod.pod.namespace, "pod": pod.pod.name}, pod.network)
        for pod in node.pods
        if pod.network is not None
    ]
    for verb, text, attribute in (("receive", "received", "received_bytes"), ("transmit", "sent", "sent_bytes")):
        samples = [(labels, getattr(network, attribute), now) for labels, network in known]
        yield family(f"container_network_{verb}_bytes_total", "counter", f"Bytes {text}.", samples=samples)


def _probe_families(node: NodeStats, now: datetime) -> Iterator[bytes]:
    samples: list[Sample] = []
    for pod in node.pods:
        for container in pod.containers:
            for probe in container.probes:
                labels = {"probe_type": probe.kind, **_of_container(pod, container), "pod_uid": pod.pod.uid}
                samples.extend(({**labels, "result": how}, getattr(probe, how), None) for how in ("successful", "failed", "unknown"))
    yield family("prober_probe_total", "counter", "Probes by result.", samples=samples)
