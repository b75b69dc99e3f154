"""`kubeocean plan|explain` against two real clusters: what they foretell and explain is what the serving process then does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.integration.kubeocean.conftest import Scene, lasting_scene
from tests.integration.kubeocean.leases import CLOSED, allocatable, comes_to_offer, local_pod, patch_policy, policy_reports, taints, vnode
from tests.support.bound import Body, Bound, apply, delete, get
from tests.support.command import run_command
from tests.support.kubectl import Ran
from tests.support.program import PATIENCE, eventually
from tests.support.stage import Stage
from vkubelet.testing.cluster import ControlPlane

GRACE = 5
AHEAD = (30, 120, 420)
"""Seconds from setting a window to its edge: the calendar has to be read before, which takes longer on a loaded machine."""
COMMAND_WITHIN = 400.0


@frozen(kw_only=True)
class Reader:
    """Runs the command with the kubeconfigs of two users."""

    hub: Path
    worker: Path | None = None

    async def run(self, *arguments: str) -> Ran:
        flags = ["--kubeconfig", str(self.hub), *(["--worker-kubeconfig", str(self.worker)] if self.worker else [])]
        ran = await run_command("kubeocean", *arguments, *flags, within=COMMAND_WITHIN)
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran

    async def data(self, *arguments: str) -> Any:
        ran = await self.run(*arguments, "-o", "json")
        assert ran.code == 0, ran.stderr
        return json.loads(ran.stdout)


pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def lent(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Two nodes: one is leased by half, the other by a policy with a window."""

    def policies(bound: Bound) -> list[Body]:
        half = bound.policy(f"half-{bound.name}", nodeSelector=only(f"sim-{bound.name}-0"))
        half["spec"]["resourceLimits"] = [{"resource": "cpu", "percent": 50}, {"resource": "cpu", "quantity": "20"}]
        night = bound.policy(f"night-{bound.name}", nodeSelector=only(f"sim-{bound.name}-1"), timeZone="Europe/Berlin")
        night["spec"] |= {"forceReclaim": True, "gracefulReclaimPeriodSeconds": GRACE}
        return [half, night]

    with lasting_scene(hub, worker, tmp_path_factory.mktemp("plan"), nodes=2, policies=policies) as made:
        yield made


def only(node: str) -> Body:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchExpressions": [here]}]}


def owners(scene: Scene) -> Reader:
    """The owner of both clusters, without a kubeconfig of the worker: that is in the Secret of the binding."""
    return Reader(hub=scene.bound.hub.client_config("reader-of-all", ["system:masters"]))


async def test_the_arithmetic_of_a_node_is_what_the_hub_shows(lent: Scene) -> None:
    worker, namespace = lent.bound.worker, await lent.bound.worker.namespace("local")
    await apply(worker, local_pod("greedy", namespace, lent.nodes[0], cpu="30"))
    await comes_to_offer(lent, cpu="17")
    made = await owners(lent).data("explain", "node", lent.vnodes[0])
    shown = await allocatable(lent)
    assert {each["resource"]: each["offered"] for each in made["amounts"]} == shown
    (cpu,) = (each for each in made["amounts"] if each["resource"] == "cpu")
    assert (cpu["allocatable"], cpu["local"], cpu["left"], cpu["offered"]) == ("64", "30", "34", "17")
    assert [each["amount"] for each in cpu["limits"]] == ["17", "17"]
    assert (made["state"], made["policy"], made["outdated"], made["notes"]) == ("Open", f"half-{lent.bound.name}", "", [])
    night = next(each for each in made["policies"] if each["policy"] == f"night-{lent.bound.name}")
    assert (night["decides"], night["why"]) == (False, "its spec.nodeSelector does not select the node")
    by_name = await owners(lent).run("explain", "node", lent.nodes[0], "--binding", lent.bound.name)
    assert by_name.code == 0 and f"Node {lent.vnodes[0]}, which is node {lent.nodes[0]}" in by_name.stdout.decode()
    await delete(worker, "pod", "greedy", "-n", namespace, "--wait=false")


async def test_the_calendar_foretells_what_the_process_does_at_the_edge(lent: Scene) -> None:
    stage, name = await Stage.of(lent.bound, lent.nodes), f"night-{lent.bound.name}"
    body = stage.body("batch", labels={"name": "batch"}, terminationGracePeriodSeconds=1)
    body["spec"]["nodeName"] = lent.vnodes[1]
    await stage.home.create("pods", body)
    await stage.running("batch")
    edge, plan = await foretold(lent, name)
    first = plan["calendar"]["edges"][0]
    assert datetime.fromisoformat(first["at"]) == edge and first["closes"] == [name]
    assert [(each["nodes"], each["after"]["open"]) for each in first["changes"]] == [([lent.nodes[1]], False)]
    (evicted,) = first["evictions"]
    assert (evicted["pod"]["name"], evicted["node"]) == ("batch", lent.nodes[1])
    assert datetime.fromisoformat(evicted["deadline"]) == edge + timedelta(seconds=GRACE)

    async def closed() -> bool:
        return CLOSED in taints(await vnode(lent, 1) or {"spec": {}})

    async def evicted_now() -> bool:
        pod = await get(lent.bound.hub, "pod", "batch", "-n", stage.namespace)
        return not pod or bool(pod["metadata"].get("deletionTimestamp"))

    await eventually(closed, "the node is closed", seconds=(edge - datetime.now(UTC)).total_seconds() + PATIENCE)
    assert datetime.now(UTC) >= edge
    await eventually(evicted_now, "the pod is evicted")
    told = await owners(lent).run("explain", "policy", name)
    assert told.code == 0 and "Inactive" in told.stdout.decode().splitlines()[0]
    text = (await owners(lent).run("plan", name, "--binding", lent.bound.name)).stdout.decode()
    assert "opens: cpu" in text and "closes to new pods" in text


