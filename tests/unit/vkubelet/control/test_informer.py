"""The store equals the server's objects, wherever the first list was cut; what it does against a real server is in tests/integration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from itertools import chain, combinations, pairwise

import pytest

from vkubelet.api.codec import EventType, ObjectList, WatchEvent, encode_json
from vkubelet.api.objects import PODS, Key, Pod
from vkubelet.client.connection import Connection
from vkubelet.control import informer as module
from vkubelet.control.informer import Change, Informer
from vkubelet.control.store import Store
from vkubelet.errors import Expired, Forbidden, Invalid, ServerError, Unreachable
from vkubelet.testing.clock import ManualClock

Events = AsyncGenerator[WatchEvent[Pod], None]


def pod(name: str, version: int, *, uid: str = "", node: str = "n") -> Pod:
    meta = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return Pod.decode(encode_json({"metadata": meta, "spec": {"nodeName": node}, "status": {}}))


class Api:
    """An API server as an informer sees it: `objects` as of now, and a log of all events.

    Its first stream of initial events runs `broken`; later ones are complete.
    """

    def __init__(self, broken: Callable[[Api], Events] | None = None) -> None:
        self.transport = asyncio.Event()
        """Any object: informers only remember which transport has no initial events."""
        self.objects: dict[Key, Pod] = {}
        self.version = 0
        self._log: list[WatchEvent[Pod]] = []
        self.connection = Connection("https://hub.invalid")
        self._broken = broken
        self._news = asyncio.Event()
        self.away = False
        """Requests are refused, and open streams are cut."""

    def put(self, name: str, *, uid: str = "", node: str = "n") -> WatchEvent[Pod]:
        self.version += 1
        made = pod(name, self.version, uid=uid, node=node)
        type_ = EventType.MODIFIED if made.key in self.objects else EventType.ADDED
        self.objects[made.key] = made
        return self._note(WatchEvent(type_, made))

    def delete(self, name: str) -> WatchEvent[Pod]:
        self.version += 1
        gone = self.objects.pop(Key("default", name))
        return self._note(WatchEvent(EventType.DELETED, pod(name, self.version, uid=gone.metadata.uid)))

    def _note(self, event: WatchEvent[Pod]) -> WatchEvent[Pod]:
        self._log.append(event)
        self._news.set()
        return event

    def end_marker(self) -> WatchEvent[Pod]:
        return WatchEvent(EventType.BOOKMARK, pod("", self.version), initial_end=True)

    def leave(self) -> None:
        self.away = True
        self._news.set()

    def restore(self, objects: dict[Key, Pod], version: int) -> None:
        """Comes back with the state of a backup, whose resourceVersions are given out a second time."""
        self.objects, self.version, self._log, self.away = dict(objects), version, [], False

    async def request(self, *_: object, **__: object) -> bytes:
        if self.away:
            raise Unreachable("get pods", "connection refused")
        return encode_json({"metadata": {"resourceVersion": str(self.version)}, "items": []})

    async def list(self, *_: object, **__: object) -> ObjectList[Pod]:
        return ObjectList(list(self.objects.values()), str(self.version))

    def watch(self, resource: object, *, since: str = "", where: object = None, initial: bool = False) -> Events:
        broken, self._broken = (self._broken, None) if initial else (None, self._broken)
        return broken(self) if broken is not None else self._events(since, initial)

    async def _events(self, since: str, initial: bool) -> Events:
        if initial:
            for each in list(self.objects.values()):
                yield WatchEvent(EventType.ADDED, each)
            since = str(self.version)
            yield self.end_marker()
        while True:
            if self.away:
                raise Unreachable("watch pods", "the stream was cut")
            for event in [e for e in self._log if int(e.object.metadata.resource_version) > int(since)]:
                since = event.object.metadata.resource_version
                yield event
            self._news.clear()
            await self._news.wait()


def mirrored(changes: list[Change[Pod]]) -> dict[Key, str]:
    """What a handler that follows the changes holds: uids by key."""
    held: dict[Key, str] = {}
    for change in changes:
        held.pop(change.key, None)
        if change.new is not None:
            held[change.key] = change.new.metadata.uid
    return held


async def check(api: Api, *, store: Store[Pod] | None = None) -> Informer[Pod]:
    """Run an informer until it is synced, change something more, and compare."""
    clock = ManualClock()
    informer: Informer[Pod] = Informer(api, PODS, clock=clock, store=store)  # type: ignore[arg-type]
    changes = list[Change[Pod]]()
    informer.on_change(changes.append)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(5.0)
        assert informer.synced
        assert versions(informer) == truth(api)
        api.put("late")
        await clock.settle()
        assert versions(informer) == truth(api)
        assert mirrored(changes) == {key: each.metadata.uid for key, each in api.objects.items()}
        running.cancel()
    return informer


def versions(informer: Informer[Pod]) -> dict[Key, tuple[str, str]]:
    return {each.key: (each.metadata.uid, each.metadata.resource_version) for each in informer.store}


def truth(api: Api) -> dict[Key, tuple[str, str]]:
    return {key: (each.metadata.uid, each.metadata.resource_version) for key, each in api.objects.items()}


NAMES = ("a", "b", "c")
SUBSETS = tuple(chain.from_iterable(combinations(NAMES, size) for size in range(len(NAMES) + 1)))


async def silence() -> None:
    await asyncio.Event().wait()


async def cut() -> None:
    raise Unreachable("watch pods", "the stream was cut")


async def refused() -> None:
    raise Invalid("watch pods", "sendInitialEvents is forbidden")


async def ended() -> None:
    """The server closes the stream in order."""


async def late() -> None:
    raise ServerError("watch pods", "Too large resource version", status=504)


ENDS = (silence, cut, refused, ended, late)


@pytest.mark.parametrize(("end", "times"), [(late, 2), (refused, 1)])
async def test_a_server_whose_watch_cache_is_late_is_listed_and_asked_again_later(end: Callable[[], object], times: int) -> None:
    tried = list[bool]()

    class Watched(Api):
        def watch(self, resource: object, *, since: str = "", where: object = None, initial: bool = False) -> Events:
            tried.append(initial)
            return super().watch(resource, since=since, where=where, initial=initial)

    async def broken(api: Api) -> Events:
        await end()  # type: ignore[misc]
        yield api.end_marker()

    api, clock = Watched(broken), ManualClock()
    api.put("a")
    informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.settle()
        assert informer.synced and versions(informer) == truth(api) and tried == [True, False]
        informer.list_again()
        await clock.advance(5.0)
        assert informer.synced and tried.count(True) == times
        running.cancel()


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("deleted", SUBSETS, ids="".join)
async def test_nothing_of_a_half_read_list_stays(
    end: Callable[[], object], deleted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_MARKER_SECONDS", 0.0)
    for length in range(len(NAMES) + 1):

        async def broken(api: Api, length: int = length) -> Events:
            for name in NAMES[:length]:
                yield WatchEvent(EventType.ADDED, api.objects[Key("default", name)])
            for name in deleted:
                api.delete(name)
            await end()  # type: ignore[misc]

        api = Api(broken)
        for name in NAMES:
            api.put(name)
        await check(api)


@pytest.mark.parametrize("end", [*ENDS, None], ids=lambda end: end.__name__ if end else "complete")
async def test_changes_before_the_end_marker_count(end: Callable[[], object] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_MARKER_SECONDS", 0.0)
    changes: list[Callable[[Api], WatchEvent[Pod]]] = [
        lambda api: api.delete("b"),
        lambda api: api.put("a"),
        lambda api: api.put("b", uid="second"),
        lambda api: api.delete("a"),
        lambda api: api.delete("b"),
        lambda api: api.put("b", uid="third"),
    ]
    for length in range(len(changes) + 1):

        async def stream(api: Api, length: int = length) -> Events:
            for each in list(api.objects.values()):
                yield WatchEvent(EventType.ADDED, each)
            for change in changes[:length]:
                yield change(api)
            if end is not None:
                await end()  # type: ignore[misc]
                return
            yield api.end_marker()
            async for event in api.watch(PODS, since=str(api.version)):
                yield event

        api = Api(stream)
        for name in NAMES:
            api.put(name)
        await check(api)


async def test_an_object_that_left_the_selection_before_the_end_marker_is_not_listed() -> None:
    async def stream(api: Api) -> Events:
        yield WatchEvent(EventType.ADDED, api.objects[Key("default", "a")])
        yield api.put("a", node="other")
        yield api.end_marker()
        await silence()

    api, clock = Api(stream), ManualClock()
    api.put("a")
    store: Store[Pod] = Store(keep=lambda each: each if each.node == "n" else None)
    informer: Informer[Pod] = Informer(api, PODS, clock=clock, store=store)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(5.0)
        assert informer.synced
        assert not len(store)
        running.cancel()


async def test_an_object_deleted_before_the_end_marker_is_not_adopted() -> None:
    async def stream(api: Api) -> Events:
        yield WatchEvent(EventType.ADDED, api.objects[Key("default", "a")])
        gone.append(api.objects[Key("default", "a")])
        informer.adopt(api.put("a").object)
        yield api.delete("a")
        yield api.end_marker()
        await silence()

    gone, api, clock = list[Pod](), Api(stream), ManualClock()
    api.put("a")
    informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(5.0)
        assert informer.synced
        informer.adopt(gone[0])
        assert not len(informer.store)
        running.cancel()


async def test_a_handler_that_fails_for_one_object_misses_nothing_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def odd(change: Change[Pod]) -> None:
        if change.key.name == "b":
            raise UnicodeError("odd name")
        seen.append(change.key.name)

    api, clock, seen = Api(), ManualClock(), list[str]()
    for name in NAMES:
        api.put(name)
    informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
    informer.on_change(odd)
    changes = list[Change[Pod]]()
    informer.on_change(changes.append)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(5.0)
        assert informer.synced
        for name in NAMES:
            api.put(name)
        await clock.settle()
        assert versions(informer) == truth(api)
        running.cancel()
    assert seen == ["a", "c", "a", "c"]
    assert [change.key.name for change in changes] == [*NAMES, *NAMES]
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_an_object_that_the_store_cannot_judge_keeps_its_last_state() -> None:
    def keep(each: Pod) -> Pod | None:
        if each.node == "odd":
            raise ValueError("odd node")
        return each

    async def stream(api: Api) -> Events:
        for each in list(api.objects.values()):
            yield WatchEvent(EventType.ADDED, each)
        yield api.end_marker()
        yield api.put("a", node="odd")
        api.put("b")
        raise module.Expired("watch pods", "too old")

    api, clock = Api(stream), ManualClock()
    api.put("a")
    api.put("b")
    informer: Informer[Pod] = Informer(api, PODS, clock=clock, store=Store(keep=keep))  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(5.0)
        assert informer.synced
        await clock.settle()
        assert {each.key.name: each.metadata.resource_version for each in informer.store} == {"a": "1", "b": "4"}
        running.cancel()


async def test_other_tasks_run_between_events_that_arrive_together() -> None:
    api, clock, seen = Api(), ManualClock(), list[int]()
    informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
    delivered = list[Change[Pod]]()
    informer.on_change(delivered.append)

    async def watcher() -> None:
        while len(delivered) < 200:
            seen.append(len(delivered))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(5.0)
        for number in range(200):
            api.put(f"p{number}")
        await watcher()
        running.cancel()
    seen.append(len(delivered))
    assert max(after - before for before, after in pairwise(seen)) <= module._YIELD_EVERY


async def test_server_that_returns_after_a_long_outage_is_listed_within_ten_seconds() -> None:
    async def unreachable(api: Api) -> Events:
        raise Unreachable("watch pods", "connection refused")
        yield

    for seconds in range(20):
        api, clock, away = Api(), ManualClock(), True
        served = api.watch
        api.watch = lambda *args, **more: unreachable(api) if away else served(*args, **more)  # type: ignore[method-assign]  # noqa: B023
        informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            running = group.create_task(informer.run())
            await clock.advance(600.0 + seconds)
            assert not informer.synced
            away = False
            api.put("a")
            await clock.advance(10.0)
            assert informer.synced and versions(informer) == truth(api)
            running.cancel()


async def test_a_version_that_expired_during_a_long_outage_is_listed_again_at_once() -> None:
    async def expired() -> Events:
        raise Expired("watch pods", "too old resource version")
        yield

    for seconds in range(20):
        api, clock = Api(), ManualClock()
        served, oldest = api.watch, 0
        api.watch = lambda *args, since="", **more: (  # type: ignore[method-assign]
            expired() if since and int(since) < oldest else served(*args, since=since, **more)  # noqa: B023
        )
        informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            running = group.create_task(informer.run())
            await clock.advance(20.0)
            api.leave()
            await clock.advance(600.0 + seconds)
            api.put("a")
            api.away, oldest = False, api.version
            await clock.advance(10.5)  # The longest wait while no server answers.
            assert informer.synced and versions(informer) == truth(api)
            running.cancel()


async def test_expired_versions_one_after_the_other_are_listed_less_and_less_often() -> None:
    listed = list[float]()

    async def expired() -> Events:
        raise Expired("watch pods", "too old resource version")
        yield

    api, clock = Api(), ManualClock()
    served = api.watch

    def watch(*args: object, initial: bool = False, **more: object) -> Events:
        listed.extend([clock.monotonic()] if initial else [])
        return served(*args, initial=initial, **more) if not listed else expired()  # type: ignore[arg-type]

    api.watch = watch  # type: ignore[method-assign, assignment]
    informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(300.0)
        running.cancel()
    assert 10 < len(listed) < 40


async def test_each_right_that_is_missing_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Also one that is taken away as soon as another was given back, while the watch still waits between its attempts."""
    caplog.set_level(logging.WARNING)
    api, clock = Api(), ManualClock()

    async def refused(verb: str) -> Events:
        raise Forbidden(f"{verb} pods", f"cannot {verb} resource pods", status=403)
        yield

    informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        for verb in ("list", "watch", "list"):
            api.watch = lambda *args, verb=verb, **more: refused(verb)  # type: ignore[method-assign]
            await clock.advance(100.0)
        running.cancel()
    assert [record.getMessage().rpartition(" cannot ")[2] for record in caplog.records] == [
        "list resource pods",
        "watch resource pods",
        "list resource pods",
    ]
