"""Tests of fleet.ocm.removal: order, texts and conditions."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleet.clusters.kept import KeptObjects
from fleet.clusters.registry import Registry
from fleet.ocm.removal import Removal, next_to_delete, priority, remaining_text
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import SINCE, hub_of, managed, unknown
from vkubelet.api.objects import CLUSTERROLEBINDINGS, CLUSTERROLES, NAMESPACES, ROLEBINDINGS, Unknown
from vkubelet.client.transport import Call
from vkubelet.errors import Forbidden

PRIORITY = "open-cluster-management.io/cleanup-priority"


def work(name: str, level: str = "", **metadata: Any) -> Unknown:
    annotations = {PRIORITY: level} if level else {}
    return unknown({"metadata": {"name": name, "namespace": "w1", "annotations": annotations, "creationTimestamp": SINCE, **metadata}})


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("50", 50), ("1000", 100), ("-1", 0), ("many", 0), ("²", 0)])
def test_f_156_a_priority_is_from_0_to_100(text: str, expected: int) -> None:
    assert priority(work("a", text)) == expected


def test_f_156_the_lowest_priority_is_deleted_first_and_waited_for() -> None:
    works = [work("a", "20"), work("b", "10"), work("c", "10"), work("d", "30")]
    assert [each.metadata.name for each in next_to_delete(works)] == ["b", "c"]
    leaving = [work("a", "20"), work("b", "10", deletionTimestamp=SINCE, finalizers=["f"])]
    assert next_to_delete(leaving) == [] and next_to_delete([]) == []


def test_f_156_the_report_counts_what_is_left_and_names_the_oldest() -> None:
    works = [work(f"w{at}", creationTimestamp=f"2026-01-0{9 - at}T00:00:00Z") for at in range(5)]
    expected = "1 ManagedClusterAddOns and 5 ManifestWorks are left, the oldest: addon, w4, w3"
    assert remaining_text([work("addon")], works) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("60", timedelta(seconds=60)), ("0", timedelta()), ("", None), ("-5", None), ("soon", None)]
)
def test_f_156_force_is_an_annotation_with_seconds(text: str, expected: timedelta | None) -> None:
    assert managed(annotations={"fleet.vkubelet.io/force-cleanup-after": text}).forced_after == expected


RECORD = "/apis/cluster.open-cluster-management.io/v1/managedclusters/w1"
WORK = "/apis/work.open-cluster-management.io/v1/namespaces/w1/manifestworks/web"


FINALIZERS = ["cluster.open-cluster-management.io/resource-cleanup"]
HELD = {"deletionTimestamp": SINCE, "finalizers": ["test.example/held"]}


def removal_of(api: MergingApi) -> Removal:
    """The removal of clusters of this hub, in which w1 has a namespace."""
    hub = hub_of(api.client())
    registry = Registry(hub, with_members=False)
    informers = [hub.informer(each) for each in (NAMESPACES, CLUSTERROLES, CLUSTERROLEBINDINGS, ROLEBINDINGS)]
    informers[0].adopt(
        unknown(
            {"metadata": {"name": "w1", "uid": "n", "resourceVersion": "1", "labels": {"open-cluster-management.io/cluster-name": "w1"}}}
        )
    )
    return Removal(hub, registry, KeptObjects(hub.client, [*informers, registry.leases]), namespace="fleet-system")


class WorksApi(MergingApi):
    """Refuses lists of works while that is set; its clock is not that of the process."""

    refuses = False
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def server_now(self) -> datetime:
        return self.now

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if self.refuses and call.method == "GET":
            raise Forbidden("list manifestworks", "not allowed")
        return await super().fetch(call, timeout)


async def test_f_156_the_time_of_a_forced_removal_is_on_the_clock_of_the_hub() -> None:
    api, force = WorksApi(), {"fleet.vkubelet.io/force-cleanup-after": "60"}
    removal = removal_of(api)
    api.put(RECORD, {"metadata": {"name": "w1", "uid": "u1", "deletionTimestamp": SINCE, "finalizers": FINALIZERS}, "spec": {}})
    api.put(WORK, {"metadata": {"name": "web", "namespace": "w1", "uid": "u3", "creationTimestamp": SINCE, **HELD}})
    for seconds, held in ((59, True), (60, False)):
        api.now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        await removal.reconcile(unknown(api.objects[RECORD]), managed("w1", deletionTimestamp=SINCE, annotations=force))
        assert bool(api.objects[WORK]["metadata"]["finalizers"]) is held


async def test_f_147_each_step_of_a_removal_is_a_reason_of_the_condition() -> None:
    api = WorksApi()
    removal = removal_of(api)
    api.put(RECORD, {"metadata": {"name": "w1", "uid": "u1", "deletionTimestamp": SINCE, "finalizers": FINALIZERS}, "spec": {}})
    api.put(WORK, {"metadata": {"name": "web", "namespace": "w1", "uid": "u3", "creationTimestamp": SINCE}})

    async def reason() -> tuple[str, str]:
        try:
            await removal.reconcile(unknown(api.objects[RECORD]), managed("w1", deletionTimestamp=SINCE))
        except Forbidden:
            assert api.refuses
        (found,) = api.objects[RECORD]["status"]["conditions"]
        assert found["type"] == "Deleting" and found["message"]
        return found["status"], found["reason"]

    assert await reason() == ("True", "ResourceRemaining") and WORK not in api.objects
    api.refuses = True
    assert await reason() == ("True", "DeletingError")
    api.refuses = False
    assert await reason() == ("True", "NoResource") and api.objects[RECORD]["metadata"]["finalizers"] == []
