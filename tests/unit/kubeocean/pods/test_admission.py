"""Tests of kubeocean.pods.admission: the lease is enforced where pods enter."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.leasing.policy import NodeFacts, Terms, decide
from kubeocean.model import keys
from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.nodes.describe import describe
from kubeocean.pods.admission import LeaseAdmission
from kubeocean.pods.translate import physical_pod
from tests.unit.kubeocean.builders import TARGET, at, binding, limit, node, physical, pod, policy, worker_scope
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Json, Node, Pod
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.errors import NotAdmitted, Unavailable
from vkubelet.node.taints import taint_body
from vkubelet.provider import NodeDescription
from vkubelet.testing.clock import ManualClock
from vkubelet.testing.host import RecordingHost

VNODE = "vnode-demo-node-1"
MACHINE = node(status={"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"}})
NIGHT: Json = {"timeWindows": [{"start": "20:00", "end": "06:00"}], "resourceLimits": [limit("cpu", quantity="2")]}
MIDNIGHT, NOON = at("2026-01-05 00:00"), at("2026-01-05 12:00")
CLOSED_TOLERATED: Json = {"key": keys.TAINT_CLOSED, "operator": "Exists"}
EVERYTHING_TOLERATED: Json = {"operator": "Exists"}


class Lease:
    """Node node-1 of the worker, leased by one policy, as one process knows it; `host` has the pods of the hub."""

    def __init__(self, by: ResourceLeasingPolicy, instant: datetime) -> None:
        clock = ManualClock()
        self.host = RecordingHost(clock=clock, client=Client(Connection("https://192.0.2.1"), clock=clock))
        self.scope = worker_scope(self.host)
        self.scope.binding.current = binding()
        self.worker, self.virtual = self.scope.worker, self.scope.virtual
        self.change(by, instant)

    def change(self, by: ResourceLeasingPolicy, instant: datetime) -> None:
        """What the policy leases at an instant, known to this process and to the hub."""
        self.policy = by
        bound = binding()
        found = decide(NodeFacts.of(MACHINE), [by], terms=Terms.of(bound), used={}, instant=instant)
        self.declared = describe(MACHINE, found, binding=bound, prometheus_url="", port=None)
        self.virtual.declare(self.declared, physical_name="node-1", physical_uid="node-uid")
        self.scope.hub_nodes.store.put(registered(self.declared))
        self.restart()

    def restart(self) -> None:
        """A new process remembers nothing."""
        self.admission = LeaseAdmission(scope=self.scope, policy=lambda name: self.policy if name == self.policy.name else None)

    def refusal(self, virtual: Pod) -> str:
        """The reason why it does not enter, "" when it does."""
        self.host.pods.put(virtual)
        try:
            self.admission.admit(virtual)
        except NotAdmitted as refused:
            return refused.reason
        return ""

    def create(self, virtual: Pod) -> None:
        """Its physical pod."""
        self.host.pods.put(virtual)
        self.worker.pods.adopt(physical(physical_pod(virtual, TARGET), resourceVersion="1"))


def registered(description: NodeDescription) -> Node:
    taints = [taint_body(taint) for taint in description.taints]
    meta: Json = {"name": description.name, "labels": {"type": "virtual-kubelet", **description.labels}, "resourceVersion": "1"}
    return decode_object(Node, encode_json({"metadata": meta, "spec": {"taints": taints}, "status": {"allocatable": {"cpu": "999"}}}))


def asking(cpu: str, *, name: str = "web", created: str = "2026-01-01T00:00:00Z", spec: Json | None = None, **more: object) -> Pod:
    """A pod that was sent to the node past the hub's scheduler."""
    container: Json = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    return pod({"containers": [container], **(spec or {})}, name=name, uid=f"uid-{name}", creationTimestamp=created, **more)


@given(
    millis=st.integers(min_value=0, max_value=4000),
    quantity=st.integers(min_value=0, max_value=3),
    taken=st.integers(min_value=0, max_value=2),
    hour=st.integers(min_value=0, max_value=23),
    force=st.booleans(),
    allowed=st.booleans(),
    tolerations=st.lists(st.sampled_from([CLOSED_TOLERATED, EVERYTHING_TOLERATED, {"key": "other", "operator": "Exists"}]), max_size=2),
)
def test_pod_enters_exactly_if_it_fits_the_lease_of_the_instant(
    millis: int, quantity: int, taken: int, hour: int, force: bool, allowed: bool, tolerations: list[Json]
) -> None:
    limits = [limit("cpu", quantity=str(quantity))]
    by = policy("p", {**NIGHT, "resourceLimits": limits, "forceReclaim": force, "allowOutOfWindowPods": allowed})
    lease = Lease(by, NOON.replace(hour=hour))
    for number in range(taken):
        lease.create(asking("1", name=f"runs-{number}"))
    is_open = hour >= 20 or hour <= 6
    tolerates = any(each in tolerations for each in (CLOSED_TOLERATED, EVERYTHING_TOLERATED))
    fits = millis == 0 or millis + 1000 * taken <= 1000 * quantity
    reason = lease.refusal(asking(f"{millis}m", spec={"tolerations": tolerations}))
    assert reason == ("TaintToleration" if not (is_open or allowed and tolerates) else "" if fits else "OutOfcpu")


