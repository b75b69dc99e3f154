"""NetworkPolicies of the hub in the worker namespaces of tenants, on two real API servers. No network plugin runs: a judge reads the
objects of the worker, those of its owner and ours together, as a plugin does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from kubeocean.rbac.permissions import SYNCER, worker_objects
from kubeocean.rbac.tenants import tenant_objects, wide_objects
from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.test_services import condition, until
from tests.integration.kubeocean.test_tenants import (
    SETTINGS,
    for_user,
    prepare,
    ready_says,
    spaces,
    tenants,
)
from tests.integration.kubeocean.test_unbinding import delete_binding, gone
from tests.support.bound import Body, apply, get
from tests.support.holder import Holder
from tests.support.policies import Peer, plugin
from tests.support.program import eventually
from tests.support.stage import Stage, physical_name

WITHIN = "kubeocean-within-namespace"
ISOLATION = "kubeocean-tenant"
HTTP = {"port": 80, "protocol": "TCP"}
POLICIES = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"


def policy(name: str, namespace: str, **spec: Any) -> Body:
    body = {"podSelector": {}, **spec}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": body,
    }


async def leased(scene: Scene) -> dict[tuple[str, str], Peer]:
    """The physical pods, by the namespace and name of their virtual pods."""
    out = {}
    for each in (await get(scene.bound.worker, "pods", "-A", "-l", "kubeocean.io/managed-by=kubeocean"))["items"]:
        # A pod of another scene may have no marks.
        marks = each["metadata"].get("annotations") or {}
        if marks.get("kubeocean.io/cluster-id") == scene.bound.name:
            key = marks["kubeocean.io/virtual-pod-namespace"], marks["kubeocean.io/virtual-pod-name"]
            out[key] = Peer(each["metadata"]["namespace"], each["metadata"]["labels"])
    return out


async def names(scene: Scene, space: str) -> set[str]:
    return {each["metadata"]["name"] for each in (await get(scene.bound.worker, "networkpolicies", "-n", space))["items"]}


async def start(stage: Stage, **labels: str) -> None:
    for name, app in labels.items():
        await stage.home.create("pods", stage.body(name, labels={"app": app}))
    for name in labels:
        await stage.running(name)


async def reason_of_true(stage: Stage) -> str:
    """Wait for the condition, which is written after the policies; its reason."""

    async def reason() -> str:
        found = await condition(stage, "NetworkPoliciesMirrored")
        return str(found["reason"]) if found.get("status") == "True" else ""

    return str(await until(reason, "the condition is true"))


async def test_policies_of_the_hub_decide_in_the_namespaces_of_their_tenants(scene: MakeScene) -> None:
    made = await tenants(scene)
    hub, worker = made.bound.hub, made.bound.worker
    one, other = [await Stage.of(made.bound, made.nodes) for _ in range(2)]
    space, there = [await prepare(made, stage) for stage in (one, other)]
    theirs = policy("of-the-owner", space, podSelector={"matchLabels": {"nothing": "here"}}, policyTypes=["Ingress"])
    await apply(worker, theirs)
    allowed = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": other.namespace}},
        "podSelector": {"matchLabels": {"app": "front"}},
    }
    await apply(
        hub,
        policy("web", one.namespace, podSelector={"matchLabels": {"app": "web"}}, ingress=[{"from": [allowed], "ports": [HTTP]}]),
        policy("quiet", one.namespace, podSelector={"matchLabels": {"app": "quiet"}}, policyTypes=["Egress"]),
    )
    await start(one, web="web", quiet="quiet", plain="plain")
    await start(other, front="front", rest="rest")
    judge, pods = await plugin(worker), await leased(made)

    def admits(source: tuple[Stage, str], target: tuple[Stage, str], port: int = 80) -> bool:
        return judge.admits(pods[source[0].namespace, source[1]], pods[target[0].namespace, target[1]], port)

    assert admits((other, "front"), (one, "web")), "as its policy allows"
    assert not admits((other, "front"), (one, "web"), 81) and not admits((other, "rest"), (one, "web"))
    assert not admits((one, "plain"), (one, "web")), "isolated, also from its own namespace"
    assert admits((one, "web"), (one, "plain")) and not admits((other, "front"), (one, "plain"))
    assert not admits((one, "quiet"), (one, "plain")) and admits((one, "web"), (other, "front")) is False
    assert admits((other, "rest"), (other, "front"))
    assert await reason_of_true(one) == "Mirrored"

    before = {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in judge.policies}
    made.program.kill()
    await hub.kubectl("delete", "networkpolicy", "web", "-n", one.namespace)
    made.program.start()
    await made.ready()

    async def follows() -> bool:
        return physical_name(one.namespace, "web") not in await names(made, space)

    await eventually(follows, "the mirror is deleted with its policy, which went without a process")
    judge = await plugin(worker)
    assert admits((one, "plain"), (one, "web")) and not admits((other, "front"), (one, "web"))
    after = {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in judge.policies}
    changed = {uid for uid in after if before.get(uid) != after[uid]}
    assert changed == {(await get(worker, "networkpolicy", WITHIN, "-n", space))["metadata"]["uid"]}, "a restart writes to nothing else"

    await delete_binding(made)
    await gone(made)
    assert await names(made, space) == {ISOLATION, "of-the-owner"} and await names(made, there) == {ISOLATION}
    assert await get(hub, "networkpolicy", "quiet", "-n", one.namespace) is not None


async def test_what_is_not_carried_over_is_closed_and_named(scene: MakeScene) -> None:
    made = await tenants(scene)
    hub, worker = made.bound.hub, made.bound.worker
    stage = await Stage.of(made.bound, made.nodes)
    space = await prepare(made, stage)
    marked = {"podSelector": {"matchLabels": {"kubeocean.io/mine": "x"}}}
    await apply(hub, policy("odd", stage.namespace, policyTypes=["Ingress", "Egress"], ingress=[{"from": [marked]}], egress=[{}]))
    await start(stage, web="web", plain="plain")

    async def says(*texts: str) -> None:
        async def check() -> bool:
            found = await condition(stage, "NetworkPoliciesMirrored")
            return found.get("status") == "False" and found["reason"] == "Incomplete" and all(text in found["message"] for text in texts)

        await until(check, f"the condition states {texts}")

    await says(f"spec.ingress[0].from[0].podSelector of NetworkPolicy {stage.namespace}/odd names the label kubeocean.io/mine")
    pods, judge = await leased(made), await plugin(worker)
    web, plain = pods[stage.namespace, "web"], pods[stage.namespace, "plain"]
    assert not judge.admits(plain, web) and judge.admits(web, Peer(address="192.0.2.9"))

    limit = policy("limit", space, policyTypes=["Egress"], egress=[{"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}])
    await apply(worker, limit)
    await says(f"spec.egress of the NetworkPolicies of namespace {stage.namespace} is not carried over", f"NetworkPolicy {space}/limit")
    judge = await plugin(worker)
    assert not judge.admits(web, Peer(address="192.0.2.9")) and judge.admits(web, Peer(address="198.51.100.9")), "the owner decides"

    old = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]}
    await worker.kubectl("patch", "networkpolicy", ISOLATION, "-n", space, "--type=merge", "-p", json.dumps({"spec": old}))
    await says(f"NetworkPolicy {space}/{ISOLATION} of the worker allows connections beside those")
    await hub.kubectl("delete", "networkpolicy", "odd", "-n", stage.namespace)
    assert await reason_of_true(stage)


async def test_the_identity_writes_no_policies_of_others_and_opens_no_egress_of_theirs(scene: MakeScene) -> None:
    made = await tenants(scene)
    worker, mount = made.bound.worker, made.bound.mount
    stage = await Stage.of(made.bound, made.nodes)
    space = await prepare(made, stage)
    await apply(worker, policy("theirs", space))
    token = (await worker.kubectl("create", "token", SYNCER, "-n", mount)).strip()
    api = Holder(worker, token)
    ours = {"kubeocean.io/managed-by": "kubeocean"}

    def body(name: str, labels: Mapping[str, str], **spec: Any) -> Body:
        made = policy(name, space, **spec)
        return {**made, "metadata": {**made["metadata"], "labels": dict(labels)}}

    path, alone = POLICIES.format(space), "only NetworkPolicies with the label"
    foreign = (await get(worker, "networkpolicy", "theirs", "-n", space))["metadata"]["resourceVersion"]
    adopted = body("theirs", ours)
    adopted["metadata"]["resourceVersion"] = foreign
    for what, method, where, sent, words in (
        ("create one without our label", "POST", path, body("mine", {}), alone),
        ("create the isolation with rules", "POST", path, body(ISOLATION, {}, ingress=[{}]), alone),
        ("adopt one of the owner", "PUT", f"{path}/theirs", adopted, alone),
        ("delete one of the owner", "DELETE", f"{path}/theirs", None, alone),
        ("delete the isolation", "DELETE", f"{path}/{ISOLATION}", None, alone),
        ("create one in a namespace of others", "POST", POLICIES.format("default"), body("mine", ours), "is forbidden"),
        ("create one in the mount namespace", "POST", POLICIES.format(mount), body("mine", ours), "is forbidden"),
        ("list those of the cluster", "GET", "/apis/networking.k8s.io/v1/networkpolicies", None, "is forbidden"),
    ):
        await api.is_refused(what, method, where, sent, words)
    assert api.asks("POST", path, body("mine", ours, policyTypes=["Egress"], egress=[{}]))[0] == 201

    await worker.kubectl("label", "namespace", space, "kubeocean.io/owner-limits-egress=true")

    more = body("more", ours, policyTypes=["Egress"], egress=[{}])
    await api.is_refused("open the egress", "POST", path, more, "must not open the egress")
    assert api.asks("POST", f"{path}?dryRun=All", body("more", ours, ingress=[{}]))[0] == 201
    assert api.asks("DELETE", f"{path}/mine")[0] == 200


async def test_where_rights_are_missing_pods_run_and_the_condition_names_them(scene: MakeScene) -> None:
    made = await tenants(scene)
    worker, mount = made.bound.worker, made.bound.mount
    role = next(each for each in wide_objects(mount) if each["metadata"]["name"].endswith("-tenant"))
    await apply(worker, {**role, "rules": [rule for rule in role["rules"] if rule["resources"] != ["networkpolicies"]]})
    stage = await Stage.of(made.bound, made.nodes)
    await apply(made.bound.hub, policy("web", stage.namespace))
    space = await prepare(made, stage)
    await start(stage, web="web")

    async def lacking() -> bool:
        found = await condition(stage, "NetworkPoliciesMirrored")
        return found.get("reason") == "RightsMissing" and "networkpolicies" in found["message"] and "kubeocean bind" in found["message"]

    await until(lacking, "the condition names the right")
    await apply(worker, role)

    async def mirrored() -> bool:
        found = await condition(stage, "NetworkPoliciesMirrored")
        return found.get("reason") == "Mirrored" and physical_name(stage.namespace, "web") in await names(made, space)

    await until(mirrored, "mirrored once the right is granted")


@pytest.mark.parametrize("left", ["pods", "nothing"])
async def test_back_to_one_namespace_only_when_no_pod_runs_and_policies_are_deleted(scene: MakeScene, left: str) -> None:
    made = await scene(settings=SETTINGS, spec={"namespaceMapping": "PerNamespace"}, start=False)
    mount, worker, hub = made.bound.mount, made.bound.worker, made.bound.hub
    await apply(worker, *worker_objects(mount), *wide_objects(mount))
    await apply(worker, *for_user(wide_objects(mount), made.bound.user, f"{SYNCER}-{mount}-namespaces"))
    stage = await Stage.of(made.bound, made.nodes)
    await apply(worker, *for_user(tenant_objects(mount, stage.namespace), made.bound.user, ISOLATION))
    await apply(hub, policy("web", stage.namespace, podSelector={"matchLabels": {"app": "web"}}))
    made.program.start()
    await made.ready()
    space, mirror = f"{mount}-{stage.namespace}", physical_name(stage.namespace, "web")

    async def mirrored() -> bool:
        return await names(made, space) == {ISOLATION, WITHIN, mirror}

    await eventually(mirrored, "the policy has a mirror before any pod runs")
    if left == "pods":
        await start(stage, web="web")
    change = {"spec": {"namespaceMapping": "Single"}}
    await hub.kubectl("patch", "clusterbinding", made.bound.name, "--type=merge", "-p", json.dumps(change))
    if left == "pods":
        await ready_says(made, "until then PerNamespace does: pods run on its virtual nodes; delete them, or restore the field")
        assert set(await spaces(made, "pods")) == {space} and await mirrored(), "PerNamespace is served meanwhile"
        await stage.home.delete("pods", "web", stage.namespace)
        await stage.absent("web")

    async def switched() -> bool:
        found = await get(hub, "clusterbinding", made.bound.name)
        return bool(found["metadata"]["annotations"].get("kubeocean.io/accepted-as", "").endswith(f"_{mount}"))

    await eventually(switched, "the mapping is accepted")
    assert await names(made, space) == {ISOLATION}
    await start(stage, after="web")
    assert set(await spaces(made, "pods")) == {mount}
