"""`kubeocean top [bindings|nodes|namespaces]`: usage of leased capacity, as the hub sees it or as the worker sees it.

Invariant: a sum is shown only if all of its parts are known; what is missing is named with the remedy, and the exit code is then 1 unless
something is shown.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from kubeocean.commands import capacity, clusters, reading, usage
from kubeocean.commands.clusters import Choice
from kubeocean.commands.output import Block, Columns, Format, amount_text, data, in_progress, write
from kubeocean.commands.rights import Reader
from kubeocean.commands.terminal import Terminal
from kubeocean.commands.usage import Row, Usage
from kubeocean.leasing.reclaim import LeasedPod
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from vkubelet.api.objects import NODES, PODS, Node, Pod
from vkubelet.api.quantity import Quantity, Resources, add_resources, parse_resources
from vkubelet.errors import VKubeletError

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


@frozen(kw_only=True)
class Top:
    """One run of the command; `worker` is the worker cluster as named by flags, None to use the Secret of each binding."""

    hub: Choice
    worker: Choice | None
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
                for binding in await reading.bindings(reader, self.binding):
                    try:
                        rows += await self._binding(reader, binding, missing)
                    except VKubeletError as error:
                        missing.append(f"ClusterBinding {binding.name}: {error}")
        rows = merged(rows)
        if self.output.is_data:
            self.terminal.write_line(data({"rows": rows, "missing": missing}, self.output))
        else:
            write(self.terminal, blocks(rows, missing, by=self.by))
        if missing and all(row.cpu is None for row in rows):
            raise SystemExit(1)

    async def _binding(self, hub: Reader, binding: ClusterBinding, missing: list[str]) -> list[Row]:
        virtual = await reading.virtual_nodes(hub, binding)
        if self.view is View.HUB:
            found = await usage.read(hub, list(virtual), remedy=_HUB_REMEDY)
            nodes, pods = virtual, await hub.list(PODS)
        else:
            owner = await reading.owner_of(hub, binding)
            physical = {node.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "") for node in virtual.values()}
            async with reading.worker_reader(hub, binding, owner, chosen=self.worker) as worker:
                found = await usage.read(worker, sorted(physical - {""}), remedy=_WORKER_REMEDY)
                nodes = {node.metadata.name: node for node in await worker.list(NODES) if node.metadata.name in physical}
                pods = await worker.list(PODS)
        missing += found.missing
        own = [pod for pod in pods if pod.node in nodes and not pod.terminal]
        return rows_of(binding, nodes, own, found=found, by=self.by)


# --- Rows (pure) --------------------------------------------------------------------------------------------------------------------------


def rows_of(binding: ClusterBinding, nodes: Mapping[str, Node], pods: Sequence[Pod], *, found: Usage, by: By) -> list[Row]:
    """Computes the rows of one binding from its nodes, the pods on them, and their usage."""
    if by is By.NAMESPACES:
        names = sorted({pod.metadata.namespace for pod in pods})
        return [_of_pods(name, [pod for pod in pods if pod.metadata.namespace == name], found) for name in names]
    each = [_of_node(node, [pod for pod in pods if pod.node == node.metadata.name], found) for _, node in sorted(nodes.items())]
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
    out: Resources = {}
    for pod in pods:
        out = add_resources(out, LeasedPod.of(pod).requests)
    return out


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
        requested=capacity.total(row.requested for row in rows) or {},
        leased=capacity.total(row.leased for row in rows) or {},
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
