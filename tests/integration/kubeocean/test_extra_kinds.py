"""Extra kinds on two real API servers: LogConfigs by the shipped setting (kubeocean-behaviour.md, line 171), and a kind with namespaces.

Judged by the package `kubernetes`. The definition of LogConfig is written here from its description; nothing of the product knows it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from attrs import field, frozen
from kubernetes import client as k8s

from kubeocean.model.kinds import ExtraKind
from kubeocean.rbac import kinds as rights
from kubeocean.rbac.permissions import SYNCER, hub_kind_rules, worker_guards, worker_objects
from kubeocean.rbac.tenants import tenant_objects, wide_objects
from kubeocean.settings import KubeoceanSettings
from tests.integration.kubeocean.conftest import STARTS_WITHIN, MakeScene, Scene
from tests.integration.kubeocean.test_services import condition
from tests.support.audit import Audit, Call
from tests.support.bound import ROOT, Body, apply, delete, established, get
from tests.support.logconfigs import OPEN, definition, logconfig_definition, spec_of
from tests.support.pages import Shell, block
from tests.support.program import eventually
from tests.support.stage import Stage, away
from tests.support.witness import api_client
from vkubelet.api.codec import decode_yaml_documents
from vkubelet.api.rbac import granted
from vkubelet.settings import convert
from vkubelet.testing.cluster import ControlPlane

LOGS: list[Body] = yaml.safe_load((ROOT / "deploy/samples/logconfigs.yaml").read_text())["provider"]["extra_kinds"]
NOTES: Body = {
    "api_version": "extra.example.com/v1",
    "resource": "notes",
    "rewrites": [
        {
            "namespaces": {"spec.namespace": "${metadata.namespace}"},
            "labels": {"spec.podSelector.matchLabels": {"kubeocean.io/virtual-namespace": "${metadata.namespace}"}},
        }
    ],
}
CONDITION = "ExtraKindsMirrored"
MIRRORED = "kubeocean.io/managed-by=kubeocean"


def read(*entries: Body) -> list[ExtraKind]:
    return list(convert({"extra_kinds": list(entries)}, KubeoceanSettings).extra_kinds)


def note_definition() -> Body:
    return definition("extra.example.com", "notes", "Note", scope="Namespaced", spec=OPEN, short="nt")


@frozen
class Objects:
    """Objects of one kind in one cluster, by the generic client of the package `kubernetes`."""

    api: k8s.CustomObjectsApi = field(repr=False)
    group: str
    plural: str

    @classmethod
    def of(cls, cluster: ControlPlane, entry: Body) -> Self:
        return cls(k8s.CustomObjectsApi(api_client(cluster.kubeconfig)), entry["api_version"].partition("/")[0], entry["resource"])

    @property
    def _kind(self) -> tuple[str, str]:
        return self.group, "v1"

    async def all(self, labels: str = "") -> list[Body]:
        found = await asyncio.to_thread(self.api.list_cluster_custom_object, *self._kind, self.plural, label_selector=labels)
        return list(found["items"])

    async def mirrors(self, binding: str, name: str = "") -> list[Body]:
        """The mirrors of a binding, of one original if it is named."""
        found = [each for each in await self.all(MIRRORED) if each["metadata"]["annotations"].get("kubeocean.io/cluster-id") == binding]
        return [each for each in found if name in ("", each["metadata"]["annotations"]["kubeocean.io/virtual-name"])]

    async def create(self, name: str, spec: Body, *, namespace: str = "", **metadata: Any) -> Body:
        body = {"apiVersion": f"{self.group}/v1", "kind": "LogConfig", "metadata": {"name": name, **metadata}, "spec": spec}
        if namespace:
            body["kind"] = "Note"
            made: Body = await asyncio.to_thread(self.api.create_namespaced_custom_object, *self._kind, namespace, self.plural, body)
            return made
        made = await asyncio.to_thread(self.api.create_cluster_custom_object, *self._kind, self.plural, body)
        return made

    async def patch(self, name: str, change: Body, *, namespace: str = "") -> None:
        where = (namespace, self.plural, name) if namespace else (self.plural, name)
        call = self.api.patch_namespaced_custom_object if namespace else self.api.patch_cluster_custom_object
        await asyncio.to_thread(call, *self._kind, *where, change)

    async def delete(self, name: str, *, namespace: str = "") -> None:
        where = (namespace, self.plural, name) if namespace else (self.plural, name)
        call = self.api.delete_namespaced_custom_object if namespace else self.api.delete_cluster_custom_object
        await asyncio.to_thread(call, *self._kind, *where)


async def define(cluster: ControlPlane, body: Body) -> None:
    await apply(cluster, body)
    await eventually(lambda: established(cluster, "crd", body["metadata"]["name"]), "the definition is established")


async def undefine(cluster: ControlPlane, body: Body) -> None:
    await delete(cluster, "crd", body["metadata"]["name"], "--ignore-not-found")
    await eventually(lambda: _is_gone(cluster, "crd", body["metadata"]["name"]), "the definition is deleted")


async def _is_gone(cluster: ControlPlane, *what: str) -> bool:
    return await get(cluster, *what) is None


async def served(scene: MakeScene, *entries: Body, allowed: bool = True, mapping: str = "Single", **spec: Any) -> Scene:
    """A scene whose process has the shipped identity, with the rights for these kinds and what limits them."""
    made = await scene(
        start=False,
        spec={"namespaceMapping": mapping, **spec},
        settings={"provider": {"unused_copy_after": 2.0, "reconnect_interval": 1.0, "extra_kinds": list(entries)}},
        way=lambda plane, user: plane.client_config(
            f"system:serviceaccount:{user.replace('kubeocean-', 'mount-', 1)}:{SYNCER}" if plane.name == "worker" else user
        ),
    )
    await apply(made.bound.worker, *worker_objects(made.bound.mount), *worker_guards(made.bound.mount))
    if mapping != "Single":
        await apply(made.bound.worker, *wide_objects(made.bound.mount, kinds=read(*entries)))
    if allowed:
        await allow(made, *entries)
    made.program.start()
    await made.ready()
    return made


async def allow(made: Scene, *entries: Body) -> None:
    """Grants the rights in both clusters, as `kubeocean bind` and the manager do."""
    bound, chosen = made.bound, read(*entries)
    await apply(bound.worker, *rights.worker_objects(bound.mount, chosen), *rights.worker_guards(bound.mount, chosen))
    name, user = f"kinds-{bound.name}", {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": bound.user}
    await apply(bound.hub, *granted(hub_kind_rules(chosen), name, cluster_name=name, subject=user))


@pytest.fixture
async def logs(hub: ControlPlane, worker: ControlPlane) -> AsyncIterator[tuple[Objects, Objects]]:
    """LogConfigs of both clusters, without any at the start."""
    for cluster in (hub, worker):
        await define(cluster, logconfig_definition())
    yield Objects.of(hub, LOGS[0]), Objects.of(worker, LOGS[0])
    for cluster in (hub, worker):
        await undefine(cluster, logconfig_definition())


@pytest.fixture
async def notes(hub: ControlPlane, worker: ControlPlane) -> AsyncIterator[tuple[Objects, Objects]]:
    for cluster in (hub, worker):
        await define(cluster, note_definition())
    yield Objects.of(hub, NOTES), Objects.of(worker, NOTES)
    for cluster in (hub, worker):
        await undefine(cluster, note_definition())


async def until(check: Callable[[], Any], what: str, *, seconds: float = STARTS_WITHIN) -> Any:
    return await eventually(check, what, seconds=seconds, every=0.1)


async def stated(stage: Stage, holds: str, text: str) -> Mapping[str, Any]:
    async def check() -> Mapping[str, Any] | None:
        found = await condition(stage, CONDITION)
        return found if found.get("status") == holds and text in found["message"] else None

    return dict(await until(check, f"{CONDITION} is {holds}: {text}"))


def selected(mirror: Body) -> Body:
    detail = mirror["spec"]["inputDetail"]
    return dict(next(detail[name] for name in ("containerStdout", "containerFile", "hostFile") if name in detail))


def are_translated(found: Mapping[str, list[Body]], mount: str) -> None:
    """The mirrors select what their originals selected in the hub, by the labels that leased pods have."""
    in_shop = {"kubeocean.io/virtual-namespace": "shop"}
    of = "kubeocean.io/workload-"
    assert sorted((selected(each) for each in found["out"]), key=json.dumps) == sorted(
        (
            {"allContainers": False, "namespace": mount, "includeLabels": {**in_shop, f"{of}type": "deployment", f"{of}name": each}}
            for each in ("web", "api")
        ),
        key=json.dumps,
    )
    assert selected(found["files"][0]) == {
        "namespace": mount,
        "logPath": "/log",
        "includeLabels": {**in_shop, f"{of}type": "statefulset", f"{of}name": "db"},
    }
    assert selected(found["space"][0]) == {"namespace": mount, "includeLabels": {"app": "web", **in_shop}}
    assert selected(found["but"][0]) == {"namespace": mount, "excludeLabels": {"kubeocean.io/virtual-namespace": "ops"}}
    assert selected(found["host"][0]) == {"logPath": "/var/log", "filePattern": "*.log"}


async def test_logconfigs_are_translated_and_follow(scene: MakeScene, logs: tuple[Objects, Objects]) -> None:
    made = await served(scene, *LOGS)
    stage = await Stage.of(made.bound, made.nodes)
    home, there = logs
    mount, name = made.bound.mount, made.bound.name
    await there.create("theirs", spec_of("host_file", logPath="/theirs"))
    workloads = [{"namespace": "shop", "kind": "deployment", "name": each} for each in ("web", "api")]
    await home.create("out", spec_of("container_stdout", allContainers=False, workloads=workloads), labels={"team": "a"})
    await home.create("files", spec_of("container_file", namespace="shop", workload={"kind": "statefulset", "name": "db"}, logPath="/log"))
    await home.create("space", spec_of("container_stdout", namespace="shop", includeLabels={"app": "web"}))
    await home.create("but", spec_of("container_file", excludeNamespace="ops", excludeLabels={"old": "1"}))
    await home.create("host", spec_of("host_file", logPath="/var/log", filePattern="*.log"))

    async def complete() -> dict[str, list[Body]] | None:
        found = {each: await there.mirrors(name, each) for each in ("out", "files", "space", "but", "host")}
        return found if [len(each) for each in found.values()] == [2, 1, 1, 1, 1] else None

    found = await until(complete, "all LogConfigs have their mirrors")
    are_translated(found, mount)
    labels, annotations = await stage.marks()
    for mirror in [each for mirrors in found.values() for each in mirrors]:
        meta, original = mirror["metadata"], mirror["metadata"]["annotations"]["kubeocean.io/virtual-name"]
        assert mirror["spec"]["clsDetail"] == spec_of("host_file")["clsDetail"]
        assert labels.items() <= meta["labels"].items() and annotations.items() <= meta["annotations"].items()
        assert meta["labels"]["kubeocean.io/virtual-logconfig"] == original and "finalizers" not in meta
    assert found["out"][0]["metadata"]["labels"]["team"] == "a"
    await stated(stage, "True", "logconfigs.cls.cloud.tencent.com of the hub have mirrors")
    assert all(
        "finalizers" not in each["metadata"] and "labels" not in each["metadata"]
        for each in await home.all()
        if each["metadata"]["name"] == "host"
    )

    before = {each["metadata"]["name"]: each["metadata"]["uid"] for each in found["out"]}
    change = {"spec": {"inputDetail": {"containerStdout": {"workloads": [workloads[1], {**workloads[0], "name": "new"}]}}}}
    await home.patch("out", change)

    async def follows() -> list[Body] | None:
        mirrors = await there.mirrors(name, "out")
        return mirrors if {selected(each)["includeLabels"]["kubeocean.io/workload-name"] for each in mirrors} == {"api", "new"} else None

    after = await until(follows, "the mirrors follow")
    assert len(after) == 2 and len(before.items() & {(each["metadata"]["name"], each["metadata"]["uid"]) for each in after}) == 1
    await home.delete("host")
    await until(_none(there, name, "host"), "the mirror is deleted with its original")
    await until(_has_mirrors(there, name, 5), "the others stay")
    assert [each["metadata"]["name"] for each in await there.all() if each["metadata"]["name"] == "theirs"] == ["theirs"]


def _none(objects: Objects, binding: str, name: str = "") -> Callable[[], Any]:
    async def check() -> bool:
        return await objects.mirrors(binding, name) == []

    return check


def _has_mirrors(objects: Objects, binding: str, number: int, name: str = "") -> Callable[[], Any]:
    async def check() -> bool:
        return len(await objects.mirrors(binding, name)) == number

    return check


async def test_a_missing_definition_disables_this_feature_alone(scene: MakeScene, hub: ControlPlane, worker: ControlPlane) -> None:
    made = await served(scene, *LOGS)
    stage = await Stage.of(made.bound, made.nodes)
    await stage.create("web")
    await stage.running("web")
    found = await stated(stage, "False", "the hub does not serve logconfigs.cls.cloud.tencent.com in version v1")
    assert found["reason"] == "NotServed" and "install its CustomResourceDefinition there" in found["message"]
    assert (await condition(stage, "Ready"))["status"] == "True"
    await stage.event(made.bound.name, "ExtraKindsNotMirrored", namespace="default")
    try:
        await define(hub, logconfig_definition())
        await stated(stage, "False", "the worker cluster does not serve logconfigs")
        home = Objects.of(hub, LOGS[0])
        await home.create("host", spec_of("host_file", logPath="/var/log"))
        await define(worker, logconfig_definition())
        there = Objects.of(worker, LOGS[0])
        await until(_has_mirrors(there, made.bound.name, 1), "mirrored without a restart")
        await stated(stage, "True", "have mirrors in the worker")
        await undefine(worker, logconfig_definition())
        await stage.create("more")
        await stage.running("more")
        assert (await stated(stage, "False", "logconfigs"))["reason"] == "NotServed"
    finally:
        for cluster in (hub, worker):
            await undefine(cluster, logconfig_definition())


async def test_missing_rights_are_named_and_stop_nothing_else(scene: MakeScene, logs: tuple[Objects, Objects]) -> None:
    made = await served(scene, *LOGS, allowed=False)
    stage = await Stage.of(made.bound, made.nodes)
    home, there = logs
    await home.create("host", spec_of("host_file", logPath="/var/log"))
    await stage.create("web")
    await stage.running("web")
    found = await stated(stage, "False", 'resource "logconfigs" in API group "cls.cloud.tencent.com"')
    assert found["reason"] == "RightsMissing" and "kubeocean bind --extra-kinds FILE" in found["message"]
    assert (await condition(stage, "Ready"))["status"] == "True"
    await allow(made, *LOGS)
    await until(_has_mirrors(there, made.bound.name, 1), "mirrored once the rights are granted")
    await stated(stage, "True", "have mirrors")


async def test_foreign_objects_are_left_alone_also_by_the_guard(scene: MakeScene, logs: tuple[Objects, Objects]) -> None:
    made = await served(scene, *LOGS)
    stage = await Stage.of(made.bound, made.nodes)
    home, there = logs
    await home.create("host", spec_of("host_file", logPath="/var/log"))
    await until(_has_mirrors(there, made.bound.name, 1), "mirrored")
    (mirror,) = await there.mirrors(made.bound.name)
    await there.create("theirs", spec_of("host_file", logPath="/theirs"))
    with away(made.program):
        await there.delete(mirror["metadata"]["name"])
        theirs = await there.create(mirror["metadata"]["name"], spec_of("host_file", logPath="/theirs"))
    await stated(stage, "False", f"LogConfig {mirror['metadata']['name']} of the worker has another owner")
    await home.delete("host")
    await stated(stage, "True", "have mirrors")
    found = {each["metadata"]["name"]: each for each in await there.all()}
    assert found[mirror["metadata"]["name"]]["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]

    own = k8s.CustomObjectsApi(api_client(made.bound.way(made.bound.worker, made.bound.user)))
    where = ("cls.cloud.tencent.com", "v1", "logconfigs", "theirs")
    claimed = {**found["theirs"], "metadata": {**found["theirs"]["metadata"], "labels": {"kubeocean.io/managed-by": "kubeocean"}}}
    for attempt in (lambda: own.delete_cluster_custom_object(*where), lambda: own.replace_cluster_custom_object(*where, claimed)):
        with pytest.raises(k8s.ApiException) as refused:
            await asyncio.to_thread(attempt)
        assert "a hub may write only objects with the label kubeocean.io/managed-by" in str(refused.value.body)


async def test_restart_writes_nothing_and_unbinding_removes_the_mirrors_alone(scene: MakeScene, logs: tuple[Objects, Objects]) -> None:
    made = await served(scene, *LOGS)
    home, there = logs
    name, bound = made.bound.name, made.bound
    await there.create("theirs", spec_of("host_file", logPath="/theirs"))
    await home.create("host", spec_of("host_file", logPath="/var/log"))
    await home.create("space", spec_of("container_stdout", namespace="shop"))
    await until(_has_mirrors(there, name, 2), "mirrored")
    binding = await get(bound.hub, "clusterbinding", name)
    assert binding["metadata"]["annotations"]["kubeocean.io/mirrored-kinds"] == "logconfigs.v1.cls.cloud.tencent.com=Cluster"
    user = f"system:serviceaccount:{bound.mount}:{SYNCER}"
    with away(made.program):
        audit = Audit(bound.worker, user)
        await home.create("later", spec_of("host_file", logPath="/later"))
        await home.delete("space")
    await until(_has_mirrors(there, name, 1, "later"), "the new process mirrors")
    await until(_none(there, name, "space"), "and deletes the mirror of what was deleted meanwhile")

    async def logged() -> bool:
        return {each.verb for each in _writes(audit)} >= {"create", "delete"}

    await until(logged, "the audit log has both writes")
    assert sorted(each.verb for each in _writes(audit)) == ["create", "delete"], _writes(audit)
    await delete(bound.hub, "clusterbinding", name, "--wait=false")
    await until(lambda: _is_gone(bound.hub, "clusterbinding", name), "unbound")
    assert sorted(each["metadata"]["name"] for each in await there.all()) == ["theirs"]
    assert sorted(each["metadata"]["name"] for each in await home.all()) == ["host", "later"]


def _writes(audit: Audit) -> list[Call]:
    return [each for each in audit.writes() if each.what == "logconfigs" and each.code < 300]


async def test_mirrors_of_a_kind_that_is_no_longer_listed_are_deleted(scene: MakeScene, logs: tuple[Objects, Objects]) -> None:
    made = await served(scene, *LOGS)
    home, there = logs
    await there.create("theirs", spec_of("host_file", logPath="/theirs"))
    await home.create("host", spec_of("host_file", logPath="/var/log"))
    await until(_has_mirrors(there, made.bound.name, 1), "mirrored")
    config = made.bound.directory / f"{made.bound.name}.yaml"
    settings = yaml.safe_load(config.read_text())
    with away(made.program):
        settings["provider"]["extra_kinds"] = []
        config.write_text(yaml.safe_dump(settings))
    await until(_none(there, made.bound.name), "its mirrors are deleted")

    async def unrecorded() -> bool:
        found = await get(made.bound.hub, "clusterbinding", made.bound.name)
        return "kubeocean.io/mirrored-kinds" not in found["metadata"]["annotations"]

    await until(unrecorded, "the record is removed")
    assert [each["metadata"]["name"] for each in await there.all()] == ["theirs"]


async def test_objects_of_leased_namespaces_are_mirrored_for_as_long_as_these_have_pods(
    scene: MakeScene, notes: tuple[Objects, Objects]
) -> None:
    made = await served(scene, NOTES)
    stage = await Stage.of(made.bound, made.nodes)
    home, there = notes
    await home.create("one", {"podSelector": {"matchLabels": {"app": "web"}}}, namespace=stage.namespace)
    await stage.create("web")
    await until(_has_mirrors(there, made.bound.name, 1), "mirrored with the first pod")
    (mirror,) = await there.mirrors(made.bound.name)
    assert mirror["metadata"]["namespace"] == made.bound.mount and mirror["metadata"]["name"] == stage.physical_name("one")
    pod = await stage.until_physical("web", bool, "there")
    wanted = mirror["spec"]["podSelector"]["matchLabels"]
    assert mirror["spec"]["namespace"] == made.bound.mount
    assert wanted == {"app": "web", "kubeocean.io/virtual-namespace": stage.namespace}
    assert pod["metadata"]["labels"]["kubeocean.io/virtual-namespace"] == stage.namespace, "the label that the rewriting adds selects it"
    await stage.home.delete("pods", "web", stage.namespace, grace=0)
    await until(_none(there, made.bound.name), "the mirror is deleted after the last pod")
    assert len(await home.all()) == 1


async def test_tenants_have_their_mirrors_in_their_own_namespaces(
    scene: MakeScene, notes: tuple[Objects, Objects], hub: ControlPlane
) -> None:
    spaces = [await hub.namespace("tenant"), await hub.namespace("tenant")]
    made = await served(scene, NOTES, mapping="PerNamespace", serviceNamespaces=spaces)
    home, there = notes
    for space in spaces:
        await apply(made.bound.worker, *tenant_objects(made.bound.mount, space))
        await home.create("same", {"text": space}, namespace=space)
    await until(_has_mirrors(there, made.bound.name, 2), "both are mirrored")
    found = {each["metadata"]["namespace"]: each for each in await there.mirrors(made.bound.name)}
    assert {name: (each["metadata"]["name"], each["spec"]["text"], each["spec"]["namespace"]) for name, each in found.items()} == {
        f"{made.bound.mount}-{space}": ("same", space, f"{made.bound.mount}-{space}") for space in spaces
    }
    await home.delete("same", namespace=spaces[0])
    await until(_none_in(there, made.bound.name, f"{made.bound.mount}-{spaces[0]}"), "that of the first tenant is deleted")
    assert len(await there.mirrors(made.bound.name)) == 1
    await delete(made.bound.hub, "clusterbinding", made.bound.name, "--wait=false")
    await until(lambda: _is_gone(made.bound.hub, "clusterbinding", made.bound.name), "unbound")
    assert await there.all() == []


def _none_in(objects: Objects, binding: str, namespace: str) -> Callable[[], Any]:
    async def check() -> bool:
        return not [each for each in await objects.mirrors(binding) if each["metadata"]["namespace"] == namespace]

    return check


async def test_the_page_prints_roles_that_a_worker_accepts(hub: ControlPlane, worker: ControlPlane, tmp_path: Path) -> None:
    shell = await Shell.of(tmp_path, {"hub": hub, "worker": worker})
    printed = list(decode_yaml_documents(await shell.run(block("use/kinds.md", 0))))
    own = [body for body in printed if body["metadata"]["name"] == "kubeocean-syncer-kinds"]
    policies = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert {body["kind"] for body in own} == {"ClusterRole", "ClusterRoleBinding", *policies}
    granting = next(body for body in own if body["kind"] == "ClusterRole")
    assert [(rule["apiGroups"], rule["resources"]) for rule in granting["rules"]] == [(["cls.cloud.tencent.com"], ["logconfigs"])]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": own})
    assert "kubeocean-syncer-kinds" in await worker.kubectl("create", "--dry-run=server", "-f", "-", stdin=text)
