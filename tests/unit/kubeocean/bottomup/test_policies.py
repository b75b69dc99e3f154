"""The status of a ResourceLeasingPolicy."""

from datetime import timedelta

from kubeocean.bottomup.policies import Verdict, status_change
from kubeocean.crds import ResourceLeasingPolicy
from tests.unit.kubeocean.builders import at, policy, unknown
from vkubelet.api.conditions import get_condition
from vkubelet.api.shapes import Json

NOW = at("2026-01-05 09:00")


def reported(verdict: Verdict) -> Json:
    change = status_change(policy(), verdict, now=NOW)
    assert change is not None
    status: Json = change["status"]
    return status


def test_an_open_policy_is_active() -> None:
    status = reported(Verdict("", open=True, zone="UTC", edge=at("2026-01-05 17:00")))
    assert (status["phase"], status["activeTimeWindow"], status["timeZone"]) == ("Active", True, "UTC")
    assert status["nextEdge"] == "2026-01-05T17:00:00Z"
    assert status["lastAppliedTime"] == "2026-01-05T09:00:00Z"


def test_a_closed_policy_is_inactive_but_valid() -> None:
    status = reported(Verdict("", open=False, zone="UTC"))
    valid, active = (get_condition(status["conditions"], kind) for kind in ("Valid", "Active"))
    assert valid is not None and active is not None
    assert (status["phase"], valid["status"], active["reason"]) == ("Inactive", "True", "InactiveTimeWindow")


def test_an_invalid_policy_failed_and_says_which_field() -> None:
    status = reported(Verdict("spec.timeWindows[0]: bad"))
    valid = get_condition(status["conditions"], "Valid")
    assert valid is not None
    assert (status["phase"], valid["reason"], valid["message"]) == ("Failed", "ValidationError", "spec.timeWindows[0]: bad")
    assert status["activeTimeWindow"] is False


def test_nothing_new_is_not_written() -> None:
    verdict = Verdict("", open=True, zone="UTC")
    stored = {"metadata": {"name": "p"}, "spec": {"cluster": "demo"}, "status": reported(verdict)}
    assert status_change(ResourceLeasingPolicy.parse(unknown(stored)), verdict, now=NOW + timedelta(days=1)) is None


def test_the_number_of_nodes_it_decides_about_is_told() -> None:
    status = reported(Verdict("", open=True, zone="UTC", nodes=3))
    assert (status["decidingNodes"], status["observedGeneration"]) == (3, policy().generation)


def test_a_definition_that_drops_our_fields_is_not_written_to_again() -> None:
    verdict = Verdict("", open=True, zone="UTC", edge=at("2026-01-05 17:00"), nodes=3)
    told = reported(verdict)
    kept = {name: told[name] for name in ("phase", "activeTimeWindow", "conditions", "lastAppliedTime")}
    stored = ResourceLeasingPolicy.parse(unknown({"metadata": {"name": "p"}, "spec": {"cluster": "demo"}, "status": kept}))
    assert status_change(stored, verdict, now=NOW, told=told) is None
    assert status_change(stored, verdict, now=NOW) is not None
    assert status_change(stored, Verdict("", open=True, zone="UTC", nodes=2), now=NOW, told=told) is not None
