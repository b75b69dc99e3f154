"""The status of a ClusterBinding."""

from datetime import timedelta

from kubeocean.binding.conditions import (
    CONNECTIVITY_FAILED,
    NOT_LISTED,
    RIGHTS_MISSING,
    VALIDATION_FAILED,
    Failure,
    Health,
    Observation,
    may_have_mirrors,
    status_patch,
)
from tests.unit.kubeocean.builders import at
from vkubelet.api.objects import Json, JsonView, get_condition

NOW = at("2026-01-05 09:00")


def written(before: JsonView, health: Health) -> Json:
    patch = status_patch(before, health, generation=3, now=NOW)
    assert patch is not None
    status: Json = {**before, **patch["status"]}
    return status


def state_of(status: JsonView, kind: str) -> tuple[str, str]:
    condition = get_condition(status["conditions"], kind)
    assert condition is not None
    return condition["status"], condition["reason"]


def test_a_served_binding_is_ready_in_all_four_respects() -> None:
    status = written({}, Health(reachable=True))
    assert status["phase"] == "Ready"
    assert {kind: state_of(status, kind)[0] for kind in ("Ready", "Connected", "SyncerReady", "ProxierReady")} == dict.fromkeys(
        ("Ready", "Connected", "SyncerReady", "ProxierReady"), "True"
    )
    assert status["lastSyncTime"] == "2026-01-05T09:00:00Z"


def test_the_same_health_is_not_written_again() -> None:
    status = written({}, Health(reachable=True))
    assert status_patch(status, Health(reachable=True), generation=3, now=NOW + timedelta(hours=1)) is None


def test_a_wrong_field_is_named_and_says_nothing_of_the_connection() -> None:
    status = written({}, Health(problem=Failure(VALIDATION_FAILED, "spec.mountNamespace: is empty")))
    assert status["phase"] == "Failed"
    assert state_of(status, "Ready") == ("False", "ValidationFailed")
    assert state_of(status, "Connected")[0] == "Unknown"


def test_a_worker_that_can_not_be_connected_is_not_connected() -> None:
    status = written({}, Health(problem=Failure(CONNECTIVITY_FAILED, "spec.secretRef: Secret a/b does not exist")))
    assert state_of(status, "Ready") == state_of(status, "Connected") == ("False", "ConnectivityFailed")


def test_a_bad_new_kubeconfig_leaves_the_connection_that_is_still_used() -> None:
    status = written({}, Health(reachable=True, problem=Failure(CONNECTIVITY_FAILED, "…; until then the earlier connection is used")))
    assert state_of(status, "Connected")[0] == "True"
    assert state_of(status, "Ready")[0] == "False"


def test_a_silent_worker_makes_a_ready_binding_fail_and_its_return_heals_it() -> None:
    ready = written({}, Health(reachable=True))
    lost = written(ready, Health(reachable=False))
    assert lost["phase"] == "Failed"
    assert state_of(lost, "Connected") == ("False", "ConnectivityFailed")
    assert written(lost, Health(reachable=True))["phase"] == "Ready"


def test_held_retirements_stand_in_a_condition_that_is_taken_back() -> None:
    held = written({}, Health(reachable=True, held="3 nodes vanished at once"))
    assert state_of(held, "RetirementHeld")[0] == "True"
    assert state_of(written(held, Health(reachable=True)), "RetirementHeld")[0] == "False"


def test_policies_that_another_hub_serves_stand_in_a_condition_that_is_taken_back() -> None:
    shared = written({}, Health(reachable=True, shared="1 ResourceLeasingPolicies are served by another hub"))
    assert state_of(shared, "PoliciesShared")[:2] == ("True", "ServedByAnotherHub")
    assert state_of(written(shared, Health(reachable=True)), "PoliciesShared")[0] == "False"


