"""Tests of kubeocean.mirrors.kind_mirror and of the bodies that it writes."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from kubeocean.mirrors.kind_mirror import KindMirror, change, desired
from kubeocean.mirrors.namespaces import MirroredNamespaces
from kubeocean.model.keys import PER_NAMESPACE, Owner
from kubeocean.model.kinds import ExtraKind, Rewrite
from kubeocean.worker.cluster import Mount, WorkerCluster
from kubeocean.worker.spread import SpreadInformer
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, binding, pod, unknown, worker_scope
from tests.unit.kubeocean.world import listed
from vkubelet.api.objects import Json, Key, Unknown
from vkubelet.client.transport import Call
from vkubelet.errors import Forbidden, Invalid
from vkubelet.testing.host import RecordingHost

WIDE = ExtraKind(
    api_version="logs.example.com/v1",
    resource="logs",
    namespaced=False,
    rewrites=(Rewrite(each="spec.parts", remove=("spec.parts",), values={"spec.part": "${item.name}"}),),
)
OWN = ExtraKind(
    api_version="logs.example.com/v1",
    resource="notes",
    rewrites=(
        Rewrite(
            namespaces={"spec.namespace": "${metadata.namespace}"},
            labels={"spec.selector": {"kubeocean.io/virtual-namespace": "${metadata.namespace}"}},
        ),
    ),
)
MOUNT = Mount(OWNER, "mnt")
PATHS = {
    WIDE.resource: "/apis/logs.example.com/v1/logs",
    OWN.resource: "/apis/logs.example.com/v1/namespaces/mnt/notes",
}
NOTE = Key("shop", "web")


def note(name: str = "web", namespace: str = "shop", *, labels: Json | None = None, **spec: Any) -> Unknown:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "5", "labels": labels or {"team": "a"}}
    return unknown({"metadata": metadata, "spec": {"text": "x", **spec}, "status": {"code": 7}})


def log(name: str = "web", *parts: str) -> Unknown:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "5"}
    return unknown({"metadata": metadata, "spec": {"parts": [{"name": part} for part in parts]} if parts else {"text": "x"}})


class Scene:
    """A session whose lists are complete."""

    def __init__(self, kind: ExtraKind, mount: Mount = MOUNT, *, worker: MemoryApi | None = None) -> None:
        self.kind, self.mount = kind, mount
        self.hub, self.worker = MemoryApi(), worker or MemoryApi()
        self.recorded: list[str] = []
        self.prepared: list[str] = []
        self.host = RecordingHost(client=self.hub.client())
        self.cluster = WorkerCluster(self.worker.client(), self.mount, clock=self.host.clock, probe_interval=10)
        self.scope = worker_scope(self.host, self.cluster)
        self.scope.binding.current = binding({"serviceNamespaces": ["shop", "other"]})
        self.scope.virtual.complete()
        self.namespaces = MirroredNamespaces(self.scope)
        resource = self.kind.of_kind(self.kind.resource.title()[:-1])
        self.mirror = KindMirror(self.kind, resource, self.scope, namespaces=self.namespaces, prepare=self._prepare, record=self._record)
        listed(self.mirror._originals)
        listed(self.cluster.pods)
        if not isinstance(self.mirror.mirrors, SpreadInformer):
            listed(self.mirror.mirrors)

    async def _prepare(self, namespace: str) -> None:
        self.prepared.append(namespace)

    async def _record(self, kind: ExtraKind) -> None:
        self.recorded.append(kind.note)

    @property
    def resource(self) -> Any:
        return self.mirror._originals.resource

    def show(self, original: Unknown) -> None:
        """The watch of the hub shows an object."""
        self.mirror._originals.adopt(original)

    def hide(self, key: Key) -> None:
        self.mirror._originals.store.remove(key)

    def bodies(self, original: Unknown) -> list[Json]:
        return list(desired(original, self.mount, kind=self.kind, resource=self.resource).bodies)

    def mirrored(self, body: Json, **metadata: Any) -> Unknown:
        """The worker has an object, and its watch shows it."""
        full = {**body, "metadata": {**body["metadata"], "uid": f"uid-{body['metadata']['name']}", **metadata}}
        path = self.resource.path(body["metadata"].get("namespace", ""), body["metadata"]["name"])
        self.worker.put(path, full)
        found = unknown(self.worker.objects[path])
        self.mirror.mirrors.adopt(found)
        return found

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(each.method, each.path.rpartition("/")[2]) for each in self.worker.writes]


async def test_a_mirror_has_the_content_the_marks_and_the_namespace_of_the_worker() -> None:
    scene = Scene(OWN)
    scene.show(note(selector={"app": "web"}, namespace_of_text="shop"))
    assert await scene.mirror.reconcile(NOTE) is None
    (name,) = [path.rpartition("/")[2] for path in scene.worker.objects]
    body = scene.worker.objects[f"{PATHS['notes']}/{name}"]
    assert name == MOUNT.copy_key(NOTE).name
    assert body["spec"] == {
        "text": "x",
        "namespace_of_text": "shop",
        "namespace": "mnt",
        "selector": {"app": "web", "kubeocean.io/virtual-namespace": "shop"},
    }
    assert body["metadata"]["labels"] == {"team": "a", **OWNER.labels} and "status" not in body
    annotations = body["metadata"]["annotations"]
    assert OWNER.annotations.items() <= annotations.items()
    assert (annotations["kubeocean.io/virtual-name"], annotations["kubeocean.io/virtual-namespace"]) == ("web", "shop")
    assert scene.recorded == [OWN.note] and scene.prepared == ["shop"]
    await scene.mirror.reconcile(NOTE)
    assert len(scene.writes) == 1, "an unchanged object causes no write"


async def test_the_kind_is_recorded_before_its_first_mirror() -> None:
    scene = Scene(OWN)
    scene.show(note())
    order: list[str] = []

    async def record(kind: ExtraKind) -> None:
        order.extend([kind.note, *(method for method, _ in scene.writes)])

    scene.mirror._record = record
    await scene.mirror.reconcile(NOTE)
    assert order == [OWN.note] and scene.writes == [("POST", "notes")]


async def test_each_item_has_a_mirror_and_a_new_one_precedes_the_deletion_of_the_old() -> None:
    scene = Scene(WIDE)
    scene.show(log("web", "one", "two"))
    await scene.mirror.reconcile(Key("", "web"))
    assert [each["spec"]["part"] for each in sorted(scene.worker.objects.values(), key=lambda each: each["spec"]["part"])] == ["one", "two"]
    scene.worker.writes.clear()
    scene.show(evolve_note(log("web", "one", "three")))
    await scene.mirror.reconcile(Key("", "web"))
    assert [method for method, _ in scene.writes] == ["POST", "DELETE"]
    assert sorted(each["spec"]["part"] for each in scene.worker.objects.values()) == ["one", "three"]


def test_mirrors_of_two_hubs_have_different_names_where_there_is_no_namespace() -> None:
    other = Mount(Owner("another-hub", "demo"), "mnt")
    resource = WIDE.of_kind("Log")
    names = [desired(log(), mount, kind=WIDE, resource=resource).bodies[0]["metadata"]["name"] for mount in (MOUNT, other)]
    assert len(set(names)) == 2 and "namespace" not in desired(log(), MOUNT, kind=WIDE, resource=resource).bodies[0]["metadata"]


async def test_a_change_keeps_what_the_worker_added() -> None:
    scene = Scene(OWN)
    (body,) = scene.bodies(note(labels={"team": "a", "old": "1"}))
    live = {
        **body,
        "spec": {**body["spec"], "default": 1},
        "status": {"state": "collected"},
        "metadata": {
            **body["metadata"],
            "labels": {**body["metadata"]["labels"], "agent": "x"},
            "annotations": body["metadata"]["annotations"],
        },
    }
    scene.mirrored(live, finalizers=["agent.example.com/f"])
    scene.show(note(labels={"team": "a", "old": "1"}))
    await scene.mirror.reconcile(NOTE)
    assert scene.writes == [], "defaults and labels of the worker are no difference"
    scene.show(evolve_note(note(labels={"team": "b"}, text="y")))
    await scene.mirror.reconcile(NOTE)
    (written,) = scene.worker.writes
    assert written.method == "PUT" and written.body["spec"]["text"] == "y" and "default" not in written.body["spec"]
    assert written.body["metadata"]["labels"] == {"team": "b", "agent": "x", **OWNER.labels}
    assert written.body["metadata"]["finalizers"] == ["agent.example.com/f"] and written.body["status"] == {"state": "collected"}
    assert written.body["metadata"]["uid"] == f"uid-{body['metadata']['name']}"


def evolve_note(original: Unknown) -> Unknown:
    """The same object, changed later."""
    body = original.body
    body["metadata"]["resourceVersion"] = "9"
    return unknown(body)


async def test_a_mirror_that_was_changed_in_the_worker_is_restored() -> None:
    scene = Scene(OWN)
    (body,) = scene.bodies(note())
    scene.mirrored({**body, "spec": {**body["spec"], "text": "theirs"}})
    scene.show(note())
    await scene.mirror.reconcile(NOTE)
    assert scene.writes == [("PUT", body["metadata"]["name"])] and scene.worker.writes[0].body["spec"]["text"] == "x"


async def test_an_object_of_another_owner_is_left_alone_and_reported() -> None:
    scene = Scene(OWN)
    (body,) = scene.bodies(note())
    theirs = {key: value for key, value in body["metadata"]["annotations"].items() if not key.startswith("kubeocean.io/")}
    scene.mirrored({**body, "metadata": {**body["metadata"], "labels": {}, "annotations": theirs}})
    scene.show(note())
    assert await scene.mirror.reconcile(NOTE) == 60.0
    assert [method for method, _ in scene.writes] == ["POST"] and "another owner" in scene.mirror.problems()[0]
    scene.hide(NOTE)
    await scene.mirror.reconcile(NOTE)
    assert [method for method, _ in scene.writes] == ["POST"] and scene.mirror.problems() == []


async def test_a_mirror_is_deleted_after_a_live_read_of_its_original() -> None:
    """Rule `unknown-is-not-gone`."""
    scene = Scene(OWN)
    (body,) = scene.bodies(note())
    scene.mirrored(body)
    path = "/apis/logs.example.com/v1/namespaces/shop/notes/web"
    scene.hub.put(path, note().body)
    assert await scene.mirror.reconcile(NOTE) is not None and scene.writes == []
    scene.hub.delete(path)
    scene.mirror._originals.ever_synced = False
    assert await scene.mirror.reconcile(NOTE) is not None and scene.writes == []
    scene.mirror._originals.ever_synced = True
    assert await scene.mirror.reconcile(NOTE) is None and scene.writes == [("DELETE", body["metadata"]["name"])]


async def test_an_object_that_is_being_deleted_has_no_mirror() -> None:
    scene = Scene(OWN)
    (body,) = scene.bodies(note())
    scene.mirrored(body)
    going = note().body
    going["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "6"}
    scene.show(unknown(going))
    scene.hub.put("/apis/logs.example.com/v1/namespaces/shop/notes/web", going)
    assert await scene.mirror.reconcile(NOTE) is None and scene.writes == [("DELETE", body["metadata"]["name"])]


async def test_a_namespace_out_of_scope_is_not_mirrored_until_a_pod_enters() -> None:
    scene = Scene(OWN)
    scene.show(note("db", "ml"))
    await scene.mirror.reconcile(Key("ml", "db"))
    assert scene.writes == []
    caller = pod(namespace="ml")
    scene.host.pods.put(caller)
    scene.namespaces.entering(caller)
    assert scene.mirror.controller.queue.is_due(Key("ml", "db"))
    await scene.mirror.reconcile(Key("ml", "db"))
    assert scene.writes == [("POST", "notes")]


async def test_nothing_is_mirrored_again_once_the_pods_of_a_deleted_binding_are_gone() -> None:
    scene = Scene(WIDE)
    scene.show(log())
    scene.scope.binding.gone = True
    assert await scene.mirror.reconcile(Key("", "web")) is None and scene.writes == []
    scene.scope.binding.gone = False
    await scene.mirror.reconcile(Key("", "web"))
    assert [method for method, _ in scene.writes] == ["POST"]


async def test_a_refused_object_loses_its_mirror_and_is_named() -> None:
    kind = evolve(OWN, rewrites=(Rewrite(when={"spec.secret": "*"}, refuse="secrets are not mirrored"),))
    scene = Scene(kind)
    (body,) = scene.bodies(note())
    scene.mirrored(body)
    scene.show(evolve_note(note(secret="s")))
    scene.hub.put("/apis/logs.example.com/v1/namespaces/shop/notes/web", note(secret="s").body)
    await scene.mirror.reconcile(NOTE)
    assert scene.writes == [("DELETE", body["metadata"]["name"])]
    assert scene.mirror.problems() == ["Note shop/web has no mirror: secrets are not mirrored"]


class Strict(MemoryApi):
    """An API server that refuses every object at great length."""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method == "POST":
            raise Invalid(call.attempt, "x" * 100_000, status=422)
        return await super().fetch(call, timeout)


async def test_a_long_refusal_of_the_worker_is_cut() -> None:
    scene = Scene(OWN, worker=Strict())
    scene.show(note())
    assert await scene.mirror.reconcile(NOTE) == 60.0
    (problem,) = scene.mirror.problems()
    assert problem == "the worker refuses the mirror of Note shop/web: " + "x" * 1000 + "…"


class Keeping(MemoryApi):
    """A worker that grants no right to delete."""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.method == "DELETE":
            raise Forbidden(call.attempt, "no right", status=403)
        return await super().fetch(call, timeout)


async def test_a_mirror_that_cannot_be_deleted_is_named_as_such() -> None:
    scene = Scene(OWN, worker=Keeping())
    scene.show(note())
    await scene.mirror.reconcile(NOTE)
    scene.mirror._originals.store.remove(NOTE)
    assert await scene.mirror.reconcile(NOTE) == 60.0
    (problem,) = scene.mirror.problems()
    assert problem.startswith("the mirror of Note shop/web is not needed and stays: delete notes") and problem.endswith(": no right")


def test_a_mirror_from_a_list_whose_items_do_not_name_their_kind_is_no_difference() -> None:
    (body,) = desired(note(), MOUNT, kind=OWN, resource=OWN.of_kind("Note")).bodies
    item = {name: value for name, value in body.items() if name not in ("apiVersion", "kind")}
    assert change(unknown(item), body) is None
    replacement = change(unknown({**item, "spec": {}}), body)
    assert replacement is not None and (replacement["apiVersion"], replacement["kind"]) == ("logs.example.com/v1", "Note")


async def test_a_mirror_of_a_tenant_keeps_its_name_in_the_namespace_of_the_tenant() -> None:
    scene = Scene(OWN, Mount(OWNER, "mnt", PER_NAMESPACE))
    listed(scene.cluster.namespaces)
    scene.cluster.namespaces.adopt(unknown({"metadata": {"name": "mnt-shop", "uid": "mnt-shop", "resourceVersion": "1"}}))
    assert isinstance(scene.mirror.mirrors, SpreadInformer)
    scene.show(note())
    assert await scene.mirror.reconcile(NOTE) is not None and scene.writes == [], "its list is not complete"
    for part in scene.mirror.mirrors._parts.values():
        listed(part)
    await scene.mirror.reconcile(NOTE)
    (path,) = scene.worker.objects
    assert path == "/apis/logs.example.com/v1/namespaces/mnt-shop/notes/web"
    assert scene.worker.objects[path]["spec"]["namespace"] == "mnt-shop"


@pytest.mark.parametrize("mark", ["kubeocean.io/owner", "kubeocean.io/managed-by"])
def test_no_rewriting_removes_the_marks(mark: str) -> None:
    kind = evolve(OWN, rewrites=(Rewrite(remove=("metadata.annotations",), labels={"metadata.labels": {mark: "other"}}),))
    body = desired(note(), MOUNT, kind=kind, resource=OWN.of_kind("Note")).bodies[0]
    assert OWNER.labels.items() <= body["metadata"]["labels"].items()
    assert OWNER.annotations.items() <= body["metadata"]["annotations"].items()
    found = unknown({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "1"}})
    assert change(found, body) is None
