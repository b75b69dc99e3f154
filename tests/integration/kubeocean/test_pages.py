"""Pages about a bound cluster: their commands are run against a hub and a worker, and print what the pages show.

Invariant: the commands are those of the pages; names of the session's clusters take the place of `demo`, `NODE` and the like.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.kubeocean.conftest import STARTS_WITHIN, Scene, lasting_scene
from tests.integration.kubeocean.leases import closed_now
from tests.support.bound import SAMPLES, Body, Bound, apply, delete, get
from tests.support.pages import Shell, block
from tests.support.program import KUBECTL_TIMEOUT, eventually
from tests.support.simulated import all_ready, simulated_nodes
from vkubelet.api.codec import decode_yaml, decode_yaml_documents
from vkubelet.testing.cluster import ControlPlane

pytestmark = pytest.mark.timeout(1800)

DOCTOR_FINDS = (0, 1)
"""Exit codes of commands that report problems of the scene, which has no DNS and no usage."""


@pytest.fixture(scope="module")
def lent(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A node that one policy leases by half; another one has a window."""

    def policies(bound: Bound) -> list[Body]:
        half, night = bound.policy(f"half-{bound.name}"), bound.policy(f"night-{bound.name}", **closed_now())
        half["spec"]["resourceLimits"] = [{"resource": name, "percent": 50} for name in ("cpu", "memory")]
        return [half, night]

    with lasting_scene(hub, worker, tmp_path_factory.mktemp("pages"), policies=policies) as made:
        yield made


@pytest.fixture
async def shell(lent: Scene, tmp_path: Path) -> Shell:
    return await Shell.of(tmp_path, {"hub": lent.bound.hub, "worker": lent.bound.worker})


