"""Tests of fleet.agent.managed_cluster_status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from fleet.agent.managed_cluster_status import Report, StatusWriter, contains, desired_status, is_denied, may_report, omission
from fleet.agent.properties import WorkerFacts
from fleet.core.properties import Inventory, NodeShare
from tests.support.memory_api import Body, MergingApi
from tests.unit.fleet.builders import SINCE, condition, managed, unknown
from vkubelet.api.quantity import Quantity
from vkubelet.errors import Conflict
from vkubelet.testing.clock import ManualClock

NOW = datetime(2026, 2, 1, tzinfo=UTC)
PATH = "/apis/cluster.open-cluster-management.io/v1/managedclusters/w1"
ACCEPTED = condition("HubAcceptedManagedCluster", "True")
AVAILABLE = "ManagedClusterConditionAvailable"


def share(cpu: str, *, schedulable: bool = True, **more: str) -> NodeShare:
    amounts = {name: Quantity.parse(text) for name, text in {"cpu": cpu, **more}.items()}
    return NodeShare(capacity=amounts, allocatable=amounts, schedulable=schedulable)


def facts(**changes: Any) -> WorkerFacts:
    known = {
        "version": "v1.34.4",
        "inventory": Inventory.of([share("4"), share("2", schedulable=False)], []),
        "claims": {"b": "2", "a": "1"},
    }
    return WorkerFacts(**{**known, **changes})


def status(live: Body | None = None, **report: Any) -> Body:
    report.setdefault("facts", facts())
    return desired_status(live or {}, Report(**report), generation=3, now=NOW)


def of(type_: str, found: Body) -> Body:
    return next(each for each in found["conditions"] if each["type"] == type_)


def test_f_107_an_accepted_cluster_is_joined_and_available() -> None:
    found = status()
    assert of("ManagedClusterJoined", found)["status"] == "True"
    assert of(AVAILABLE, found) == {
        "type": AVAILABLE,
        "status": "True",
        "reason": "ManagedClusterAvailable",
        "message": "the API server of the cluster is healthy",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-02-01T00:00:00Z",
    }


def test_f_132_an_unhealthy_api_server_makes_the_cluster_unavailable() -> None:
    found = of(AVAILABLE, status(unhealthy="get /livez: no response"))
    assert (found["status"], found["reason"]) == ("False", "ManagedClusterKubeAPIServerUnavailable") and "no response" in found["message"]


def test_f_133_resources_leave_out_what_takes_no_pods() -> None:
    found = status()
    assert found["version"] == {"kubernetes": "v1.34.4"}
    assert found["capacity"] == {"cpu": "6", "memory": "0"} and found["allocatable"] == {"cpu": "4", "memory": "0"}


def test_f_133_what_is_unknown_stays_as_it_was_reported_last() -> None:
    live = status()
    found = status(live, facts=WorkerFacts())
    assert found == live and contains(live, found)
    assert status({}, facts=WorkerFacts()).keys() == {"conditions"}


def test_f_133_a_list_that_the_agent_may_not_make_is_named_with_its_rule() -> None:
    found = status(facts=facts(inventory=None, missing=("nodes, which the agent may not list; add the rule {…}",)))
    assert "not reported: nodes, which the agent may not list; add the rule" in of(AVAILABLE, found)["message"]
    assert found["version"] and "capacity" not in found


def test_f_161_claims_are_reported_in_their_order_and_properties_win() -> None:
    found = status(facts=facts(claims={"z": "1", "id.k8s.io": "x", "a": "1"}, cluster_properties={"a": "2"}))
    assert found["clusterClaims"] == [{"name": "id.k8s.io", "value": "x"}, {"name": "a", "value": "2"}, {"name": "z", "value": "1"}]


def test_f_148_a_certificate_that_is_not_renewed_is_reported() -> None:
    found = of("ClusterCertificateRotated", status(not_renewed="the request w1-x was denied"))
    assert (found["status"], found["reason"], found["message"]) == ("False", "ClientCertificateUpdateFailed", "the request w1-x was denied")
    assert of("ClusterCertificateRotated", status())["reason"] == "ClientCertificateUpdated"


def test_f_146_a_transition_has_its_time_and_a_change_of_the_message_keeps_it() -> None:
    live = {"conditions": [condition(AVAILABLE, "True", "Other")]}
    assert of(AVAILABLE, status(live))["lastTransitionTime"] == SINCE
    assert of(AVAILABLE, status(live, unhealthy="x"))["lastTransitionTime"] == "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("accepted", "conditions", "reports", "denied"),
    [
        (False, [], False, False),
        (True, [], False, False),
        (True, [ACCEPTED], True, False),
        (True, [ACCEPTED, condition("ManagedClusterConditionClockSynced", "True")], True, False),
        (True, [ACCEPTED, condition("ManagedClusterConditionClockSynced", "False")], False, False),
        (False, [ACCEPTED], False, False),
        (False, [condition("HubAcceptedManagedCluster", "False")], False, True),
        (True, [condition("HubAcceptedManagedCluster", "False")], False, False),
    ],
)
def test_f_143_a_status_is_written_while_accepted_with_synced_clocks(
    accepted: bool, conditions: list[Body], reports: bool, denied: bool
) -> None:
    cluster = managed(spec={"hubAcceptsClient": accepted}, status={"conditions": conditions})
    assert may_report(cluster) == reports and is_denied(cluster) == denied


# --- Writing ------------------------------------------------------------------------------------------------------------------------------


def stored(api: MergingApi) -> Body:
    return api.objects[PATH]


def put(api: MergingApi, status: Body) -> None:
    api.put(PATH, {"metadata": {"name": "w1", "uid": "u1", "generation": 3}, "status": status})


async def test_f_133_nothing_is_written_that_the_record_contains_already() -> None:
    api = MergingApi()
    put(api, {"conditions": [ACCEPTED]})
    writer, report = StatusWriter(api.client(), clock=ManualClock(NOW)), Report(facts=facts())
    assert await writer.write(unknown(stored(api)), report)
    assert api.writes[0].path == f"{PATH}/status" and api.writes[0].body["metadata"].items() >= {"name": "w1", "uid": "u1"}.items()
    live = {**stored(api)["status"], "conditions": [ACCEPTED, *stored(api)["status"]["conditions"]]}
    put(api, live)
    for _ in range(3):
        assert not await writer.write(unknown(stored(api)), report)
    assert len(api.writes) == 1


async def test_f_133_keys_of_others_stay_and_a_resource_that_is_gone_is_withdrawn() -> None:
    api = MergingApi()
    put(api, {"conditions": []})
    writer = StatusWriter(api.client(), clock=ManualClock(NOW))
    with_gpu = Report(facts=facts(inventory=Inventory.of([share("4", **{"example.com/gpu": "1"})], [])))
    await writer.write(unknown(stored(api)), with_gpu)
    put(api, {**stored(api)["status"], "capacity": {**stored(api)["status"]["capacity"], "by-another": "7"}})
    assert not await writer.write(unknown(stored(api)), with_gpu)
    assert await writer.write(unknown(stored(api)), Report(facts=facts()))
    assert api.writes[-1].body["status"]["capacity"] == {"cpu": "6", "memory": "0"}


async def test_f_141_a_report_that_arrives_after_the_hub_has_written_is_refused() -> None:
    """A line that was silent delivers it when it works again, maybe before the Lease is renewed."""
    api = MergingApi()
    put(api, {"conditions": [ACCEPTED]})
    late = unknown(stored(api))
    unreachable = {"type": AVAILABLE, "status": "Unknown", "reason": "ManagedClusterLeaseUpdateStopped"}
    put(api, {"conditions": [ACCEPTED, unreachable]})
    writer = StatusWriter(api.client(), clock=ManualClock(NOW))
    with pytest.raises(Conflict):
        await writer.write(late, Report(facts=facts()))
    assert stored(api)["status"]["conditions"] == [ACCEPTED, unreachable]
    assert await writer.write(unknown(stored(api)), Report(facts=facts()))


async def test_f_133_a_value_that_another_client_changed_is_written_again() -> None:
    api = MergingApi()
    put(api, {})
    writer, report = StatusWriter(api.client(), clock=ManualClock(NOW)), Report(facts=facts())
    await writer.write(unknown(stored(api)), report)
    for change in ({"capacity": {"cpu": "1", "memory": "0"}}, {"conditions": []}, {"version": {}}, {"clusterClaims": []}):
        put(api, {**stored(api)["status"], **change})
        assert await writer.write(unknown(stored(api)), report), change


def test_f_161_claims_that_exceed_the_limit_are_named() -> None:
    claims = {f"c{at:02}": "x" for at in range(22)}
    assert omission(facts(claims=claims)) == "2 claims exceed the limit and are not reported: c20, c21; delete others"
    assert omission(facts()) == omission(facts(claims=None)) == ""