def test_refused_rights_stand_in_a_condition_by_cluster_until_they_are_granted() -> None:
    assert get_condition(written({}, Health(reachable=True, refused={"the hub": ()}))["conditions"], "RequestsPermitted") is None
    refused = written({}, Health(reachable=True, refused={"the hub": ("patch nodes/status", "get pods"), "the worker cluster": ()}))
    assert state_of(refused, "RequestsPermitted") == ("False", "RightsMissing")
    condition = get_condition(refused["conditions"], "RequestsPermitted")
    assert condition is not None and "(the hub: patch nodes/status, get pods); grant" in condition["message"]
    assert refused["phase"] == "Ready"
    granted = written(refused, Health(reachable=True, refused={"the hub": ()}))
    assert state_of(granted, "RequestsPermitted") == ("True", "RightsGranted")


def test_nothing_is_said_of_retirements_that_were_never_held() -> None:
    assert get_condition(written({}, Health(reachable=True))["conditions"], "RetirementHeld") is None


def test_a_binding_that_ends_says_what_is_left_whatever_else_is_wrong() -> None:
    ready = written({}, Health(reachable=True))
    ending = written(ready, Health(reachable=True, ending="3 virtual nodes are left"))
    assert ending["phase"] == "Pending"
    lost = written(ending, Health(reachable=False, ending="the worker does not respond; 3 virtual nodes are left"))
    assert lost["phase"] == "Failed" and state_of(lost, "Connected")[0] == "False"
    for status in (ending, lost):
        assert state_of(status, "Ready") == ("False", "Terminating")
        ready_condition = get_condition(status["conditions"], "Ready")
        assert ready_condition is not None and "3 virtual nodes are left" in ready_condition["message"]


def test_conditions_of_others_stay() -> None:
    other = {"type": "Theirs", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    assert other in written({"conditions": [other]}, Health(reachable=True))["conditions"]


REFUSED = Health(reachable=True, services=Observation(False, RIGHTS_MISSING, "services is forbidden"))
MIRRORED = Health(reachable=True, services=Observation(True, "Mirrored", "Services of shop have mirrors"))


def test_rights_that_were_never_granted_are_missing_and_no_mirror_exists() -> None:
    status = written({}, REFUSED)
    assert state_of(status, "ServicesMirrored") == ("False", "RightsMissing") and not may_have_mirrors(status["conditions"])


def test_rights_that_were_withdrawn_leave_mirrors_also_after_a_restart() -> None:
    status = written(written({}, MIRRORED), REFUSED)
    assert state_of(status, "ServicesMirrored") == ("False", "RightsRevoked") and may_have_mirrors(status["conditions"])
    assert status_patch(status, REFUSED, generation=3, now=NOW) is None


def test_lists_that_fail_prove_neither_mirrors_nor_rights() -> None:
    failing = Health(reachable=True, services=Observation(False, NOT_LISTED, "list services: etcd is down"))
    first = written({}, failing)
    assert state_of(first, "ServicesMirrored") == ("False", "NotListed") and not may_have_mirrors(first["conditions"])
    assert state_of(written(first, REFUSED), "ServicesMirrored") == ("False", "RightsMissing"), "unbinding would wait for rights"
    later = written(written({}, MIRRORED), failing)
    assert state_of(later, "ServicesMirrored") == ("False", "NotFollowed") and may_have_mirrors(later["conditions"])
    assert state_of(written(later, REFUSED), "ServicesMirrored") == ("False", "RightsRevoked")


def test_condition_of_mirrors_exists_only_once_there_were_some() -> None:
    assert get_condition(written({}, Health(reachable=True))["conditions"], "ServicesMirrored") is None
    assert state_of(written(written({}, MIRRORED), Health(reachable=True)), "ServicesMirrored") == ("True", "NothingToMirror")


def test_a_message_has_at_most_the_characters_that_the_definition_permits() -> None:
    limit = 32_768
    for length in (limit, limit + 1):
        status = written({}, Health(reachable=True, kinds=Observation(False, "Incomplete", "é" * length)))
        condition = get_condition(status["conditions"], "ExtraKindsMirrored")
        assert condition is not None
        assert condition["message"] == ("é" * limit if length == limit else "é" * (limit - 1) + "…")
