"""Watches against a real API server: in order, resumable, and never silent for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import aiohttp
import attrs
import pytest

from tests.integration.client.proxy import Proxy
from tests.support.program import PATIENCE
from vkubelet.api.codec import EventType, WatchEvent
from vkubelet.api.objects import CONFIGMAPS, PODS, Key, Unknown
from vkubelet.client.connection import Timeouts, load_connection
from vkubelet.client.credentials import Fixed
from vkubelet.client.rest import Client, Selection
from vkubelet.clock import Clock
from vkubelet.errors import Expired, Forbidden, Unreachable
from vkubelet.testing.cluster import ControlPlane, Options, Site


async def make(client: Client, namespace: str, name: str, **data: str) -> str:
    """The new ConfigMap's resourceVersion."""
    made = await client.create(CONFIGMAPS, {"metadata": {"name": name, "labels": {"mine": "yes"}}, "data": data}, namespace=namespace)
    return made.metadata.resource_version


def mine(namespace: str) -> Selection:
    return Selection(namespace, labels="mine=yes")


async def until_name(events: AsyncIterator[WatchEvent[Unknown]], name: str) -> list[WatchEvent[Unknown]]:
    seen = []
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            seen.append(event)
            if event.object.metadata.name == name:
                return seen
    raise AssertionError("the stream ended")


async def test_initial_events_end_with_a_marked_bookmark(client: Client, namespace: str) -> None:
    for name in ("a", "b"):
        await make(client, namespace, name)
    seen: list[WatchEvent[Unknown]] = []
    async with aclosing(client.watch(CONFIGMAPS, where=mine(namespace), initial=True)) as events, asyncio.timeout(PATIENCE):
        async for event in events:
            seen.append(event)
            if event.initial_end:
                break
    assert [(event.type, event.object.metadata.name) for event in seen[:-1]] == [(EventType.ADDED, "a"), (EventType.ADDED, "b")]
    assert seen[-1].type is EventType.BOOKMARK
    assert int(seen[-1].object.metadata.resource_version) >= int(seen[-2].object.metadata.resource_version)


async def test_changes_arrive_in_order_and_a_watch_resumes_where_it_was(client: Client, namespace: str) -> None:
    start = await make(client, namespace, "a")
    await client.patch(CONFIGMAPS, Key(namespace, "a"), {"data": {"x": "1"}})
    await make(client, namespace, "b")
    async with aclosing(client.watch(CONFIGMAPS, since=start, where=mine(namespace))) as events:
        first = await until_name(events, "b")
    assert [(event.type.value, event.object.metadata.name) for event in first] == [("MODIFIED", "a"), ("ADDED", "b")]

    await client.delete(CONFIGMAPS, Key(namespace, "a"))
    await make(client, namespace, "c")
    async with aclosing(client.watch(CONFIGMAPS, since=first[-1].object.metadata.resource_version, where=mine(namespace))) as events:
        second = await until_name(events, "c")
    assert [(event.type.value, event.object.metadata.name) for event in second] == [("DELETED", "a"), ("ADDED", "c")]
    assert second[0].object.body["data"] == {"x": "1"}


async def test_objects_of_nearly_a_megabyte_pass(client: Client, namespace: str) -> None:
    start = await make(client, namespace, "a")
    await make(client, namespace, "big", text="x\n" * 400_000)
    async with aclosing(client.watch(CONFIGMAPS, since=start, where=mine(namespace))) as events:
        [event] = await until_name(events, "big")
    assert event.object.body["data"]["text"] == "x\n" * 400_000


