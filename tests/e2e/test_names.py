"""Services between clusters by their names: a real CoreDNS and kube-proxy in both, whose pods call each other.

Invariant: a call is answered by a pod of the other cluster, with its name. The Corefile of the worker is changed by the commands of the
page alone, with what `kubeocean dns` prints.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from kubeocean.rbac.permissions import SYNCER, worker_objects
from kubeocean.rbac.tenants import tenant_objects, wide_objects
from tests.integration.kubeocean.test_services import FOLLOWS_WITHIN, Network, timed, until
from tests.integration.tries import median_within
from tests.support.bound import Body, Bound, apply, condition, delete, get, items, physical, pod, running
from tests.support.pages import Block, Shell, block
from tests.support.program import LONG, eventually
from vkubelet.testing.cluster import ClusterDNS, CommandFailed, ControlPlane, WorkerNode
from vkubelet.testing.fixtures import LOGS, keep_logs, run_apart

pytestmark = pytest.mark.timeout(400)
REWRITES, SAMPLE, CALL, CALLED, CONDITIONS, CLEAN = (block("use/call-home.md", number) for number in range(6))
BINDING = "demo"
"""As in the page and its sample."""
PORTS = [{"name": "http", "port": 80, "targetPort": 8080}]
ANSWER = "/www/index.html"
UNTIL = 'until [ "$(timeout 3 wget -qO- $0)" = $1 ]; do sleep 0.1; done'


@frozen
class Sides:
    """A real node of each cluster. Their pods reach Services of their cluster by name, and the pods of both."""

    home: WorkerNode
    lent: WorkerNode

    @property
    def hub(self) -> ControlPlane:
        return self.home.cluster

    @property
    def worker(self) -> ControlPlane:
        return self.lent.cluster

    @contextmanager
    def bound(self, name: str, directory: Path, spec: Mapping[str, Any], *objects: Body, **more: Any) -> Iterator[Bound]:
        """A binding of the node with its process; `objects` are what the worker's owner creates beside."""
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [self.lent.name]}]}
        made = Bound(
            hub=self.hub,
            worker=self.worker,
            name=name,
            directory=directory,
            spec={"nodeSelector": {"nodeSelectorTerms": [term]}, **spec},
            settings={"provider": {"pod_network_probe_interval": 2.0}},
            **more,
        )
        run_apart(made.install())
        run_apart(apply(self.worker, *objects))
        with made.served(self.lent.name):
            yield made


async def together(*works: Callable[[], Awaitable[None]]) -> None:
    async def done(work: Callable[[], Awaitable[None]]) -> None:
        await work()

    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(done(work))


@pytest.fixture(scope="module")
def sides(hub: ControlPlane, worker: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Sides]:
    nodes = WorkerNode("home", hub, services=True), WorkerNode("lent", worker, services=True)
    names = [ClusterDNS(node) for node in nodes]

    async def stop() -> None:
        await together(*(each.stop for each in names))
        await together(*(node.stop for node in nodes))
        for node in nodes:
            await delete(node.cluster, "node", node.name, "--ignore-not-found", "--wait=false")

    with ExitStack() as stack:
        stack.callback(lambda: run_apart(stop()))
        run_apart(together(*(node.start for node in nodes)))
        run_apart(together(*(each.start for each in names)))
        yield Sides(*nodes)
        if request.session.testsfailed:
            for node in nodes:
                keep_logs(node.directory, request.config.rootpath / LOGS)


@pytest.fixture(scope="module")
def shell(sides: Sides, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """With the contexts of the page, the hub as the current one."""
    return run_apart(Shell.of(tmp_path_factory.mktemp("shell"), {"hub": sides.hub, "worker": sides.worker}))


@frozen
class Scene:
    """A namespace with two pods of the hub, `red` and `blue`, and the leased pod `caller`.

    Its Service `web` has `red` at first, and its Service `caller` the leased pod; Service `web` of namespace `other` has `blue`.
    """

    bound: Bound
    node: str
    namespace: str
    other: str

    async def furnish(self, home: str) -> None:
        hub, space = self.bound.hub, Network(self.bound.hub)
        await space.create("web", self.namespace, ports=PORTS, selector={"color": "red"})
        await space.create("caller", self.namespace, ports=PORTS, selector={"app": "caller"})
        await space.create("web", self.other, ports=PORTS)
        pods = [
            server("red", self.namespace, node=home, labels={"color": "red"}, hostname="db-0", subdomain="db"),
            server("blue", self.namespace, node=home, labels={"color": "blue"}),
            server("caller", self.namespace, node=self.bound.vnode(self.node), labels={"app": "caller"}),
        ]
        await apply(hub, *pods)
        await space.point("web", self.other, await self.address("blue"))
        await self.address("caller")

    async def address(self, name: str) -> str:
        return str((await running(self.bound, self.namespace, name, seconds=LONG))["status"]["podIP"])

    async def answered(self, url: str, name: str, *, by: str) -> None:
        """Waits until pod `by` gets the answer of pod `name` from an address."""
        try:
            await self.bound.hub.kubectl("exec", "-n", self.namespace, by, "--", "timeout", f"{LONG:g}", "sh", "-c", UNTIL, url, name)
        except CommandFailed as error:
            raise AssertionError(f"{by} got no answer of {name} from {url}: {error}") from None


def server(name: str, namespace: str, *, node: str, labels: Mapping[str, str], **spec: Any) -> Body:
    """A pod that answers with its name, and is Ready while it does."""
    body = pod(name, namespace, node=node, terminationGracePeriodSeconds=1, **spec)
    body["metadata"]["labels"] = dict(labels)
    [main] = body["spec"]["containers"]
    main["command"] = ["sh", "-c", f"mkdir /www; echo {name} > {ANSWER}; exec httpd -f -p 8080 -h /www"]
    main["ports"] = [{"name": "http", "containerPort": 8080}]
    main["readinessProbe"] = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1}
    return body