def test_pod_that_names_its_node_itself_is_held_to_the_leased_amount() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    assert lease.refusal(asking("30")) == "OutOfcpu"
    assert lease.refusal(asking("2", name="fits")) == ""


def test_what_is_in_the_making_counts_before_it_has_a_physical_pod() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    assert [lease.refusal(asking("1500m", name=name)) for name in ("first", "second")] == ["", "OutOfcpu"]


def test_older_pod_is_judged_before_a_younger_one_that_asks_first() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    older = asking("2", name="older")
    lease.host.pods.put(older)
    assert lease.refusal(asking("2", name="younger", created="2026-01-02T00:00:00Z")) == "OutOfcpu"
    assert lease.refusal(older) == ""


def test_pods_that_run_are_judged_by_no_process_whatever_shrinks() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    runs = [asking("1", name=name) for name in ("a", "b")]
    for each in runs:
        lease.create(each)
    lease.change(policy("night", {**NIGHT, "resourceLimits": [limit("cpu", quantity="1")]}), MIDNIGHT)
    assert [lease.refusal(each) for each in runs] == ["", ""]
    assert lease.refusal(asking("1m", name="c")) == "OutOfcpu"


def test_recorded_physical_pod_counts_while_the_worker_has_not_shown_it() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    recorded = {keys.PHYSICAL_POD_NAMESPACE: "mnt", keys.PHYSICAL_POD_NAME: keys.physical_name("default", "a")}
    lease.host.pods.put(asking("30", name="a", annotations=recorded))
    assert lease.refusal(asking("1", name="b")) == "OutOfcpu"


def test_ended_and_deleted_pods_leave_their_room() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    for name in ("done", "deleted"):
        assert lease.refusal(asking("1", name=name)) == ""
    lease.host.pods.put(asking("1", name="done", status={"phase": "Succeeded"}))
    lease.host.pods.remove(asking("1", name="deleted"))
    assert lease.refusal(asking("2", name="next")) == ""


def test_pods_that_stay_in_the_hub_take_no_room() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    owner = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}]
    lease.host.pods.put(asking("2", name="agent", ownerReferences=owner))
    lease.host.pods.put(asking("2", name="proxy", namespace="kube-system"))
    assert lease.refusal(asking("2")) == ""


def test_window_that_closes_before_the_physical_pod_is_created_refuses_the_pod() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    waits = asking("1")
    assert lease.refusal(waits) == ""
    admitted = lease.admission
    lease.change(policy("night", NIGHT), NOON)
    lease.admission = admitted
    assert lease.refusal(waits) == "TaintToleration"


@pytest.mark.parametrize("wanted", ["30", "2"])
def test_pod_that_could_not_be_made_before_it_was_judged_is_judged_later(wanted: str) -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    # A start time comes with each status, also with one that reports only why the pod waits.
    waits = asking(wanted, status={"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"})
    assert lease.refusal(waits) == ("OutOfcpu" if wanted == "30" else "")


HIDDEN: Json = {
    "placeholder": {"labels": {keys.HOSTPORT_FAKE_POD: "true"}},
    "daemonset": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d"}]},
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
def test_running_pod_that_is_disguised_as_one_of_the_hub_still_takes_its_room(hidden: Json) -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    lease.create(asking("2", name="runs"))
    lease.host.pods.put(asking("2", name="runs", **hidden))
    assert lease.refusal(asking("1")) == "OutOfcpu"


@pytest.mark.parametrize(("tolerated", "hint"), [(True, True), (False, False)])
def test_refusal_outside_the_windows_names_the_policy_and_the_switch(tolerated: bool, hint: bool) -> None:
    lease = Lease(policy("night", NIGHT), NOON)
    spec: Json = {"tolerations": [CLOSED_TOLERATED] if tolerated else []}
    with pytest.raises(NotAdmitted, match="no time window of policy night is open") as refused:
        lease.admission.admit(asking("1", spec=spec))
    assert ("spec.allowOutOfWindowPods" in refused.value.message) == hint


def test_node_that_opened_a_moment_ago_takes_pods_although_the_hub_shows_it_closed() -> None:
    by = policy("night", {**NIGHT, "forceReclaim": True})
    lease = Lease(by, NOON)
    stale = lease.scope.hub_nodes.store.get(registered(lease.declared).key)
    lease.change(by, NOON + timedelta(hours=9))
    assert stale is not None
    lease.scope.hub_nodes.store.put(stale)
    assert lease.refusal(asking("2")) == ""


def test_node_selector_is_judged_by_the_labels_in_the_hub() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    assert lease.refusal(asking("1", name="a", spec={"nodeSelector": {"type": "virtual-kubelet"}})) == ""
    assert lease.refusal(asking("1", name="b", spec={"nodeSelector": {"disk": "ssd"}})) == "NodeAffinity"


def test_pod_waits_while_its_node_is_not_registered() -> None:
    lease = Lease(policy("night", NIGHT), MIDNIGHT)
    lease.scope.hub_nodes.store.remove(registered(lease.declared).key)
    with pytest.raises(Unavailable):
        lease.admission.admit(asking("1"))
