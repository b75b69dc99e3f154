"""Usage of leased pods: the kubelet's own pages, `kubectl top` by the real metrics-server, and an autoscaler that lives on it.

Invariant: what is shown is compared with what the worker's kubelet says, asked by the worker's own admin.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import frozen
from prometheus_client.parser import text_string_to_metric_families

from tests.support.background import background
from tests.support.bound import Body, Bound, apply, delete, get, items, physical, pod, running, vacate
from tests.support.pages import Shell, block
from tests.support.program import LONG, Program, eventually
from vkubelet.api.quantity import Quantity
from vkubelet.testing.cluster import CommandFailed, ControlPlane, MetricsServer, WorkerNode
from vkubelet.testing.fixtures import SHOWS_USAGE, run_apart

BURN = "trap 'exit 0' TERM; while true; do if [ -e /rest ]; then sleep 0.2; fi; done"
"""Takes all the CPU it may have, until somebody makes a file."""
BURNT = 0.1
"""Cores that a pod may have."""
pytestmark = pytest.mark.usefixtures("autoscaling")
PAGES_AGAIN = 600
"""Seconds: on a busy machine the worker's kubelet was seen to answer nothing about usage for two and a half minutes."""
PAGE = "use/metrics.md"
PAGES = ("stats/summary", "metrics/resource", "metrics/cadvisor", "metrics/probes")


def burning(name: str, namespace: str, *, cores: float = BURNT) -> Body:
    body = pod(name, namespace, terminationGracePeriodSeconds=1)
    [main] = body["spec"]["containers"]
    main["command"] = ["sh", "-c", BURN]
    main["resources"] = {"requests": {"cpu": "50m", "memory": "16Mi"}, "limits": {"cpu": str(cores), "memory": "32Mi"}}
    # It has little CPU to answer a probe with, and on a busy machine less.
    main["readinessProbe"] = {"exec": {"command": ["true"]}, "periodSeconds": 2, "timeoutSeconds": 20}
    return body


@frozen
class Scene:
    """A leased pod `burner` that burns CPU, beside a pod of the worker's owner and a stranger in the mount namespace."""

    bound: Bound
    node: str
    namespace: str
    physical: Body

    @property
    def vnode(self) -> str:
        return self.bound.vnode(self.node)

    async def page(self, path: str) -> str:
        """Of the virtual node, through the hub's API server."""
        return await self.bound.hub.kubectl("get", "--raw", f"/api/v1/nodes/{self.vnode}/proxy/{path}")

    async def physical_page(self, path: str) -> str:
        return await self.bound.worker.kubectl("get", "--raw", f"/api/v1/nodes/{self.node}/proxy/{path}")


@pytest.fixture(scope="session")
def scene(leased: Bound, worker_node: WorkerNode) -> Iterator[Scene]:
    async def start() -> Scene:
        namespace = await leased.hub.namespace("usage")
        theirs = await leased.worker.namespace("theirs")
        await leased.hub.kubectl("label", "node", leased.vnode(worker_node.name), SHOWS_USAGE)
        await apply(leased.hub, burning("burner", namespace))
        await apply(leased.worker, pod("of-the-owner", theirs), pod("stranger", leased.mount))
        return Scene(leased, worker_node.name, namespace, await physical(leased, await running(leased, namespace, "burner")))

    made = run_apart(start())
    yield made
    run_apart(delete(leased.worker, "pod", "stranger", "-n", leased.mount, "--wait=false"))


def samples(page: str) -> dict[tuple[str, str, str], float]:
    """Value by name of the series, pod and container."""
    families = text_string_to_metric_families(page)
    return {(s.name, s.labels.get("pod", ""), s.labels.get("container", "")): s.value for f in families for s in f.samples}


