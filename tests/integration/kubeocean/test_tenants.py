"""`namespaceMapping: PerNamespace` on two real API servers: two tenants with equal names, and what neither of them nor the hub reaches."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from kubeocean.rbac.permissions import SYNCER, worker_guards, worker_objects
from kubeocean.rbac.tenants import tenant_guards, tenant_objects, wide_objects
from tests.integration.kubeocean.conftest import MakeScene, Scene
from tests.integration.kubeocean.test_services import Network, condition, until
from tests.integration.kubeocean.test_unbinding import delete_binding, gone
from tests.support.bound import Body, apply, get
from tests.support.holder import Holder
from tests.support.policies import Peer, plugin
from tests.support.program import eventually
from tests.support.stage import Stage
from vkubelet.testing.cluster import CommandFailed

SETTINGS = {"provider": {"unused_copy_after": 1.0, "reconnect_interval": 1.0}}
PER_NAMESPACE = {"namespaceMapping": "PerNamespace"}
TENANT_OF = "kubeocean.io/tenant-of"
LEDGER = "kubeocean-ledger"
NOT_PREPARED = "NamespaceNotPrepared"


async def tenants(scene: MakeScene, *, creates: bool = False, guarded: bool = True) -> Scene:
    """A scene whose process has the shipped identity of its mount namespace, with the rights for tenants, before it starts."""
    made = await scene(
        start=False,
        spec=PER_NAMESPACE,
        settings=SETTINGS,
        way=lambda plane, user: plane.client_config(
            f"system:serviceaccount:{user.replace('kubeocean-', 'mount-', 1)}:{SYNCER}" if plane.name == "worker" else user
        ),
    )
    mount = made.bound.mount
    await apply(made.bound.worker, *worker_objects(mount), *wide_objects(mount, creates=creates))
    if guarded:
        await apply(made.bound.worker, *worker_guards(mount, tenants=True), *tenant_guards(mount, creates=creates))
    made.program.start()
    await made.ready()
    return made


async def prepare(scene: Scene, stage: Stage) -> str:
    """What the worker's owner does for a tenant; returns the namespace."""
    objects = tenant_objects(scene.bound.mount, stage.namespace)
    await apply(scene.bound.worker, *objects)
    return str(objects[0]["metadata"]["name"])


async def furnish(stage: Stage, word: str) -> None:
    """A ConfigMap, a Secret and a pod that uses them and a token; the names are the same for every tenant."""
    await stage.home.create("configmaps", {"metadata": {"name": "same", "namespace": stage.namespace}, "data": {"word": word}})
    await stage.home.create("secrets", {"metadata": {"name": "same", "namespace": stage.namespace}, "stringData": {"word": word}})
    await stage.home.create("pods", using(stage, "web", secret="same"))


def using(stage: Stage, name: str, *, secret: str) -> Body:
    body = stage.body(name)
    container = body["spec"]["containers"][0]
    container["envFrom"] = [{"configMapRef": {"name": "same", "optional": True}}, {"secretRef": {"name": secret}}]
    return body


async def spaces(scene: Scene, kind: str) -> dict[str, list[str]]:
    """The namespaces of the worker with objects of the binding of a kind, and the data of each object."""
    found = await get(scene.bound.worker, kind, "-A", "-l", "kubeocean.io/managed-by=kubeocean")
    out: dict[str, list[str]] = {}
    for each in found["items"]:
        if each["metadata"].get("annotations", {}).get("kubeocean.io/cluster-id") == scene.bound.name:
            out.setdefault(each["metadata"]["namespace"], []).append(json.dumps(each.get("data") or each.get("spec")))
    return out


