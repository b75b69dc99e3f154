"""`kubeocean top [bindings|nodes|namespaces]`: usage of leased capacity, as the hub sees it or as the worker sees it.

Invariant: a sum is shown only if all of its parts are known; what is missing is named with the remedy, and the exit code is then 1 unless
something is shown.
"""

import asyncio
import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import define, field, frozen

from kubeocean.commands import reading
from kubeocean.commands.output import Block, Columns, Format, amount_text, data, in_progress, write
from kubeocean.leasing.reclaim import LeasedPod
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from vkubelet.api.codec import decode_json
from vkubelet.api.objects import NODES, PODS, Json, JsonView, Key, Node, Pod
from vkubelet.api.quantity import ZERO, Quantity, Resources, parse_resources, sum_resources
from vkubelet.api.quantity import Format as Unit
from vkubelet.client.rest import Client
from vkubelet.commands import clusters
from vkubelet.commands.reading import Reader
from vkubelet.commands.terminal import Terminal
from vkubelet.errors import ApiError, Forbidden, NotFound, VKubeletError

_METRICS = "/apis/metrics.k8s.io/v1beta1"
_CONCURRENCY = 8
_TIMEOUT = 10.0
_HUB_REMEDY = (
    "grant the worker's right to read usage with `kubeocean bind NAME --metrics`, and check the kubelet port with `kubeocean doctor`"
)
_WORKER_REMEDY = "install metrics-server in the worker, or name a user with `get` on nodes/proxy by --worker-context"


class By(enum.StrEnum):
    """What a row is about."""

    BINDINGS = "bindings"
    NODES = "nodes"
    NAMESPACES = "namespaces"


class View(enum.StrEnum):
    """Whose nodes, pods and namespaces are shown."""

    HUB = "hub"
    WORKER = "worker"


@define
class Usage:
    """CPU and memory in use by node, and by pod; `missing` is why some are absent."""

    nodes: dict[str, Resources] = field(factory=dict)
    pods: dict[Key, Resources] = field(factory=dict)
    missing: list[str] = field(factory=list)


@frozen(kw_only=True)
class Row:
    """Usage of a binding, a node or a namespace; amounts are None where a part of them is unknown."""

    name: str
    pods: int
    cpu: Quantity | None
    memory: Quantity | None
    requested: Resources
    leased: Resources
    """Allocatable of the nodes; empty for a namespace."""

    def percent(self, resource: str) -> str:
        """Formats the usage as a share of what is leased."""
        used, leased = (self.cpu if resource == "cpu" else self.memory), self.leased.get(resource, ZERO)
        return f"{100 * used.milli() // leased.milli()}%" if used is not None and leased else "-"


@frozen(kw_only=True)
class Top:
    """One run of the command; `worker` is the worker cluster as named by flags, None to use the Secret of each binding."""

    hub: clusters.Choice
    worker: clusters.Choice | None
    binding: str
    by: By
    view: View
    terminal: Terminal
    output: Format

    async def run(self) -> None:
        """Prints the usage. Raises CommandFailed, SystemExit with 1 when no usage is known."""
        rows, missing = list[Row](), list[str]()
        async with clusters.opened(self.hub) as client:
            reader = Reader(client, self.hub)
            with in_progress("reading usage"):
                found = await reading.bindings(reader, self.binding)
                if self.view is View.HUB:
                    rows = await self._in_hub(reader, found, missing)
                else:
                    rows = await self._in_workers(reader, found, missing)
        rows = merged(rows)
        if self.output.is_data:
            self.terminal.write_line(data({"rows": rows, "missing": missing}, self.output))
        else:
            write(self.terminal, blocks(rows, missing, by=self.by))
        if missing and all(row.cpu is None for row in rows):
            raise SystemExit(1)

    async def _in_hub(self, hub: Reader, bindings: Sequence[ClusterBinding], missing: list[str]) -> list[Row]:
        """Reads the hub once, whatever the number of bindings."""
        virtual = [await reading.virtual_nodes(hub, binding) for binding in bindings]
        found = await read_usage(hub, [name for nodes in virtual for name in nodes], remedy=_HUB_REMEDY)
        missing += found.missing
        pods = await hub.list(PODS)
        return [
            row for binding, nodes in zip(bindings, virtual, strict=True) for row in rows_of(binding, nodes, pods, found=found, by=self.by)
        ]

    async def _in_workers(self, hub: Reader, bindings: Sequence[ClusterBinding], missing: list[str]) -> list[Row]:
        rows = list[Row]()
        for binding in bindings:
            try:
                rows += await self._in_worker(hub, binding, missing)
            except VKubeletError as error:
                missing.append(f"ClusterBinding {binding.name}: {error}")
        return rows

    async def _in_worker(self, hub: Reader, binding: ClusterBinding, missing: list[str]) -> list[Row]:
        virtual = await reading.virtual_nodes(hub, binding)
        owner = await reading.owner_of(hub, binding)
        physical = {node.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "") for node in virtual.values()}
        async with reading.worker_reader(hub, binding, owner, chosen=self.worker) as worker:
            found = await read_usage(worker, sorted(physical - {""}), remedy=_WORKER_REMEDY)
            nodes = {node.metadata.name: node for node in await worker.list(NODES) if node.metadata.name in physical}
            pods = await worker.list(PODS)
        missing += found.missing
        return rows_of(binding, nodes, pods, found=found, by=self.by)


