"""A worker that answers lists, watches and gets with something else: nothing passes, nothing stops, and the error states what was wrong.

Invariant: each attack is answered to many requests, from the start of a connection and during one; then the worker is honest again.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.faults.attack import scene as scenes
from tests.faults.attack.answers import CONTENT, STRANGER, WRITES, WRONG
from tests.faults.attack.scene import VNODE, Scene, scene
from tests.faults.attack.worker import Asked
from tests.support.program import eventually
from vkubelet.errors import ApiError

TIMES = 12
"""Requests that are answered like this, or as many as a process makes that waits longer after each."""


def published(served: Scene) -> str:
    """Everything that reached the hub, and what it is to contain, as text."""
    hub, host = list(served.hub.objects.values()), served.host
    return repr((hub, served.hub.writes, host.nodes, host.statuses, host.annotations, host.failed, host.reports, host.events.events))


def nothing_passed(served: Scene) -> None:
    assert CONTENT not in published(served)
    assert set(served.host.nodes) <= {VNODE} and not served.host.removed
    assert not served.host.gone and not served.host.failed
    assert {ref.uid for ref, _ in served.host.statuses} <= {"uid-web", "uid-after"}


@pytest.mark.parametrize("name", WRONG)
async def test_an_answer_of_another_kind_changes_nothing_and_is_reported(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = WRONG[name]
    async with scene() as served:
        worker = served.worker
        if wrong.asked != "get":
            await served.connected()
            await served.start("web")
        objects = dict(worker.cluster.objects)
        begun = len(worker.asked)
        worker.misbehave = wrong.misbehave()
        worker.cut()

        def reported() -> bool:
            text = caplog.text + str(served.hub.objects[scenes.BINDING_PATH].get("status"))
            return served.alive() and f"{worker.url}" in text and wrong.reported in text

        await eventually(lambda: served.alive() and sum(each.kind == wrong.asked for each in worker.asked[begun:]) >= TIMES, "attacked")
        await eventually(reported, "the error names the server, and what was wrong")
        nothing_passed(served)
        assert dict(worker.cluster.objects).keys() == objects.keys()
        worker.misbehave = None
        worker.cut()
        await served.connected()
        await served.start("after")
        nothing_passed(served)
        assert STRANGER not in published(served) or wrong.asked == "get"


def is_creation(asked: Asked) -> bool:
    return asked.method == "POST" and asked.path.endswith("/pods")


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_that_is_answered_with_something_else_is_repeated(name: str) -> None:
    wrong = WRITES[name]
    async with scene() as served:
        await served.connected()
        begun = len(served.worker.asked)
        served.worker.misbehave = wrong.misbehave()
        starting = asyncio.create_task(served.start("web"))
        await eventually(lambda: served.alive() and sum(map(is_creation, served.worker.asked[begun:])) >= 3, "attacked")
        pod = next(pod for pod in served.host.pods)
        with pytest.raises(ApiError) as error:
            await served.provider.sync_pod(pod)
        assert served.worker.url in str(error.value) and wrong.reported in str(error.value)
        nothing_passed(served)
        served.worker.misbehave = None
        await starting
        nothing_passed(served)
        assert STRANGER not in published(served)
