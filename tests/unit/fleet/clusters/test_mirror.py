"""Tests of fleet.clusters.mirror: what a mirror contains, and when it is deleted."""

from typing import Any

import pytest

from fleet.clusters.mirror import Mirror, differs, further_labels, mirrored_cluster, mirrored_member
from fleet.clusters.registry import Registry
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import condition, hub_of, managed, member, unknown
from vkubelet.client.transport import Call
from vkubelet.errors import ApiError, Forbidden, ServerError

ORIGIN = "fleet.vkubelet.io/origin"
UNREACHABLE = "cluster.open-cluster-management.io/unreachable"
TAINTS = [
    {"key": "a", "value": "1", "effect": "NoSelect"},
    {"key": "b", "effect": "NoSelectIfNew"},
    {"key": "c", "effect": "PreferNoSelect"},
]


def test_f_27_a_mirrored_member_has_the_labels_and_taints_of_the_cluster() -> None:
    made = mirrored_member(managed("w1", spec={"hubAcceptsClient": True, "taints": TAINTS}, labels={"env": "prod"}))
    held = ["kubernetes-fleet.io/membercluster-finalizer"]
    assert made["metadata"] == {"name": "w1", "annotations": {ORIGIN: "ManagedCluster"}, "labels": {"env": "prod"}, "finalizers": held}
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:open-cluster-management:w1"}
    taints = [{"key": "a", "value": "1", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]
    assert made["spec"] == {"identity": group, "taints": taints, "deleteOptions": {"validationMode": "Skip"}}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], ["a"]),
        ([condition("ManagedClusterConditionAvailable", "True")], ["a"]),
        ([condition("ManagedClusterConditionAvailable", "Unknown")], [UNREACHABLE, "a"]),
    ],
)
def test_f_27_a_cluster_that_joins_is_not_unreachable_in_its_mirror(conditions: Any, expected: list[str]) -> None:
    """The taint of a cluster that has reported nothing is removed soon; by F-347 a member that has not joined is not chosen."""
    taints = [{"key": UNREACHABLE, "effect": "NoSelect"}, TAINTS[0]]
    cluster = managed("w1", spec={"hubAcceptsClient": True, "taints": taints}, status={"conditions": conditions})
    assert [each["key"] for each in mirrored_member(cluster)["spec"]["taints"]] == expected


def test_f_27_a_mirrored_cluster_is_accepted_and_keeps_the_taints_of_its_health() -> None:
    spec = {"identity": {"kind": "User", "name": "a"}, "taints": [{"key": "a", "effect": "NoSchedule"}]}
    health = {"key": "cluster.open-cluster-management.io/unreachable", "effect": "NoSelect"}
    live = {"metadata": {"name": "w1"}, "spec": {"taints": [health, {"key": "old", "effect": "NoSelectIfNew"}]}}
    made = mirrored_cluster(member("w1", spec=spec), live)
    assert made["spec"] == {"hubAcceptsClient": True, "taints": [health, {"key": "a", "effect": "NoSelectIfNew"}]}
    assert made["metadata"]["annotations"] == {ORIGIN: "MemberCluster"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"metadata": {"labels": {"env": "prod", "other": "1"}}}, False),
        ({"metadata": {"labels": {}}}, True),
        ({"metadata": {"finalizers": ["theirs", "kubernetes-fleet.io/membercluster-finalizer"]}}, False),
        ({"metadata": {"finalizers": ["theirs"]}}, True),
        ({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}, True),
        ({"spec": {"identity": {"kind": "User", "name": "me"}}}, True),
    ],
)
def test_f_27_a_mirror_is_written_when_it_lacks_something_of_its_origin(changes: dict[str, Any], expected: bool) -> None:
    desired = mirrored_member(managed("w1", labels={"env": "prod"}))
    live: dict[str, Any] = {
        "metadata": {**desired["metadata"], "uid": "1", **changes.get("metadata", {})},
        "spec": {"heartbeatPeriodSeconds": 60, **desired["spec"], **changes.get("spec", {})},
    }
    assert differs(live, desired) is expected


def test_f_27_labels_of_the_hub_itself_are_no_reason_to_write_a_mirror_again() -> None:
    desired = mirrored_cluster(member("w1", labels={"env": "prod"}), None)
    own = {"cluster.open-cluster-management.io/clusterset": "default", "feature.open-cluster-management.io/addon-a": "available"}
    assert further_labels({"env": "prod", **own}, desired) == set()
    assert further_labels({"env": "prod", "tier": "1", **own}, desired) == {"tier"}


class FailingApi(MergingApi):
    """Answers reads of one object with an error."""

    error: ApiError | None = None

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if self.error is not None and call.method == "GET":
            raise self.error
        return await super().fetch(call, timeout)


@pytest.mark.parametrize("error", [None, Forbidden("get", "no"), ServerError("get", "broken")], ids=lambda each: type(each).__name__)
async def test_f_56_a_mirror_is_deleted_only_when_a_live_read_finds_no_origin(error: ApiError | None) -> None:
    api, path = FailingApi(), "/apis/cluster.kubernetes-fleet.io/v1beta1/memberclusters/w1"
    api.error = error
    hub = hub_of(api.client())
    registry = Registry(hub, with_members=True)
    assert registry.members is not None
    mirror = Mirror(hub, registry, registry.members)
    body = mirrored_member(managed("w1"))
    body["metadata"] |= {"uid": "u2", "resourceVersion": "1"}
    api.put(path, body)
    registry.members.informer.adopt(unknown(body))
    if error is None:
        await mirror.reconcile("w1")
        assert path not in api.objects and [each.body["preconditions"] for each in api.writes] == [{"uid": "u2"}]
        return
    with pytest.raises(type(error)):
        await mirror.reconcile("w1")
    assert path in api.objects and api.writes == []
