"""What a status says to somebody who waits for it."""

from __future__ import annotations

from kubeocean.commands.binding_summary import current, outlook, wrong
from vkubelet.api.shapes import Json


def body(*conditions: Json, generation: int = 2) -> Json:
    return {"metadata": {"generation": generation}, "status": {"conditions": list(conditions)}}


def cond(kind: str, status: str, reason: str = "", message: str = "", seen: int = 2) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": seen}


def test_a_binding_without_conditions_was_seen_by_nobody() -> None:
    for empty in ({"metadata": {}}, body()):
        assert not outlook(empty).ready and not outlook(empty).seen


def test_ready_of_an_older_generation_does_not_count() -> None:
    assert outlook(body(cond("Ready", "True"))).ready
    assert not outlook(body(cond("Ready", "True", seen=1))).ready
    assert current(body(cond("Ready", "True", seen=1))) == []


def test_a_condition_that_names_no_generation_counts() -> None:
    told = cond("Ready", "True")
    del told["observedGeneration"]
    assert outlook(body(told)).ready


def test_why_it_is_not_ready_is_told_once() -> None:
    same = "the worker cluster does not answer"
    seen = outlook(body(cond("Ready", "False", "ConnectivityFailed", same), cond("Connected", "False", "ConnectivityFailed", same)))
    assert seen.text == f"Ready=False, ConnectivityFailed: {same}" and seen.lasting and seen.seen
    more = outlook(body(cond("Ready", "False", "SyncerFailed", "a"), cond("Connected", "Unknown", "Initializing", "b")))
    assert more.text == "Ready=False, SyncerFailed: a; Connected=Unknown, Initializing: b" and not more.lasting


def test_conditions_that_are_bad_news_when_true_are_told_apart() -> None:
    assert wrong([cond("RetirementHeld", "False"), cond("Ready", "True"), cond("Stalled", "False")]) == []
    assert [each["type"] for each in wrong([cond("RetirementHeld", "True"), cond("ProxierReady", "Unknown")])] == [
        "RetirementHeld",
        "ProxierReady",
    ]
