"""Tests of vkubelet.control.refusals: which refusals name a right, and until when it counts as refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import define, evolve, field

from tests.support.memory_api import MemoryApi
from vkubelet.api.rbac import Check
from vkubelet.client.transport import Call
from vkubelet.control.refusals import CHECKED_EVERY, CONFIRMED_AFTER, FORGOTTEN, Refusals, refused_right
from vkubelet.errors import Forbidden, Unreachable
from vkubelet.testing.clock import ManualClock

PATCH = Check(verb="patch", group="", resource="nodes", subresource="status", namespace="")


def forbidden(sentence: str) -> Forbidden:
    return Forbidden("patch nodes n", f'nodes "n" is forbidden: User "system:serviceaccount:a:b" {sentence}', status=403)


REFUSED = forbidden('cannot patch resource "nodes/status" in API group "" at the cluster scope')


class Reviewer(MemoryApi):
    """An API server that answers access reviews; None: it does not respond."""

    def __init__(self) -> None:
        super().__init__()
        self.grants: bool | None = False
        self.refuses_reviews = False
        self.asked: list[Any] = []
        self.listener: Any = None
        self.reviewed: Callable[[], None] = lambda: None

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if self.grants is None:
            raise Unreachable(call.attempt, "no response")
        if self.refuses_reviews:
            raise Forbidden(call.attempt, "no right", status=403)
        self.reviewed()
        self.asked.append(json.loads(call.body or b"{}")["spec"]["resourceAttributes"])
        return json.dumps({"metadata": {}, "status": {"allowed": self.grants}}).encode()

    @contextmanager
    def refusing(self, listener: Any) -> Iterator[None]:
        self.listener = listener
        yield
        self.listener = None


@define
class Scene:
    """Refusals of one API server, and what they have reported."""

    api: Reviewer = field(factory=Reviewer)
    clock: ManualClock = field(factory=ManualClock)
    seen: list[Sequence[Check]] = field(factory=list)

    async def run(self) -> None:
        refusals = Refusals(self.clock, lambda refused: self.seen.append(list(refused)))
        with refusals.noting(self.api.client()):
            await refusals.run()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()


@pytest.mark.parametrize(
    ("sentence", "right"),
    [
        ('cannot patch resource "nodes/status" in API group "" at the cluster scope', PATCH),
        (
            'cannot list resource "leases" in API group "coordination.k8s.io" in the namespace "kube-node-lease"',
            Check(verb="list", group="coordination.k8s.io", resource="leases", subresource="", namespace="kube-node-lease"),
        ),
        ('cannot get path "/metrics"', None),
        ("exceeded quota: small", None),
    ],
)
def test_the_right_that_a_refusal_names(sentence: str, right: Check | None) -> None:
    found = refused_right(forbidden(sentence))
    assert found == (right and evolve(right, name="n"))


@pytest.mark.parametrize("lost", [False, True])
async def test_a_right_counts_as_refused_until_it_is_granted(scene: Scene, lost: bool) -> None:
    api, clock, seen = scene.api, scene.clock, scene.seen
    await clock.advance(FORGOTTEN)
    assert not api.asked, "nothing is asked before a refusal"
    for _ in range(2):
        api.listener(REFUSED)
    assert not seen
    await clock.advance(CONFIRMED_AFTER)
    assert seen == [[PATCH]]
    await clock.advance(3 * CHECKED_EVERY)
    assert seen == [[PATCH]] and api.asked[0] == {"verb": "patch", "resource": "nodes", "subresource": "status", "name": "n"}
    if lost:
        api.grants = None
        await clock.advance(2 * FORGOTTEN)
        assert seen == [[PATCH]]
    api.grants = True
    await clock.advance(CHECKED_EVERY + CONFIRMED_AFTER)
    assert seen == [[PATCH], []]
    asked = len(api.asked)
    await clock.advance(FORGOTTEN)
    assert len(api.asked) == asked


async def test_a_right_that_nothing_needs_any_more_is_forgotten(scene: Scene) -> None:
    api, clock, seen = scene.api, scene.clock, scene.seen
    await clock.advance(1.0)
    api.listener(REFUSED)
    await clock.advance(FORGOTTEN - CHECKED_EVERY)
    api.listener(REFUSED)
    await clock.advance(FORGOTTEN - CHECKED_EVERY)
    assert seen == [[PATCH]]
    await clock.advance(2 * CHECKED_EVERY)
    assert seen == [[PATCH], []]


async def test_a_right_to_many_namespaces_is_one(scene: Scene) -> None:
    api, clock, seen = scene.api, scene.clock, scene.seen
    await clock.advance(1.0)
    for namespace in ("a", "a", "b", "a"):
        api.listener(forbidden(f'cannot patch resource "pods" in API group "" in the namespace "{namespace}"'))
        await clock.advance(CONFIRMED_AFTER)
    pods = Check(verb="patch", group="", resource="pods", subresource="", namespace="a")
    assert seen == [[pods], [evolve(pods, namespace="")]]
    assert len(api.asked) == 1


async def test_rights_of_a_client_that_was_replaced_are_reviewed_by_the_next_one() -> None:
    first, second, clock = Reviewer(), Reviewer(), ManualClock()
    seen: list[Sequence[Check]] = []
    refusals = Refusals(clock, lambda refused: seen.append(list(refused)))
    task = asyncio.create_task(refusals.run())
    with refusals.noting(first.client()):
        first.listener(REFUSED)
    await clock.advance(FORGOTTEN)
    assert not (seen or first.asked), "no client can review it"
    with refusals.noting(second.client()):
        second.listener(REFUSED)
        await clock.advance(CONFIRMED_AFTER)
        assert seen == [[PATCH]] and not first.asked
        second.grants = True
        await clock.advance(CHECKED_EVERY + CONFIRMED_AFTER)
        assert seen == [[PATCH], []]
    task.cancel()


@pytest.mark.parametrize("again", [False, True])
async def test_a_refusal_that_a_review_does_not_confirm_is_not_reported(scene: Scene, again: bool) -> None:
    api, clock, seen = scene.api, scene.clock, scene.seen
    api.grants = True
    await clock.advance(1.0)
    api.listener(REFUSED)
    if again:
        api.reviewed = lambda: api.listener(REFUSED)
    await clock.advance(CONFIRMED_AFTER)
    api.reviewed = lambda: None
    await clock.advance(FORGOTTEN)
    assert not seen and len(api.asked) == 1 + again


async def test_a_review_that_is_refused_grants_nothing(scene: Scene) -> None:
    api, clock, seen = scene.api, scene.clock, scene.seen
    await clock.advance(1.0)
    api.refuses_reviews = True
    api.listener(REFUSED)
    await clock.advance(CONFIRMED_AFTER)
    assert seen == [[PATCH]]
