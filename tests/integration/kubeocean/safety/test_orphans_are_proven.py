"""Rule `orphans-are-proven`: a physical pod without a virtual pod is deleted after proof, and no pod of another owner is."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from tests.integration.kubeocean.conftest import STARTS_WITHIN, Scene, lasting_scene
from tests.support.audit import Audit, Call
from tests.support.core import Body
from tests.support.program import eventually
from tests.support.stage import Stage, away, uid_of
from tests.support.witness import watching
from vkubelet.testing.cluster import ControlPlane

INTERVAL = 2.0


@pytest.fixture(scope="module")
def swept(hub: ControlPlane, worker: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A scene in which a minute between two sweeps is two seconds."""
    settings = {"pods": {"list_interval": INTERVAL}}
    with lasting_scene(hub, worker, tmp_path_factory.mktemp("swept"), settings=settings) as made:
        yield made


@pytest.fixture
async def here(swept: Scene) -> Stage:
    return await Stage.of(swept.bound, swept.nodes)


async def _orphan(here: Stage, name: str) -> Body:
    labels, annotations = await here.marks()
    return await here.there.create("pods", here.twin(name, str(uuid.uuid4()), labels=labels, annotations=annotations))


def _deletions(audit: Audit) -> list[Call]:
    return [call for call in audit.writes() if call.verb == "delete" and call.what == "pods"]


async def test_marked_pod_without_virtual_pod_is_ended_after_two_sweeps_and_no_other_is(here: Stage) -> None:
    await here.create("living")
    living = uid_of(await here.running("living") and await here.until_physical("living", bool, "there"))
    labels, annotations = await here.marks()
    stranger = labels | {"kubeocean.io/owner": "somebody-else"}, annotations | {"kubeocean.io/hub-uid": str(uuid.uuid4())}
    go = {"kubeocean.io/managed-by": "kubeocean"}
    kept = [living]
    for name, (their_labels, their_annotations) in {"stranger": stranger, "of-go": (go, {}), "local": ({}, {})}.items():
        body = here.twin(name, str(uuid.uuid4()), labels=their_labels, annotations=their_annotations)
        kept.append(uid_of(await here.there.create("pods", body)))
    audit = Audit(here.bound.worker, here.bound.user)
    with watching(here.bound.worker.kubeconfig, namespace=here.bound.mount) as seen:
        first = await _orphan(here, "first")
        await here.no_physical("first")
        # One that comes later ends after two more sweeps: all others have been judged by them, too.
        await _orphan(here, "second")
        await here.no_physical("second")
    assert not seen.where(lambda event: event.uid in kept and (event.deleting or event.kind == "DELETED"))
    assert {uid_of(item) for item in await here.there.list("pods", here.bound.mount)} == set(kept)
    await eventually(lambda: len({call.name for call in _deletions(audit)}) == 2, "the audit log has it")
    assert {call.name for call in _deletions(audit)} == {here.physical_name("first"), here.physical_name("second")}
    ended = next(call for call in _deletions(audit) if call.name == here.physical_name("first"))
    assert ended.body["preconditions"]["uid"] == uid_of(first)
    # Its birth is told in whole seconds, rounded down.
    assert ended.at - datetime.fromisoformat(first["metadata"]["creationTimestamp"]) >= timedelta(seconds=INTERVAL)
    for name in ("stranger", "of-go", "local"):
        await here.there.delete("pods", here.physical_name(name), here.bound.mount, grace=0)


async def test_pod_removed_by_force_while_we_were_away_ends_in_the_worker(swept: Scene, here: Stage) -> None:
    await here.create("forgotten")
    await here.create("kept")
    await here.running("forgotten")
    kept = uid_of(await here.running("kept") and await here.until_physical("kept", bool, "there"))
    with away(swept.program):
        await here.home.delete("pods", "forgotten", here.namespace, grace=0)
        await here.absent("forgotten")
    await here.no_physical("forgotten")
    assert uid_of(await here.until_physical("kept", bool, "there")) == kept


async def test_too_many_at_once_are_an_alarm_and_none_is_ended(swept: Scene, here: Stage) -> None:
    audit = Audit(here.bound.worker, here.bound.user)
    # Nobody looks while they are made, or the first of them would be judged without the last.
    with away(swept.program):
        made = [uid_of(each) for each in await asyncio.gather(*(_orphan(here, f"many-{number}") for number in range(6)))]
    alarm = await here.event(here.vnode, "TooManyOrphans", namespace="default", seconds=STARTS_WITHIN)
    assert alarm["type"] == "Warning"

    async def told_again() -> bool:
        again = await here.event(here.vnode, "TooManyOrphans", namespace="default")
        return int(again["count"]) > int(alarm["count"])

    await eventually(told_again, "the next sweep refuses, too")
    there = {uid_of(item): item for item in await here.there.list("pods", here.bound.mount)}
    assert all(uid in there and "deletionTimestamp" not in there[uid]["metadata"] for uid in made)
    names = {here.physical_name(f"many-{number}") for number in range(6)}
    assert not [call for call in audit.writes() if call.verb == "delete" and call.what == "pods" and call.name in names]
    await here.there.delete("pods", here.physical_name("many-0"), here.bound.mount, grace=0)
    for number in range(1, 6):
        await here.no_physical(f"many-{number}")
