"""The charts of a fleet and its commands on two clusters whose nodes have our image: a cluster joins, is upgraded, and leaves.

Invariant: nothing of ours runs on the machine itself but commands; what is typed comes from the pages about fleets. The tests are one
story, in their order.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tests.e2e.test_install import FIRST, IMAGE, NEXT, YES, together
from tests.support.bound import Body, get, items
from tests.support.installed import Listed, everything, image, load, serve_kubernetes
from tests.support.pages import Shell, block
from tests.support.program import KUBECTL_TIMEOUT, LONG, eventually
from vkubelet.testing.cluster import CommandFailed, ControlPlane, Site, WorkerNode
from vkubelet.testing.fixtures import run_apart, running

SYSTEM, NAME = "fleet-system", "laptop"
AVAILABLE = "ManagedClusterConditionAvailable"


@define
class Pair:
    """A hub and a laptop, each with a real node."""

    site: Site
    scratch: Path
    shell: Shell = field(init=False)
    hub: ControlPlane = field(init=False)
    laptop: ControlPlane = field(init=False)
    nodes: list[WorkerNode] = field(init=False)
    untouched: tuple[Listed, Listed] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.hub, self.laptop = ControlPlane("fleet-hub", self.site), ControlPlane("fleet-laptop", self.site)
        self.nodes = [WorkerNode("hub-1", self.hub), WorkerNode("laptop-1", self.laptop)]

    @property
    def directory(self) -> Path:
        return self.site.directory

    async def start(self) -> None:
        await together(self.hub.start, self.laptop.start)
        await together(*(node.start for node in self.nodes))

    async def stop(self) -> None:
        await together(self.hub.stop, self.laptop.stop)

    async def prepare(self, archive: Path) -> None:
        self.shell = await Shell.of(self.scratch, {"hub": self.hub, "laptop": self.laptop})
        for node in self.nodes:
            await load(node, archive, *(f"{IMAGE}:{tag}" for tag in (FIRST, NEXT)))
            await serve_kubernetes(node)
        self.untouched = await self.listed()

    async def listed(self) -> tuple[Listed, Listed]:
        return await everything(self.hub), await everything(self.laptop)

    async def init(self) -> dict[str, str]:
        """What the printed line of `fleet init` has for its words in upper case."""
        out = await self.shell.run(block("fleet/laptop.md", 1))
        (line,) = re.findall(r"fleet join --hub (\S+) --token (\S+) --ca-hash (\S+) --name NAME", out)
        return dict(zip(("URL", "TOKEN", "HASH"), line, strict=True))

    async def conditions(self) -> dict[str, str]:
        record = await get(self.hub, "managedcluster", NAME)
        return {each["type"]: each["status"] for each in (record or {}).get("status", {}).get("conditions", ())}

    async def last_lines(self) -> str:
        """The last lines of the processes' logs, for an assertion that failed."""
        out = []
        for plane, name in ((self.hub, "fleet-hub"), (self.laptop, "fleet-agent")):
            for command in (("logs", f"deployment/{name}", "--tail=40"), ("get", "pods,events")):
                try:
                    out.append(await plane.kubectl(*command, "-n", SYSTEM))
                except CommandFailed as error:
                    out.append(error.stderr)
        return "\n".join(out)