async def test_two_tenants_with_equal_names_share_nothing_and_reach_nothing_of_each_other(scene: MakeScene) -> None:
    made = await tenants(scene)
    one, other = [await Stage.of(made.bound, made.nodes) for _ in range(2)]
    names = [await prepare(made, stage) for stage in (one, other)]
    for stage, word in ((one, "red"), (other, "blue")):
        await furnish(stage, word)
    for stage in (one, other):
        await stage.running("web")
    assert names == [f"{made.bound.mount}-{stage.namespace}" for stage in (one, other)]

    pods, maps, secrets = [await spaces(made, kind) for kind in ("pods", "configmaps", "secrets")]
    assert set(pods) == set(names) and set(maps) >= set(names) and set(secrets) == set(names)
    words = [base64.b64encode(word).decode() for word in (b"red", b"blue")]
    for at, name in enumerate(names):
        held = " ".join(secrets[name])
        assert words[at] in held and words[1 - at] not in held, "the Secret of the tenant, and of no other"

    # By objects: a pod that names the copy of the other tenant's Secret gets that of no one.
    await one.home.create("pods", using(one, "hostile", secret=other.physical_name("same")))
    event = await one.event("hostile", "MandatorySecretNotFound")
    assert other.physical_name("same") in event["message"]
    assert "hostile" not in await made.bound.worker.kubectl("get", "pods", "-A", "-o", "name")
    token = next(each for each in map(json.loads, secrets[names[0]]) if "word" not in each)
    assert_opens_nothing(made, base64.b64decode(next(iter(token.values()))).decode(), spaces=names, at_home=other.namespace)

    placed = {name: (await get(made.bound.worker, "pods", "-n", name))["items"][0] for name in names}
    judge = await plugin(made.bound.worker)
    peers = {name: Peer(name, each["metadata"]["labels"]) for name, each in placed.items()}
    for source in names:
        for target in names:
            assert judge.admits(peers[source], peers[target]) is (source == target), "pods of one tenant alone reach its pods"

    before = await versions(made, names)
    made.program.kill()
    made.program.start()
    await made.ready()
    await one.create("later")
    await one.running("later")
    assert before.items() <= (await versions(made, names)).items(), "a restart writes to nothing that exists"


def assert_opens_nothing(scene: Scene, token: str, *, spaces: list[str], at_home: str) -> None:
    """The token of a pod opens no Secret and no Service of the other tenant in the hub, and nothing in the worker."""
    hub, worker = scene.bound.hub, scene.bound.worker
    away = Holder(worker, token)
    home = Holder(hub, token)
    tokens = f"/api/v1/namespaces/{at_home}/serviceaccounts/default/token"
    for method, path in (
        ("GET", f"/api/v1/namespaces/{at_home}/secrets/same"),
        ("GET", f"/api/v1/namespaces/{at_home}/services"),
        ("GET", f"/apis/discovery.k8s.io/v1/namespaces/{at_home}/endpointslices"),
        ("POST", tokens),
        ("GET", "/api/v1/namespaces/default/pods"),
    ):
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}} if path == tokens else None
        assert home.asks(method, path, body)[0] == 403, "known to the hub, with no rights"
    for name in spaces:
        for kind in ("secrets", "services", "pods"):
            assert away.asks("GET", f"/api/v1/namespaces/{name}/{kind}")[0] == 401


async def versions(scene: Scene, spaces: list[str]) -> dict[str, str]:
    """The resourceVersions in the namespaces of tenants, and of those; not of the ledger, which is written when pods come."""
    out = {}
    for kind in ("pods", "configmaps", "secrets", "namespaces", "rolebindings", "networkpolicies"):
        for each in (await get(scene.bound.worker, kind, "-A"))["items"]:
            there = each["metadata"].get("namespace", each["metadata"]["name"]) in (*spaces, scene.bound.mount)
            if there and each["metadata"]["name"] != LEDGER:
                out[each["metadata"]["uid"]] = each["metadata"]["resourceVersion"]
    return out


async def test_services_of_tenants_with_equal_names_are_mirrored_side_by_side(scene: MakeScene) -> None:
    made = await tenants(scene)
    mount, home, there = made.bound.mount, Network(made.bound.hub), Network(made.bound.worker)
    one, other = [await Stage.of(made.bound, made.nodes) for _ in range(2)]
    addresses = {one.namespace: "10.1.0.1", other.namespace: "10.1.0.2"}
    spaces = {stage.namespace: await prepare(made, stage) for stage in (one, other)}
    for stage in (one, other):
        await home.create("web", stage.namespace)
        await home.point("web", stage.namespace, addresses[stage.namespace])
        await stage.create("caller")
    for stage in (one, other):
        await stage.running("caller")
        space = spaces[stage.namespace]
        await _points(there, space, addresses[stage.namespace])
        mirror = await there.service("web", space)
        (physical,) = (await get(made.bound.worker, "pods", "-n", space))["items"]
        variables = {each["name"]: each.get("value") for each in physical["spec"]["containers"][0]["env"]}
        assert variables["WEB_SERVICE_HOST"] == mirror.spec.cluster_ip and mirror.spec.selector is None
        assert physical["spec"]["dnsConfig"]["searches"] == [f"{stage.namespace}.{mount}.kubeocean.internal"]
    assert await there.all_services(mount) == {} and await there.all_slices(mount) == []

    async def reported() -> bool:
        found = await condition(one, "ServicesMirrored")
        return f"have mirrors in the namespaces {mount}-* of the worker" in found.get("message", "")

    await until(reported, "the condition names the namespaces")

    await home.delete("web", one.namespace)

    async def deleted() -> bool:
        return await there.all_services(spaces[one.namespace]) == {} and await there.all_slices(spaces[one.namespace]) == []

    await until(deleted, "the mirror is deleted with its Service")
    await _points(there, spaces[other.namespace], addresses[other.namespace])
    await delete_binding(made)
    await gone(made)
    assert await there.all_services(spaces[other.namespace]) == {} and await there.all_slices(spaces[other.namespace]) == []


