"""What users may rely on, rule by rule: phase, container states and conditions that follow from what a provider reports.

Invariant: every row goes the whole way from a report to the PodStatus that would be written, and names its rule.
"""

from __future__ import annotations

import pytest

from tests.unit.vkubelet.pods.semantics import HOST_IP, NOW, ROWS, RUNS, Row, says
from vkubelet.api.objects import Json, Pod
from vkubelet.pods.desired_status import StatusInputs, desired_status
from vkubelet.pods.status import status_patch
from vkubelet.provider import PodReport, Waiting
from vkubelet.testing.host import make_pod, with_status

APP = {"image": "img", "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}]}
DELETED = {"deletionTimestamp": "2026-01-01T12:00:30Z", "deletionGracePeriodSeconds": 30}


def judged(row: Row) -> tuple[Pod, Json]:
    """The pod as it was published, and the status it should have."""
    starting = [{"name": name.lstrip("+"), **({"restartPolicy": "Always"} if name[0] == "+" else {})} for name in row.starting.split()]
    spec: Json = {
        "restartPolicy": row.policy,
        "initContainers": starting,
        "containers": [{**APP, "name": name} for name in row.apps.split()],
    }
    spec["hostNetwork"] = row.host_network
    spec["readinessGates"] = [{"conditionType": gate} for gate in row.gates]
    pod = with_status(make_pod(spec=spec, metadata=DELETED if row.deleted else {}), row.status)
    inputs = StatusInputs(waiting=Waiting("PodInitializing" if starting else "ContainerCreating"))
    if row.reports is not None:
        inputs = StatusInputs(report=PodReport(pod.ref, row.reports, row.ips, failure=row.failure, conditions=row.resizes), end=row.end)
    status = desired_status(pod, inputs, now=NOW, host_ips=[HOST_IP])
    assert status is not None
    return pod, status


def shown(status: Json) -> Json:
    """What a row may name of a container's status."""
    ((_, state),) = status["state"].items()
    found = {
        **status,
        "exit": state.get("exitCode"),
        "message": state.get("message"),
        "since": (state.get("startedAt") or "").partition("T")[2],
    }
    return {**found, "last": status.get("lastState", {}).get("terminated", {}).get("exitCode")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_rule(row: Row) -> None:
    _, status = judged(row)
    if row.phase:
        assert status["phase"] == row.phase
    found = {c["type"]: c for c in status["conditions"]}
    for kind, wanted in row.conditions.items():
        condition = found.get(kind, {})
        assert f"{condition.get('status', '')} {condition.get('reason', '')}".strip() == wanted, kind
    for kind, text in row.messages.items():
        assert found[kind]["message"] == text
    for kind, moment in row.since.items():
        assert found[kind]["lastTransitionTime"] == moment, kind
    containers = {c["name"]: c for name in ("initContainerStatuses", "containerStatuses") for c in status.get(name, ())}
    assert not row.order or list(containers) == row.order.split()
    for name, wanted in row.states.items():
        ((state, body),) = containers[name]["state"].items()
        assert f"{state} {body.get('reason', '')}" == wanted
    for name, fields in row.containers.items():
        assert {key: shown(containers[name]).get(key) for key in fields} == fields
    for key, value in row.top.items():
        assert status.get(key) == value


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_terminal_phase_never_changes_back(phase: str) -> None:
    pod = with_status(make_pod(), {"phase": phase})
    assert desired_status(pod, StatusInputs(report=PodReport(pod.ref, [says("main", RUNS)])), now=NOW) is None


def test_rows_name_their_rules_once() -> None:
    rules = [row.rule for row in ROWS]
    assert len(rules) == len(set(rules))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_a_write_is_the_difference_for_this_pod_and_none_when_there_is_none(row: Row) -> None:
    """Whatever the rule, what is written holds for exactly this uid, and once it is there nothing is left to write."""
    pod, status = judged(row)
    body = status_patch(pod.status, status, uid=pod.metadata.uid, resource_version="7")
    assert body is not None and body["metadata"] == {"uid": pod.metadata.uid, "resourceVersion": "7"}
    assert status_patch(status, status, uid=pod.metadata.uid, resource_version="8") is None
