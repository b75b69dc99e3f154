"""The rows of `kubeocean status`."""

from __future__ import annotations

import pytest

from kubeocean.commands.status import Summary, current, lines, readiness, summary, unmet
from tests.unit.kubeocean.builders import node, pod, unknown
from vkubelet.api.objects import Json, Node, Pod, Unknown
from vkubelet.api.quantity import Quantity, format_resources

LONG = "spec.secretRef: Secret kubeocean-system/demo-kubeconfig does not exist; create it with the worker's kubeconfig under the key"


def stored(*conditions: Json, phase: str = "Ready", **metadata: object) -> Unknown:
    spec = {"clusterID": "d", "mountNamespace": "m", "secretRef": {"name": "s", "namespace": "n"}}
    meta = {"name": "demo", "generation": 1, **metadata}
    return unknown({"metadata": meta, "spec": spec, "status": {"phase": phase, "conditions": list(conditions)}})


def cond(kind: str, status: str, message: str = "") -> Json:
    return {"type": kind, "status": status, "reason": "Because", "message": message, "observedGeneration": 1}


READY = (cond("Ready", "True"), cond("Connected", "True"))


def virtual(name: str, *, ready: str = "True", policy: str = "half", binding: str = "demo", taint: str = "") -> Node:
    return node(
        {"taints": [{"key": taint, "effect": "NoSchedule"}]} if taint else {},
        status={"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
        name=name,
        labels={"kubeocean.io/cluster-binding": binding},
        annotations={"kubeocean.io/policies-applied": policy},
    )


def on(node: str, cpu: str = "500m", **metadata: object) -> Pod:
    requests = {"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return pod({"nodeName": node, "containers": [{"name": "c", **requests}]}, status={"phase": "Running"}, **metadata)


def test_nodes_pods_and_policies_of_the_binding_alone_are_counted() -> None:
    nodes = [virtual("a"), virtual("b", ready="False"), virtual("c", policy="night"), virtual("other", binding="else")]
    row = summary(stored(*READY), nodes, [on("a"), on("a"), on("c"), on("other"), on("real")])
    assert (row.ready, row.nodes, row.nodes_ready, row.pods, row.policies) == (True, 3, 2, 3, {"half": 2, "night": 1})
    assert row.worker == "reachable" and [each.partition(":")[0] for each in row.problems] == ["Node b is not Ready"]


def test_leased_used_and_free_capacity_is_added_up_by_node_and_binding() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
    never = [on("a", namespace="kube-system"), on("a", ownerReferences=[owner]), on("real")]
    row = summary(stored(*READY), [virtual("a"), virtual("b")], [on("a"), on("a", "1"), *never])
    assert [format_resources(each or {}) for each in (row.leased, row.used, row.free)] == [
        {"cpu": "8", "memory": "16Gi", "pods": "220"},
        {"cpu": "1500m", "memory": "2Gi", "pods": "2"},
        {"cpu": "6500m", "memory": "14Gi", "pods": "218"},
    ]
    assert [(each.node, str((each.free or {})["cpu"])) for each in row.capacity] == [("a", "2500m"), ("b", "4")]
    unknown_pods = summary(stored(*READY), [virtual("a")], None)
    assert unknown_pods.used is None and unknown_pods.free is None and unknown_pods.pods is None
    drawn = lines([row], width=80, nodes=True)
    assert drawn[1].split()[4:6] == ["1500m/8", "2Gi/16Gi"]
    assert drawn[4].split()[:5] == ["a", "Open", "2/110", "1500m/4", "2Gi/8Gi"] and len(lines([row], width=80)) == 2


@pytest.mark.parametrize(
    ("taint", "ready", "state", "remedy"),
    [
        ("kubeocean.io/out-of-time-windows", "True", "Closed", "`kubeocean plan`"),
        ("kubeocean.io/physical-node-unschedulable", "True", "Cordoned", "kubectl uncordon"),
        ("kubeocean.io/worker-unreachable", "True", "Unreachable", "`kubeocean doctor`"),
        ("kubeocean.io/vnode-deleting", "True", "Withdrawn", "`kubeocean explain node a`"),
        ("", "Unknown", "NotReady", "`kubeocean doctor`"),
    ],
)
def test_a_node_that_takes_no_pods_is_a_problem_with_its_remedy(taint: str, ready: str, state: str, remedy: str) -> None:
    row = summary(stored(*READY), [virtual("a", ready=ready, taint=taint)], [])
    assert row.capacity[0].state == state and "Node a" in row.problems[0] and remedy in row.problems[0]
    many = summary(stored(*READY), [virtual(f"n{at}", ready=ready, taint=taint) for at in range(9)], [])
    assert len(many.problems) == 4 and many.problems[-1].startswith("6 more nodes have problems")


def test_a_sentence_that_two_conditions_say_is_told_once() -> None:
    row = summary(stored(cond("Ready", "False", LONG), cond("Connected", "False", LONG), phase="Failed"), [], [])
    assert not row.ready and row.worker == "unreachable" and row.problems == [f"Ready=False, Because: {LONG}"]


def test_a_binding_that_goes_is_not_ready_and_says_what_it_waits_for() -> None:
    row = summary(stored(*READY, deletionTimestamp="2026-01-05T09:00:00Z", finalizers=["kubeocean.io/clusterbinding-syncer"]), [], [])
    assert row.phase == "Deleting" and not row.ready and row.problems == ["waits for finalizer kubeocean.io/clusterbinding-syncer"]


def test_a_binding_that_nobody_has_seen_says_so() -> None:
    row = summary(stored(phase=""), [], None)
    assert (row.phase, row.worker, row.pods, row.problems) == (
        "Pending",
        "unknown",
        None,
        ["no process has reported on the ClusterBinding yet"],
    )


def row(name: str, **more: object) -> Summary:
    fields: Json = {
        "name": name,
        "cluster_id": name,
        "phase": "Ready",
        "ready": True,
        "worker": "reachable",
        "nodes": 2,
        "nodes_ready": 1,
        "pods": 7,
        "policies": {"half": 2},
        "problems": [],
        "leased": {"cpu": Quantity.of(4)},
        "used": {"cpu": Quantity.of(1)},
        "free": None,
        **more,
    }
    return Summary(**fields)


def test_the_table_is_narrow_and_long_sentences_are_wrapped_below_their_row() -> None:
    drawn = lines([row("a"), row("b", ready=False, phase="Failed", pods=None, policies={}, problems=[LONG])], width=80)
    assert drawn[0].split() == ["NAME", "PHASE", "NODES", "PODS", "CPU", "MEMORY", "WORKER", "POLICIES"]
    assert drawn[1].split() == ["a", "Ready", "1/2", "7", "1/4", "0/0", "reachable", "half"]
    assert drawn[2].split() == ["b", "Failed", "1/2", "?", "1/4", "0/0", "reachable", "-"]
    assert drawn[3].startswith("  ! spec.secretRef: ") and drawn[4].startswith("    ") and len(drawn) == 5
    assert max(map(len, drawn)) <= 80


def test_an_empty_cluster_is_told_how_to_bind() -> None:
    assert "kubeocean bind NAME" in lines([], width=80)[0]
    assert lines([row("a", policies={})], width=80)[1].endswith("none")


def body(*conditions: Json, generation: int = 2) -> Json:
    return {"metadata": {"generation": generation}, "status": {"conditions": list(conditions)}}


def condition_of(kind: str, status: str, reason: str = "", message: str = "", seen: int = 2) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": seen}


def test_a_binding_without_conditions_was_seen_by_nobody() -> None:
    for empty in ({"metadata": {}}, body()):
        assert not readiness(empty).ready and not readiness(empty).seen


def test_ready_of_an_older_generation_does_not_count() -> None:
    assert readiness(body(condition_of("Ready", "True"))).ready
    assert not readiness(body(condition_of("Ready", "True", seen=1))).ready
    assert current(body(condition_of("Ready", "True", seen=1))) == []


def test_a_condition_that_names_no_generation_counts() -> None:
    told = condition_of("Ready", "True")
    del told["observedGeneration"]
    assert readiness(body(told)).ready


def test_why_it_is_not_ready_is_told_once() -> None:
    same = "the worker cluster does not respond"
    seen = readiness(
        body(condition_of("Ready", "False", "ConnectivityFailed", same), condition_of("Connected", "False", "ConnectivityFailed", same))
    )
    assert seen.text == f"Ready=False, ConnectivityFailed: {same}" and seen.lasting and seen.seen
    more = readiness(body(condition_of("Ready", "False", "SyncerFailed", "a"), condition_of("Connected", "Unknown", "Initializing", "b")))
    assert more.text == "Ready=False, SyncerFailed: a; Connected=Unknown, Initializing: b" and not more.lasting


def test_conditions_that_are_bad_news_when_true_are_told_apart() -> None:
    assert unmet([condition_of("RetirementHeld", "False"), condition_of("Ready", "True"), condition_of("Stalled", "False")]) == []
    assert [each["type"] for each in unmet([condition_of("RetirementHeld", "True"), condition_of("ProxierReady", "Unknown")])] == [
        "RetirementHeld",
        "ProxierReady",
    ]


def test_messages_of_conditions_cannot_command_the_terminal() -> None:
    row = summary(stored(cond("Ready", "False", "no\x1b[2J")), [], [])
    assert "no\\x1b[2J" in "".join(lines([row], width=80)) and "\x1b" not in "".join(lines([row], width=80))


def test_pods_of_other_nodes_are_not_decoded() -> None:
    """A hub has many more pods than those of one binding, and the summary of each binding passes over all of them."""
    elsewhere = Pod(on("real").metadata, "real", "Running", b"not decoded", b"{}")
    row = summary(stored(*READY), [virtual("a")], [elsewhere, on("a")])
    assert row.pods == 1 and str((row.used or {})["cpu"]) == "500m"