# --- The pages of the kubelet ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("pretended")
async def test_resource_metrics_are_the_workers_under_the_virtual_name(scene: Scene) -> None:
    name = scene.physical["metadata"]["name"]

    async def measured() -> bool:
        return ("pod_cpu_usage_seconds_total", name, "") in samples(await scene.physical_page("metrics/resource"))

    await eventually(measured, "the worker's kubelet has measured the pod", every=0.5)

    async def between() -> Any:
        before = samples(await scene.physical_page("metrics/resource"))
        shown = samples(await scene.page("metrics/resource"))
        after = samples(await scene.physical_page("metrics/resource"))
        wanted = (("container_cpu_usage_seconds_total", "main"), ("pod_cpu_usage_seconds_total", ""))
        # A page from before the pod was measured may be shown again.
        if not all((series, "burner", container) in shown for series, container in wanted):
            return None
        values = [
            (before[series, name, container], shown[series, "burner", container], after[series, name, container])
            for series, container in wanted
        ]
        # What another asker was given less than a second ago may be older than the first.
        return (before, shown) if all(a <= b <= c for a, b, c in values) else None

    before, shown = await eventually(between, "it shows what the worker says at the same time", every=0.3)
    started = "container_start_time_seconds"
    assert shown[started, "burner", "main"] == before[started, name, "main"]
    assert shown["resource_scrape_error", "", ""] == 0


@pytest.mark.parametrize("path", PAGES)
async def test_no_page_tells_of_other_tenants_or_names_of_the_worker(scene: Scene, path: str) -> None:
    meta = scene.physical["metadata"]

    async def has_burner() -> str | None:
        page = await scene.page(path)
        return page if "burner" in page else None

    page = await eventually(has_burner, f"burner is in {path}", every=0.5)
    foreign = ["of-the-owner", "stranger", meta["name"], scene.bound.mount, meta["uid"], meta["uid"].replace("-", "_"), f'"{scene.node}"']
    assert not [name for name in foreign if name in page]
    assert scene.namespace in page


async def test_summary_is_the_workers_under_the_virtual_name(scene: Scene) -> None:
    async def whole() -> Any:
        page = json.loads(await scene.page("stats/summary"))
        pods = {each["podRef"]["name"]: each for each in page["pods"]}
        containers = pods["burner"]["containers"] if "burner" in pods else []
        return page if any(each.get("cpu", {}).get("usageCoreNanoSeconds") for each in containers) else None

    shown = await eventually(whole, "the worker's kubelet has measured the pod", every=0.5)
    virtual = await get(scene.bound.hub, "pod", "burner", "-n", scene.namespace)
    found = next(each for each in shown["pods"] if each["podRef"]["name"] == "burner")
    assert found["podRef"] == {"name": "burner", "namespace": scene.namespace, "uid": virtual["metadata"]["uid"]}
    theirs = json.loads(await scene.physical_page("stats/summary"))
    twin = next(each for each in theirs["pods"] if each["podRef"]["uid"] == scene.physical["metadata"]["uid"])
    assert found["containers"][0]["startTime"] == twin["containers"][0]["startTime"]
    assert 0 < found["containers"][0]["cpu"]["usageCoreNanoSeconds"] <= twin["containers"][0]["cpu"]["usageCoreNanoSeconds"]
    assert shown["node"]["nodeName"] == scene.vnode
    # Those that have just begun have not been measured.
    containers = sum(c.get("memory", {}).get("workingSetBytes", 0) for each in shown["pods"] for c in each["containers"])
    assert containers <= shown["node"]["memory"]["workingSetBytes"] < theirs["node"]["memory"]["workingSetBytes"]


async def test_cadvisor_series_bear_the_virtual_node_and_probes_are_counted(scene: Scene) -> None:
    async def many() -> list[dict[str, str]] | None:
        families = text_string_to_metric_families(await scene.page("metrics/cadvisor"))
        labels = [s.labels for f in families for s in f.samples if s.labels.get("pod") == "burner"]
        return labels if len(labels) > 20 else None

    labels = await eventually(many, "the worker's kubelet has measured the pod", every=0.5)
    assert {each["node"] for each in labels} == {scene.vnode}

    def probed(page: str, pod: str) -> dict[str, float]:
        samples = [s for f in text_string_to_metric_families(page) for s in f.samples if s.name == "prober_probe_total"]
        return {s.labels["result"]: s.value for s in samples if s.labels["pod"] == pod}

    async def between() -> bool:
        """A page that was asked for less than a second ago may be shown again."""
        before = probed(await scene.physical_page("metrics/probes"), scene.physical["metadata"]["name"])
        shown = probed(await scene.page("metrics/probes"), "burner")
        after = probed(await scene.physical_page("metrics/probes"), scene.physical["metadata"]["name"])
        same = before.keys() <= shown.keys() <= after.keys()
        return bool(before.get("successful")) and same and all(before.get(each, 0) <= shown[each] <= after[each] for each in shown)

    await eventually(between, "probes are counted as the worker counts them", every=0.5)


