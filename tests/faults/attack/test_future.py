"""Fields of a later Kubernetes or Kubeocean survive: our writes to an object leave them, and a pod takes them to the worker.

Invariant: the API servers of the simulation know these fields, as later versions of them would; the product does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, ClassVar

import pytest
from attrs import frozen

from kubeocean.model import crds, keys
from tests.faults.model.shapes import Field, struct
from tests.faults.simulation import kubeocean_world
from tests.faults.simulation.actors import NAMESPACE, pod_body
from tests.faults.simulation.branches import Branch
from tests.faults.simulation.history import Entry, History
from tests.faults.simulation.kubeocean_world import BINDING, POLICIES_PATH, KubeoceanWorld
from tests.faults.simulation.schedule import Schedule
from vkubelet.api.objects import Resource

Body = dict[str, Any]
FUTURE = "fieldOfTheFuture"
VALUE: Body = {"of": ["any", {"kind": 1}]}
BUILT_IN = ("core.PodSpec", "core.PodStatus", "core.NodeSpec", "core.NodeStatus")
VNODE, POD = f"vnode-{BINDING}-one", "web"
_BINDING_PATH = f"/apis/{crds.GROUP}/{crds.VERSION}/clusterbindings/{BINDING}"
_CLOSED = {"timeWindows": [{"start": "20:00", "end": "20:01"}], "allowOutOfWindowPods": True}


@pytest.fixture(autouse=True)
def later_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """API servers whose types have the field, in spec and status."""
    for name in BUILT_IN:
        monkeypatch.setitem(struct(name).fields, FUTURE, Field("any", "omitempty", "", ""))

    known = kubeocean_world.definition

    def later(resource: Resource[Any]) -> Body:
        found = deepcopy(known(resource))
        for version in found["spec"]["versions"]:
            for part in ("spec", "status"):
                schema = version["schema"]["openAPIV3Schema"]["properties"][part]
                schema["properties"][FUTURE] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        return found

    monkeypatch.setattr(kubeocean_world, "definition", later)
    yield


class FutureWorld(KubeoceanWorld):
    """Another client sets the field everywhere; then the process has reasons to write to each of these objects."""

    name = "future"
    scenarios: ClassVar = {"fields": "fields"}

    async def fields(self) -> None:
        """Sets the field in spec and status of the binding, the policy, the node and the pod."""
        await self.pause(8.0)
        body = pod_body(POD)
        self.hub.model.call(
            "POST",
            f"/api/v1/namespaces/{NAMESPACE}/pods",
            {**body, "spec": {**body["spec"], FUTURE: VALUE, "nodeName": VNODE, "tolerations": [{"operator": "Exists"}]}},
            user="person",
        )
        for model, path in (
            (self.hub.model, _BINDING_PATH),
            (self.worker.model, f"{POLICIES_PATH}/all"),
            (self.hub.model, f"/api/v1/nodes/{VNODE}"),
        ):
            model.apply(path, {"spec": {FUTURE: VALUE}}, user="later")
            model.apply(f"{path}/status", {"status": {FUTURE: VALUE}}, user="later")
        self.hub.model.apply(f"/api/v1/namespaces/{NAMESPACE}/pods/{POD}/status", {"status": {FUTURE: VALUE}}, user="later")
        await self.pause(20.0)
        for model, path in ((self.hub.model, _BINDING_PATH), (self.worker.model, f"{POLICIES_PATH}/all")):
            model.apply(path, {"metadata": {"finalizers": []}}, user="later")
        self.bind(secretRef={"name": "missing", "namespace": keys.NAMESPACE})
        self.worker.merge("/api/v1/nodes/one", {"metadata": {"labels": {"example.com/zone": "b"}}}, user="owner")
        status = {"capacity": {"cpu": "3"}, "allocatable": {"cpu": "3"}}
        self.worker.merge("/api/v1/nodes/one/status", {"status": status}, user="kubelet")
        self.policy("all", _CLOSED)
        await self.pause(30.0)
        self.bind()
        self.policy("all", {"timeWindows": []})
        self.hub.label_pod(POD, "step", "two")
        await self.pause(60.0)
        self.hub.delete_pod(POD, grace=20)
        await self.pause(1.0)


@frozen
class Place:
    """An object, and which of its fields the process has to write after another client has set that of the future."""

    cluster: str
    object: str
    fields: tuple[str, ...]


PLACES = {
    "ClusterBinding": Place("hub", f"clusterbindings//{BINDING}", ("/status/conditions/", "/metadata/finalizers")),
    "ResourceLeasingPolicy": Place("worker", "resourceleasingpolicies//all", ("/status/conditions/", "/metadata/finalizers")),
    "Node": Place("hub", f"nodes//{VNODE}", ("/status/capacity/", "/spec/taints/", "/metadata/labels/")),
    "Pod": Place("hub", f"pods/{NAMESPACE}/{POD}", ("/status/containerStatuses/", "/metadata/annotations/")),
}


@pytest.fixture
def history() -> History:
    return FutureWorld(Branch([Schedule("future", "fields", 1)])).run()


def written(history: History, place: Place) -> list[Entry]:
    """Returns the writes of the process to an object in whose spec and status the field was set."""
    entries = [each for each in history.entries if (each.cluster, each.object) == (place.cluster, place.object)]
    return [each for each in entries if each.user in history.ours and each.new and each.old and _is_kept(each.old)]


def _is_kept(body: Body) -> bool:
    return bool(body["spec"].get(FUTURE) == (body.get("status") or {}).get(FUTURE) == VALUE)


def test_our_writes_leave_fields_that_we_do_not_know(history: History) -> None:
    assert not history.problems
    for kind, place in PLACES.items():
        ours = written(history, place)
        changed = [path for entry in ours for path in entry.changed]
        for field in place.fields:
            assert any(path.startswith(field) for path in changed), f"{kind}: {field} is not written; {sorted(set(changed))}"
        lost = [entry.line() for entry in ours if entry.new is not None and not _is_kept(entry.new)]
        assert not lost


def test_a_pod_takes_a_field_that_we_do_not_know_to_the_worker(history: History) -> None:
    found = [each.new for each in history.entries if (each.cluster, each.resource, each.verb) == ("worker", "pods", "create")]
    assert [body["spec"].get(FUTURE) for body in found if body is not None] == [VALUE]
