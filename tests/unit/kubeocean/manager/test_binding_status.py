"""What the manager writes of a binding, and what it leaves to the process."""

from __future__ import annotations

from typing import Any

from kubeocean.binding.conditions import CONNECTIVITY_FAILED, VALIDATION_FAILED, Failure
from kubeocean.manager.binding_status import ObservedBinding as Seen
from kubeocean.manager.binding_status import first_status, rights_text, status_patch
from kubeocean.manager.deployment_health import STARTING
from kubeocean.rbac.rules import Check
from tests.unit.kubeocean.builders import at
from vkubelet.api.objects import Json

NOW, LATER = at("2026-01-05 09:00"), at("2026-01-05 10:00")
STARTS = Failure(STARTING, "starts")


def check(verb: str, *, essential: bool = True) -> Check:
    return Check(group="", resource="pods", subresource="", verb=verb, namespace="mnt", essential=essential)


def patched(view: Seen, status: Json | None = None, **more: Any) -> Json:
    """The status after the patch."""
    options: Json = {"generation": 1, "now": NOW, "serving": True, **more}
    change = status_patch(status or {}, view, **options)
    return {**(status or {}), **(change or {}).get("status", {})}


def told(status: Json) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def test_first_words_are_pending_and_initializing() -> None:
    status = first_status(generation=3, now=NOW)["status"]
    assert status["phase"] == "Pending" and told(status) == {"Ready": ("False", "Initializing")}
    assert status["conditions"][0]["observedGeneration"] == 3


def test_an_unreachable_worker_is_failed_and_not_stalled() -> None:
    status = patched(Seen(problem=Failure(CONNECTIVITY_FAILED, "silent"), connected=False, syncer=STARTS))
    assert status["phase"] == "Failed" and "Stalled" not in told(status)
    assert told(status)["Ready"] == told(status)["Connected"] == ("False", CONNECTIVITY_FAILED)


def test_a_wrong_binding_is_failed_and_stalled_and_no_more_when_it_is_mended() -> None:
    status = patched(Seen(problem=Failure(VALIDATION_FAILED, "wrong"), syncer=STARTS))
    assert status["phase"] == "Failed" and told(status)["Stalled"] == ("True", VALIDATION_FAILED)
    assert told(status)["Ready"] == ("False", VALIDATION_FAILED) and told(status)["Connected"][0] == "Unknown"
    mended = patched(Seen(connected=True, missing=(), syncer=STARTS), status)
    assert told(mended)["Stalled"][0] == "False" and mended["phase"] == "Pending"


def test_a_process_that_starts_is_pending_and_one_that_can_not_is_failed() -> None:
    assert patched(Seen(connected=True, missing=(), syncer=STARTS))["phase"] == "Pending"
    failed = patched(Seen(connected=True, missing=(), syncer=Failure("SyncerFailed", "ImagePullBackOff")))
    assert failed["phase"] == "Failed"
    assert {told(failed)[kind] for kind in ("Ready", "SyncerReady", "ProxierReady")} == {("False", "SyncerFailed")}
    assert told(failed)["Connected"] == ("True", "ConnectivityPassed")


def test_what_the_process_tells_is_left_to_it_while_it_speaks() -> None:
    theirs: Json = {"phase": "Ready", "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "y"}]}
    view = Seen(problem=Failure(CONNECTIVITY_FAILED, "silent"), connected=False, missing=(), syncer=None)
    status = patched(view, theirs, serving=False)
    assert status["phase"] == "Ready" and told(status)["Ready"] == ("True", "x")
    assert told(status)["Permitted"] == ("True", "RightsGranted") and status["observedGeneration"] == 1


def test_equal_views_write_nothing_and_flips_alone_move_the_time() -> None:
    view = Seen(connected=True, missing=(), syncer=STARTS)
    status = patched(view)
    assert status_patch(status, view, generation=1, now=LATER, serving=True) is None
    again = patched(Seen(connected=True, missing=(), syncer=Failure(STARTING, "other words")), status, now=LATER)
    assert {each["lastTransitionTime"] for each in again["conditions"]} == {"2026-01-05T09:00:00Z"}
    flipped = patched(Seen(problem=Failure(CONNECTIVITY_FAILED, "silent"), connected=False, missing=(), syncer=STARTS), status, now=LATER)
    moved = {each["type"] for each in flipped["conditions"] if each["lastTransitionTime"] == "2026-01-05T10:00:00Z"}
    assert moved == {"Connected"}


def test_missing_rights_are_named_essential_first_and_counted_when_there_are_many() -> None:
    text = rights_text([check("list", essential=False), check("create")])
    assert "may not create pods in namespace mnt, list pods in namespace mnt in the worker cluster; grant these" in text
    assert "and 8 more" in rights_text([check(f"verb{at}") for at in range(20)])


def test_rights_that_could_not_be_asked_for_stay_as_they_were_told() -> None:
    status = patched(Seen(connected=True, missing=(check("create"),), syncer=STARTS))
    assert told(status)["Permitted"] == ("False", "RightsMissing")
    lost = patched(Seen(problem=Failure(CONNECTIVITY_FAILED, "silent"), connected=False, syncer=STARTS), status)
    assert told(lost)["Permitted"] == ("False", "RightsMissing")