async def _points(network: Network, space: str, address: str) -> None:
    """Waits until a namespace has one Service, `web`, with one endpoint."""

    async def check() -> bool:
        return list(await network.all_services(space)) == ["web"] and await network.endpoints("web", space) == [address]

    await until(check, f"the one Service of {space} leads to {address} alone")


async def test_a_named_namespace_without_pods_is_mirrored_once_it_is_prepared(scene: MakeScene) -> None:
    made = await tenants(scene)
    home, there = Network(made.bound.hub), Network(made.bound.worker)
    stage = await Stage.of(made.bound, made.nodes)
    await home.create("web", stage.namespace)
    await home.point("web", stage.namespace, "10.1.0.1")
    change = {"spec": {"serviceNamespaces": [stage.namespace]}}
    await made.bound.hub.kubectl("patch", "clusterbinding", made.bound.name, "--type=merge", "-p", json.dumps(change))

    async def reported() -> bool:
        found = await condition(stage, "ServicesMirrored")
        return found.get("reason") == "Incomplete" and f"--tenant {stage.namespace}" in found["message"]

    await until(reported, "the condition names what its owner does")
    space = await prepare(made, stage)
    await _points(there, space, "10.1.0.1")

    async def cleared() -> bool:
        return (await condition(stage, "ServicesMirrored")).get("status") == "True"

    await until(cleared, "the condition is true")

    worker, mount = made.bound.worker, made.bound.mount
    token = (await worker.kubectl("create", "token", SYNCER, "-n", mount)).strip()
    api = Holder(worker, token)
    for what, path, body, words in network_attempts(mount, space):
        await api.is_refused(what, "POST", path, body, words)


def network_attempts(mount: str, space: str) -> list[tuple[str, str, Body, str]]:
    """Writes of the identity to the network of the worker that the policies or its rights refuse: as `attempts`."""
    services, slices = "/api/v1/namespaces/{}/services", "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"

    def service(**spec: Any) -> Body:
        return {"metadata": {"name": "mine"}, "spec": {"ports": [{"port": 80}], **spec}}

    part = {"metadata": {"name": "mine"}, "addressType": "IPv4", "endpoints": [], "ports": []}
    return [
        ("a port of every node", services.format(space), service(type="NodePort"), "must be of type ClusterIP"),
        ("traffic to any address", services.format(space), service(externalIPs=["192.0.2.1"]), "must not have externalIPs"),
        ("pods of the tenant", services.format(space), service(selector={"a": "b"}), "must not select pods"),
        ("another's endpoints", slices.format(space), part, "only EndpointSlices with the label"),
        ("a namespace of others", services.format("default"), service(), "is forbidden"),
        ("endpoints of others", slices.format("default"), part, "is forbidden"),
    ]


