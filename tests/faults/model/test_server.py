"""The API server model through the product's own client: writes, deletions, watches, faults and the past."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import define, field

from tests.faults.model.controllers import settle
from tests.faults.model.refusals import Refusal
from tests.faults.model.request import Request
from tests.faults.model.server import ApiModel
from tests.faults.model.watching import Watch, WatchLine
from vkubelet.api.codec import EventType, WatchEvent
from vkubelet.api.objects import CONFIGMAPS, LEASES, NODES, PODS, PVCS, SERVICEACCOUNTS, Key, Pod, Resource
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.client.transport import Call
from vkubelet.errors import AlreadyExists, Conflict, Expired, Forbidden, Invalid, NotFound, TooManyRequests, Unreachable

Body = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
A = Key("default", "a")
MANIFESTS = Path(__file__).parents[3] / "kubeocean" / "manifests"


@define
class Wall:
    """A clock that a test sets."""

    now: datetime = START


@define
class Script:
    """Faults that a test sets."""

    refuse: list[BaseException] = field(factory=list)
    lose: list[BaseException] = field(factory=list)
    dropped: set[str] = field(factory=set)
    version: int | None = None

    async def before(self, call: Call) -> None:
        if self.refuse:
            raise self.refuse.pop()

    async def after(self, call: Call) -> None:
        if self.lose:
            raise self.lose.pop()

    def event(self, watch: Watch, event: WatchLine) -> Iterable[WatchLine]:
        return () if event.type in self.dropped else (event,)

    def read_version(self, call: Call) -> int | None:
        return self.version


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def model(wall: Wall) -> ApiModel:
    return ApiModel(now=lambda: wall.now)


@pytest.fixture
def client(model: ApiModel) -> Client:
    return model.client("us")


def pod(name: str = "a", *, node: str = "n", **metadata: Any) -> Body:
    spec = {"containers": [{"name": "main", "image": "busybox"}], **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec}


async def conflict_of(call: Any) -> str:
    with pytest.raises(Conflict) as raised:
        await call
    return raised.value.message


@asynccontextmanager
async def watching(client: Client, resource: Resource[Pod] = PODS, **options: Any) -> AsyncIterator[list[WatchEvent[Pod]]]:
    """Collects the events of a watch."""
    seen: list[WatchEvent[Pod]] = []

    async def follow() -> None:
        async with aclosing(client.watch(resource, **options)) as events:
            async for event in events:
                seen.append(event)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await turns()
        yield seen
        await turns()
        task.cancel()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def types(events: list[WatchEvent[Pod]]) -> list[str]:
    return [event.type.value for event in events if event.type is not EventType.BOOKMARK]


# --- Writes -------------------------------------------------------------------------------------------------------------------------------


async def test_a_new_pod_has_what_the_server_sets(client: Client) -> None:
    made = await client.create(PODS, pod())
    meta = made.metadata
    assert (made.phase, meta.generation, meta.creation_timestamp) == ("Pending", 1, "2026-01-01T00:00:00Z")
    assert meta.uid and made.spec["restartPolicy"] == "Always" and made.status["qosClass"] == "BestEffort"
    with pytest.raises(AlreadyExists):
        await client.create(PODS, pod())


async def test_generated_names_differ(client: Client) -> None:
    body = pod()
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "web-"
    names = {(await client.create(PODS, body)).metadata.name for _ in range(3)}
    assert len(names) == 3 and all(name.startswith("web-") for name in names)


async def test_namespace_and_account_must_exist(model: ApiModel, client: Client) -> None:
    with pytest.raises(NotFound, match='namespaces "absent" not found'):
        await client.create(CONFIGMAPS, {"metadata": {"name": "c"}}, namespace="absent")
    model.delete("/api/v1/namespaces/default/serviceaccounts/default", user="person")
    with pytest.raises(Forbidden, match="service account"):
        await client.create(PODS, pod())


async def test_a_write_without_difference_keeps_the_version(model: ApiModel, client: Client) -> None:
    made = await client.create(PODS, pod(labels={"a": "b"}))
    same = await client.patch(PODS, A, {"metadata": {"labels": {"a": "b"}}}, kind=PatchKind.MERGE)
    changed = await client.patch(PODS, A, {"metadata": {"labels": {"a": "c"}}}, kind=PatchKind.MERGE)
    assert same.metadata.resource_version == made.metadata.resource_version
    assert int(changed.metadata.resource_version) == model.version > int(made.metadata.resource_version)
    assert [change.verb for change in model.history if change.user == "us"] == ["create", "patch"]


async def test_versions_and_uids_of_patches_are_checked(client: Client) -> None:
    made = await client.create(PODS, pod())
    await client.patch(PODS, A, {"metadata": {"labels": {"a": "b"}, "resourceVersion": made.metadata.resource_version}})
    old = {"metadata": {"labels": {"a": "c"}, "resourceVersion": made.metadata.resource_version}}
    assert "has been modified" in await conflict_of(client.patch(PODS, A, old))
    with pytest.raises(Invalid) as raised:
        await client.patch(PODS, A, {"metadata": {"uid": "other"}})
    assert raised.value.causes == ("metadata.uid",)


async def test_a_lease_is_replaced_only_with_its_version(client: Client) -> None:
    body: Body = {"metadata": {"name": "l", "namespace": "default"}, "spec": {"holderIdentity": "x"}}
    made = await client.create(LEASES, body)
    with pytest.raises(Invalid, match="must be specified for an update"):
        await client.replace(LEASES, body)
    body["metadata"]["resourceVersion"] = made.metadata.resource_version
    body["spec"]["holderIdentity"] = "y"
    await client.replace(LEASES, body)
    await conflict_of(client.replace(LEASES, body))


async def test_status_and_spec_are_written_separately(client: Client) -> None:
    await client.create(PODS, pod())
    after = await client.patch(PODS, A, {"status": {"phase": "Running"}, "spec": {"nodeName": "m"}}, subresource="status")
    assert (after.phase, after.node, after.metadata.generation) == ("Running", "n", 1)
    after = await client.patch(PODS, A, {"status": {"phase": "Failed"}, "spec": {"activeDeadlineSeconds": 5}})
    assert (after.phase, after.metadata.generation) == ("Running", 2)
    with pytest.raises(Invalid, match="may not change fields"):
        await client.patch(PODS, A, {"spec": {"nodeName": "m"}})


async def test_a_dry_run_stores_nothing(model: ApiModel, client: Client) -> None:
    before = model.version
    await client.dry_run().create(PODS, pod())
    assert model.version == before
    with pytest.raises(NotFound):
        await client.get(PODS, A)


async def test_a_new_node_is_tainted_not_ready(client: Client) -> None:
    made = await client.create(NODES, {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}})
    assert [each["key"] for each in made.spec["taints"]] == ["k", "node.kubernetes.io/not-ready"]


async def test_a_token_is_bound_to_a_living_pod(client: Client) -> None:
    made = await client.create(PODS, pod())
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "a", "uid": made.metadata.uid}
    body: Body = {"spec": {"expirationSeconds": 600, "boundObjectRef": bound}}
    request = {"namespace": "default", "subresource": "token", "parent": "default"}
    answer = (await client.create(SERVICEACCOUNTS, body, **request)).body
    assert answer["status"]["token"] and answer["status"]["expirationTimestamp"] == "2026-01-01T00:10:00Z"
    bound["uid"] = "other"
    with pytest.raises(Conflict):
        await client.create(SERVICEACCOUNTS, body, **request)


async def test_custom_resources_are_pruned_defaulted_and_validated(model: ApiModel) -> None:
    path = "/apis/cloud.tencent.com/v1beta1/resourceleasingpolicies/p"
    with pytest.raises(Refusal, match="could not find the requested resource"):
        model.apply(path, {}, user="person")
    model.define(yaml.safe_load((MANIFESTS / "resourceleasingpolicies.yaml").read_text()))
    made = model.apply(path, {"metadata": {"name": "p"}, "spec": {"cluster": "c", "extra": 1}}, user="person")
    defaults = {"priority": 0, "forceReclaim": False, "allowOutOfWindowPods": False, "gracefulReclaimPeriodSeconds": 0}
    assert (made["spec"], made["metadata"]["generation"]) == ({"cluster": "c", **defaults}, 1)
    after = model.apply(f"{path}/status", {"status": {"phase": "Active"}, "metadata": {"labels": {"a": "b"}}}, user="us")
    assert after["status"] == {"phase": "Active"} and "labels" not in after["metadata"] and after["metadata"]["generation"] == 1
    with pytest.raises(Refusal) as raised:
        model.apply(path, {"spec": {"cluster": ""}}, user="person")
    assert (raised.value.code, raised.value.causes[0].field) == (422, "spec.cluster")


# --- Deletions ----------------------------------------------------------------------------------------------------------------------------


async def test_a_pod_on_a_node_is_marked_until_grace_0(wall: Wall, client: Client) -> None:
    made = await client.create(PODS, pod())
    await client.delete(PODS, A)
    marked = (await client.get(PODS, A)).metadata
    assert (marked.deletion_timestamp, marked.deletion_grace_period_seconds, marked.generation) == ("2026-01-01T00:00:30Z", 30, 2)
    await client.delete(PODS, A, grace=60)
    assert (await client.get(PODS, A)).metadata == marked
    wall.now += timedelta(seconds=3)
    await client.delete(PODS, A, grace=10)
    assert (await client.get(PODS, A)).metadata.deletion_timestamp == "2026-01-01T00:00:10Z"
    assert "precondition" in await conflict_of(client.delete(PODS, A, grace=0, uid="other"))
    await client.delete(PODS, A, grace=0, uid=made.metadata.uid)
    with pytest.raises(NotFound):
        await client.get(PODS, A)


async def test_a_pod_without_node_or_running_container_is_removed_at_once(client: Client) -> None:
    await client.create(PODS, pod(node=""))
    await client.delete(PODS, A)
    await client.create(PODS, pod())
    await client.patch(PODS, A, {"status": {"phase": "Succeeded"}}, subresource="status")
    await client.delete(PODS, A)
    with pytest.raises(NotFound):
        await client.get(PODS, A)


async def test_finalizers_keep_a_deleted_object(client: Client) -> None:
    key = Key("default", "c")
    await client.create(CONFIGMAPS, {"metadata": {"name": "c", "namespace": "default", "finalizers": ["x.io/f"]}})
    await client.delete(CONFIGMAPS, key)
    assert (await client.get(CONFIGMAPS, key)).metadata.deletion_timestamp
    with pytest.raises(Invalid, match="no new finalizers"):
        await client.patch(CONFIGMAPS, key, {"metadata": {"finalizers": ["x.io/f", "x.io/g"]}}, kind=PatchKind.MERGE)
    await client.patch(CONFIGMAPS, key, {"metadata": {"finalizers": None}}, kind=PatchKind.MERGE)
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, key)


async def test_eviction_deletes_with_a_condition(client: Client) -> None:
    made = await client.create(PODS, pod())
    body: Body = {"metadata": {"name": "a"}, "deleteOptions": {"preconditions": {"uid": "other"}}}
    with pytest.raises(Conflict):
        await client.create(PODS, body, namespace="default", subresource="eviction", parent="a")
    body["deleteOptions"]["preconditions"]["uid"] = made.metadata.uid
    await client.create(PODS, body, namespace="default", subresource="eviction", parent="a")
    left = await client.get(PODS, A)
    assert left.terminating and [each["type"] for each in left.status["conditions"]] == ["DisruptionTarget"]


async def test_eviction_is_refused_by_a_budget_until_it_allows_one(client: Client, model: ApiModel) -> None:
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in "ab":
        await client.create(PODS, pod(name, labels={"app": "web"}))
        await client.patch(PODS, Key("default", name), {"status": ready}, kind=PatchKind.MERGE, subresource="status")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]}}
    model.call("POST", path, {"metadata": {"name": "web"}, "spec": spec}, user="person")
    evict = partial(client.create, PODS, namespace="default", subresource="eviction")
    with pytest.raises(TooManyRequests, match="violate the pod's disruption budget"):
        await evict({"metadata": {"name": "a"}}, parent="a")
    status = {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    model.call("PATCH", f"{path}/web/status", {"status": status}, user="controller", content_type="application/merge-patch+json")
    await evict({"metadata": {"name": "a"}}, parent="a")
    found = model.get("policy", "v1", "poddisruptionbudgets", "default", "web") or {}
    assert found["status"]["disruptionsAllowed"] == 0 and list(found["status"]["disruptedPods"]) == ["a"]
    with pytest.raises(TooManyRequests, match="violate the pod's disruption budget"):
        await evict({"metadata": {"name": "b"}}, parent="b")
    assert (await client.get(PODS, A)).terminating and not (await client.get(PODS, Key("default", "b"))).terminating


async def test_dependents_go_with_their_owner(model: ApiModel, client: Client) -> None:
    owner = await client.create(CONFIGMAPS, {"metadata": {"name": "o", "namespace": "default"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": owner.metadata.uid, "blockOwnerDeletion": True}
    for name in "ab":
        await client.create(CONFIGMAPS, {"metadata": {"name": name, "namespace": "default", "ownerReferences": [reference]}})
    assert settle(model) == 0
    await client.delete(CONFIGMAPS, owner.metadata, propagation="Foreground")
    assert model.get("", "v1", "configmaps", "default", "o") is not None
    settle(model)
    assert [each["metadata"]["name"] for each in model.objects("", "v1", "configmaps", "default")] == ["kube-root-ca.crt"]


async def test_a_deleted_namespace_is_emptied_and_refuses_creations(model: ApiModel, client: Client) -> None:
    model.apply("/api/v1/namespaces/x", {"metadata": {"name": "x"}}, user="person")
    model.delete("/api/v1/namespaces/x", user="person")
    with pytest.raises(Forbidden, match="being terminated"):
        await client.create(CONFIGMAPS, {"metadata": {"name": "c"}}, namespace="x")
    settle(model)
    assert model.get("", "v1", "namespaces", "", "x") is None and not model.objects("", "v1", "configmaps", "x")


async def test_a_claim_stays_while_a_pod_uses_it(model: ApiModel, client: Client) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await client.create(PVCS, {"metadata": {"name": "c", "namespace": "default"}, "spec": spec})
    body = pod()
    body["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    await client.create(PODS, body)
    await client.delete(PVCS, Key("default", "c"))
    assert settle(model) == 0
    await client.delete(PODS, A, grace=0)
    settle(model)
    assert model.get("", "v1", "persistentvolumeclaims", "default", "c") is None


# --- Lists and watches --------------------------------------------------------------------------------------------------------------------


async def test_pages_show_one_moment_and_expire(model: ApiModel, client: Client) -> None:
    for name in "abc":
        await client.create(PODS, pod(name))
    page = model.call("GET", "/api/v1/pods", user="us", params={"limit": "2"})
    await client.create(PODS, pod("d"))
    await client.delete(PODS, Key("default", "c"), grace=0)
    rest = {"limit": "2", "continue": page["metadata"]["continue"]}
    later = model.call("GET", "/api/v1/pods", user="us", params=rest)
    assert [each["metadata"]["name"] for each in (*page["items"], *later["items"])] == ["a", "b", "c"]
    model.compact()
    with pytest.raises(Refusal) as raised:
        model.call("GET", "/api/v1/pods", user="us", params=rest)
    assert raised.value.code == 410


async def test_a_watch_cache_that_is_behind_shows_in_watches_and_in_reads_of_any_version(model: ApiModel, client: Client) -> None:
    await client.create(PODS, pod("a"))
    before = model.version
    watch = model.open_watch(Request(method="GET", path="/api/v1/pods", user="us", params={"resourceVersion": str(before)}))
    model.storage.lag(1)
    await client.create(PODS, pod("b"))

    def names(version: str) -> list[str]:
        listed = model.call("GET", "/api/v1/pods", user="us", params={"resourceVersion": version})
        return [each["metadata"]["name"] for each in listed["items"]]

    assert (names("0"), names(""), watch.pending) == (["a"], ["a", "b"], 0)
    with pytest.raises(Refusal):
        model.call("GET", "/api/v1/namespaces/default/pods/b", user="us", params={"resourceVersion": "0"})
    await client.create(PODS, pod("c"))
    assert (names("0"), watch.pending) == (["a", "b"], 1)
    model.storage.lag(0)
    assert (names("0"), watch.pending) == (["a", "b", "c"], 2)


async def test_an_object_that_leaves_the_selector_is_deleted(client: Client) -> None:
    where = Selection(labels="app=web")
    async with watching(client, where=where, initial=True) as seen:
        await client.create(PODS, pod(labels={"app": "web"}))
        await client.patch(PODS, A, {"metadata": {"annotations": {"n": "1"}}})
        gone = await client.patch(PODS, A, {"metadata": {"labels": {"app": "db"}}})
        await client.patch(PODS, A, {"metadata": {"annotations": {"n": "2"}}})
        await turns()
    assert types(seen) == ["ADDED", "MODIFIED", "DELETED"]
    assert seen[-1].object.metadata.labels == {"app": "web"}
    assert seen[-1].object.metadata.resource_version == gone.metadata.resource_version


async def test_initial_events_end_with_a_bookmark(client: Client) -> None:
    await client.create(PODS, pod())
    async with watching(client, initial=True) as seen:
        await client.delete(PODS, A, grace=0)
    assert [(event.type.value, event.initial_end) for event in seen[:2]] == [("ADDED", False), ("BOOKMARK", True)]
    assert types(seen) == ["ADDED", "MODIFIED", "DELETED"]


async def test_a_watch_resumes_and_an_expired_one_is_refused(model: ApiModel, client: Client) -> None:
    made = await client.create(PODS, pod())
    await client.patch(PODS, A, {"metadata": {"labels": {"a": "b"}}})
    async with watching(client, since=made.metadata.resource_version) as seen:
        pass
    assert types(seen) == ["MODIFIED"]
    model.compact()
    with pytest.raises(Expired):
        await anext(client.watch(PODS, since=made.metadata.resource_version))


async def test_a_restored_server_goes_back_and_cuts_watches(model: ApiModel, client: Client) -> None:
    await client.create(PODS, pod())
    before = model.version
    await client.create(PODS, pod("b"))
    with pytest.raises(Unreachable):
        async with aclosing(client.watch(PODS, initial=True)) as events:
            async for event in events:
                if event.initial_end:
                    model.restore(before)
    assert [each.key.name for each in (await client.list(PODS)).items] == ["a"]
    assert (await client.create(PODS, pod("c"))).metadata.resource_version == str(before + 1)
    assert [change.key[1] for change in model.history if change.user == "us"] == ["a", "b", "c"]


# --- Faults -------------------------------------------------------------------------------------------------------------------------------


async def test_faults_refuse_lose_drop_and_serve_old_reads(wall: Wall) -> None:
    script = Script()
    model = ApiModel(now=lambda: wall.now, faults=script)
    client = model.client("us")
    script.refuse = [Refusal(code=429, reason="TooManyRequests", message="slow down", retry_after=7)]
    with pytest.raises(TooManyRequests) as raised:
        await client.create(PODS, pod())
    assert raised.value.retry_after == 7.0 and model.get("", "v1", "pods", "default", "a") is None
    script.lose = [Unreachable("create", "the answer is lost")]
    with pytest.raises(Unreachable):
        await client.create(PODS, pod())
    script.version = model.version
    await client.patch(PODS, A, {"metadata": {"labels": {"a": "b"}}})
    assert (await client.get(PODS, A)).metadata.labels == {}
    script.version, script.dropped = None, {"MODIFIED"}
    async with watching(client, initial=True) as seen:
        await client.patch(PODS, A, {"metadata": {"labels": {"a": "c"}}})
        await client.delete(PODS, A, grace=0)
    assert types(seen) == ["ADDED", "DELETED"]


async def test_the_fence_of_a_client_is_checked_before_a_write(model: ApiModel, client: Client) -> None:
    class Closed:
        def check(self) -> None:
            raise Forbidden("write", "the fence is closed")

    before = model.version
    with pytest.raises(Forbidden):
        await client.fenced(Closed()).create(PODS, pod())
    assert model.version == before