async def compact(hub: ControlPlane) -> None:
    """Forget every revision but the present one."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{hub.plane.etcd_port}") as etcd:
        async with etcd.post("/v3/kv/range", json={"key": "AA=="}) as answer:
            revision = (await answer.json())["header"]["revision"]
        async with etcd.post("/v3/kv/compaction", json={"revision": revision, "physical": True}) as answer:
            assert answer.status == 200, await answer.text()


@pytest.fixture
async def forgetful(cluster_site: Site) -> AsyncIterator[ControlPlane]:
    """A cluster of its own, whose lists are continued from etcd alone."""
    options = Options(controllers=False, scheduler=False, apiserver_flags=("--feature-gates=ListFromCacheSnapshot=false",))
    async with ControlPlane("forgetful", cluster_site, options=options) as plane:
        yield plane


class Compacting(Fixed):
    """Anonymous credentials that compact the history before the second call they are asked for."""

    def __init__(self, plane: ControlPlane, client: Client) -> None:
        super().__init__()
        self.plane, self.client, self.calls = plane, client, 0

    async def authorization(self, clock: Clock) -> str:
        self.calls += 1
        if self.calls == 2:
            await make(self.client, "default", "later")
            await compact(self.plane)
        return await super().authorization(clock)


async def test_history_compacted_away_expires_watches_but_not_lists(forgetful: ControlPlane) -> None:
    connection = await load_connection(kubeconfig=forgetful.kubeconfig)
    async with Client(connection) as client:
        # Five hundred connections at once are more than a busy machine opens in time.
        gate = asyncio.Semaphore(20)

        async def one(number: int) -> None:
            async with gate:
                await make(client, "default", f"c-{number:03}")

        async with asyncio.TaskGroup() as group:
            for number in range(520):
                group.create_task(one(number))
        old = (await client.list(CONFIGMAPS, mine("default"))).resource_version
        compacting = Compacting(forgetful, client)
        async with Client(attrs.evolve(connection, credentials=compacting)) as unlucky:
            assert len((await unlucky.list(CONFIGMAPS, mine("default"))).items) == 521
        assert compacting.calls == 3

        # A new apiserver has no history of its own in memory.
        await forgetful.stop_apiserver()
        await forgetful.start_apiserver()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(Expired) as caught:
                async for _ in client.watch(CONFIGMAPS, since=old):
                    pass
        assert caught.value.status == 410


async def test_silent_stream_is_unreachable(hub: ControlPlane, namespace: str) -> None:
    async with Proxy() as proxy:
        # Also what a busy API server may take to begin the watch.
        connection = attrs.evolve(await load_connection(kubeconfig=hub.kubeconfig), proxy=proxy.url, timeouts=Timeouts(silence=3.0))
        async with Client(connection) as client:
            start = await make(client, namespace, "a")
            events = client.watch(CONFIGMAPS, since=start, where=mine(namespace))
            await make(client, namespace, "b")
            await until_name(events, "b")
            proxy.stall()
            began = time.monotonic()
            with pytest.raises(Unreachable, match="watch configmaps"):
                await anext(events)
            # Without that setting a watch may be silent for longer than a minute.
            assert 0.3 < time.monotonic() - began < Timeouts().silence


async def test_cut_stream_is_unreachable(hub: ControlPlane, namespace: str) -> None:
    async with Proxy() as proxy:
        connection = attrs.evolve(await load_connection(kubeconfig=hub.kubeconfig), proxy=proxy.url)
        async with Client(connection) as client:
            start = await make(client, namespace, "a")
            events = client.watch(CONFIGMAPS, since=start, where=mine(namespace))
            await make(client, namespace, "b")
            await until_name(events, "b")
            proxy.cut()
            with pytest.raises(Unreachable):
                await anext(events)


async def test_stream_ended_by_the_server_just_ends(client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkubelet.client.watch._SHORTEST", 1)
    monkeypatch.setattr("vkubelet.client.watch._LONGEST", 1)
    start = await make(client, namespace, "a")
    async with asyncio.timeout(PATIENCE):
        seen = [event async for event in client.watch(CONFIGMAPS, since=start, where=mine(namespace))]
    assert all(event.type is EventType.BOOKMARK for event in seen)


async def test_watch_without_the_right_says_so(hub: ControlPlane) -> None:
    async with Client(await load_connection(kubeconfig=hub.client_config("nobody"))) as nobody:
        with pytest.raises(Forbidden, match="watch pods"):
            await anext(nobody.watch(PODS))


async def test_closing_a_watch_closes_its_connection(hub: ControlPlane, namespace: str) -> None:
    async with Client(await load_connection(kubeconfig=hub.kubeconfig)) as client:
        start = await make(client, namespace, "a")
        async with aclosing(client.watch(CONFIGMAPS, since=start, where=mine(namespace))) as events:
            await make(client, namespace, "b")
            await until_name(events, "b")
            assert len(client.transport.session.connector._acquired) == 1  # type: ignore[union-attr]
        assert not client.transport.session.connector._acquired  # type: ignore[union-attr]
