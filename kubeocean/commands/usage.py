"""Usage of nodes and pods, read from metrics.k8s.io or from the kubelets of a cluster.

Invariant: a value that no source has is absent, never zero, and the reason is named with the remedy.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import define, field, frozen

from kubeocean.commands.rights import Reader
from vkubelet.api.codec import decode_json
from vkubelet.api.objects import Json, JsonView, Key
from vkubelet.api.quantity import ZERO, Format, Quantity, Resources, add_resources, parse_resources
from vkubelet.client.rest import Client
from vkubelet.errors import ApiError, Forbidden, NotFound

_METRICS = "/apis/metrics.k8s.io/v1beta1"
_CONCURRENCY = 8
_TIMEOUT = 10.0


@define
class Usage:
    """CPU and memory in use by node, and by pod; `missing` is why some are absent."""

    nodes: dict[str, Resources] = field(factory=dict)
    pods: dict[Key, Resources] = field(factory=dict)
    missing: list[str] = field(factory=list)


async def read(reader: Reader, nodes: Sequence[str], *, remedy: str) -> Usage:
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
    usage.pods |= {_key(each["metadata"]): _sum(each.get("containers") or ()) for each in pods.get("items") or ()}
    return "metrics.k8s.io does not have them yet"


def _key(metadata: JsonView) -> Key:
    return Key(metadata.get("namespace", ""), metadata["name"])


def _sum(containers: Iterable[JsonView]) -> Resources:
    out: Resources = {}
    for each in containers:
        out = add_resources(out, parse_resources(each.get("usage") or {}))
    return out


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


# --- Documents (pure) ---------------------------------------------------------------------------------------------------------------------


def amounts(stats: JsonView) -> Resources:
    """Reads CPU and memory of a node, a pod or a container of `/stats/summary`."""
    cpu, memory = (stats.get("cpu") or {}).get("usageNanoCores"), (stats.get("memory") or {}).get("workingSetBytes")
    out: dict[str, Quantity] = {}
    if cpu is not None:
        out["cpu"] = Quantity.parse(f"{-(-cpu // 10**6)}m")
    if memory is not None:
        out["memory"] = Quantity.of(memory, Format.BINARY)
    return out


def pods_of(document: Json) -> Iterator[tuple[Key, Resources]]:
    """Yields the usage of each pod; that of its containers where the document has none of the pod."""
    for pod in document.get("pods") or ():
        reference = pod.get("podRef") or {}
        own = amounts(pod)
        if not own:
            for container in pod.get("containers") or ():
                own = add_resources(own, amounts(container))
        if own:
            yield Key(reference.get("namespace", ""), reference.get("name", "")), own


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
