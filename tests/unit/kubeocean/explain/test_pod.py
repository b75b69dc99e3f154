"""Explanations of pods: every cause that the process would act on is named."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.explain.pod import Surroundings, explain_pod, unfit
from kubeocean.leasing.policy import Decision
from kubeocean.model import keys
from kubeocean.model.identity import Target, workload
from kubeocean.nodes.describe import describe
from kubeocean.pods.translate import physical_pod
from tests.unit.kubeocean.builders import OWNER, at, binding, node, physical, pod, policy
from tests.unit.kubeocean.world import node_of
from vkubelet.api.objects import Json, Node, Pod
from vkubelet.api.quantity import parse_resources

VNODE = "vnode-demo-node-1"
CLOSED = {"key": keys.TAINT_CLOSED, "effect": "NoSchedule", "value": "true"}
OURS = {"key": keys.TAINT_VNODE, "effect": "NoSchedule"}


def virtual(*taints: Json, cpu: str = "4", **labels: str) -> Node:
    """A virtual node that policy day opened."""
    annotations = {keys.PHYSICAL_NODE_NAME: "node-1", keys.POLICIES_APPLIED: "day"}
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}, "capacity": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}
    return node({"taints": list(taints)}, status=status, name=VNODE, labels=labels, annotations=annotations)


def target(of: Pod, **spec: Any) -> Target:
    return Target.of(binding(spec), owner=OWNER, node="node-1", workload=workload(of.metadata))


def why(of: Pod, **around: Any) -> str:
    given = {"node": virtual(), "binding": binding(), "target": target(of), "worker_read": True, **around}
    return "; ".join(explain_pod(of, Surroundings(**given)).why)


def requesting(cpu: str, **spec: Any) -> Json:
    return {"containers": [{"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}], **spec}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (pod(namespace="kube-system"), "pods of namespace kube-system are not started on virtual nodes"),
        (
            pod(ownerReferences=[{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "proxy", "uid": "d", "controller": True}]),
            "pods of DaemonSets are not started on virtual nodes; set spec.runningDaemonsetByDefault of ClusterBinding demo",
        ),
        (pod({"volumes": [{"name": "v", "glusterfs": {"path": "x"}}]}), "UnsupportedReference: spec.volumes[0].glusterfs"),
        (pod(requesting("5")), "OutOfcpu: Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 4000"),
        (pod(), "the worker does not have its physical pod yet"),
        (pod(status={"phase": "Failed", "reason": "OutOfcpu", "message": "no room"}), "it is Failed, OutOfcpu: no room"),
    ],
)
def test_the_cause_of_a_pending_pod_is_named(made: Pod, words: str) -> None:
    assert words in why(made)


def test_other_pods_of_the_node_count() -> None:
    others = [pod(requesting("3"), name="other", uid="other")]
    assert "OutOfcpu" in why(pod(requesting("2")), others=others) and "OutOfcpu" not in why(pod(requesting("1")), others=others)


def test_an_invalid_patch_of_the_binding_is_the_cause() -> None:
    assert "ClusterBinding demo is not valid: spec.podPatch.kind" in why(pod(), binding=binding({"podPatch": {"kind": "Deployment"}}))


def test_waiting_containers_are_named_with_their_message() -> None:
    waiting = {"reason": "WorkerRefused", "message": "exceeded quota"}
    made = pod(status={"containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]})
    assert "container main waits: WorkerRefused: exceeded quota" in why(made)


def test_a_physical_pod_that_is_not_scheduled_has_the_workers_reason() -> None:
    made = pod()
    there = physical(
        physical_pod(made, target(made)), status={"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}
    )
    explained = explain_pod(made, Surroundings(node=virtual(), binding=binding(), target=target(made), physical=there, worker_read=True))
    assert explained.why == ["the worker has not scheduled its physical pod: 0/3 nodes"]
    assert explained.physical_pod == "mnt/" + keys.physical_name("default", "web") and explained.physical_node == "node-1"


def test_a_running_pod_has_no_reasons() -> None:
    made = pod(status={"phase": "Running"})
    body = physical_pod(made, target(made))
    there = physical({**body, "spec": {**body["spec"], "nodeName": "node-1"}}, status={"phase": "Running"})
    assert why(made, physical=there) == ""


def test_a_recorded_pod_that_the_worker_lost_is_named() -> None:
    name = keys.physical_name("default", "web")
    record = {keys.PHYSICAL_POD_NAMESPACE: "mnt", keys.PHYSICAL_POD_NAME: name, keys.PHYSICAL_POD_OF: "uid-1"}
    assert f"its physical pod mnt/{name} is recorded, and the worker does not have it" in why(pod(annotations=record))


def test_a_pod_on_another_kind_of_node_is_left_to_its_kubelet() -> None:
    assert "is no virtual node of Kubeocean" in "; ".join(explain_pod(pod(), Surroundings(node=node())).why)


# --- Not scheduled ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "on", "words"),
    [
        (pod(), virtual(OURS), f"the pod does not tolerate {keys.TAINT_VNODE}:NoSchedule; add the toleration to the pod"),
        (pod(), virtual(CLOSED), f"the pod does not tolerate {keys.TAINT_CLOSED}:NoSchedule; no time window is open, see `kubeocean plan`"),
        (pod({"nodeSelector": {"pool": "a"}}), virtual(pool="b"), "spec.nodeSelector or spec.affinity of the pod excludes them"),
        (pod(requesting("5")), virtual(), "Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 4000"),
        (pod({"tolerations": [{"operator": "Exists"}]}), virtual(OURS, CLOSED), ""),
    ],
)
def test_why_a_virtual_node_does_not_fit_is_named(made: Pod, on: Node, words: str) -> None:
    assert unfit(made, on) == words


def test_virtual_nodes_that_do_not_fit_are_counted_by_reason() -> None:
    made = pod({"nodeName": ""}, status={"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]})
    told = explain_pod(made, Surroundings(nodes=[virtual(OURS), virtual(OURS), virtual(CLOSED)])).why
    assert told[0] == "the scheduler of the hub reports: 0/3 nodes are available"
    assert [each.partition(":")[0] for each in told[1:]] == ["2 of 3 virtual nodes", "1 of 3 virtual nodes"]


def test_gates_and_missing_nodes_are_named() -> None:
    made = pod({"nodeName": "", "schedulingGates": [{"name": "example.com/quota"}]})
    told = "; ".join(explain_pod(made, Surroundings()).why)
    assert "it waits until a controller removes example.com/quota" in told and "no virtual node exists" in told


# --- A closed window ----------------------------------------------------------------------------------------------------------------------


def test_a_closed_window_is_the_cause_with_its_policy() -> None:
    decided = _closed_decision()
    live = node_of(describe(node(status={"allocatable": {"cpu": "4"}}), decided, binding=binding()), "5")
    told = why(pod(), node=live, policy=policy("day"))
    assert "no time window of policy day is open" in told


def _closed_decision() -> Decision:
    amounts = parse_resources({"cpu": "4", "pods": "110"})
    return Decision(exists=True, amounts=amounts, deciding=policy("day"), effect="NoSchedule", closed_since=at("2026-01-05 08:00"))