@pytest.fixture
async def waiting(lent: Scene) -> AsyncIterator[str]:
    """The namespace of a pod `web` that does not tolerate virtual nodes."""
    hub = lent.bound.hub
    namespace = await hub.namespace("shop")
    spec = {"containers": [{"name": "main", "image": "none"}], "nodeSelector": {"kubernetes.io/hostname": lent.vnodes[0]}}
    await apply(hub, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": namespace}, "spec": spec})
    yield namespace
    await delete(hub, "namespace", namespace, "--wait=false")


async def test_a_person_sees_what_is_leased(lent: Scene, shell: Shell, waiting: str) -> None:
    name, vnode = lent.bound.name, lent.vnodes[0]
    # Other tests have bindings too.
    out = await shell.run(block("lease/bind.md", 1), {"status": f"status {name}"})
    assert out.split()[:3] == ["NAME", "PHASE", "NODES"] and f"{name} " in out
    out = await shell.run(block("lease/plan.md", 0), {"hub": f"hub --binding {name}"})
    assert f"ClusterBinding {name}: " in out and "LOCAL TIME" in out
    out = await shell.run(
        block("lease/policies.md", 0), {"plan --context hub": f"plan --context hub --binding {name}", "night": f"night-{name}"}
    )
    assert f"ResourceLeasingPolicy night-{name} for" in out and "LEASED CPU" in out
    out = await shell.run(block("operate/explain.md", 0), {"vnode-demo-node-1": vnode})
    assert f"Node {vnode}, which is node {lent.nodes[0]}" in out and "its window is closed until" in out
    out = await shell.run(block("operate/explain.md", 1), {"shop": waiting})
    assert "does not tolerate kubeocean.io/vnode:NoSchedule; add the toleration to the pod" in out
    out = await shell.run(block("operate/explain.md", 2), {"night": f"night-{name}"})
    assert f"ResourceLeasingPolicy night-{name} for ClusterBinding {name}: Inactive" in out


async def test_explanations_show_at_a_terminal_that_they_read(lent: Scene, shell: Shell, waiting: str) -> None:
    for what in (f"node {lent.vnodes[0]}", f"policy night-{lent.bound.name}", f"pod web -n {waiting}"):
        assert "reading policies, nodes and pods of both clusters" in await shell.run(f"kubeocean explain {what} 2>&1", typed="")


async def test_a_person_finds_what_is_wrong(lent: Scene, shell: Shell, waiting: str) -> None:
    name, vnode = lent.bound.name, lent.vnodes[0]
    out = await shell.run(block("operate/find-what-is-wrong.md", 0), {"demo": name}, codes=DOCTOR_FINDS)
    assert f"ClusterBinding {name}" in out and "addresses of the hub: spec.dns" in out
    out = await shell.run(block("operate/find-what-is-wrong.md", 1), {"nodes": f"nodes --binding {name}"}, codes=DOCTOR_FINDS)
    assert vnode in out and "REQUESTED" in out
    out = await shell.run(block("operate/find-what-is-wrong.md", 2), {"demo": name}, codes=DOCTOR_FINDS)
    (archive,) = shell.directory.glob("kubeocean-support-*.tar.gz")
    assert archive.name in out and tarfile.is_tarfile(archive)
    replaced = {"status": f"status {name}", "demo": name, "NODE": vnode, "POD": "web", "NAMESPACE": waiting}
    out = await shell.run(block("operate/troubleshoot.md", 0), replaced)
    assert "Reason:" in out and f"Node {vnode}" in out and f"Pod {waiting}/web: Pending" in out


async def test_the_dashboard_prints_its_address(shell: Shell) -> None:
    async with shell.running(block("operate/dashboard.md", 0), r"Press Ctrl-C") as out:
        assert "http://127.0.0.1:" in out


async def test_the_recipe_for_nights_is_accepted_and_planned(lent: Scene, shell: Shell) -> None:
    try:
        out = await shell.run(block("use/cookbook.md", 0), {"plan": f"plan --binding {lent.bound.name}"})
        assert "resourceleasingpolicy.cloud.tencent.com/" in out and "cronjob.batch/" in out
    finally:
        for context, file in (("worker", "night-policy.yaml"), ("hub", "night-batch.yaml")):
            await shell.run(f"kubectl --context {context} delete --wait=false -f deploy/samples/cookbook/{file}")


async def test_the_worker_is_given_up_as_the_page_says(lent: Scene, shell: Shell) -> None:
    name = lent.bound.name
    await shell.run(block("operate/outages.md", 1), {"demo": name}, typed="y\n")
    assert await get(lent.bound.hub, "clusterbinding", name) is None


# --- The first bound cluster --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def first(hub: ControlPlane, worker: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """A node of the worker for the binding `demo`; what the page creates is removed afterwards."""
    with simulated_nodes(worker, "first", nodes=1, directory=tmp_path):
        yield "first"


async def test_the_first_bound_cluster_comes_and_goes_as_the_page_shows(
    hub: ControlPlane, worker: ControlPlane, first: str, tmp_path: Path
) -> None:
    page, vnode = "start/first-binding.md", "vnode-demo-first"
    (tmp_path / "page").mkdir()
    shell = await Shell.of(tmp_path / "page", {"hub": hub, "worker": worker})
    for name, plane in (("hub", hub), ("worker", worker)):
        # What `make up` leaves; the first block links to it.
        (shell.directory / name).symlink_to(plane.kubeconfig)
    await all_ready(worker, [first])
    identity, run = block(page, 2).text, block(page, 3)
    try:
        await shell.run(block(page, 1))
        # Functions of a shell are known to the rest of the same terminal.
        await shell.run(identity + run.lines(0, 1, 2, 3, 4, 5, 6))
        async with shell.running(run.lines(7), "."):
            await all_ready(hub, [vnode], seconds=STARTS_WITHIN)
            use = block(page, 4)
            await shell.run(use.lines(0))
            await apply(hub, on_node(vnode))
            await shell.run(use.lines(2))
            async with shell.running(use.lines(3), "hello"):
                pass
            await hub.kubectl("delete", "deployment", "hello", KUBECTL_TIMEOUT)
            await worker.kubectl("delete", "resourceleasingpolicy", "half", KUBECTL_TIMEOUT)
            await eventually(lambda: is_gone(hub, vnode), "the virtual node is removed")
            await hub.kubectl("delete", "clusterbinding", "demo", KUBECTL_TIMEOUT)
    finally:
        await remove(hub, worker, shell)


def on_node(vnode: str) -> Body:
    """The Deployment of the page, on the one node and with a scripted log: nothing runs on a simulated node."""
    body = decode_yaml((SAMPLES / "deployment.yaml").read_text())
    template = body["spec"]["template"]
    template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": vnode}
    template["metadata"]["annotations"] = {"mock.vkubelet.io/log-text": "hello from {hostname} on {node}"}
    return {**body, "metadata": {**body["metadata"], "namespace": "default"}}


async def is_gone(hub: ControlPlane, node: str) -> bool:
    return await get(hub, "node", node) is None


async def remove(hub: ControlPlane, worker: ControlPlane, shell: Shell) -> None:
    """What the page leaves; the definitions and the namespaces of the hub belong to other tests too."""
    samples = {"worker": ("worker-guards.yaml", "worker-rbac.yaml"), "hub": ("hub-rbac.yaml", "hub-token.yaml")}
    for name, files in samples.items():
        bodies = [body for file in files for body in decode_yaml_documents((SAMPLES / file).read_text())]
        kept = ("Namespace", "PriorityClass") if name == "hub" else ("PriorityClass",)
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [body for body in bodies if body["kind"] not in kept]})
        (shell.directory / f"{name}.json").write_text(text)
        await shell.run(f"kubectl --kubeconfig {name} delete --ignore-not-found --wait=false -f {name}.json")
    await delete(hub, "clusterbinding", "demo", "--ignore-not-found", "--wait=false")
    await hub.kubectl("delete", "secret", "demo-kubeconfig", "-n", "kubeocean-system", "--ignore-not-found")
    await hub.kubectl("delete", "nodes", "-l", "kubeocean.io/cluster-binding=demo", "--wait=false")
    await worker.kubectl("delete", "resourceleasingpolicy", "half", "--ignore-not-found", "--wait=false")
    await worker.kubectl("delete", "node", "first", "--ignore-not-found", "--wait=false")
