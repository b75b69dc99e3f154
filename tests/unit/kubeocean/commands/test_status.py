"""The rows of `kubeocean status`."""

from __future__ import annotations

from kubeocean.commands.status import Summary, lines, summary
from tests.unit.kubeocean.builders import node, unknown
from vkubelet.api.objects import Node, Unknown
from vkubelet.api.shapes import Json

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
    assert (row.phase, row.worker, row.pods, row.problems) == ("Pending", "unknown", None, ["nobody has looked at the binding yet"])


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
