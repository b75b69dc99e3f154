"""Tests of fleet.clusters.kept: what needs a write."""

from typing import Any

import pytest

from fleet.clusters.kept import KeptObjects, contains, is_kept
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import hub_of, unknown
from vkubelet.api.objects import CLUSTERROLES, NAMESPACES
from vkubelet.client.transport import Call
from vkubelet.errors import AlreadyExists, Conflict

ROLE: dict[str, Any] = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "a", "labels": {"ours": "1"}, "finalizers": ["f"], "ownerReferences": [{"uid": "u"}]},
    "rules": [{"verbs": ["get"]}],
}


def live(**changes: Any) -> dict[str, Any]:
    """The object as a list returns it: without kind, with what others have added."""
    metadata = {
        "name": "a",
        "uid": "1",
        "labels": {"ours": "1", "theirs": "2"},
        "finalizers": ["f", "g"],
        "ownerReferences": [{"uid": "u", "kind": "X"}],
    }
    return {"metadata": {**metadata, **changes.pop("metadata", {})}, "rules": [{"verbs": ["get"]}], **changes}


def test_an_object_with_further_fields_of_others_is_kept() -> None:
    assert is_kept(live(), ROLE)


@pytest.mark.parametrize(
    "changes",
    [
        {"rules": []},
        {"rules": [{"verbs": ["get"]}, {"verbs": ["*"]}]},
        {"metadata": {"labels": {}}},
        {"metadata": {"finalizers": ["g"]}},
        {"metadata": {"ownerReferences": []}},
    ],
)
def test_f_155_what_lacks_or_changes_something_is_not_kept(changes: dict[str, Any]) -> None:
    assert not is_kept(live(**changes), ROLE)


def test_f_117_what_a_lease_contains_belongs_to_its_agent() -> None:
    lease = {"kind": "Lease", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {"leaseDurationSeconds": 60}}
    assert is_kept({"metadata": {"name": "a"}, "spec": {"leaseDurationSeconds": 1}}, lease)


def test_lists_are_compared_as_a_whole() -> None:
    assert contains({"a": [1], "b": 2}, {"a": [1]}) and not contains({"a": [1, 2]}, {"a": [1]}) and not contains(None, {"a": 1})


class ConflictingApi(MergingApi):
    """Has another object of the name."""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        raise Conflict(call.attempt, "the UID in the precondition is not that of the object")


async def test_f_157_a_deletion_that_meets_another_object_is_not_taken_as_done() -> None:
    kept = KeptObjects(hub_of(ConflictingApi().client()).client, ())
    with pytest.raises(Conflict):
        await kept.delete(CLUSTERROLES, unknown({"metadata": {"name": "a", "uid": "1"}}))


ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


async def test_f_155_an_object_is_created_and_one_that_exists_unlabelled_is_corrected() -> None:
    api = MergingApi()
    hub = hub_of(api.client())
    kept = KeptObjects(hub.client, [hub.informer(CLUSTERROLES)])
    role = {**ROLE, "metadata": {"name": "a", "labels": {"ours": "1"}}}
    assert await kept.keep([role]) == [role] and await kept.keep([role]) == []
    assert [(each.method, each.path) for each in api.writes] == [("POST", ROLES)]
    api.put(f"{ROLES}/b", {"metadata": {"name": "b", "uid": "2"}, "rules": []})
    named = {**role, "metadata": {**role["metadata"], "name": "b"}}
    assert await kept.keep([named]) == [named]
    assert [(each.method, each.path) for each in api.writes[1:]] == [("POST", ROLES), ("PATCH", f"{ROLES}/b")]


async def test_f_51_a_namespace_that_another_client_creates_meanwhile_is_not_adopted() -> None:
    api = MergingApi()
    hub = hub_of(api.client())
    api.put("/api/v1/namespaces/w1", {"metadata": {"name": "w1", "uid": "1"}})
    kept = KeptObjects(hub.client, [hub.informer(NAMESPACES)])
    with pytest.raises(AlreadyExists):
        await kept.keep([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "w1"}}])
    assert [each.method for each in api.writes] == ["POST"]
