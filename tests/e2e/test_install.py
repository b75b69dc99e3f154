"""Both charts, `kubeocean bind`, and our image on a node of the computing cluster: everything works from there, and goes without a trace.

Invariant: nothing of ours runs on the machine itself; the process of the binding is the manager's doing. What is typed comes from the pages
about installation, upgrade and uninstallation, and from the README. The tests tell one story, in their order.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tests.e2e.chart_values import VALUES, WORD, values_are_in_force
from tests.support.bound import SAMPLES, SYSTEM, Body, apply, condition, get, items, pod
from tests.support.installed import Listed, Watched, differences, everything, image, load, serve_kubernetes
from tests.support.kubectl import Kubectl
from tests.support.pages import Shell, block
from tests.support.program import KUBECTL_TIMEOUT, LONG, eventually
from tests.support.tables import tables
from vkubelet.api.codec import decode_yaml
from vkubelet.testing.cluster import CommandFailed, ControlPlane, SimulatedNodes, Site, WorkerNode
from vkubelet.testing.fixtures import run_apart, running

BINDING, MOUNT, POLICY = "demo", "kubeocean-worker", "half"
IMAGE, FIRST, NEXT = "registry.example.com/team/kubeocean", "0.1.0", "0.2.0"
"""As in the pages; the node of the computing cluster has it under these tags."""
INSTALL = "lease/install.md"
YES = "y\n"
SYNCER = f"kubeocean-syncer-{BINDING}"
MANY, SIMULATED = 200, 2
TALKING = ["sh", "-c", "trap 'exit 0' TERM; i=0; while true; do i=$((i+1)); echo tick $i; sleep 0.2; done"]


@define
class Plant:
    """A computing cluster with a real node, a worker cluster with two and some simulated ones; installed and bound."""

    site: Site
    scratch: Path
    shell: Shell = field(init=False)
    hub: ControlPlane = field(init=False)
    worker: ControlPlane = field(init=False)
    node: WorkerNode = field(init=False)
    real: list[WorkerNode] = field(init=False)
    simulated: SimulatedNodes = field(init=False)
    untouched: tuple[Listed, Listed] = field(init=False)
    unbound: tuple[Listed, Listed] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.hub, self.worker = ControlPlane("install-hub", self.site), ControlPlane("install-worker", self.site)
        self.node = WorkerNode("hub-1", self.hub)
        self.real = [WorkerNode(f"node-{number}", self.worker) for number in (1, 2)]
        self.simulated = SimulatedNodes(self.worker, SIMULATED)

    # --- As a part of the session ---

    @property
    def directory(self) -> Path:
        return self.site.directory

    async def start(self) -> None:
        """All that is not ours."""
        await together(self.hub.start, self.worker.start)
        await together(self.node.start, *(node.start for node in self.real), self.simulated.start)

    async def stop(self) -> None:
        await together(self.hub.stop, self.worker.stop)

    # --- What owners do ---

    @property
    def physical(self) -> list[str]:
        return [*(node.name for node in self.real), *self.simulated.names]

    @property
    def vnodes(self) -> list[str]:
        return [f"vnode-{BINDING}-{name}" for name in self.physical]

    async def install(self, archive: Path) -> None:
        """As the page says: the worker's owner first."""
        self.shell = await Shell.of(self.scratch, {"hub": self.hub, "worker": self.worker})
        await load(self.node, archive, *(f"{IMAGE}:{tag}" for tag in (FIRST, NEXT)))
        await serve_kubernetes(self.node)
        self.untouched = await self.listed()
        await self.shell.run(block(INSTALL, 1))
        await self.shell.run(block(INSTALL, 3))
        await self.hub.kubectl("rollout", "status", "deployment/kubeocean-manager", "-n", SYSTEM, KUBECTL_TIMEOUT)

    async def bind(self) -> None:
        """`kubeocean bind` by somebody who is admin of both, at a terminal."""
        self.unbound = await self.listed()
        await self.shell.run(block(INSTALL, 5), {"NAME": BINDING}, typed=YES)
        await eventually(self.all_ready, "all virtual nodes are Ready", seconds=LONG, every=0.5)
        out = await self.shell.run(block(INSTALL, 6), {"NAME": BINDING})
        assert all(name in out for name in self.vnodes)

    # --- What can be seen ---

    async def listed(self) -> tuple[Listed, Listed]:
        return await everything(self.hub), await everything(self.worker)

    async def all_ready(self) -> bool:
        nodes = {node["metadata"]["name"]: node for node in await items(self.hub, "nodes")}
        return all(name in nodes and condition(nodes[name], "Ready") == "True" for name in self.vnodes)

    async def our_pods(self, name: str) -> list[Body]:
        return await items(self.hub, "pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={name}")

    async def told(self) -> str:
        """What our processes said last, for an assertion that failed."""
        out = []
        for name in ("kubeocean-manager", "kubeocean-syncer"):
            out.append(await self.hub.kubectl("logs", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={name}", "--tail=25", "--prefix"))
        out.append(await self.hub.kubectl("get", "pods,events,clusterbindings", "-n", SYSTEM, "-o", "wide"))
        return "\n".join(out)


async def together(*parts: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(_awaited(part))


async def _awaited(part: Callable[[], Awaitable[object]]) -> None:
    await part()


@pytest.fixture(scope="module")
def plant(cluster_site: Site, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    """Clusters of its own: what is listed before and after must be ours alone."""
    archive = run_apart(image())
    made = Plant(cluster_site, tmp_path_factory.mktemp("shell"))

    async def prepare() -> None:
        try:
            await made.install(archive)
            await made.bind()
        except (CommandFailed, AssertionError) as error:
            error.add_note(await made.told())
            raise

    with running(made, request):
        run_apart(prepare())
        yield made


@pytest.mark.timeout(1500)
async def test_the_manager_runs_our_image_on_a_node_of_the_computing_cluster(plant: Plant) -> None:
    for name in ("kubeocean-manager", "kubeocean-syncer"):
        pods = await plant.our_pods(name)
        assert len(pods) == 2 and {each["spec"]["nodeName"] for each in pods} == {plant.node.name}
        assert {each["spec"]["containers"][0]["image"] for each in pods} == {f"{IMAGE}:{FIRST}"}
        pods = await eventually(lambda name=name: all_run(plant, name), f"both of {name} run", seconds=LONG, every=0.5)
        assert all(each["status"]["containerStatuses"][0]["restartCount"] == 0 for each in pods), await plant.told()
    # The shell that looks is not what is looked for.
    assert await plant.node.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[k]ubeocean run --binding'") != "0\n"

    async def told_ready() -> bool:
        status = (await get(plant.hub, "clusterbinding", BINDING))["status"]
        conditions = {c["type"]: c["status"] for c in status["conditions"]}
        return status["phase"] == "Ready" and conditions.items() >= {"Ready": "True", "Connected": "True"}.items()

    await eventually(told_ready, "the binding says that it is Ready", every=0.5)
    hub, worker = [tables(await plane.kubectl("get", "nodes", "-o", "wide")) for plane in (plant.hub, plant.worker)]
    node, physical = hub[plant.vnodes[0]], worker[plant.physical[0]]
    for column in ("OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME"):
        assert node[column] == physical[column] not in ("", "<unknown>"), column


async def all_run(plant: Plant, name: str) -> list[Body] | None:
    pods = await plant.our_pods(name)
    return pods if all(condition(each, "Ready") == "True" for each in pods) else None


@pytest.fixture(scope="module")
def talking(plant: Plant) -> tuple[str, str]:
    """Namespace and name of a pod on a virtual node of a real one."""

    async def start() -> tuple[str, str]:
        namespace = await plant.hub.namespace("install")
        body = pod("talks", namespace, nodeSelector={"kubernetes.io/hostname": plant.vnodes[0]}, terminationGracePeriodSeconds=2)
        body["spec"]["containers"][0]["command"] = TALKING
        await apply(plant.hub, body)
        await plant.hub.kubectl("wait", "pod/talks", "-n", namespace, "--for=condition=Ready", KUBECTL_TIMEOUT)
        return namespace, "talks"

    return run_apart(start())


async def test_pods_run_and_are_reached_through_our_process(plant: Plant, talking: tuple[str, str]) -> None:
    namespace, name = talking

    async def said() -> str:
        return await plant.hub.kubectl("logs", name, "-n", namespace)

    assert (await eventually(said, "it has said something")).startswith("tick 1\n")
    assert await plant.hub.kubectl("exec", name, "-n", namespace, "--", "hostname") == f"{name}\n"
    (physical,) = await items(plant.worker, "pods", "-n", MOUNT)
    assert physical["spec"]["nodeName"] == plant.real[0].name


async def test_lines_of_one_pod_are_found_in_the_log_of_its_process(plant: Plant, talking: tuple[str, str]) -> None:
    body = pod("large", talking[0], node=plant.vnodes[0])
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1000"}}
    await apply(plant.hub, body)
    await plant.hub.kubectl("wait", "pod/large", "-n", talking[0], "--for=jsonpath={.status.phase}=Failed", KUBECTL_TIMEOUT)
    log = block("operate/monitor.md", 1)
    lines = (await plant.shell.run(log, {"BINDING": BINDING, "team/web-0": f"{talking[0]}/large"})).splitlines()
    assert lines and {json.loads(line)["pod"] for line in lines} == {f"{talking[0]}/large"}
    await plant.hub.kubectl("delete", "pod", "large", "-n", talking[0], KUBECTL_TIMEOUT)


async def test_the_process_of_a_binding_may_not_write_what_is_not_its_own(plant: Plant, talking: tuple[str, str]) -> None:
    identity = f"--as=system:serviceaccount:{SYSTEM}:{SYNCER}"
    (manager, _) = await plant.our_pods("kubeocean-manager")
    foreign = [
        ("patch", "node", plant.node.name, "--type=merge", '--patch={"metadata":{"labels":{"a":"b"}}}'),
        ("delete", "node", plant.node.name),
        ("delete", "pod", manager["metadata"]["name"], "-n", SYSTEM),
        ("delete", "lease", plant.node.name, "-n", "kube-node-lease"),
        ("create", "token", "default", "-n", talking[0]),
    ]
    for command in foreign:
        with pytest.raises(CommandFailed, match="ValidatingAdmissionPolicy.*the process of a binding"):
            await plant.hub.kubectl(identity, *command)
    label = ("patch", "node", plant.vnodes[0], "--type=merge", '--patch={"metadata":{"annotations":{"a":"b"}}}')
    assert "patched" in await plant.hub.kubectl(identity, *label)


def many(namespace: str) -> Body:
    """A Deployment on the simulated nodes."""
    # A namespace that is deleted waits for half of the longest grace before it looks again.
    template = pod("many", namespace, nodeSelector={"simulated": "kwok"}, terminationGracePeriodSeconds=2)
    labels = {"app": "many"}
    spec = {"replicas": MANY, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": template["spec"]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many", "namespace": namespace}, "spec": spec}


async def versions(plant: Plant, namespace: str) -> dict[str, tuple[str, str]]:
    """Uid and version of each pod in both clusters: one that was not written keeps both."""
    pods = [*await items(plant.hub, "pods", "-n", namespace), *await items(plant.worker, "pods", "-n", MOUNT)]
    return {each["metadata"]["name"]: (each["metadata"]["uid"], each["metadata"]["resourceVersion"]) for each in pods}


async def replicas(plant: Plant, image_tag: str, name: str) -> list[Body] | None:
    """The pods of a program, once both are Ready with this image."""
    pods = [each for each in await plant.our_pods(name) if not each["metadata"].get("deletionTimestamp")]
    ready = len(pods) == 2 and all(condition(each, "Ready") == "True" for each in pods)
    return pods if ready and {each["spec"]["containers"][0]["image"] for each in pods} == {f"{IMAGE}:{image_tag}"} else None


async def rolled_out(plant: Plant, image_tag: str) -> None:
    await eventually(partial(replicas, plant, image_tag, "kubeocean-syncer"), f"both replicas run {image_tag}", seconds=LONG, every=0.7)
    await plant.hub.kubectl("rollout", "status", f"deployment/{SYNCER}", "-n", SYSTEM, KUBECTL_TIMEOUT)


@pytest.mark.timeout(1500)
async def test_an_upgrade_and_a_rolling_restart_change_no_pod_and_keep_nodes_ready(plant: Plant, talking: tuple[str, str]) -> None:
    namespace, name = talking
    await apply(plant.hub, many(namespace))
    await plant.hub.kubectl("rollout", "status", "deployment/many", "-n", namespace, KUBECTL_TIMEOUT)
    kubectl = Kubectl(plant.hub, namespace)
    before = await settled(plant, namespace)
    assert len(before) == 2 * (MANY + 1)
    async with Watched(plant.hub, *plant.vnodes) as nodes, kubectl.kubectl("logs", "--follow", "--tail=1", name) as follower:
        assert follower.stdout is not None
        assert (await asyncio.wait_for(follower.stdout.readline(), 30)).startswith(b"tick ")
        (plant.shell.directory / "worker-values.yaml").write_text("{}")
        (plant.shell.directory / "hub-values.yaml").write_text(json.dumps({"image": {"repository": IMAGE}, **VALUES}))
        await plant.hub.kubectl("create", "configmap", "extra", "-n", SYSTEM, f"--from-literal=word={WORD}")
        await plant.shell.run(block("operate/upgrade.md", 0))
        await rolled_out(plant, NEXT)
        await values_are_in_force(plant.hub, pods=partial(replicas, plant, NEXT))
        await plant.hub.kubectl("rollout", "restart", f"deployment/{SYNCER}", "-n", SYSTEM)
        await rolled_out(plant, NEXT)
        # The stream ends with the process that serves it, and does not hang.
        assert b"tick " in await asyncio.wait_for(follower.stdout.read(), 60)
        assert await plant.all_ready()
        assert nodes.seen >= len(plant.vnodes) and not nodes.unready, await plant.told()

    await logs_answered(plant, kubectl, name)
    after = await versions(plant, namespace)
    assert after == before, {key: (before.get(key), value) for key, value in after.items() if before.get(key) != value}


@pytest.mark.timeout(1500)
async def test_a_rollback_returns_to_the_former_values_and_changes_no_pod(plant: Plant, talking: tuple[str, str]) -> None:
    namespace, _ = talking
    before = await settled(plant, namespace)
    async with Watched(plant.hub, *plant.vnodes) as nodes:
        await plant.shell.run(block("operate/upgrade.md", 1))
        await rolled_out(plant, FIRST)
        assert nodes.seen >= len(plant.vnodes) and not nodes.unready, await plant.told()
    for name in ("kubeocean-manager", "kubeocean-syncer"):
        for each in await eventually(partial(replicas, plant, FIRST, name), f"both of {name} run", seconds=LONG, every=0.5):
            spec = each["spec"]
            assert "team" not in each["metadata"]["labels"] and spec["securityContext"]["runAsUser"] == 65532
            assert not spec.get("topologySpreadConstraints") and all(volume["name"] != "extra" for volume in spec["volumes"])
    assert await get(plant.hub, "service", "kubeocean-dashboard", "-n", SYSTEM) is None
    await plant.hub.kubectl("delete", "configmap", "extra", "-n", SYSTEM)
    after = await versions(plant, namespace)
    assert after == before, {key: (before.get(key), value) for key, value in after.items() if before.get(key) != value}


async def logs_answered(plant: Plant, kubectl: Kubectl, name: str) -> None:
    """By the replica that leads now."""
    refusals: list[str] = []
    began = time.monotonic()

    async def answered() -> bool:
        done = await kubectl.run("logs", "--tail=1", name)
        refusals.append(done.stderr)
        return done.stdout.startswith(b"tick ")

    try:
        await eventually(answered, "logs are answered again", seconds=LONG, every=0.5)
        print(f"logs are answered {time.monotonic() - began:.1f} s after the rollout")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{refusals[-1]}\n{await plant.told()}") from None


async def settled(plant: Plant, namespace: str) -> dict[str, tuple[str, str]]:
    """The versions, once nothing is written any more."""
    last: list[dict[str, tuple[str, str]]] = [{}, {}]

    async def same() -> bool:
        last.append(await versions(plant, namespace))
        return last[-1] == last[-2] == last[-3]

    await eventually(same, "nothing is written any more", seconds=LONG, every=1.5)
    return last[-1]


MADE_BY_BIND = {("Secret", SYSTEM, f"{BINDING}-kubeconfig")}
BY_THEMSELVES = ("CertificateSigningRequest", "Lease", "Pod", "ReplicaSet", "ControllerRevision")
"""Signing requests are removed by the control plane after an hour; pods and leases of the manager change with every rollout."""


def left(before: Listed, after: Listed) -> dict[str, Any]:
    """What differs, but for what other hands have made meanwhile."""
    found = differences(before, after)
    ours = {key for key in found["new"] if key in MADE_BY_BIND or key[0] in BY_THEMSELVES or key[2].startswith("sh.helm.release")}
    replaced = {key for key in found["missing"] if key[0] in BY_THEMSELVES or key[2].startswith("sh.helm.release")}
    return {**found, "new": sorted(set(found["new"]) - ours), "missing": sorted(set(found["missing"]) - replaced)}


@pytest.mark.timeout(1500)
async def test_without_the_binding_both_clusters_are_as_they_were(plant: Plant, talking: tuple[str, str]) -> None:
    await plant.hub.kubectl("delete", "namespace", talking[0], KUBECTL_TIMEOUT)
    try:
        await plant.shell.run(block(INSTALL, 7).lines(0), {"NAME": BINDING}, typed=YES)
    except AssertionError as error:
        error.add_note(await plant.told())
        raise

    async def as_before() -> bool:
        hub, worker = await plant.listed()
        found = left(plant.unbound[0], hub), left(plant.unbound[1], worker)
        print(json.dumps(found, default=str)[:4000])
        return not any(value for side in found for value in side.values())

    await eventually(as_before, "both clusters are as they were", seconds=LONG, every=2)


KEPT = sorted(2 * ["APIService", "ConfigMap", "CustomResourceDefinition", "Namespace", "ServiceAccount"])
"""One of each cluster; what is in the namespaces and the APIService are the control plane's."""


@pytest.mark.timeout(1500)
async def test_uninstalling_leaves_definitions_and_namespaces_and_no_finalizer(plant: Plant) -> None:
    if await get(plant.hub, "clusterbinding", BINDING):
        await plant.hub.kubectl("delete", "clusterbinding", BINDING, KUBECTL_TIMEOUT)
    await plant.worker.kubectl("delete", "resourceleasingpolicies", POLICY, KUBECTL_TIMEOUT)
    await plant.hub.kubectl("delete", "secret", f"{BINDING}-kubeconfig", "-n", SYSTEM, "--ignore-not-found")
    await plant.shell.run(block(INSTALL, 7).lines(1, 2))

    async def gone() -> bool:
        listed = await plant.listed()
        new = [key for before, after in zip(plant.untouched, listed, strict=True) for key in left(before, after)["new"]]
        print(new)
        return sorted(key[0] for key in new) == KEPT

    await eventually(gone, "only the definitions and the two namespaces are left", seconds=LONG, every=2)


@pytest.mark.timeout(1500)
async def test_the_readme_leads_to_a_pod_on_a_leased_node_and_back(plant: Plant) -> None:
    """All but `pip install .`, which would replace the packages that are tested; `python -m tests.e2e.first_contact` runs that too."""
    began = time.monotonic()
    readme = block("README.md", 1)
    await plant.shell.run(readme.lines(1, 2))
    out = await plant.shell.run(readme.lines(3), typed=YES)
    assert "ClusterBinding" in out and "Ready" in out
    await plant.shell.run(readme.lines(4))
    assert "vnode-demo-" in await plant.shell.run(readme.lines(5, 6, 7))
    print(f"from the README to a running pod on a leased node: {time.monotonic() - began:.0f} s")
    await plant.hub.kubectl("delete", "deployment", "hello", "--wait=false")
    await eventually(plant.all_ready, "all virtual nodes are Ready", seconds=LONG, every=0.5)
    namespace = await plant.hub.namespace("readme")
    await apply(plant.hub, *on_virtual_nodes(namespace))
    await plant.hub.kubectl("wait", "--for=condition=Available", "deployment/hello", "-n", namespace, KUBECTL_TIMEOUT)

    async def greets() -> bool:
        return "hello from hello-" in await plant.hub.kubectl("logs", "deploy/hello", "-n", namespace)

    await eventually(greets, "the pod greets")
    # The token is revoked and made again; the node stays.
    await plant.shell.run(block("operate/credentials.md", 0))
    await plant.hub.kubectl("delete", "namespace", namespace, KUBECTL_TIMEOUT)
    await plant.shell.run(block("lease/bind.md", 2), typed=2 * YES)
    assert await get(plant.hub, "clusterbinding", BINDING) is None
    assert await get(plant.worker, "serviceaccount", "kubeocean-syncer", "-n", MOUNT) is None


def on_virtual_nodes(namespace: str) -> list[Body]:
    """The sample, not on the node of the computing cluster."""
    body = decode_yaml((SAMPLES / "deployment.yaml").read_text())
    body["metadata"]["namespace"] = namespace
    names = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [f"vnode-{BINDING}-node-{number}" for number in (1, 2)]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": names}]}}
    body["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
    return [body]