@pytest.fixture(scope="module")
def pair(cluster_site: Site, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Clusters of its own: what is listed before and after must be ours alone."""
    archive = run_apart(image())
    made = Pair(cluster_site, tmp_path_factory.mktemp("shell"))
    with running(made, request):
        run_apart(made.prepare(archive))
        yield made


@pytest.mark.timeout(1500)
async def test_a_laptop_joins_and_leaves_as_the_tutorial_shows(pair: Pair) -> None:
    shell, page = pair.shell, "fleet/laptop.md"
    try:
        await shell.run(block(page, 0))
        words = await pair.init()
        async with shell.running(block(page, 2), f"on the hub run: fleet accept {NAME}", words):
            out = await shell.run(block(page, 3), typed=YES)
            assert "public key   sha256:" in out and f"ManagedCluster {NAME}: accepted" in out

            async def joined() -> bool:
                found, record = await pair.conditions(), await get(pair.hub, "managedcluster", NAME)
                return found.get("ManagedClusterJoined") == found.get(AVAILABLE) == "True" and "allocatable" in record["status"]

            await eventually(joined, "the laptop has joined", seconds=LONG, every=0.5)
        out = await shell.run(block(page, 4))
        (row,) = re.findall(rf"^{NAME} .*$", out, re.MULTILINE)[:1]
        assert row.split()[:5] == [NAME, "ocm", "yes", "yes", "True"]
        assert f"memberclusters.cluster.kubernetes-fleet.io/{NAME}" in out or "membercluster.cluster.kubernetes-fleet.io/" in out
        assert '"cpu"' in out
        await shell.run(block("fleet/rights.md", 0))
        # Nothing is wrong on either side, once the kubelet has asked the agent whether it is ready.
        await pair.laptop.kubectl("rollout", "status", "deployment/fleet-agent", "-n", SYSTEM, KUBECTL_TIMEOUT)
        out = await shell.run(block(page, 5))
        assert out.count("0 errors, 0 warnings, 0 checks skipped") == 2, out
    except AssertionError as error:
        error.add_note(await pair.last_lines())
        raise
    await shell.run(block(page, 6).lines(0), typed=YES)
    await shell.run(block(page, 6).lines(1), typed=YES)
    assert await get(pair.hub, "managedcluster", NAME) is None and await get(pair.hub, "namespace", NAME) is not None
    assert not [each for each in await items(pair.laptop, "deployments,secrets,serviceaccounts", "-n", SYSTEM) if "fleet" in name_of(each)]
    await pair.laptop.kubectl("delete", "namespace", SYSTEM, KUBECTL_TIMEOUT)


def name_of(body: Body) -> str:
    return str(body["metadata"]["name"])


@asynccontextmanager
async def watched(pair: Pair, seen: list[str]) -> Any:
    """Collects every status of the condition Available inside a block."""
    binary = (await pair.site.binaries.ensure(["kubectl"]))["kubectl"]
    path = f'--output=jsonpath={{.status.conditions[?(@.type=="{AVAILABLE}")].status}}{{"\\n"}}'
    command = [str(binary), f"--kubeconfig={pair.hub.kubeconfig}", "get", "managedcluster", NAME, "--watch", path]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield
    finally:
        process.kill()
        out, _ = await process.communicate()
        seen += out.decode().split()


async def lease(pair: Pair) -> Body:
    return dict((await get(pair.hub, "lease", "managed-cluster-lease", "-n", NAME))["spec"])


@pytest.mark.timeout(1500)
async def test_helm_joins_both_clusters_and_an_upgrade_loses_no_lease(pair: Pair) -> None:
    """Line 11 of the first step: both charts join, and an upgrade with an open Lease loses none."""
    shell, page = pair.shell, "fleet/join.md"
    words = await pair.init()
    await shell.run(block(page, 0), {key: words[key] for key in ("URL", "TOKEN")})

    async def available() -> bool:
        return (await pair.conditions()).get(AVAILABLE) == "True"

    async def requested() -> bool:
        listed = await items(pair.hub, "csr", "-l", f"open-cluster-management.io/cluster-name={NAME}")
        return any(not (each.get("status") or {}).get("conditions") for each in listed)

    seen: list[str] = []
    try:
        await eventually(requested, "the agent requests a certificate", seconds=LONG, every=0.5)
        await shell.run(block("fleet/laptop.md", 3), typed=YES)
        await eventually(available, "the laptop has joined", seconds=LONG, every=0.5)
        before = await lease(pair)
        secret = await get(pair.laptop, "secret", "hub-kubeconfig-secret", "-n", SYSTEM)
        record = await get(pair.hub, "managedcluster", NAME)
        async with watched(pair, seen):
            await shell.run(block(page, 1))
            for plane, name in ((pair.hub, "fleet-hub"), (pair.laptop, "fleet-agent")):
                await plane.kubectl("rollout", "status", f"deployment/{name}", "-n", SYSTEM, KUBECTL_TIMEOUT)
                running_pods = await items(plane, "pods", "-n", SYSTEM, "--field-selector=status.phase=Running")
                assert f"{IMAGE}:{NEXT}" in {each["spec"]["containers"][0]["image"] for each in running_pods}

            async def renewed() -> bool:
                return bool((await lease(pair))["renewTime"] > before["renewTime"])

            await eventually(renewed, "the next agent renews the same Lease", seconds=3 * LONG, every=1)
            # A second hub in the list changes nothing as long as the first one accepts the cluster.
            (shell.directory / "second-hub.kubeconfig").write_text(json.dumps({"kind": "Config"}))
            await shell.run(block("fleet/hubs.md", 0))
            await pair.laptop.kubectl("rollout", "status", "deployment/fleet-agent", "-n", SYSTEM, KUBECTL_TIMEOUT)
            assert await available()
    except AssertionError as error:
        error.add_note(await pair.last_lines())
        raise
    assert seen and set(seen) == {"True"}
    after = await get(pair.laptop, "secret", "hub-kubeconfig-secret", "-n", SYSTEM)
    assert (after["metadata"]["uid"], after["data"]["tls.crt"]) == (secret["metadata"]["uid"], secret["data"]["tls.crt"])
    assert (await get(pair.hub, "managedcluster", NAME))["metadata"]["uid"] == record["metadata"]["uid"]


BY_THEMSELVES = ("CertificateSigningRequest", "Lease", "Pod", "ReplicaSet", "ControllerRevision", "APIService")
BY_INIT = {("ConfigMap", "kube-public", "fleet-hub"), ("Role", "kube-public", "fleet-hub"), ("RoleBinding", "kube-public", "fleet-hub")}
MADE_WITH_A_NAMESPACE = {("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")}
KEPT = {("ManagedClusterSet", "", "default"), ("ManagedClusterSet", "", "global"), ("ClusterRole", "", "accept-laptop")}
"""The sets of every hub, and what the page on rights creates."""


def left(before: Listed, after: Listed) -> set[tuple[str, str, str]]:
    """What is new and was not made by the control plane itself."""
    new = after.keys() - before.keys()
    return {key for key in new if key[0] not in BY_THEMSELVES and (key[0], key[2]) not in MADE_WITH_A_NAMESPACE}


@pytest.mark.timeout(1500)
async def test_uninstalling_leaves_what_was_there_before(pair: Pair) -> None:
    await pair.laptop.kubectl("create", "configmap", "mine", "-n", SYSTEM)
    await pair.shell.run(block("fleet/leave.md", 0).lines(0), typed=YES)
    await pair.shell.run(block("fleet/leave.md", 0).lines(1))
    await pair.shell.run(block("fleet/leave.md", 1))
    spaces = {("Namespace", "", name) for name in (SYSTEM, NAME, "open-cluster-management")}
    secrets = {("Secret", SYSTEM, name) for name in ("hub-kubeconfig-secret", "second-hub")}
    laptop = {("Namespace", "", SYSTEM), ("ConfigMap", SYSTEM, "mine"), *secrets}

    async def as_before() -> bool:
        hub, worker = await pair.listed()
        new = left(pair.untouched[0], hub), left(pair.untouched[1], worker)
        rest = [{key for key in each if key[0] != "CustomResourceDefinition"} for each in new]
        print(rest)
        assert not [
            key
            for before, after in zip(pair.untouched, (hub, worker), strict=True)
            for key in before.keys() - after.keys()
            if key[0] in ("Namespace", "Secret", "ConfigMap")
        ]
        return rest[0] == spaces | KEPT | BY_INIT and rest[1] == laptop

    await eventually(as_before, "what the pages name is left, and nothing else", seconds=LONG, every=2)