# --- metrics-server ----------------------------------------------------------------------------------------------------------------------


@frozen
class Scaled:
    """How many pods ran when: before, at the top, at the end."""

    top: int
    end: int
    events: list[str]


async def autoscaled(scene: Scene) -> Scaled:
    """A Deployment of burning pods is scaled up; then they are told to rest, and it is scaled down."""
    hub, worker = scene.bound.hub, scene.bound.worker
    namespace = await hub.namespace("autoscaling")
    template = burning("load", namespace, cores=0.15)
    # Other tests bring virtual nodes without containers.
    template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": scene.vnode}
    template["metadata"] = {"labels": {"app": "load"}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "load"}}, "template": {k: template[k] for k in ("metadata", "spec")}}
    await apply(hub, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "load", "namespace": namespace}, "spec": spec})
    shell = await Shell.of(scene.bound.directory / "shell", {"hub": hub})
    await shell.run(block(PAGE, 1).lines(2), {"deployment web": f"deployment load -n {namespace}"})

    async def run(count: int) -> list[Body] | None:
        pods = await items(hub, "pods", "-n", namespace)
        live = [each for each in pods if not each["metadata"].get("deletionTimestamp")]
        return live if len(live) == count and all(each["status"]["phase"] == "Running" for each in live) else None

    top = await eventually(lambda: run(3), "the autoscaler has made three of one", seconds=PAGES_AGAIN, every=2)
    resting: set[str] = set()

    async def rest() -> list[Body] | None:
        """On a busy machine pods may have burnt too little meanwhile, so that one was removed and created again: it burns as well."""
        for each in await items(hub, "pods", "-n", namespace, "--field-selector=status.phase=Running"):
            if each["metadata"]["uid"] in resting or each["metadata"].get("deletionTimestamp"):
                continue
            there = (await physical(scene.bound, each))["metadata"]
            # One that is removed at this moment fails; any other is tried again.
            with suppress(CommandFailed):
                await worker.kubectl("exec", there["name"], "-n", there["namespace"], "--", "touch", "/rest")
                resting.add(each["metadata"]["uid"])
        return await run(1)

    try:
        end = await eventually(rest, "the autoscaler has made one of three", seconds=PAGES_AGAIN, every=2)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await usage_of(scene, namespace)}") from None

    async def told() -> list[str] | None:
        """It writes of a step after it has made it."""
        events = await items(hub, "events", "-n", namespace, "--field-selector=involvedObject.kind=HorizontalPodAutoscaler")
        said = [each["message"] for each in events if each["reason"] == "SuccessfulRescale"]
        return said if any(each.startswith("New size: 1;") and "below target" in each for each in said) else None

    events = await eventually(told, "the autoscaler tells of its last step", every=0.5)
    await vacate(hub, namespace, workloads=True)
    return Scaled(len(top), len(end), events)