def furnished(bound: Bound, sides: Sides, other: str) -> Scene:
    made = Scene(bound, sides.lent.name, run_apart(bound.hub.namespace("names")), other)
    run_apart(made.furnish(sides.home.name))
    return made


@pytest.fixture(scope="module")
def single(sides: Sides, shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The scene of a binding whose pods share the mount namespace; the worker's DNS has its rewrites."""
    other = run_apart(sides.hub.namespace("other"))
    with sides.bound(BINDING, tmp_path_factory.mktemp(BINDING), {"serviceNamespaces": [other]}) as bound:
        run_apart(shell.run(REWRITES))
        yield furnished(bound, sides, other)


# --- The page -----------------------------------------------------------------------------------------------------------------------------


async def test_the_page_leads_to_answers_in_both_directions(single: Scene, sides: Sides, shell: Shell) -> None:
    await shell.run(SAMPLE)
    [web] = await items(sides.hub, "pods", "-n", "shop", "-l", "app=web")
    [caller] = await items(sides.hub, "pods", "-n", "shop", "-l", "app=caller")
    assert (web["spec"]["nodeName"], caller["spec"]["nodeName"]) == (sides.home.name, single.bound.vnode(sides.lent.name))
    assert (await physical(single.bound, caller))["spec"]["nodeName"] == sides.lent.name

    async def answers(calls: Block, name: str) -> bool:
        # kube-proxy has new endpoints within a second.
        return set((await shell.run(calls, codes=(0, 1))).split()) == {name}

    await eventually(lambda: answers(CALL, web["metadata"]["name"]), "caller gets the answer of web by its three names")
    await eventually(lambda: answers(CALLED, caller["metadata"]["name"]), "web gets the answer of caller")
    out = await shell.run(CONDITIONS)
    assert "ServicesMirrored=True" in out and "PodNetworkRouted=True" in out
    await shell.run(CLEAN)


# --- One mount namespace ------------------------------------------------------------------------------------------------------------------


async def test_endpoints_of_the_hub_follow_in_the_worker(single: Scene) -> None:
    hub, there, space = single.bound.hub, Network(single.bound.worker), single.namespace
    addresses = {name: await single.address(name) for name in ("red", "blue")}
    colors, answered = cycle(("blue", "red")), list[float]()

    async def turn() -> float:
        color = next(colors)
        began = time.monotonic()

        async def call() -> None:
            await single.answered("http://web", color, by="caller")
            answered.append(time.monotonic() - began)

        async def mirrored() -> bool:
            return await there.endpoints(f"web--{space}", single.bound.mount) == [addresses[color]]

        async with asyncio.TaskGroup() as group:
            group.create_task(call())
            change = hub.kubectl("patch", "service", "web", "-n", space, "-p", f'{{"spec": {{"selector": {{"color": "{color}"}}}}}}')
            took = await timed(change, mirrored, f"{color} is the endpoint of the mirror")
        return took

    await median_within(FOLLOWS_WITHIN, turn, "endpoints of the hub follow in the worker")
    print(f"the leased pod gets other answers after {', '.join(f'{seconds:.2f}' for seconds in answered)} s, the commands included")


async def test_endpoints_in_the_worker_follow_in_the_hub(single: Scene) -> None:
    hub, space = single.bound.hub, single.namespace
    await single.answered("http://caller", "caller", by="red")
    backing = await physical(single.bound, await get(hub, "pod", "caller", "-n", space))
    name, mount = backing["metadata"]["name"], backing["metadata"]["namespace"]
    states = cycle((False, True))

    async def turn() -> float:
        ready = next(states)
        names = (f"{ANSWER}.away", ANSWER)

        async def there() -> bool:
            return (condition(await get(single.bound.worker, "pod", name, "-n", mount), "Ready") == "True") is ready

        async def here() -> bool:
            slices = await items(hub, "endpointslices", "-n", space, "-l", "kubernetes.io/service-name=caller")
            return [each["conditions"]["ready"] for one in slices for each in one["endpoints"]] == [ready]

        await hub.kubectl("exec", "-n", space, "caller", "--", "mv", names[not ready], names[ready])
        await until(there, f"the pod in the worker is Ready: {ready}")
        began = time.monotonic()
        await until(here, f"the endpoint in the hub is ready: {ready}")
        return time.monotonic() - began

    seen = await median_within(FOLLOWS_WITHIN, turn, "endpoints in the worker follow in the hub")
    if len(seen) % 2:
        await turn()
    await single.answered(f"http://caller.{space}", "caller", by="blue")


async def test_other_names_lead_to_pods_of_the_hub_and_only_for_leased_pods(single: Scene, sides: Sides) -> None:
    hub, worker, space = Network(single.bound.hub), single.bound.worker, single.namespace
    await single.answered(f"http://web.{single.other}", "blue", by="caller")
    await single.answered(f"http://web.{single.other}.svc.cluster.local", "blue", by="caller")
    await hub.create("db", space, clusterIP="None", ports=PORTS, selector={"app": "db"})
    await single.bound.hub.kubectl("label", "pod", "red", "-n", space, "app=db")
    # This one is not cached; a short name that was asked for too early stays unknown for as long as CoreDNS caches that.
    await single.answered(f"http://db.{space}:8080", "red", by="caller")
    await single.answered("http://db-0.db:8080", "red", by="caller")
    variables = ["sh", "-c", "wget -qO- http://$WEB_SERVICE_HOST:$WEB_SERVICE_PORT"]
    assert (await single.bound.hub.kubectl("exec", "-n", space, "caller", "--", *variables)).strip() in ("red", "blue")

    theirs = await worker.namespace("theirs")
    await apply(worker, server("own", theirs, node=sides.lent.name, labels={}))
    await worker.kubectl("wait", "pod/own", "-n", theirs, "--for=condition=Ready", f"--timeout={LONG:g}s")
    looked_up = ["exec", "-n", theirs, "own", "--", "nslookup"]
    assert worker.plane.first_service_address in await worker.kubectl(*looked_up, "kubernetes.default.svc.cluster.local")
    for name in ("web", f"web.{space}", f"web.{space}.svc.cluster.local"):
        with pytest.raises(CommandFailed):
            await worker.kubectl(*looked_up, name)

    await hub.delete("db", space)

    async def unknown() -> bool:
        try:
            await single.bound.hub.kubectl("exec", "-n", space, "caller", "--", "nslookup", f"db.{space}")
        except CommandFailed:
            return True
        return False

    await eventually(unknown, "the name of a deleted Service is unknown")


async def test_with_the_dns_of_the_hub_names_have_the_addresses_of_the_hub(single: Scene, sides: Sides) -> None:
    hub, space = sides.hub, single.namespace
    [resolver] = await items(hub, "pods", "-n", "kube-system", "-l", "k8s-app=kube-dns")
    await Network(hub).create("ordinal", space, clusterIP="None", ports=PORTS, selector={"color": "blue"})

    async def use(servers: list[str] | None, reported: str) -> None:
        access = {"servers": servers} if servers else None
        await hub.kubectl("patch", "clusterbinding", BINDING, "--type=merge", "-p", json.dumps({"spec": {"dns": access}}))

        async def accepted() -> bool:
            found = await get(hub, "clusterbinding", BINDING)
            return any(each["type"] == "ServicesMirrored" and reported in each["message"] for each in found["status"]["conditions"])

        await eventually(accepted, f"the condition reports: {reported}")

    await use([resolver["status"]["podIP"]], "names resolve by the DNS of the hub")
    await apply(hub, server("late", space, node=single.bound.vnode(sides.lent.name), labels={}))
    await single.address("late")
    await single.answered("http://ordinal:8080", "blue", by="late")
    cluster_ip = (await Network(hub).service("web", space)).spec.cluster_ip
    assert cluster_ip in await hub.kubectl("exec", "-n", space, "late", "--", "nslookup", f"web.{space}.svc.cluster.local")
    await use(None, "the rewrites that `kubeocean dns` prints")


# --- A namespace for each tenant ----------------------------------------------------------------------------------------------------------


async def test_names_and_calls_are_the_same_with_a_namespace_for_each_tenant(sides: Sides, shell: Shell, tmp_path: Path) -> None:
    name, other = "apart", await sides.hub.namespace("other")
    mount = f"mount-{name}"
    with sides.bound(
        name,
        tmp_path,
        {"namespaceMapping": "PerNamespace", "serviceNamespaces": [other]},
        *worker_objects(mount),
        *wide_objects(mount),
        *tenant_objects(mount, other),
        way=lambda plane, user: plane.client_config(f"system:serviceaccount:{mount}:{SYNCER}" if plane is sides.worker else user),
    ) as bound:
        await shell.run(REWRITES, {BINDING: name})
        scene = Scene(bound, sides.lent.name, await sides.hub.namespace("names"), other)
        await apply(sides.worker, *tenant_objects(mount, scene.namespace))
        await scene.furnish(sides.home.name)
        for url in ("web", f"web.{scene.namespace}", f"web.{scene.namespace}.svc.cluster.local"):
            await scene.answered(f"http://{url}", "red", by="caller")
        for url in (f"web.{other}", f"web.{other}.svc.cluster.local"):
            await scene.answered(f"http://{url}", "blue", by="caller")
        await scene.answered("http://caller", "caller", by="red")