async def foretold(scene: Scene, name: str) -> tuple[datetime, Any]:
    """Sets a window that closes soon; its edge and the calendar, read before the edge."""
    for seconds in AHEAD:
        edge = (datetime.now(UTC) + timedelta(seconds=seconds + 60)).replace(second=0, microsecond=0)
        window = {"start": f"{edge - timedelta(hours=2):%H:%M}", "end": f"{edge - timedelta(minutes=1):%H:%M}"}
        await patch_policy(scene, name, timeWindows=[window], timeZone="UTC")
        await policy_reports(scene, name, "Active")
        (plan,) = await owners(scene).data("plan", name, "--binding", scene.bound.name, "--days", "1")
        if datetime.now(UTC) < edge:
            return edge, plan
    raise AssertionError("too slow to foretell an edge")


async def test_a_pod_is_explained_before_and_after_it_runs(lent: Scene) -> None:
    stage = await Stage.of(lent.bound, lent.nodes)
    waits = stage.body("waits", labels={})
    waits["spec"] |= {"tolerations": [], "nodeSelector": {"kubernetes.io/hostname": lent.vnodes[0]}}
    waits["spec"].pop("nodeName", None)
    await stage.home.create("pods", waits)
    pending = await owners(lent).data("explain", "pod", "waits", "-n", stage.namespace)
    assert pending["node"] == "" and any("does not tolerate kubeocean.io/vnode:NoSchedule" in reason for reason in pending["why"])

    runs = stage.body("runs", labels={})
    runs["spec"] |= {"nodeName": lent.vnodes[0], "volumes": [{"name": "v", "configMap": {"name": "kube-root-ca.crt"}}]}
    await stage.home.create("pods", runs)
    await stage.running("runs")
    made = await owners(lent).data("explain", "pod", f"{stage.namespace}/runs")
    physical = await get(lent.bound.worker, "pod", made["physical_pod"].partition("/")[2], "-n", lent.bound.mount)
    assert physical["spec"]["nodeName"] == made["physical_node"] == lent.nodes[0] and made["why"] == []
    assert "spec.volumes[v].configMap.name" in made["translation"]["changed"]
    assert "spec.nodeSelector" not in physical["spec"]

    big = stage.body("big", labels={})
    big["spec"]["nodeName"] = lent.vnodes[0]
    big["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "60"}}
    await stage.home.create("pods", big)

    async def refused() -> bool:
        pod = await get(lent.bound.hub, "pod", "big", "-n", stage.namespace)
        return bool(pod["status"].get("reason") == "OutOfcpu")

    await eventually(refused, "the pod is rejected")
    told = await owners(lent).data("explain", "pod", "big", "-n", stage.namespace)
    assert told["phase"] == "Failed" and "OutOfcpu" in told["why"][0]
    await delete(lent.bound.hub, "pods", "--all", "-n", stage.namespace, "--wait=false")


async def test_a_reader_without_a_right_gets_its_name(lent: Scene) -> None:
    nobody = Reader(hub=lent.bound.hub.client_config("reader-of-nothing", []))
    for arguments in (("plan",), ("explain", "node", lent.vnodes[0]), ("explain", "policy", "any")):
        ran = await nobody.run(*arguments)
        assert ran.code == 1 and ran.stderr.startswith("error: you may not ") and "kubectl create clusterrole" in ran.stderr, ran.stderr
    rules = [
        {"apiGroups": ["cloud.tencent.com"], "resources": ["clusterbindings"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["nodes", "namespaces"], "verbs": ["get", "list"]},
    ]
    await grant(lent.bound.hub, "reader-of-bindings", rules)
    some = Reader(hub=lent.bound.hub.client_config("reader-of-bindings", []))
    ran = await some.run("plan", "--binding", lent.bound.name)
    assert ran.code == 1 and "you may not get secrets in namespace" in ran.stderr and "--worker-context" in ran.stderr

    lender = lent.bound.worker.client_config("reader-of-all", ["system:masters"])
    both = Reader(hub=some.hub, worker=lender)
    (plan,) = await both.data("plan", "--binding", lent.bound.name)
    assert any("no eviction is foretold: you may not list pods" in note for note in plan["notes"])
    ran = await Reader(hub=some.hub, worker=lent.bound.worker.client_config("reader-of-nothing", [])).run(
        "plan", "--binding", lent.bound.name
    )
    assert ran.code == 1 and "you may not list resourceleasingpolicies.cloud.tencent.com in the worker cluster" in ran.stderr


async def grant(cluster: ControlPlane, user: str, rules: list[Body]) -> None:
    """Gives a user rights in the cluster."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules}
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
    binding = {**role, "kind": "ClusterRoleBinding", "subjects": [subject], "roleRef": reference}
    binding.pop("rules")
    await apply(cluster, role, binding)


async def test_what_does_not_exist_is_named_with_what_does(lent: Scene) -> None:
    for arguments, words in (
        (("plan", "nothing"), f"those that do: half-{lent.bound.name}"),
        (("explain", "policy", "nothing"), "those that exist: "),
        (("explain", "pod", "nothing"), "has no pod nothing in namespace default"),
        (("explain", "node", "nothing", "--binding", lent.bound.name), "no worker cluster has a node nothing"),
        (("plan", "--binding", "nothing"), "has no ClusterBinding nothing"),
    ):
        more = ("--binding", lent.bound.name) if arguments[0] == "plan" and "--binding" not in arguments else ()
        ran = await owners(lent).run(*arguments, *more)
        assert ran.code == 1 and words in ran.stderr, ran.stderr
