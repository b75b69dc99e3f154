"""The verbs do to a real API server what they say; judged by a client that is not ours."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest

from tests.integration.client.proxy import Proxy
from tests.support.program import PATIENCE
from vkubelet.api.codec import decode_json
from vkubelet.api.objects import CONFIGMAPS, LEASES, NODES, PODS, SECRETS, SELFSUBJECTACCESSREVIEWS, SERVICEACCOUNTS, Key
from vkubelet.api.quantity import Quantity
from vkubelet.client.connection import Timeouts, load_connection
from vkubelet.client.rest import Client, PatchKind, Selection
from vkubelet.errors import AlreadyExists, Conflict, Fenced, Forbidden, Invalid, NotFound, Unauthorized, Unreachable
from vkubelet.testing.cluster import ControlPlane


def pod(name: str, namespace: str, **metadata: Any) -> dict[str, Any]:
    """Bound to a node that does not exist, so that nothing runs it; another one for each namespace, as pods of lost nodes are collected."""
    return {
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"nodeName": f"no-{namespace}", "containers": [{"name": "c", "image": "none", "resources": {"limits": {"memory": "1Gi"}}}]},
    }


def configmap(name: str, namespace: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


async def test_created_pod_is_read_listed_and_deleted(client: Client, namespace: str, witness: Any) -> None:
    made = await client.create(PODS, pod("web", namespace, labels={"app": "web"}))
    seen = witness.read_namespaced_pod("web", namespace)
    assert (made.metadata.uid, made.node, made.phase) == (seen.metadata.uid, f"no-{namespace}", "Pending")
    assert seen.metadata.managed_fields[0].manager == "tests"
    assert await client.get(PODS, made.ref) == made
    assert (await client.get(PODS, made.metadata)).spec["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}

    selected = await client.list(PODS, Selection(namespace, labels="app=web", fields=f"spec.nodeName=no-{namespace}"))
    assert [item.ref for item in selected.items] == [made.ref]
    assert (await client.list(PODS, Selection(namespace, labels="app=db"))).items == []

    await client.delete(PODS, made.ref, grace=0, uid=made.metadata.uid)
    with pytest.raises(NotFound, match=f"get pods {namespace}/web: "):
        await client.get(PODS, made.key)
    with pytest.raises(NotFound):
        await client.delete(PODS, made.ref, grace=0)


async def test_delete_with_the_uid_of_another_is_a_conflict(client: Client, namespace: str) -> None:
    made = await client.create(PODS, pod("web", namespace))
    with pytest.raises(Conflict) as caught:
        await client.delete(PODS, made.ref, grace=0, uid="11111111-2222-3333-4444-555555555555")
    assert caught.value.status == 409
    with pytest.raises(Conflict):
        await client.delete(PODS, made.ref, grace=0, resource_version="1")
    assert (await client.get(PODS, made.ref)).metadata.deletion_timestamp is None


async def test_name_taken_and_stale_version_are_told_apart(client: Client, namespace: str) -> None:
    body = configmap("one", namespace, a="1")
    made = await client.create(CONFIGMAPS, body)
    with pytest.raises(AlreadyExists, match=f"create configmaps {namespace}/one: "):
        await client.create(CONFIGMAPS, body)
    stale = made.body
    await client.replace(CONFIGMAPS, {**stale, "data": {"a": "2"}})
    with pytest.raises(Conflict):
        await client.replace(CONFIGMAPS, {**stale, "data": {"a": "3"}})
    assert (await client.get(CONFIGMAPS, made.key)).body["data"] == {"a": "2"}


async def test_strategic_and_merge_patch(client: Client, namespace: str, witness: Any) -> None:
    made = await client.create(PODS, pod("web", namespace, labels={"keep": "1", "drop": "1"}))
    for kind in ("Ready", "PodScheduled"):
        condition = {"conditions": [{"type": kind, "status": "True"}]}
        await client.patch(PODS, made.ref, {"status": condition}, subresource="status")
    changed = await client.patch(PODS, made.ref, {"metadata": {"labels": {"drop": None, "new": "x"}}}, kind=PatchKind.MERGE)
    assert changed.metadata.labels == {"keep": "1", "new": "x"}
    seen = witness.read_namespaced_pod("web", namespace)
    assert {condition.type for condition in seen.status.conditions} == {"Ready", "PodScheduled"}
    assert seen.metadata.labels == {"keep": "1", "new": "x"}


async def test_patch_with_a_stale_uid_or_version_says_which(client: Client, namespace: str) -> None:
    made = await client.create(PODS, pod("web", namespace))
    with pytest.raises(Conflict):
        await client.patch(PODS, made.ref, {"metadata": {"resourceVersion": "1"}, "status": {"message": "x"}}, subresource="status")
    with pytest.raises(Invalid) as caught:
        await client.patch(PODS, made.ref, {"metadata": {"uid": "other"}, "status": {"message": "x"}}, subresource="status")
    assert caught.value.causes == ("metadata.uid",)


async def test_invalid_object_names_the_fields(client: Client, namespace: str) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(PODS, {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "A B", "image": ""}]}}, namespace=namespace)
    assert "spec.containers[0].name" in caught.value.causes
    assert (caught.value.status, caught.value.retryable) == (422, False)


async def test_apply_makes_and_unmakes_its_own_fields(client: Client, namespace: str, witness: Any) -> None:
    await client.apply(CONFIGMAPS, configmap("one", namespace, a="1", b="2"))
    witness.patch_namespaced_config_map("one", namespace, {"data": {"theirs": "x", "a": "theirs"}})
    await client.apply(CONFIGMAPS, configmap("one", namespace, a="3"))
    assert witness.read_namespaced_config_map("one", namespace).data == {"a": "3", "theirs": "x"}


async def test_subresources_of_a_parent_are_created(client: Client, namespace: str) -> None:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], "expirationSeconds": 600}}
    answer = await client.create(SERVICEACCOUNTS, request, namespace=namespace, parent="default", subresource="token")
    assert answer.body["status"]["token"].count(".") == 2

    made = await client.create(PODS, pod("web", namespace))
    options = {"preconditions": {"uid": made.metadata.uid}, "gracePeriodSeconds": 0}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}, "deleteOptions": options}
    await client.create(PODS, eviction, namespace=namespace, parent="web", subresource="eviction")
    with pytest.raises(NotFound):
        await client.get(PODS, made.ref)


async def test_list_of_several_pages_is_complete(client: Client, namespace: str) -> None:
    gate = asyncio.Semaphore(20)

    async def make(number: int) -> None:
        async with gate:
            await client.create(CONFIGMAPS, configmap(f"c-{number:04}", namespace))

    async with asyncio.TaskGroup() as group:
        for number in range(1030):
            group.create_task(make(number))
    got = await client.list(CONFIGMAPS, Selection(namespace))
    names = [item.metadata.name for item in got.items if item.metadata.name.startswith("c-")]
    assert names == [f"c-{number:04}" for number in range(1030)]
    assert int(got.resource_version) > 0
    assert got.continue_ == ""


async def test_cluster_scoped_objects_go_by_name(client: Client, witness: Any) -> None:
    made = await client.create(NODES, {"metadata": {"name": "client-node"}, "spec": {"unschedulable": True}})
    try:
        assert (await client.get(NODES, "client-node")).spec["unschedulable"] is True
        await client.patch(NODES, "client-node", {"status": {"capacity": {"cpu": "1.5"}}}, subresource="status")
        assert witness.read_node("client-node").status.capacity == {"cpu": "1500m"}
    finally:
        await client.delete(NODES, "client-node", uid=made.metadata.uid)


async def test_quantities_are_written_as_the_server_writes_them(client: Client, namespace: str) -> None:
    texts = "0 0Ki 1000m 1.5 0.1 .5 3000 3100 12000000 1024 1023Ki 1024Ki 1536Mi 0.5Mi 0.5Ki 1.5Gi 2Ei 1E 1e3 12e4 1e-3 100e-2 0.3Ki"
    await client.create(NODES, {"metadata": {"name": namespace}})
    try:
        written = {}
        for text in texts.split():
            answer = await client.patch(NODES, namespace, {"status": {"capacity": {"cpu": text}}}, subresource="status")
            written[text] = answer.status["capacity"]["cpu"]
        assert written == {text: str(Quantity.parse(text)) for text in texts.split()}
    finally:
        await client.delete(NODES, namespace)


async def test_lease_round_trip(client: Client, namespace: str) -> None:
    body = {"metadata": {"name": "l", "namespace": namespace}, "spec": {"holderIdentity": "me", "renewTime": "2026-01-01T00:00:00.000000Z"}}
    made = await client.create(LEASES, body)
    metadata = {**body["metadata"], "resourceVersion": made.metadata.resource_version}
    renewed = await client.replace(LEASES, {"metadata": metadata, "spec": {**made.spec, "holderIdentity": "you"}})
    assert (await client.get(LEASES, Key(namespace, "l"))).spec["holderIdentity"] == "you"
    assert renewed.metadata.resource_version != made.metadata.resource_version


async def test_raw_request_and_stream(client: Client, namespace: str) -> None:
    assert decode_json(await client.request("GET", "/version"))["major"] == "1"
    async with client.stream(f"/api/v1/namespaces/{namespace}/configmaps", [("limit", "1")]) as parts:
        whole = b"".join([part async for part in parts])
    assert decode_json(whole)["kind"] == "ConfigMapList"
    with pytest.raises(NotFound, match="get /api/v1/nonsense"):
        async with client.stream("/api/v1/nonsense"):
            pytest.fail("entered")


async def test_a_stream_goes_on_when_its_client_is_left_and_the_last_one_closes_the_pool(hub: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    async with AsyncExitStack() as streams:
        async with Client(await load_connection(kubeconfig=hub.kubeconfig)) as left:
            parts = await streams.enter_async_context(left.stream(path, [("watch", "true"), ("fieldSelector", "metadata.name=late")]))
            connector = left.transport.session.connector
            assert connector is not None
        async with Client(await load_connection(kubeconfig=hub.kubeconfig)) as other:
            await other.create(CONFIGMAPS, configmap("late", namespace))
        assert b'"late"' in await asyncio.wait_for(anext(parts), PATIENCE)
        assert not connector.closed
        with pytest.raises(Unreachable, match="closed"):
            await left.get(CONFIGMAPS, Key(namespace, "late"))
    assert connector.closed


class Shut:
    """A fence that lets nothing pass."""

    def check(self) -> None:
        raise Fenced("not now")


async def test_fence_stops_every_write_before_it_is_sent(client: Client, namespace: str) -> None:
    made = await client.create(CONFIGMAPS, configmap("one", namespace, a="1"))
    shut = client.fenced(Shut())
    for call in (
        shut.create(CONFIGMAPS, configmap("two", namespace)),
        shut.replace(CONFIGMAPS, made.body),
        shut.patch(CONFIGMAPS, made.key, {"data": {"a": "2"}}),
        shut.apply(CONFIGMAPS, configmap("one", namespace, a="2")),
        shut.delete(CONFIGMAPS, made.key),
        shut.request("DELETE", CONFIGMAPS.path(namespace, "one")),
    ):
        with pytest.raises(Fenced):
            await call
    assert (await shut.list(CONFIGMAPS, Selection(namespace))).items[-1].body["data"] == {"a": "1"}


async def test_fenced_client_may_still_ask_what_it_may_do(client: Client) -> None:
    review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    answer = await client.fenced(Shut()).create(SELFSUBJECTACCESSREVIEWS, review)
    assert answer.body["status"]["allowed"] is True


async def test_missing_rights_and_bad_credentials_are_told_apart(hub: ControlPlane) -> None:
    async with Client(await load_connection(kubeconfig=hub.client_config("nobody"))) as nobody:
        with pytest.raises(Forbidden, match='User "nobody"'):
            await nobody.list(PODS)
    connection = await load_connection(kubeconfig=hub.kubeconfig)
    async with Client(attrs.evolve(connection, url=hub.url + "/nonsense")) as lost:
        with pytest.raises(NotFound):
            await lost.list(PODS)


async def test_nobody_there_is_unreachable(hub: ControlPlane) -> None:
    connection = await load_connection(kubeconfig=hub.kubeconfig)
    async with Client(attrs.evolve(connection, url="https://127.0.0.1:1")) as client:
        with pytest.raises(Unreachable) as caught:
            await client.get(NODES, "x")
    assert caught.value.retryable
    assert caught.value.status == 0


async def test_write_without_answer_is_unreachable_in_time_and_the_pool_survives(hub: ControlPlane, namespace: str) -> None:
    async with Proxy() as proxy:
        connection = await load_connection(kubeconfig=hub.kubeconfig)
        # Also what a busy API server may take before and afterwards.
        connection = attrs.evolve(connection, proxy=proxy.url, timeouts=Timeouts(read=4.0, write=3.0))
        async with Client(connection) as client:
            await client.create(CONFIGMAPS, configmap("one", namespace))
            proxy.stall()
            # By default the two are given five seconds and thirty.
            async with asyncio.timeout(30):
                with pytest.raises(Unreachable, match="no response within the time limit"):
                    await client.create(CONFIGMAPS, configmap("two", namespace))
                with pytest.raises(Unreachable):
                    await client.get(CONFIGMAPS, Key(namespace, "one"))
            proxy.cut()
            proxy.resume()
            assert (await client.get(CONFIGMAPS, Key(namespace, "one"))).metadata.name == "one"


async def test_debug_log_holds_no_bodies_queries_or_tokens(client: Client, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await client.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"k": "very-secret"}}, namespace=namespace)
        await client.list(SECRETS, Selection(namespace, labels="query!=value"))
    mine = [record for record in caplog.records if record.name.startswith("vkubelet.client")]
    assert mine
    text = " ".join(str(record.__dict__) for record in mine)
    assert "very-secret" not in text and "query" not in text


async def test_no_certificate_and_no_token_is_forbidden_or_unauthorized(hub: ControlPlane) -> None:
    connection = await load_connection(kubeconfig=hub.kubeconfig)
    assert connection.tls is not None
    anonymous = attrs.evolve(connection, tls=type(connection.tls)(attrs.evolve(connection.tls.source, certificate=None, key=None)))
    async with Client(anonymous) as client:
        with pytest.raises((Forbidden, Unauthorized)):
            await client.list(SECRETS)
