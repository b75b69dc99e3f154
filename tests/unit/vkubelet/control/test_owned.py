"""Tests of vkubelet.control.owned; real API servers meet it in tests/integration/manager."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.memory_api import Body, MemoryApi
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import CONFIGMAPS, SERVICES, ObjectMeta, Unknown
from vkubelet.client.rest import Selection
from vkubelet.control.owned import DesiredObject, ForeignObject, OwnedObjects, OwnerKind
from vkubelet.metrics import Metrics
from vkubelet.testing.clock import ManualClock

KIND = OwnerKind(name="Widget", applied="example.com/applied", remedy="choose another name")
PATH = "/api/v1/namespaces/space"


def body(name: str, *, owner: str = "", applied: bool = True) -> Body:
    """A ConfigMap or Service of an owner with this UID, whose name is its UID in capitals."""
    references = [{"apiVersion": "v1", "kind": KIND.name, "name": owner.upper(), "uid": owner}] if owner else []
    notes = {KIND.applied: "digest"} if applied else {}
    return {"metadata": {"name": name, "namespace": "space", "uid": f"uid-{name}", "ownerReferences": references, "annotations": notes}}


def desired(name: str, *, owner: str) -> DesiredObject:
    return DesiredObject(CONFIGMAPS, body(name, owner=owner), "digest")


@asynccontextmanager
async def followed(api: MemoryApi) -> AsyncIterator[OwnedObjects]:
    clock = ManualClock()
    where = Selection(namespace="space")
    made = OwnedObjects(api.client(), KIND, followed={CONFIGMAPS: where, SERVICES: where}, clock=clock, metrics=Metrics())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(made.run())
        await made.wait_synced()
        yield made
        task.cancel()


def deleted(api: MemoryApi) -> list[tuple[str, str]]:
    """Names of the deleted objects, with the UID that each deletion requires."""
    return [(write.path.rpartition("/")[2], write.body["preconditions"]["uid"]) for write in api.writes if write.method == "DELETE"]


async def test_what_was_applied_and_is_not_desired_any_more_is_deleted_by_its_uid() -> None:
    api = MemoryApi()
    for name, made in (("kept", body("kept", owner="a")), ("old", body("old", owner="a")), ("theirs", body("theirs", owner="b"))):
        api.put(f"{PATH}/configmaps/{name}", made)
    api.put(f"{PATH}/services/by-a-person", body("by-a-person", owner="a", applied=False))
    async with followed(api) as owned:
        await owned.prune("a", [desired("kept", owner="a")])
    assert deleted(api) == [("old", "uid-old")]


async def test_everything_of_an_owner_is_deleted_with_it_and_nothing_of_others() -> None:
    api = MemoryApi()
    api.put(f"{PATH}/services/one", body("one", owner="a"))
    api.put(f"{PATH}/configmaps/two", body("two", owner="a", applied=False))
    api.put(f"{PATH}/configmaps/theirs", body("theirs", owner="b"))
    api.put(f"{PATH}/configmaps/nobodys", body("nobodys"))
    async with followed(api) as owned:
        await owned.remove("a")
    assert deleted(api) == [("two", "uid-two"), ("one", "uid-one")]


async def test_an_object_of_another_owner_is_not_written() -> None:
    api = MemoryApi()
    api.put(f"{PATH}/configmaps/taken", body("taken", owner="b"))
    async with followed(api) as owned:
        with pytest.raises(ForeignObject, match="ConfigMap space/taken belongs to another owner; choose another name"):
            await owned.apply([desired("taken", owner="a")])
    assert api.writes == []


async def test_a_desired_state_is_written_once_and_again_after_another_client_changed_it() -> None:
    api = MemoryApi()
    api.put(f"{PATH}/configmaps/ours", body("ours", owner="a"))
    async with followed(api) as owned:
        assert await owned.apply([desired("ours", owner="a")])
        assert not await owned.apply([desired("ours", owner="a")])
        assert len(api.writes) == 1
        changed = asyncio.Event()
        owned.on_change(lambda _: changed.set())
        api.put(f"{PATH}/configmaps/ours", body("ours", owner="a"))
        await changed.wait()
        assert await owned.apply([desired("ours", owner="a")])
        assert len(api.writes) == 2


async def test_the_owner_is_notified_of_each_change_of_its_objects() -> None:
    api, names, changed = MemoryApi(), list[str](), asyncio.Event()
    async with followed(api) as owned:
        owned.on_change(lambda name: (names.append(name), changed.set()))
        api.put(f"{PATH}/configmaps/nobodys", body("nobodys"))
        api.put(f"{PATH}/configmaps/one", body("one", owner="a"))
        await changed.wait()
    assert names == ["A"]


@pytest.mark.parametrize(
    ("references", "uid", "names"),
    [
        ([], "", []),
        ([("Widget", False)], "u0", ["n0"]),
        ([("Other", False), ("Widget", False)], "u1", ["n1"]),
        ([("Other", True), ("Widget", False)], "u0", ["n1"]),
    ],
)
def test_the_controller_or_an_owner_of_the_kind_owns_an_object(references: list[tuple[str, bool]], uid: str, names: list[str]) -> None:
    listed = [
        {"apiVersion": "v1", "kind": kind, "name": f"n{at}", "uid": f"u{at}", "controller": controls}
        for at, (kind, controls) in enumerate(references)
    ]
    found = decode_object(Unknown, encode_json({"metadata": {"name": "x", "ownerReferences": listed}}))
    assert (KIND.uid_of(found.metadata), list(KIND.names_of(found))) == (uid, names)
    assert KIND.uid_of(ObjectMeta()) == "" and not KIND.names_of(None)
