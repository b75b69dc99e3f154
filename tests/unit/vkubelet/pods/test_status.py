"""What is published of a pod, and the difference that is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from vkubelet.api.objects import Json, JsonView, Pod
from vkubelet.pods.status import End, adopt_status, compute_status, end_status, status_patch
from vkubelet.provider import ContainerReport, PodReport, Running, Terminated, Waiting, all_running
from vkubelet.testing.host import make_pod, with_status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
FOREIGN: Json = {"type": "example.com/gate", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"}


def condition(status: JsonView, kind: str) -> Json:
    found: Json = next(c for c in status["conditions"] if c["type"] == kind)
    return found


def running(pod: Pod, *, now: datetime = NOW, generation: int = 1) -> Json:
    return compute_status(pod, all_running(pod, ips=["10.0.0.1", "fd00::1"]), now=now, host_ips=["192.0.2.1"], generation=generation)


def patch(old: JsonView, new: JsonView) -> Json | None:
    body = status_patch(old, new, uid="u", resource_version="7")
    return None if body is None else body["status"]


def test_running_pod_has_every_field_users_expect() -> None:
    status = running(make_pod())
    assert (status["phase"], status["qosClass"], status["startTime"]) == ("Running", "BestEffort", "2026-01-01T12:00:00Z")
    assert (status["podIP"], status["podIPs"]) == ("10.0.0.1", [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}])
    assert (status["hostIP"], status["hostIPs"]) == ("192.0.2.1", [{"ip": "192.0.2.1"}])
    assert status["observedGeneration"] == 1
    assert all(c["observedGeneration"] == 1 for c in status["conditions"])


def test_same_report_after_a_restart_changes_nothing() -> None:
    pod = make_pod()
    published = running(pod)
    assert running(with_status(pod, published), now=LATER) == published


def test_transition_time_moves_only_with_the_status_of_its_condition() -> None:
    pod = make_pod()
    published = running(pod)
    unready = PodReport(pod.ref, [ContainerReport("main", Running(), ready=False)])
    changed = compute_status(with_status(pod, published), unready, now=LATER)
    assert condition(changed, "Ready")["lastTransitionTime"] == "2026-01-01T13:00:00Z"
    assert condition(changed, "Initialized")["lastTransitionTime"] == "2026-01-01T12:00:00Z"


def test_conditions_of_others_and_fields_of_others_survive() -> None:
    pod = with_status(make_pod(), {"phase": "Pending", "conditions": [FOREIGN], "resourceClaimStatuses": [{"name": "gpu"}]})
    status = running(pod)
    assert condition(status, "example.com/gate") == FOREIGN
    assert status["resourceClaimStatuses"] == [{"name": "gpu"}]


def test_address_that_was_told_once_stays_when_the_report_has_none() -> None:
    pod = with_status(make_pod(), running(make_pod()))
    status = compute_status(pod, all_running(pod), now=LATER)
    assert (status["podIP"], status["hostIP"]) == ("10.0.0.1", "192.0.2.1")


def test_host_network_pod_has_the_addresses_of_its_node() -> None:
    pod = make_pod(spec={"hostNetwork": True})
    status = compute_status(pod, all_running(pod), now=NOW, host_ips=["192.0.2.1", "2001:db8::1"])
    assert status["podIPs"] == status["hostIPs"] == [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}]


def test_observed_generation_never_decreases() -> None:
    pod = with_status(make_pod(), running(make_pod(), generation=3))
    assert running(pod, generation=2)["observedGeneration"] == 3


def test_sync_failure_keeps_the_pod_waiting_and_pending_with_restart_policy_never() -> None:
    pod = make_pod(spec={"restartPolicy": "Never"})
    status = compute_status(pod, None, now=NOW, waiting=Waiting("ProviderFailed", "no machine"))
    assert status["phase"] == "Pending"
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ProviderFailed"


def test_reason_goes_with_the_phase_it_belongs_to() -> None:
    pod = with_status(make_pod(), {"phase": "Pending", "reason": "Slow", "message": "wait"})
    assert compute_status(pod, None, now=NOW)["reason"] == "Slow"
    assert "reason" not in running(pod)


def test_rejected_pod_is_failed_with_reason_and_shows_no_containers() -> None:
    pod = make_pod()
    status = end_status(pod, compute_status(pod, None, now=NOW), now=NOW, end=End("OutOfcpu", "no room", failed=True))
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "OutOfcpu", "no room")
    assert "containerStatuses" not in status
    assert condition(status, "Ready")["status"] == "False"
    assert status["qosClass"] == "BestEffort"


def test_lost_pod_shows_its_containers_as_ended() -> None:
    pod = with_status(make_pod(), running(make_pod()))
    status = end_status(pod, compute_status(pod, None, now=LATER), now=LATER, end=End("ProviderLost", "gone", failed=True))
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert condition(status, "Ready") == {
        "type": "Ready",
        "status": "False",
        "reason": "PodFailed",
        "lastTransitionTime": "2026-01-01T13:00:00Z",
        "observedGeneration": 1,
    }


def test_deleted_pod_succeeds_if_all_containers_exited_with_zero_and_fails_otherwise() -> None:
    pod = with_status(make_pod(), running(make_pod()))
    for code, phase in ((0, "Succeeded"), (1, "Failed")):
        ended = compute_status(pod, PodReport(pod.ref, [ContainerReport("main", Terminated(code))]), now=LATER)
        assert end_status(pod, ended, now=LATER, end=End())["phase"] == phase


def test_pod_deleted_before_it_started_ends_failed_with_terminated_containers() -> None:
    pod = make_pod()
    status = end_status(pod, compute_status(pod, None, now=NOW), now=NOW, end=End())
    assert status["phase"] == "Failed"
    assert "terminated" in status["containerStatuses"][0]["state"]


# --- a true PodStatus ---


def physical(**more: object) -> Json:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T11:00:00Z"}
    return {"phase": "Running", "conditions": [ready], "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}], **more}


def test_adopted_status_keeps_the_conditions_of_others_and_the_start_time() -> None:
    published = {"phase": "Pending", "conditions": [FOREIGN], "startTime": "2025-12-31T00:00:00Z", "qosClass": "Burstable"}
    status = adopt_status(with_status(make_pod(), published), physical(startTime="2026-01-01T00:00:00Z", qosClass="BestEffort"), now=NOW)
    assert condition(status, "example.com/gate") == FOREIGN
    assert (status["startTime"], status["qosClass"]) == ("2025-12-31T00:00:00Z", "Burstable")
    assert condition(status, "Ready")["lastTransitionTime"] == "2026-01-01T11:00:00Z"


def test_adopted_status_obeys_the_readiness_gates_of_the_pod() -> None:
    pod = make_pod(spec={"readinessGates": [{"conditionType": "example.com/gate"}]})
    assert condition(adopt_status(pod, physical(), now=NOW), "Ready")["reason"] == "ReadinessGatesNotReady"
    open_pod = with_status(pod, {"phase": "Pending", "conditions": [FOREIGN]})
    assert condition(adopt_status(open_pod, physical(), now=NOW), "Ready")["status"] == "True"


def test_adopted_status_drops_only_the_conditions_it_had_before() -> None:
    published = {"phase": "Running", "conditions": [FOREIGN, {"type": "Mine", "status": "True"}]}
    status = adopt_status(with_status(make_pod(), published), physical(), now=NOW, dropped={"Mine"})
    assert {c["type"] for c in status["conditions"]} == {"Ready", "example.com/gate"}


def test_adopted_terminal_status_is_not_ready() -> None:
    status = adopt_status(make_pod(), physical(phase="Succeeded"), now=NOW)
    assert condition(status, "Ready")["status"] == condition(status, "ContainersReady")["status"] == "False"


# --- the difference ---


def test_no_difference_is_no_write() -> None:
    status = running(make_pod())
    assert status_patch(status, status, uid="u", resource_version="7") is None


def test_null_times_of_the_api_server_are_no_difference() -> None:
    old = {"conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None}]}
    assert patch(old, {"conditions": [{"type": "Ready", "status": "True"}]}) is None


def test_patch_holds_for_one_incarnation_and_version_only() -> None:
    body = status_patch({}, {"phase": "Running"}, uid="u", resource_version="7", annotations={"a": "b"})
    assert body == {"metadata": {"uid": "u", "resourceVersion": "7", "annotations": {"a": "b"}}, "status": {"phase": "Running"}}


def test_annotations_alone_are_written() -> None:
    body = status_patch({"phase": "Running"}, {"phase": "Running"}, uid="u", resource_version="7", annotations={"a": "b"})
    assert body == {"metadata": {"uid": "u", "resourceVersion": "7", "annotations": {"a": "b"}}}


def test_addresses_are_replaced_as_a_whole_and_removed_scalars_are_null() -> None:
    old = {"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}], "reason": "Slow"}
    new = {"podIP": "2.2.2.2", "podIPs": [{"ip": "2.2.2.2"}]}
    assert patch(old, new) == {"podIP": "2.2.2.2", "podIPs": [{"$patch": "replace"}, {"ip": "2.2.2.2"}], "reason": None}
    assert patch(old, {}) == {"podIP": None, "podIPs": [{"$patch": "replace"}], "reason": None}


def test_changed_condition_loses_the_fields_it_lost_and_others_are_not_sent() -> None:
    old = {"conditions": [{"type": "Ready", "status": "False", "reason": "X", "message": "Y"}, FOREIGN]}
    new = {"conditions": [{"type": "Ready", "status": "True"}, FOREIGN]}
    assert patch(old, new) == {"conditions": [{"type": "Ready", "status": "True", "reason": None, "message": None}]}


def test_dropped_condition_is_deleted_by_its_name() -> None:
    assert patch({"conditions": [{"type": "Mine", "status": "True"}, FOREIGN]}, {"conditions": [FOREIGN]}) == {
        "conditions": [{"$patch": "delete", "type": "Mine"}]
    }


def test_conditions_stay_in_the_order_in_which_they_are_listed() -> None:
    """A strategic merge puts those of the patch before those that are there, unless it is told otherwise."""

    def listed(**statuses: str) -> Json:
        return {"conditions": [{"type": kind, "status": status} for kind, status in statuses.items()]}

    before, after = listed(PodScheduled="True"), listed(PodScheduled="True", Initialized="True", Ready="False")
    added = status_patch(before, after, uid="u", resource_version="1")
    assert added is not None
    assert added["status"]["$setElementOrder/conditions"] == [{"type": "PodScheduled"}, {"type": "Initialized"}, {"type": "Ready"}]
    changed = status_patch(after, listed(PodScheduled="True", Initialized="True", Ready="True"), uid="u", resource_version="1")
    assert changed is not None and [c["type"] for c in changed["status"]["conditions"]] == ["Ready"]
    assert len(changed["status"]["$setElementOrder/conditions"]) == 3
    first = status_patch({}, after, uid="u", resource_version="1")
    assert first is not None and first["status"].keys() == {"conditions"}
