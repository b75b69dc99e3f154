"""Tests of fleet.kubefleet.exports."""

from fleet.clusters.registry import Registry
from fleet.kubefleet.exports import Exports
from tests.support.memory_api import MergingApi
from tests.unit.fleet.builders import hub_of, unknown

PATH = "/apis/cluster.kubernetes-fleet.io/v1beta1/memberclusters/m1"
MARK = "fleet.vkubelet.io/exports-services"


async def test_f_129_a_member_is_marked_while_its_namespace_contains_exports() -> None:
    api = MergingApi()
    hub = hub_of(api.client())
    registry = Registry(hub, with_members=True)
    members = registry.members
    assert members is not None
    exports = Exports(hub, registry, members)
    api.put(PATH, {"metadata": {"name": "m1", "uid": "u1"}, "spec": {}})
    members.informer.adopt(unknown(api.objects[PATH]))
    await exports.reconcile("m1")
    assert api.writes == []
    export = unknown({"metadata": {"name": "web", "namespace": "fleet-member-m1", "uid": "e1", "resourceVersion": "9"}})
    exports.exports.adopt(export)
    await exports.reconcile("m1")
    assert api.objects[PATH]["metadata"]["annotations"] == {MARK: "true"}
    await exports.reconcile("m1")
    assert len(api.writes) == 1
    exports.exports.store.remove(export.key)
    await exports.reconcile("m1")
    assert not api.objects[PATH]["metadata"].get("annotations") and len(api.writes) == 2