# --- Reading usage ------------------------------------------------------------------------------------------------------------------------


async def read_usage(reader: Reader, nodes: Sequence[str], *, remedy: str) -> Usage:
    """Reads the usage of these nodes, and of the pods of the cluster: from metrics.k8s.io, else from the kubelets."""
    usage = Usage()
    why = await _from_metrics(reader.client, usage)
    absent = [name for name in nodes if name not in usage.nodes]
    if absent:
        failures = await _from_kubelets(reader.client, usage, absent)
        if failures:
            text = f"{reader.choice.title}: usage of {len(failures)} nodes is unknown; {why}; {next(iter(failures.values()))}; {remedy}"
            usage.missing.append(text)
    return usage


async def _from_metrics(client: Client, usage: Usage) -> str:
    """Adds what metrics.k8s.io has; returns why it has nothing."""
    try:
        listed = decode_json(await client.request("GET", f"{_METRICS}/nodes"))
        pods = decode_json(await client.request("GET", f"{_METRICS}/pods"))
    except NotFound:
        return "it serves no metrics.k8s.io (install metrics-server)"
    except Forbidden as error:
        return f"metrics.k8s.io refuses: {error.message}"
    except ApiError as error:
        return f"metrics.k8s.io does not respond: {error.message}"
    usage.nodes |= {each["metadata"]["name"]: parse_resources(each.get("usage") or {}) for each in listed.get("items") or ()}
    usage.pods |= {_key(each["metadata"]): _of_containers(each.get("containers") or ()) for each in pods.get("items") or ()}
    return "metrics.k8s.io does not have them yet"


def _key(metadata: JsonView) -> Key:
    return Key(metadata.get("namespace", ""), metadata["name"])


def _of_containers(containers: Iterable[JsonView]) -> Resources:
    return sum_resources(parse_resources(each.get("usage") or {}) for each in containers)


async def _from_kubelets(client: Client, usage: Usage, nodes: Sequence[str]) -> Mapping[str, str]:
    """Adds what the kubelets of the nodes report; returns why some do not."""
    slots, failures = asyncio.Semaphore(_CONCURRENCY), dict[str, str]()

    async def ask(name: str) -> None:
        async with slots:
            try:
                async with asyncio.timeout(_TIMEOUT):
                    document = decode_json(await client.request("GET", f"/api/v1/nodes/{name}/proxy/stats/summary"))
            except TimeoutError:
                failures[name] = f"the kubelet port of Node {name} did not respond within {_TIMEOUT:g} s"
                return
            except ApiError as error:
                failures[name] = f"the kubelet port of Node {name} answers: {error.message}"
                return
        node = amounts(document.get("node") or {})
        if node:
            usage.nodes[name] = node
        usage.pods |= dict(pods_of(document))

    async with asyncio.TaskGroup() as group:
        for name in nodes:
            group.create_task(ask(name))
    return failures


# --- Documents of a cluster (pure) --------------------------------------------------------------------------------------------------------


def amounts(stats: JsonView) -> Resources:
    """Reads CPU and memory of a node, a pod or a container of `/stats/summary`."""
    cpu, memory = (stats.get("cpu") or {}).get("usageNanoCores"), (stats.get("memory") or {}).get("workingSetBytes")
    out: dict[str, Quantity] = {}
    if cpu is not None:
        out["cpu"] = Quantity.parse(f"{-(-cpu // 10**6)}m")
    if memory is not None:
        out["memory"] = Quantity.of(memory, Unit.BINARY)
    return out