async def usage_of(scene: Scene, namespace: str) -> str:
    """What the autoscaler, metrics-server, the virtual node and the worker's kubelet say of the pods of a namespace."""
    hub = scene.bound.hub
    told = [await hub.kubectl("describe", "hpa", "-n", namespace), await hub.kubectl("get", "pods", "-n", namespace, "-o", "wide")]
    told.append(await hub.kubectl("get", "--raw", f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"))
    names = [
        namespace,
        *[each["metadata"]["annotations"].get("kubeocean.io/physical-pod-name", "-") for each in await items(hub, "pods", "-n", namespace)],
    ]
    for page in (await scene.page("metrics/resource"), await scene.physical_page("metrics/resource")):
        told.append("\n".join(line for line in page.splitlines() if any(f'"{name}"' in line for name in names)))
    return "\n\n".join(told)


@pytest.fixture(scope="session")
def autoscaling(scene: Scene, metrics_server: MetricsServer) -> Iterator[concurrent.futures.Future[Scaled]]:
    """Goes on while other tests run."""
    with background(autoscaled(scene)) as result:
        yield result


@pytest.fixture(scope="module")
def pretended(hub: ControlPlane, metrics_server: MetricsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The namespace of a pod on the node `pretender` of the mock provider, whose script says what it uses."""
    directory = tmp_path_factory.mktemp("pretender")
    settings = {
        "instance": "pretender",
        "server": {"node_address": hub.host_address, "main_port": 0, "approve_own_csr": True},
        "health": {"health_address": "", "metrics_address": ""},
        "provider": {"node": "pretender", "labels": dict([SHOWS_USAGE.split("=")])},
    }
    config = directory / "settings.yaml"
    config.write_text(yaml.safe_dump(settings))

    async def start() -> str:
        namespace = await hub.namespace("pretended")
        body = pod("scripted", namespace, node="pretender", tolerations=[{"operator": "Exists"}])
        body["metadata"]["annotations"] = {"mock.vkubelet.io/cpu-usage": "250m", "mock.vkubelet.io/memory-usage": "48Mi"}
        await apply(hub, body)
        return namespace

    arguments = ("run", "--provider", "mock", "--config", str(config), "--kubeconfig", str(hub.kubeconfig))
    with Program("vkubelet", *arguments, log=directory / "log"):
        yield run_apart(start())
    run_apart(delete(hub, "node", "pretender", "--ignore-not-found", "--wait=false"))


async def usage(scene: Scene, *what: str) -> dict[str, dict[str, Quantity]]:
    """The rows of `kubectl top` by name; empty while there are none."""
    try:
        lines = (await scene.bound.hub.kubectl("top", *what, "--no-headers")).splitlines()
    except CommandFailed:
        return {}
    rows = [[cell for cell in line.split() if not cell.endswith("%")] for line in lines if "<unknown>" not in line]
    return {name: {"cpu": Quantity.parse(cpu), "memory": Quantity.parse(memory)} for name, cpu, memory in rows}


Rows = dict[str, dict[str, Quantity]]


async def of_one_moment(scene: Scene, namespace: str) -> tuple[Rows, Rows] | None:
    """Pods and nodes; None when metrics-server has looked again in between."""
    before, nodes = await usage(scene, "pod", "-n", namespace), await usage(scene, "node")
    return (before, nodes) if await usage(scene, "pod", "-n", namespace) == before else None


async def test_commands_of_the_page_show_pods_and_nodes(scene: Scene, tmp_path: Path) -> None:
    shell = await Shell.of(tmp_path, {"hub": scene.bound.hub})
    await eventually(lambda: usage(scene, "pod", "-n", scene.namespace), "metrics-server has measured a pod")
    out = await shell.run(block(PAGE, 1).lines(0, 1))
    assert "MEMORY(bytes)" in out and scene.vnode in out
    assert "pod_cpu_usage_seconds_total" in await shell.run(block(PAGE, 0), {"VNODE": scene.vnode})


async def test_kubectl_top_pod_shows_what_the_pod_burns(scene: Scene) -> None:
    async def agrees() -> Any:
        """Both are rates of late, but not of the same seconds."""
        rows = await usage(scene, "pod", "-n", scene.namespace)
        if "burner" not in rows:
            return None
        summary = json.loads(await scene.physical_page("stats/summary"))
        twin = next(each for each in summary["pods"] if each["podRef"]["uid"] == scene.physical["metadata"]["uid"])["containers"][0]
        cpu, memory = rows["burner"]["cpu"].nanos / 1e9, rows["burner"]["memory"].nanos / 1e9
        same_memory = memory == pytest.approx(twin["memory"]["workingSetBytes"], rel=0.3, abs=2 << 20)
        return cpu if same_memory and cpu == pytest.approx(twin["cpu"]["usageNanoCores"] / 1e9, rel=0.3) else None

    cpu = await eventually(agrees, "kubectl top says what the worker's kubelet says", seconds=LONG, every=1)
    # As much as it may have; less when the machine is short of it.
    assert 0.1 * BURNT < cpu < 1.3 * BURNT


async def test_kubectl_top_node_shows_what_all_leased_pods_burn(scene: Scene) -> None:
    async def shown() -> Any:
        rows = await of_one_moment(scene, scene.namespace)
        if rows is None or "burner" not in rows[0] or scene.vnode not in rows[1]:
            return None
        used, node = rows[0]["burner"], rows[1][scene.vnode]
        # Of the CPU a rate is told, for the node not of the same seconds.
        as_much = node["cpu"].nanos >= 0.7 * used["cpu"].nanos and node["memory"].nanos >= used["memory"].nanos
        return node if as_much else None

    node = await eventually(shown, "kubectl top shows at the node what its pod burns", seconds=LONG, every=1)
    machine = samples(await scene.physical_page("metrics/resource"))["node_memory_working_set_bytes", "", ""]
    assert node["memory"].nanos < machine * 1e9


async def test_kubectl_top_shows_what_the_script_of_a_mock_pod_says(scene: Scene, pretended: str) -> None:
    async def shown() -> Any:
        rows = await of_one_moment(scene, pretended)
        if rows is None or "scripted" not in rows[0] or "pretender" not in rows[1]:
            return None
        used, node = rows[0]["scripted"], rows[1]["pretender"]
        return used if node["cpu"].nanos >= used["cpu"].nanos and node["memory"].nanos >= used["memory"].nanos else None

    used = await eventually(shown, "kubectl top shows the mock pod, and as much at its node", seconds=LONG, every=1)
    assert used["memory"] == Quantity.parse("48Mi")
    # Rounded to milliseconds on the way.
    assert used["cpu"].nanos / 1e9 == pytest.approx(0.25, abs=0.01)


async def test_the_node_uses_what_its_leased_pods_use_and_not_what_the_machine_uses(scene: Scene) -> None:
    def total(page: dict[tuple[str, str, str], float], series: str) -> float:
        return sum(value for (name, _, _), value in page.items() if name == series)

    async def measured() -> Any:
        page = samples(await scene.page("metrics/resource"))
        return page if page.get(("pod_memory_working_set_bytes", "burner", "")) else None

    shown = await eventually(measured, "the worker's kubelet has measured the pod as a whole", every=0.5)
    machine = samples(await scene.physical_page("metrics/resource"))
    pods, containers = total(shown, "pod_memory_working_set_bytes"), total(shown, "container_memory_working_set_bytes")
    # Of the youngest pods only the containers have been measured.
    assert max(pods, containers) <= shown["node_memory_working_set_bytes", "", ""] <= pods + containers
    assert shown["node_memory_working_set_bytes", "", ""] < machine["node_memory_working_set_bytes", "", ""]
    # Also what pods that ended since the process began have used.
    assert shown["node_cpu_usage_seconds_total", "", ""] >= total(shown, "pod_cpu_usage_seconds_total") > 0
    assert shown["node_cpu_usage_seconds_total", "", ""] < machine["node_cpu_usage_seconds_total", "", ""]


@pytest.mark.last
@pytest.mark.timeout(2 * PAGES_AGAIN)
async def test_autoscaler_makes_three_of_one_and_one_of_three(autoscaling: concurrent.futures.Future[Scaled]) -> None:
    scaled = await asyncio.wrap_future(autoscaling)
    assert (scaled.top, scaled.end) == (3, 1)
    assert [event.split(";")[0] for event in scaled.events if "above target" in event][-1] == "New size: 3"
    assert [event.split(";")[0] for event in scaled.events if "below target" in event][-1] == "New size: 1"
