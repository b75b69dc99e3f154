"""Tests of kubeocean.nodes.describe."""

from __future__ import annotations

import pytest
from attrs import evolve

from kubeocean.binding.virtual_nodes import description_of
from kubeocean.leasing.policy import Decision
from kubeocean.nodes.describe import describe, eligible, lease_event, stamped
from tests.unit.kubeocean.builders import at, binding, limit, node, policy
from vkubelet.api.codec import encode_json
from vkubelet.api.names import is_label_value
from vkubelet.api.objects import Node
from vkubelet.api.quantity import parse_resources
from vkubelet.node.declared import HEALTHY
from vkubelet.node.render import Endpoint, new_node, wanted
from vkubelet.provider import NodeDescription, Taint

OPEN = Decision(exists=True, amounts=parse_resources({"cpu": "1500m", "memory": "3Gi"}), deciding=policy("night"), open=True)
DEFAULT_TAINT = Taint(key="kubeocean.io/vnode", effect="NoSchedule")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, True),
        ({"node.kubernetes.io/instance-type": "m5.large"}, True),
        ({"node.kubernetes.io/instance-type": "vnode"}, False),
        ({"beta.kubernetes.io/instance-type": "eklet"}, False),
        ({"node.kubernetes.io/instance-type": "external"}, False),
        ({"type": "virtual-kubelet"}, False),
        ({"type": "gpu"}, True),
    ],
)
def test_virtual_nodes_of_any_make_are_not_leased_on(labels: dict[str, str], expected: bool) -> None:
    assert eligible(labels) is expected


def test_name_amounts_and_labels() -> None:
    status = {"addresses": [{"type": "Hostname", "address": "node-1"}, {"type": "InternalIP", "address": "10.0.0.7"}]}
    labels = {
        "gpu": "a10",
        "node.kubernetes.io/instance-type": "m5",
        "kubernetes.io/hostname": "node-1",
        "kubeocean.io/policy-applied": "x",
    }
    described = describe(node(labels=labels, status=status), OPEN, binding=binding(), port=15001)
    assert described.name == "vnode-demo-node-1"
    assert described.capacity == described.allocatable == {"cpu": "1500m", "memory": "3Gi"}
    assert described.labels == {
        "gpu": "a10",
        "kubeocean.io/cluster-binding": "demo",
        "kubeocean.io/physical-cluster-id": "demo",
        "kubeocean.io/physical-node-name": "node-1",
        "kubeocean.io/physical-node-uid": "node-uid",
        "kubeocean.io/managed-by": "kubeocean",
        "type": "virtual-kubelet",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/exclude-from-external-load-balancers": "true",
        "node.kubernetes.io/instance-type": "vnode",
        "beta.kubernetes.io/instance-type": "vnode",
        "kubernetes.io/hostname": "vnode-demo-node-1",
        "kubeocean.io/physical-node-innerip": "10.0.0.7",
        "kubeocean.io/proxier_port": "15001",
    }


def test_long_names_and_ipv6_addresses_stay_valid_labels() -> None:
    status = {"addresses": [{"type": "InternalIP", "address": "fd00::7"}]}
    described = describe(node(name="n" * 200, status=status), OPEN, binding=binding(name="b" * 100))
    assert len(described.name) == 63
    assert all(is_label_value(value) for value in described.labels.values())
    assert described.annotations["kubeocean.io/physical-node-name"] == "n" * 200
    assert described.addresses == ()


def test_annotations_say_what_is_leased_and_from_where() -> None:
    deciding = policy("night", {"resourceLimits": [limit("cpu", quantity=4, percent=80), limit("memory", percent=90)]})
    decision = Decision(exists=True, deciding=deciding, open=True)
    physical = node(
        annotations={"note": "x", "node.alpha.kubernetes.io/ttl": "15", "volumes.kubernetes.io/controller-managed-attach-detach": "true"}
    )
    notes = binding({"metadataFromWorker": {"nodeAnnotations": ["*"]}})
    assert describe(physical, decision, binding=notes, prometheus_url="10.0.0.9:9006/vnode-demo-node-1").annotations == {
        "note": "x",
        "kubeocean.io/physical-node-name": "node-1",
        "kubeocean.io/physical-node-uid": "node-uid",
        "kubeocean.io/policies-applied": "night",
        "kubeocean.io/policy-details": "night(cpu=4/80%, memory=90%)",
        "kubeocean.io/prometheus-url": "10.0.0.9:9006/vnode-demo-node-1",
    }


def test_taints_are_the_nodes_then_ours_and_a_cordon_is_renamed() -> None:
    own = [
        {"key": "dedicated", "value": "gpu", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "kubeocean.io/out-of-time-windows", "value": "true", "effect": "NoExecute"},
    ]
    closed = Decision(exists=True, deciding=policy(), effect="NoSchedule", closed_since=at("2026-01-05 10:01"))
    assert describe(node({"taints": own}), closed, binding=binding()).taints == (
        Taint(key="dedicated", effect="NoExecute", value="gpu", time_added="2026-01-01T00:00:00Z"),
        Taint(key="kubeocean.io/physical-node-unschedulable", effect="NoSchedule"),
        DEFAULT_TAINT,
        Taint(key="kubeocean.io/out-of-time-windows", effect="NoSchedule", value="true", time_added="2026-01-05T10:01:00Z"),
    )


def test_default_taint_can_be_switched_off_and_never_comes_twice() -> None:
    assert describe(node(), OPEN, binding=binding({"disableNodeDefaultTaint": True})).taints == ()
    own = [{"key": "kubeocean.io/vnode", "effect": "NoSchedule"}]
    assert describe(node({"taints": own}), OPEN, binding=binding()).taints == (DEFAULT_TAINT,)


