"""The rows of `kubeocean status`."""

from __future__ import annotations

from kubeocean.commands.status import Summary, current, lines, readiness, summary, unmet
from tests.unit.kubeocean.builders import node, unknown
from vkubelet.api.objects import Json, Node, Unknown

LONG = "spec.secretRef: Secret kubeocean-system/demo-kubeconfig does not exist; create it with the worker's kubeconfig under the key"


def stored(*conditions: Json, phase: str = "Ready", **metadata: object) -> Unknown:
    spec = {"clusterID": "d", "mountNamespace": "m", "secretRef": {"name": "s", "namespace": "n"}}
    meta = {"name": "demo", "generation": 1, **metadata}
    return unknown({"metadata": meta, "spec": spec, "status": {"phase": phase, "conditions": list(conditions)}})


def cond(kind: str, status: str, message: str = "") -> Json:
    return {"type": kind, "status": status, "reason": "Because", "message": message, "observedGeneration": 1}


READY = (cond("Ready", "True"), cond("Connected", "True"))


def virtual(name: str, *, ready: str = "True", policy: str = "half", binding: str = "demo") -> Node:
    return node(
        status={"conditions": [{"type": "Ready", "status": ready}]},
        name=name,
        labels={"kubeocean.io/cluster-binding": binding},
        annotations={"kubeocean.io/policies-applied": policy},
    )


def test_nodes_pods_and_policies_of_the_binding_alone_are_counted() -> None:
    nodes = [virtual("a"), virtual("b", ready="False"), virtual("c", policy="night"), virtual("other", binding="else")]
    row = summary(stored(*READY), nodes, {"a": 2, "c": 1, "other": 9, "real": 5})
    assert (row.ready, row.nodes, row.nodes_ready, row.pods, row.policies) == (True, 3, 2, 3, {"half": 2, "night": 1})
    assert row.worker == "reachable" and row.problems == []


def test_a_sentence_that_two_conditions_say_is_told_once() -> None:
    row = summary(stored(cond("Ready", "False", LONG), cond("Connected", "False", LONG), phase="Failed"), [], {})
    assert not row.ready and row.worker == "unreachable" and row.problems == [f"Ready=False, Because: {LONG}"]


def test_a_binding_that_goes_is_not_ready_and_says_what_it_waits_for() -> None:
    row = summary(stored(*READY, deletionTimestamp="2026-01-05T09:00:00Z", finalizers=["kubeocean.io/clusterbinding-syncer"]), [], {})
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
        **more,
    }
    return Summary(**fields)


def test_the_table_is_narrow_and_long_sentences_are_wrapped_below_their_row() -> None:
    drawn = lines([row("a"), row("b", ready=False, phase="Failed", pods=None, policies={}, problems=[LONG])], width=80)
    assert drawn[0].split() == ["NAME", "PHASE", "NODES", "PODS", "WORKER", "POLICIES"]
    assert drawn[1].split() == ["a", "Ready", "1/2", "7", "reachable", "half"]
    assert drawn[2].split() == ["b", "Failed", "1/2", "?", "reachable", "-"]
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
