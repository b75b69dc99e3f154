"""A restore of an API server is recognized by its resourceVersions, and everything is listed again."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.vkubelet.control.test_informer import NAMES, Api, pod, truth, versions
from vkubelet.api.objects import PODS, Pod
from vkubelet.control.informer import Change, Informer
from vkubelet.control.restores import is_later
from vkubelet.testing.clock import ManualClock


async def test_server_restored_from_a_backup_is_listed_again() -> None:
    """A watch from a resourceVersion that the restored server has not reached yet would be silent until it has."""
    api, clock = Api(), ManualClock()
    for name in NAMES:
        api.put(name)
    backup, version = dict(api.objects), api.version
    informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
    changes = list[Change[Pod]]()
    informer.on_change(changes.append)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(5.0)
        api.delete("a")
        api.put("b")
        api.put("d")
        await clock.settle()
        assert versions(informer) == truth(api)
        api.leave()
        await clock.advance(30.0)
        api.restore(backup, version)
        api.put("c")
        await clock.advance(15.0)
        assert versions(informer) == truth(api)
        api.put("e")
        await clock.settle()
        assert versions(informer) == truth(api)
        running.cancel()
    assert [change.suspected for change in changes if change.key.name == "d"] == [False, True]


async def test_restore_is_noticed_by_the_version_of_a_write_that_no_event_followed() -> None:
    """A pod whose last write is lost would stay as it was written until the server reaches that resourceVersion again."""
    api, clock = Api(), ManualClock()
    api.put("a")
    informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
    changes = list[Change[Pod]]()
    informer.on_change(changes.append)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(5.0)
        backup, version = dict(api.objects), api.version
        informer.adopt(pod("a", 1000))
        api.leave()
        await clock.advance(30.0)
        api.restore(backup, version)
        await clock.advance(15.0)
        assert versions(informer) == truth(api)
        api.put("a")
        await clock.settle()
        assert versions(informer) == truth(api)
        running.cancel()
    assert [change.restored for change in changes] == [False, False, True, False]


async def test_every_watch_of_the_connection_lists_again_once_one_has_noticed_a_restore() -> None:
    """What a watch saw last may be so little later than the backup that the server has reached it again before the watch asks."""
    api, clock = Api(), ManualClock()
    api.put("a")
    backup, version = dict(api.objects), api.version
    late, early = (Informer[Pod](api, PODS, clock=clock) for _ in range(2))  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(informer.run()) for informer in (late, early)]
        await clock.advance(5.0)
        api.put("a")
        api.put("b")
        await clock.settle()
        late.record_version("1000")
        api.leave()
        await clock.advance(30.0)
        api.restore(backup, version)
        for name in NAMES[1:]:
            api.put(name)
            api.put(name)
        await clock.advance(40.0)
        assert versions(early) == versions(late) == truth(api)
        api.put("d")
        await clock.settle()
        assert versions(early) == versions(late) == truth(api)
        assert early.synced and late.synced
        for task in tasks:
            task.cancel()


async def test_deletions_that_were_received_are_remembered_until_a_restore() -> None:
    api, clock = Api(), ManualClock()
    backup = {each.key: each for each in (pod(name, 1) for name in NAMES)}
    api.restore(backup, 1)
    informer: Informer[Pod] = Informer(api, PODS, clock=clock)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        await clock.advance(5.0)
        api.delete("a")
        await clock.settle()
        assert [informer.saw_deleted(f"uid-{name}") for name in NAMES] == [True, False, False]
        api.leave()
        await clock.advance(30.0)
        api.restore(backup, 1)
        await clock.advance(15.0)
        assert not informer.saw_deleted("uid-a") and versions(informer) == truth(api)
        running.cancel()


@pytest.mark.parametrize(
    ("this", "that", "later"),
    [
        ("10", "9", True),
        ("9", "10", False),
        ("9" * 5000, "1", True),
        ("007", "7", False),
        ("²", "1", True),
        ("²", "²", False),
        ("", "1", True),
        ("1", "", True),
    ],
)
def test_versions_compare_as_numbers_of_any_size_and_others_only_differ(this: str, that: str, later: bool) -> None:
    assert is_later(this, that) is later
