"""Informers against real API servers: complete, resumable, and never mistaking an error for a deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from prometheus_client import CollectorRegistry

from tests.integration.client.proxy import Proxy
from tests.support.program import PATIENCE, eventually
from vkubelet.api.objects import CONFIGMAPS, CRDS, Key, ObjectMeta, Resource, Unknown
from vkubelet.client.connection import Timeouts, load_connection
from vkubelet.client.rest import Client, Selection
from vkubelet.control import informer as informer_module
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import Expired, Forbidden, NotFound, Unreachable
from vkubelet.metrics import Metrics
from vkubelet.testing.cluster import ControlPlane, Options, Site

Changes = list[Change[Unknown]]


async def make(client: Client, namespace: str, name: str, **data: str) -> Unknown:
    return await client.create(CONFIGMAPS, {"metadata": {"name": name, "labels": {"mine": "yes"}}, "data": data}, namespace=namespace)


def mine(namespace: str) -> Selection:
    return Selection(namespace, labels="mine=yes")


def recorded(informer: Informer[Unknown]) -> Changes:
    changes: Changes = []
    informer.on_change(changes.append)
    return changes


def steps(changes: Changes) -> list[tuple[str, str]]:
    """Name and what happened of each change."""
    kinds = {(False, True): "appeared", (True, True): "changed", (True, False): "gone"}
    return [(change.key.name, kinds[change.old is not None, change.new is not None]) for change in changes]


@asynccontextmanager
async def running(informer: Informer[Any]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(informer.run())
        yield
        task.cancel()


async def synced(informer: Informer[Any], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        await informer.wait_synced()


@asynccontextmanager
async def through(proxy: Proxy, kubeconfig: Path, *, silence: float = 70.0) -> AsyncIterator[Client]:
    """A client whose every byte goes through the proxy, with short patience."""
    direct = await load_connection(kubeconfig=kubeconfig)
    timeouts = Timeouts(read=2, write=2, connect=2, silence=silence)
    async with Client(attrs.evolve(direct, proxy=proxy.url, timeouts=timeouts)) as client:
        yield client


async def test_first_list_is_complete_and_initial_and_later_changes_follow(client: Client, namespace: str) -> None:
    for name in ("a", "b"):
        await make(client, namespace, name)
    informer = Informer(client, CONFIGMAPS, where=mine(namespace))
    changes = recorded(informer)
    assert not informer.synced
    async with running(informer):
        await synced(informer)
        assert informer.ever_synced
        assert steps(changes) == [("a", "appeared"), ("b", "appeared")]
        assert all(change.initial for change in changes)
        changes.clear()
        await make(client, namespace, "c")
        await client.patch(CONFIGMAPS, Key(namespace, "a"), {"data": {"x": "1"}})
        await client.delete(CONFIGMAPS, Key(namespace, "b"))
        await eventually(lambda: len(changes) == 3, "three changes")
        assert steps(changes) == [("c", "appeared"), ("a", "changed"), ("b", "gone")]
        assert not any(change.initial or change.suspected for change in changes)
        assert {each.metadata.name for each in informer.store} == {"a", "c"}
        assert informer.stale_for() < 20
    assert not informer.synced
    assert len(informer.store) == 2


async def test_empty_selection_is_synced_too(client: Client, namespace: str) -> None:
    informer = Informer(client, CONFIGMAPS, where=mine(namespace))
    async with running(informer):
        await synced(informer)
        assert len(informer.store) == 0


async def test_handler_that_comes_late_is_told_what_is_there(client: Client, namespace: str) -> None:
    await make(client, namespace, "a")
    informer = Informer(client, CONFIGMAPS, where=mine(namespace))
    async with running(informer):
        await synced(informer)
        changes = recorded(informer)
        assert [(change.key.name, change.initial) for change in changes] == [("a", True)]


async def test_object_that_leaves_the_selection_is_gone_for_the_handlers(client: Client, namespace: str) -> None:
    await make(client, namespace, "a")
    informer = Informer(client, CONFIGMAPS, where=mine(namespace))
    async with running(informer):
        await synced(informer)
        changes = recorded(informer)
        await client.patch(CONFIGMAPS, Key(namespace, "a"), {"metadata": {"labels": {"mine": "no"}}})
        await eventually(lambda: len(changes) == 2, "the change")
        assert steps(changes)[1] == ("a", "gone")
        assert not changes[1].suspected


async def test_no_more_than_metadata_is_sent_where_that_is_all_that_is_wanted(client: Client, namespace: str) -> None:
    await make(client, namespace, "a", value="one")
    where = attrs.evolve(mine(namespace), metadata_only=True)
    assert ["data" in each.body for each in (await client.list(CONFIGMAPS, where)).items] == [False]
    informer = Informer(client, CONFIGMAPS, where=where)
    changes = recorded(informer)
    async with running(informer):
        await synced(informer)
        changed = await client.patch(CONFIGMAPS, Key(namespace, "a"), {"data": {"value": "two"}})
        await eventually(lambda: len(changes) == 2, "the change")
    for change in changes:
        assert change.new is not None and change.new.metadata.labels == {"mine": "yes"}
        assert "data" not in change.new.body
    assert changes[1].new is not None and changes[1].new.metadata.resource_version == changed.metadata.resource_version


@pytest.fixture(params=[(), ("--feature-gates=WatchList=false",)], ids=["initial events", "paged list"])
async def own(request: pytest.FixtureRequest, cluster_site: Site) -> AsyncIterator[ControlPlane]:
    """A cluster whose API server the test may stop."""
    flags: Sequence[str] = request.param
    name = f"informer-{'paged' if flags else 'events'}"
    options = Options(scheduler=False, controllers=False, apiserver_flags=tuple(flags))
    async with ControlPlane(name, cluster_site, options=options) as plane:
        yield plane


async def test_changes_while_away_are_delivered_after_expiry_and_outages_remove_nothing(own: ControlPlane) -> None:
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(await load_connection(kubeconfig=own.kubeconfig)))
        for name in ("stays", "deleted", "remade"):
            await make(client, "default", name)
        informer = Informer(client, CONFIGMAPS, where=mine("default"), metrics=Metrics(registry))
        changes = recorded(informer)
        async with running(informer):
            await synced(informer)
        changes.clear()
        await client.delete(CONFIGMAPS, Key("default", "deleted"))
        await client.delete(CONFIGMAPS, Key("default", "remade"))
        await make(client, "default", "remade")
        await make(client, "default", "new")
        # The new API server's memory begins after our last version, so that it answers 410.
        await own.stop_apiserver()
        async with running(informer):
            await eventually(lambda: isinstance(informer.last_error, Unreachable), "the outage is noticed")
            assert not informer.synced
            assert len(informer.store) == 3
            assert not changes
            await own.start_apiserver()
            await synced(informer)
            await eventually(lambda: len(changes) == 3, "the difference")
            assert informer.last_error is None
            assert sorted(steps(changes)) == [("deleted", "gone"), ("new", "appeared"), ("remade", "changed")]
            by_name = {change.key.name: change for change in changes}
            assert by_name["deleted"].suspected
            assert not any(change.initial for change in changes)
            old, new = by_name["remade"].old, by_name["remade"].new
            assert old is not None
            assert new is not None
            assert old.metadata.uid != new.metadata.uid
            await make(client, "default", "later")
            await eventually(lambda: len(changes) == 4, "the watch goes on")
        restarts = registry.get_sample_value("vkubelet_watch_restarts_total", {"resource": "configmaps", "reason": Expired.__name__})
        assert restarts


async def test_cut_stream_resumes_without_a_list_and_deletions_are_certain(hub: ControlPlane, client: Client, namespace: str) -> None:
    await make(client, namespace, "a")
    async with Proxy() as proxy, through(proxy, hub.kubeconfig) as far:
        informer = Informer(far, CONFIGMAPS, where=mine(namespace))
        changes = recorded(informer)
        async with running(informer):
            await synced(informer)
            changes.clear()
            proxy.cut()
            await client.delete(CONFIGMAPS, Key(namespace, "a"))
            await make(client, namespace, "b")
            await eventually(lambda: len(changes) == 2, "both changes")
            assert steps(changes) == [("a", "gone"), ("b", "appeared")]
            assert not changes[0].suspected
            await synced(informer)


async def test_silent_stream_is_reopened_and_counts_as_unsynced_meanwhile(hub: ControlPlane, client: Client, namespace: str) -> None:
    await make(client, namespace, "a")
    # Also what a busy API server may take to begin the watch.
    async with Proxy() as proxy, through(proxy, hub.kubeconfig, silence=3.0) as far:
        informer = Informer(far, CONFIGMAPS, where=mine(namespace))
        async with running(informer):
            await synced(informer)
            proxy.stall()
            await make(client, namespace, "b")
            await eventually(lambda: not informer.synced, "the silence is noticed")
            assert isinstance(informer.last_error, Unreachable)
            assert [each.metadata.name for each in informer.store] == ["a"]
            proxy.cut()
            proxy.resume()
            await synced(informer)
            await eventually(lambda: len(informer.store) == 2, "the change made during the silence")


async def test_missing_rights_are_told_and_asked_for_again(hub: ControlPlane, namespace: str) -> None:
    kubeconfig = hub.client_config("informer-reader")
    async with Client(await load_connection(kubeconfig=kubeconfig)) as poor:
        informer = Informer(poor, CONFIGMAPS, where=Selection(namespace))
        async with running(informer):
            await eventually(lambda: isinstance(informer.last_error, Forbidden), "the refusal")
            assert not informer.synced
            assert not informer.ever_synced
            verbs = "--verb=get,list,watch"
            await hub.kubectl("-n", namespace, "create", "role", "reader", verbs, "--resource=configmaps")
            await hub.kubectl("-n", namespace, "create", "rolebinding", "reader", "--role=reader", "--user=informer-reader")
            await synced(informer)
            assert informer.last_error is None
            # The cluster's controller may make it later than the namespace.
            await eventually(lambda: Key(namespace, "kube-root-ca.crt") in informer.store, "the ConfigMap of every namespace")


def definition(plural: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "metadata": {"name": f"{plural}.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Cluster",
            "names": {"plural": plural, "singular": plural[:-1], "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


async def test_resource_that_does_not_exist_yet_is_waited_for(client: Client) -> None:
    things = Resource("example.org", "v1", "informerthings", "Thing", False, Unknown)
    informer = Informer(client, things)
    async with running(informer):
        await eventually(lambda: isinstance(informer.last_error, NotFound), "the 404")
        await client.create(CRDS, definition(things.plural))
        try:
            await synced(informer)
        finally:
            await client.delete(CRDS, f"{things.plural}.example.org")


async def test_server_that_does_not_end_its_initial_events_is_listed(
    hub: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer_module, "END_MARKER_SECONDS", 0.0)
    async with Client(await load_connection(kubeconfig=hub.kubeconfig)) as client:
        await make(client, namespace, "a")
        informer = Informer(client, CONFIGMAPS, where=mine(namespace))
        async with running(informer):
            await synced(informer)
            assert [each.metadata.name for each in informer.store] == ["a"]
            await make(client, namespace, "b")
            await eventually(lambda: len(informer.store) == 2, "the watch after the list")


async def test_long_lists_come_in_pages_and_lose_nothing(hub: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_module, "END_MARKER_SECONDS", 0.0)
    async with Client(await load_connection(kubeconfig=hub.kubeconfig)) as client:
        for start in range(0, 520, 40):
            async with asyncio.TaskGroup() as group:
                for number in range(start, start + 40):
                    group.create_task(make(client, namespace, f"c-{number}"))
        informer = Informer(client, CONFIGMAPS, where=mine(namespace))
        async with running(informer):
            await synced(informer)
            assert len(informer.store) == 520


def stubs_but(wanted: set[str]) -> Store[Unknown]:
    """Keeps whole objects of wanted names and stubs of others, as who may want them later."""

    def keep(obj: Unknown) -> Unknown:
        meta = obj.metadata
        return obj if meta.name in wanted else Unknown(ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid), b"")

    return Store(keep=keep)


def whole(informer: Informer[Unknown]) -> set[str]:
    return {each.metadata.name for each in informer.store if each.raw}


async def test_adopted_object_stays_and_never_comes_back_after_its_deletion(client: Client, namespace: str) -> None:
    wanted = {"a"}
    for name in ("a", "b", "c", "d"):
        await make(client, namespace, name)
    informer = Informer(client, CONFIGMAPS, where=mine(namespace), store=stubs_but(wanted))
    async with running(informer):
        await synced(informer)
        assert whole(informer) == {"a"}
        wanted |= {"b", "c", "d"}
        read = (await client.list(CONFIGMAPS, mine(namespace))).items
        await client.delete(CONFIGMAPS, Key(namespace, "b"))
        await client.patch(CONFIGMAPS, Key(namespace, "c"), {"data": {"newer": "yes"}})
        await eventually(lambda: "c" in whole(informer), "the watch sees the patch, and before it the deletion")
        changes = recorded(informer)
        changes.clear()
        for obj in read:
            informer.adopt(obj)
        assert whole(informer) == {"a", "c", "d"}
        patched = informer.store.get(Key(namespace, "c"))
        assert patched is not None
        assert patched.body["data"] == {"newer": "yes"}
        assert steps(changes) == [("d", "changed")]


async def test_object_deleted_before_the_list_is_not_adopted_after_it(client: Client, namespace: str) -> None:
    read = await make(client, namespace, "a")
    await client.delete(CONFIGMAPS, Key(namespace, "a"))
    informer = Informer(client, CONFIGMAPS, where=mine(namespace))
    async with running(informer):
        await synced(informer)
        informer.adopt(read)
        assert len(informer.store) == 0


async def test_answer_of_a_write_is_adopted_and_its_event_is_no_second_change(client: Client, namespace: str) -> None:
    informer = Informer(client, CONFIGMAPS, where=mine(namespace))
    async with running(informer):
        await synced(informer)
        changes = recorded(informer)
        informer.adopt(await make(client, namespace, "a"))
        assert Key(namespace, "a") in informer.store
        await make(client, namespace, "b")
        await eventually(lambda: Key(namespace, "b") in informer.store, "the watch has come to the next object")
        assert steps(changes) == [("a", "appeared"), ("b", "appeared")]


@pytest.mark.parametrize("begun", [False, True], ids=["before the list", "during the list"])
async def test_object_adopted_around_the_first_list_survives_it_unless_it_is_gone(client: Client, namespace: str, begun: bool) -> None:
    wanted = set[str]()
    made, gone = await make(client, namespace, "a"), await make(client, namespace, "gone")
    await client.delete(CONFIGMAPS, Key(namespace, "gone"))
    informer = Informer(client, CONFIGMAPS, where=mine(namespace), store=stubs_but(wanted))
    async with running(informer):
        if begun:
            await asyncio.sleep(0)
        wanted |= {"a", "gone"}
        informer.adopt(made)
        informer.adopt(gone)
        await synced(informer)
        assert whole(informer) == {"a"}