def pods_of(document: Json) -> Iterator[tuple[Key, Resources]]:
    """Yields the usage of each pod; that of its containers where the document has none of the pod."""
    for pod in document.get("pods") or ():
        reference = pod.get("podRef") or {}
        own = amounts(pod) or sum_resources(map(amounts, pod.get("containers") or ()))
        if own:
            yield Key(reference.get("namespace", ""), reference.get("name", "")), own


# --- Rows (pure) --------------------------------------------------------------------------------------------------------------------------


def rows_of(binding: ClusterBinding, nodes: Mapping[str, Node], pods: Sequence[Pod], *, found: Usage, by: By) -> list[Row]:
    """Computes the rows of one binding from its nodes, pods of which only those on them count, and their usage."""
    pods = [pod for pod in pods if pod.node in nodes and not pod.terminal]
    if by is By.NAMESPACES:
        names = sorted({pod.metadata.namespace for pod in pods})
        return [_of_pods(name, [pod for pod in pods if pod.metadata.namespace == name], found) for name in names]
    on_node: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        on_node[pod.node].append(pod)
    each = [_of_node(node, on_node[name], found) for name, node in sorted(nodes.items())]
    if by is By.NODES:
        return each
    return [total(each, name=binding.name)]


def _of_pods(name: str, pods: Sequence[Pod], found: Usage) -> Row:
    parts = [found.pods.get(pod.key, {}) for pod in pods if pod.phase == "Running"]
    return Row(
        name=name,
        pods=len(pods),
        cpu=_sum(part.get("cpu") for part in parts),
        memory=_sum(part.get("memory") for part in parts),
        requested=_requested(pods),
        leased={},
    )


def _of_node(node: Node, pods: Sequence[Pod], found: Usage) -> Row:
    own = found.nodes.get(node.metadata.name, {})
    return Row(
        name=node.metadata.name,
        pods=len(pods),
        cpu=own.get("cpu"),
        memory=own.get("memory"),
        requested=_requested(pods),
        leased=parse_resources(node.status.get("allocatable") or {}),
    )


def _requested(pods: Iterable[Pod]) -> Resources:
    return sum_resources(LeasedPod.of(pod).requests for pod in pods)


def _sum(parts: Iterable[Quantity | None]) -> Quantity | None:
    """Returns the sum; None when a part is unknown."""
    out = Quantity.of(0)
    for part in parts:
        if part is None:
            return None
        out += part
    return out


def total(rows: Sequence[Row], *, name: str) -> Row:
    """Returns the sum of rows."""
    return Row(
        name=name,
        pods=sum(row.pods for row in rows),
        cpu=_sum(row.cpu for row in rows),
        memory=_sum(row.memory for row in rows),
        requested=sum_resources(row.requested for row in rows),
        leased=sum_resources(row.leased for row in rows),
    )


def merged(rows: Sequence[Row]) -> list[Row]:
    """Adds up rows of one name: a namespace of the hub may have pods on nodes of several bindings."""
    names = list(dict.fromkeys(row.name for row in rows))
    return [total([row for row in rows if row.name == name], name=name) for name in names]


def blocks(rows: Sequence[Row], missing: Sequence[str], *, by: By) -> list[Block]:
    """Renders the table, and below it what is missing."""
    shares = by is not By.NAMESPACES
    head = ("NAME", "PODS", "CPU", *(("CPU%",) if shares else ()), "REQUESTED", "MEMORY", *(("MEMORY%",) if shares else ()), "REQUESTED")
    cells = [
        (
            row.name,
            str(row.pods),
            *_cells(row, "cpu", row.cpu, shares=shares),
            *_cells(row, "memory", row.memory, shares=shares),
        )
        for row in rows
    ]
    return [Columns(head, cells) if cells else "No virtual node exists; `kubeocean status` shows why.", *(f"! {text}" for text in missing)]


def _cells(row: Row, resource: str, used: Quantity | None, *, shares: bool) -> tuple[str, ...]:
    text = "?" if used is None else amount_text(used)
    requested = row.requested.get(resource)
    return (text, *((row.percent(resource),) if shares else ()), amount_text(requested) if requested is not None else "0")