async def test_an_unprepared_namespace_is_refused_and_unbinding_keeps_those_of_others(scene: MakeScene) -> None:
    made = await tenants(scene)
    prepared, other = [await Stage.of(made.bound, made.nodes) for _ in range(2)]
    space = await prepare(made, prepared)
    await furnish(prepared, "red")
    await prepared.running("web")
    await other.create("web")
    event = await other.event("web", NOT_PREPARED)
    assert f"--tenant {other.namespace}" in event["message"]

    foreign, worker = f"{made.bound.mount}-{other.namespace}", made.bound.worker
    await apply(worker, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": foreign}})

    async def refused() -> bool:
        found = await other.home.list("events", other.namespace, fields=f"reason={NOT_PREPARED}")
        return any(f"exists without the label {TENANT_OF}={made.bound.mount}" in each["message"] for each in found)

    await eventually(refused, "the foreign namespace is refused")
    assert set(await spaces(made, "pods")) == {space}

    async def ledger() -> Body | None:
        found: Body | None = await get(worker, "configmap", LEDGER, "-n", made.bound.mount)
        return found

    await eventually(ledger, "the ledger is stored in the mount namespace")
    await delete_binding(made)
    await gone(made)
    for name in (space, foreign):
        kept = await get(worker, "namespace", name)
        assert kept is not None and not kept["metadata"].get("deletionTimestamp"), "made by the worker's owner, who keeps it"
    for kind in ("pods", "configmaps", "secrets"):
        assert await spaces(made, kind) == {}
    assert await ledger() is None


async def test_namespaces_are_created_only_within_the_admission_policies(scene: MakeScene) -> None:
    made = await tenants(scene, creates=True, guarded=False)
    worker, mount = made.bound.worker, made.bound.mount
    stage = await Stage.of(made.bound, made.nodes)
    space = f"{mount}-{stage.namespace}"
    await furnish(stage, "red")
    event = await stage.event("web", NOT_PREPARED)
    assert "this hub could also create namespaces of any name" in event["message"] and "admission policies" in event["message"]
    assert await get(worker, "namespace", space) is None

    await apply(worker, *worker_guards(mount, tenants=True), *tenant_guards(mount))
    await stage.running("web")
    found = await get(worker, "namespace", space)
    labels = found["metadata"]["labels"]
    assert labels[TENANT_OF] == mount and labels["pod-security.kubernetes.io/enforce"] == "baseline"
    assert await get(worker, "networkpolicy", "kubeocean-tenant", "-n", space) is not None

    token = (await worker.kubectl("create", "token", SYNCER, "-n", mount)).strip()
    api = Holder(worker, token)
    foreign, another = f"{mount}-foreign", f"{mount}-another"
    labelled = {"name": another, "labels": {TENANT_OF: "another"}}
    await apply(worker, *({"apiVersion": "v1", "kind": "Namespace", "metadata": each} for each in ({"name": foreign}, labelled)))
    for what, path, body, words in attempts(mount, space):
        await api.is_refused(what, "POST", path, body, words)
    for what, method, path, body, words in attempts_on_others(mount, foreign, another):
        await api.is_refused(what, method, path, body, words)
    kept = [await get(worker, "namespace", name) for name in (foreign, another)]
    assert all(each is not None and "deletionTimestamp" not in each["metadata"] for each in kept)

    await delete_binding(made)
    await gone(made)

    async def deleted() -> bool:
        found = await get(worker, "namespace", space)
        return found is None or bool(found["metadata"].get("deletionTimestamp"))

    await eventually(deleted, "the namespace that was created is deleted")
    assert await get(worker, "namespace", mount) is not None


def attempts(mount: str, space: str) -> list[tuple[str, str, Body, str]]:
    """Writes of the identity that the policies refuse: what, where, the body, and a part of the refusal."""
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"
    us = {"kind": "ServiceAccount", "name": SYNCER, "namespace": mount}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{SYNCER}-{mount}-tenant"}
    good = {TENANT_OF: mount, "pod-security.kubernetes.io/enforce": "baseline"}

    def space_of(name: str, labels: Mapping[str, str]) -> Body:
        return {"metadata": {"name": name, "labels": dict(labels)}}

    def bound(subject: Mapping[str, str], to: Mapping[str, str]) -> Body:
        return {"metadata": {"name": "mine"}, "roleRef": dict(to), "subjects": [dict(subject)]}

    return [
        ("bind in a foreign namespace", roles.format("kube-system"), bound(us, role), "only in namespaces with the label"),
        ("bind in the mount namespace", roles.format(mount), bound(us, role), "only in namespaces with the label"),
        ("bind another identity", roles.format(space), bound({**us, "name": "default"}, role), "to its own identity"),
        ("bind another role", roles.format(space), bound(us, {**role, "name": "cluster-admin"}), "is forbidden"),
        ("outside the prefix", "/api/v1/namespaces", space_of("elsewhere", good), "only namespaces"),
        ("without the label", "/api/v1/namespaces", space_of(f"{mount}-x", {}), "only namespaces"),
        (
            "privileged",
            "/api/v1/namespaces",
            space_of(f"{mount}-x", {**good, "pod-security.kubernetes.io/enforce": "privileged"}),
            "must have the label",
        ),
    ]


def attempts_on_others(mount: str, foreign: str, another: str) -> list[tuple[str, str, str, Body | None, str]]:
    """Further writes that are refused, to namespaces with the prefix that are not for this binding: as `attempts`, with the method."""
    us = {"kind": "ServiceAccount", "name": SYNCER, "namespace": mount}
    tenant = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{SYNCER}-{mount}-tenant"}
    bound = {"metadata": {"name": "mine"}, "roleRef": tenant, "subjects": [us]}
    roles, inside = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings", "only in namespaces with the label"
    wide, label = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {"metadata": {"labels": {TENANT_OF: mount}}}
    return [
        ("bind in a namespace without the label", "POST", roles.format(foreign), bound, inside),
        ("bind in a namespace for another binding", "POST", roles.format(another), bound, inside),
        ("bind in the cluster", "POST", wide, bound, "is forbidden"),
        ("label a namespace of others", "PATCH", f"/api/v1/namespaces/{foreign}", label, "is forbidden"),
        ("delete a namespace of others", "DELETE", f"/api/v1/namespaces/{foreign}", None, "may create, and delete again, only"),
        ("delete the namespace of another binding", "DELETE", f"/api/v1/namespaces/{another}", None, "may create, and delete again, only"),
        ("read Secrets of others", "GET", f"/api/v1/namespaces/{foreign}/secrets", None, "is forbidden"),
        ("read Secrets of the cluster", "GET", "/api/v1/secrets", None, "is forbidden"),
    ]


async def test_a_mapping_changes_only_while_nothing_is_in_the_worker(scene: MakeScene) -> None:
    made = await scene(settings=SETTINGS)
    mount, worker, name = made.bound.mount, made.bound.worker, made.bound.name
    await apply(worker, *worker_objects(mount), *wide_objects(mount))
    rights = f"{SYNCER}-{mount}-namespaces"
    await apply(worker, *for_user(wide_objects(mount), made.bound.user, rights))
    stage = await Stage.of(made.bound, made.nodes)
    tenant = tenant_objects(mount, stage.namespace)
    await apply(worker, *for_user(tenant, made.bound.user, "kubeocean-tenant"))
    await furnish(stage, "red")
    await stage.running("web")
    home, there = Network(made.bound.hub), Network(worker)
    await home.create("db", stage.namespace)
    await until(lambda: there.service(f"db--{stage.namespace}", mount), "mirrored into the mount namespace")

    # Named, so that its mirrors do not go with the last pod.
    change = {"spec": {"namespaceMapping": "PerNamespace", "serviceNamespaces": [stage.namespace]}}
    await made.bound.hub.kubectl("patch", "clusterbinding", name, "--type=merge", "-p", json.dumps(change))
    text = "until then Single does: pods run on its virtual nodes; delete them, or restore the field"
    await ready_says(made, text)
    assert set(await spaces(made, "pods")) == {mount}
    await stage.create("more")
    await stage.running("more")
    assert set(await spaces(made, "pods")) == {mount}, "Single is served meanwhile"

    for each in ("web", "more"):
        await stage.home.delete("pods", each, stage.namespace)
        await stage.absent(each)
    accepted = f"{name}_"

    async def switched() -> bool:
        found = await get(made.bound.hub, "clusterbinding", name)
        note = found["metadata"]["annotations"].get("kubeocean.io/accepted-as", "")
        return bool(note.startswith(accepted) and note.endswith(f"_{mount}_PerNamespace"))

    await eventually(switched, "the mapping is accepted")
    await stage.create("after")
    await stage.running("after")
    assert set(await spaces(made, "pods")) == {f"{mount}-{stage.namespace}"}
    await until(lambda: there.service("db", f"{mount}-{stage.namespace}"), "mirrored into the namespace of the tenant")
    assert await there.all_services(mount) == {}


def for_user(bodies: list[Body], user: str, only: str) -> list[Body]:
    """The bindings bind a user instead of the ServiceAccount."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    return [{**body, "subjects": [subject]} if "roleRef" in body and body["metadata"]["name"] == only else body for body in bodies]


async def ready_says(scene: Scene, text: str) -> None:
    async def check() -> bool:
        found = await get(scene.bound.hub, "clusterbinding", scene.bound.name)
        return any(text in each.get("message", "") for each in found.get("status", {}).get("conditions", ()))

    try:
        await eventually(check, f"a condition states: {text}")
    except (AssertionError, CommandFailed) as error:
        raise AssertionError(f"{error}\n{await get(scene.bound.hub, 'clusterbinding', scene.bound.name)}") from None
