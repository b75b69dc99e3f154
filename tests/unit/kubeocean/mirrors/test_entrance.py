"""Tests of kubeocean.mirrors.entrance."""

from __future__ import annotations

import asyncio

from kubeocean.mirrors.entrance import Entrance


def entrance(behind: set[str], refused: set[str], *, wait: float = 0.01) -> Entrance:
    return Entrance(is_behind=behind.__contains__, is_refused=refused.__contains__, wait=wait)


async def test_only_the_first_pods_of_a_namespace_without_rights_wait_for_them() -> None:
    behind, refused = {"shop"}, {"shop"}
    made = entrance(behind, refused)
    assert not made.is_open("shop") and await made.passed("shop") and made.is_open("shop"), "rights may follow the label of a namespace"
    later = Entrance.passed(made, "shop")
    try:
        later.send(None)
    except StopIteration as done:
        assert done.value is True
    else:
        raise AssertionError("the next pod waits again")


async def test_pods_wait_again_once_the_list_is_answered() -> None:
    behind, refused = {"shop"}, {"shop"}
    made = entrance(behind, refused)
    await made.passed("shop")
    refused.clear()
    assert not await made.passed("shop")
    waiting = asyncio.create_task(entrance(behind, refused, wait=60).passed("shop"))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_every_pod_that_waits_passes_when_the_mirrors_are_written() -> None:
    behind: set[str] = {"shop"}
    made = entrance(behind, set(), wait=60)
    waiting = [asyncio.create_task(made.passed("shop")) for _ in range(3)]
    await asyncio.sleep(0)
    made.notify()
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    behind.clear()
    made.notify()
    assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_namespace_that_is_created_again_waits_for_its_rights_again() -> None:
    made = entrance({"shop"}, {"shop"})
    await made.passed("shop")
    made.drop("shop")
    assert not made.is_open("shop")