def test_conditions_and_info_follow_the_physical_node_without_its_heartbeat() -> None:
    ready = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    info = {"architecture": "arm64", "operatingSystem": "linux", "osImage": "Debian", "kubeletVersion": "v1.34.4", "swap": {"capacity": 1}}

    def at_heartbeat(minute: int) -> object:
        conditions = [{**ready, "lastHeartbeatTime": f"2026-01-05T10:{minute:02}:00Z"}]
        return describe(node(status={"conditions": conditions, "nodeInfo": info}), OPEN, binding=binding())

    described = describe(node(status={"conditions": [ready], "nodeInfo": info}), OPEN, binding=binding())
    assert at_heartbeat(1) == at_heartbeat(2) == described
    assert described.conditions == [ready]
    assert (described.arch, described.info["osImage"], described.info["kubeletVersion"]) == ("arm64", "Debian", "v1.34.4")
    assert "swap" not in described.info


def test_the_time_of_the_last_change_moves_with_what_is_said_and_not_by_itself() -> None:
    def time(described: NodeDescription) -> str:
        return described.annotations["kubeocean.io/last-sync-time"]

    described = describe(node(), OPEN, binding=binding())
    first = stamped(described, None, now=at("2026-03-02 10:00"))
    assert time(first) == "2026-03-02T10:00:00Z"
    again = stamped(evolve(described, conditions=[{"type": "Ready", "status": "False"}]), first, now=at("2026-03-02 11:00"))
    assert time(again) == time(first)
    changed = stamped(evolve(described, labels={**described.labels, "gpu": "a10"}), again, now=at("2026-03-02 12:00"))
    assert time(changed) == "2026-03-02T12:00:00Z"


@pytest.mark.parametrize("labels", [{}, {"kubernetes.io/os": "linux", "node.kubernetes.io/exclude-from-external-load-balancers": ""}])
def test_the_time_is_that_of_the_node_which_an_earlier_process_has_written(labels: dict[str, str]) -> None:
    described = describe(node(labels=labels), OPEN, binding=binding(), port=15000)
    first = stamped(described, None, now=at("2026-03-02 10:00"))
    written = wanted(first, Endpoint("10.0.0.1", 15000), instance="demo", health=HEALTHY)
    body = new_node(written) | {"status": {**written.status, "conditions": written.conditions}}
    read = description_of(Node.decode(encode_json(body)))
    assert stamped(described, read, now=at("2026-03-02 11:00")).annotations == first.annotations


def test_what_a_runtime_like_ours_remembers_on_the_physical_node_stays_there() -> None:
    theirs = {"vkubelet.io/instance": "theirs", "vkubelet.io/owned": "{}"}
    described = describe(node(labels=theirs, annotations=theirs), OPEN, binding=binding())
    assert not theirs.keys() & {*described.labels, *described.annotations}


CNI = {
    "projectcalico.org/IPv4Address": "10.0.0.5/24",
    "flannel.alpha.coreos.com/public-ip": "10.0.0.5",
    "io.cilium.network.ipv4-pod-cidr": "x",
}
OTHERS = {"cluster.x-k8s.io/machine": "m", "alpha.kubernetes.io/provided-node-ip": "10.0.0.5", "note": "x"}


def test_annotations_of_the_physical_node_come_up_only_where_the_binding_names_them() -> None:
    physical = node(annotations={**CNI, **OTHERS, "kubeocean.io/anything": "x"})
    assert all(key.startswith("kubeocean.io/") for key in describe(physical, OPEN, binding=binding()).annotations)
    named = binding({"metadataFromWorker": {"nodeAnnotations": ["note", "projectcalico.org/*"]}})
    found = describe(physical, OPEN, binding=named).annotations
    assert {key for key in found if not key.startswith("kubeocean.io/")} == {"note", "projectcalico.org/IPv4Address"}
    assert "kubeocean.io/anything" not in found


def test_labels_that_only_the_owner_of_a_cluster_gives_stay_in_the_worker() -> None:
    reserved = {
        "node-restriction.kubernetes.io/pci": "true",
        "a.node-restriction.kubernetes.io/b": "x",
        "node-role.kubernetes.io/control-plane": "",
    }
    described = describe(node(labels={**reserved, "feature.node.kubernetes.io/pci": "x", "gpu": "a10"}), OPEN, binding=binding())
    assert not reserved.keys() & described.labels.keys()
    assert described.labels.items() >= {"feature.node.kubernetes.io/pci": "x", "gpu": "a10"}.items()


CLOSED = evolve(OPEN, open=False, effect="NoSchedule")
DAY = evolve(OPEN, deciding=policy("day"))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (OPEN, CLOSED, ("LeaseClosed", "no time window of policy night is open")),
        (CLOSED, OPEN, ("LeaseOpened", "policy night leases the node again")),
        (CLOSED, DAY, ("LeaseOpened", "policy day leases")),
        (OPEN, DAY, ("LeaseChanged", "policy day leases the node instead of policy night")),
        (OPEN, evolve(OPEN, amounts=parse_resources({"cpu": "1"})), None),
        (CLOSED, evolve(CLOSED, effect="NoExecute"), None),
        (None, CLOSED, None),
    ],
)
def test_a_window_or_policy_that_changes_the_lease_is_an_event(
    before: Decision | None, after: Decision, expected: tuple[str, str] | None
) -> None:
    found = lease_event(describe(node(), before, binding=binding()) if before else None, after)
    assert (found and found[0]) == (expected and expected[0])
    assert expected is None or (found and expected[1] in found[1])
