"""Rules of the node's endpoints: usage, metrics, logs.

Invariant: documents are fetched as their clients do, through the node proxy of the API server, and parsed by an independent parser.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from vkubelet.api.objects import Json, JsonView
from vkubelet.clock import parse_rfc3339
from vkubelet.provider import MetricsEndpoint, SupportsMetrics, SupportsNodeLogs, SupportsStats
from vkubelet.testing.conformance.rules import Broken, expect, rule
from vkubelet.testing.conformance.stand import Made, Stand

AGAIN = 0.5
"""Seconds after which a document is fetched again that does not show a new pod yet."""


@rule(needs=SupportsStats)
async def stats_fields(stand: Stand) -> None:
    """/stats/summary contains the node and every running pod, by the kubelet's field names, with times and integers."""
    (pod,) = await stand.running("counted")

    async def look() -> None:
        document: Json = json.loads(await fetch(stand, "stats/summary"))
        _expect_summary(document, stand.node, pod)

    await _soon(stand, look)
    await stand.delete(pod.name)
    await stand.ended(pod)


def _expect_summary(document: JsonView, node: str, pod: Made) -> None:
    node_stats = document.get("node") or {}
    expect(node_stats.get("nodeName") == node, f"the summary is of node {node_stats.get('nodeName')}, requested was {node}")
    for entry, whose in [(node_stats, "the node"), *((each, f"pod {each.get('podRef')}") for each in document.get("pods") or ())]:
        for resource in ("cpu", "memory", "network", "fs"):
            _expect_numbers(entry.get(resource) or {}, f"{resource} of {whose}")
    expect("cpu" in node_stats and "memory" in node_stats, "the summary has neither cpu nor memory of the node, or only one of them")
    mine = [each for each in document.get("pods") or () if (each.get("podRef") or {}).get("uid") == pod.uid]
    expect(len(mine) == 1, f"the summary shows pod {pod.name}, which runs, {len(mine)} times")
    wanted = {"name": pod.name, "namespace": pod.ref.namespace, "uid": pod.uid}
    expect(mine[0]["podRef"] == wanted, f"the summary shows {mine[0]['podRef']} for {wanted}")
    names = [container.get("name") for container in mine[0].get("containers") or ()]
    expect(names == ["main"], f"the summary shows the containers {names} of pod {pod.name}, it has main")
    _expect_numbers(mine[0]["containers"][0].get("memory") or {}, f"memory of a container of pod {pod.name}")


def _expect_numbers(part: Mapping[str, object], what: str) -> None:
    for name, value in part.items():
        if name == "time":
            try:
                parse_rfc3339(str(value))
            except ValueError as error:
                raise Broken(f"{what}: {error}") from None
        elif name not in ("name", "interfaces"):
            expect(isinstance(value, int) and value >= 0, f"{what}: {name} is {value!r}, a whole number was expected")


@rule(needs=SupportsMetrics)
async def metrics_parse(stand: Stand) -> str:
    """/metrics/resource, /metrics/cadvisor and /metrics/probes are Prometheus text; the first has what metrics-server reads."""
    (pod,) = await stand.running("measured")
    count = {}

    async def look() -> None:
        for endpoint in MetricsEndpoint:
            families = list(_families(await fetch(stand, f"metrics/{endpoint.value}"), endpoint.value))
            count[endpoint.value] = len(families)
            if endpoint is MetricsEndpoint.RESOURCE:
                _expect_resources({family.name: family for family in families}, pod)

    await _soon(stand, look)
    await stand.delete(pod.name)
    await stand.ended(pod)
    return ", ".join(f"{name} {number} families" for name, number in count.items())


def _families(data: bytes, endpoint: str) -> Iterator[Metric]:
    try:
        yield from text_string_to_metric_families(data.decode())
    except (ValueError, UnicodeDecodeError) as error:
        raise Broken(f"/metrics/{endpoint} is not Prometheus text: {error}") from None


def _expect_resources(families: Mapping[str, Metric], pod: Made) -> None:
    # The parser removes the suffix of a counter.
    for name in ("node_cpu_usage_seconds", "node_memory_working_set_bytes"):
        expect(name in families and families[name].samples, f"/metrics/resource has no {name}")
    labels = {"container": "main", "pod": pod.name, "namespace": pod.ref.namespace}
    for name in ("container_cpu_usage_seconds", "container_memory_working_set_bytes", "container_start_time_seconds"):
        samples = families[name].samples if name in families else ()
        found = [sample for sample in samples if dict(sample.labels) == labels]
        expect(len(found) == 1, f"/metrics/resource has {len(found)} samples of {name} for {labels}")


@rule(needs=SupportsNodeLogs)
async def node_logs(stand: Stand) -> None:
    """/logs/ lists the log files of the node, and a missing file is not found."""
    listing = await fetch(stand, "logs/")
    expect(listing.strip(), "/logs/ is empty")
    outcome = await stand.judge.run("get", "--raw", _path(stand, "logs/never-was.log"))
    expect(
        outcome.code != 0 and "NotFound" in outcome.complaint, f"/logs/never-was.log was answered: {outcome.complaint or 'with success'}"
    )


def _path(stand: Stand, path: str) -> str:
    return f"/api/v1/nodes/{stand.node}/proxy/{path}"


async def fetch(stand: Stand, path: str) -> bytes:
    """Fetches a document. Raises Broken."""
    return await stand.judge.ok("get", "--raw", _path(stand, path))


async def _soon(stand: Stand, look: Callable[[], Awaitable[None]]) -> None:
    """Retries until it is not broken: usage is collected from time to time. Raises Broken with what was observed last."""
    end = stand.clock.monotonic() + stand.patience
    while True:
        try:
            await look()
            return
        except Broken:
            if stand.clock.monotonic() > end:
                raise
        await stand.clock.sleep(AGAIN)


RULES = (stats_fields, metrics_parse, node_logs)
