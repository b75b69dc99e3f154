"""Tests of fleet.commands.progress: each wait names what is missing, and the command of the side that has to act."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleet.commands.join import refused_token
from fleet.commands.progress import Observed, step_of
from tests.unit.fleet.builders import Body, condition, managed, unknown
from vkubelet.api.objects import Unknown

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ACCEPTED = condition("HubAcceptedManagedCluster", "True")
JOINED = [ACCEPTED, condition("ManagedClusterJoined", "True"), condition("ManagedClusterConditionAvailable", "True")]


def request(name: str = "w1-x", *conditions: Body, created: str = "2025-12-31T23:59:00Z") -> Unknown:
    return unknown({"metadata": {"name": name, "creationTimestamp": created}, "status": {"conditions": list(conditions)}})


def decided(type_: str, message: str = "") -> Body:
    return {"type": type_, "status": "True", "message": message}


def text(*conditions: Body, accepted: bool = True, record: bool = True, after: float = 60.0, **changes: Any) -> str:
    """What is shown `after` so many seconds."""
    cluster = managed(spec={"hubAcceptsClient": accepted}, status={"conditions": list(conditions)})
    seen = Observed(
        name="w1",
        hub="https://hub.example",
        record=cluster if record else None,
        **{"issued": True, "since": NOW - timedelta(seconds=after), "now": NOW, **changes},
    )
    step = step_of(seen)
    assert step.joined == (step.text == "cluster w1 joined the hub https://hub.example")
    return step.text


def test_f_13_a_cluster_that_joined_waits_for_nothing() -> None:
    assert text(*JOINED) == "cluster w1 joined the hub https://hub.example"


def test_f_143_a_cluster_that_joined_is_final_once_the_hub_has_compared_the_clocks() -> None:
    for conditions, final in ((JOINED, False), ([*JOINED, condition("ManagedClusterConditionClockSynced", "True")], True)):
        cluster = managed(spec={"hubAcceptsClient": True}, status={"conditions": conditions})
        step = step_of(Observed(name="w1", hub="https://hub.example", record=cluster, issued=True, since=NOW, now=NOW))
        assert step.joined and step.final == final


@pytest.mark.parametrize(
    ("conditions", "changes", "words"),
    [
        ([], {"record": False, "after": 5.0}, ["the agent has not created its record"]),
        ([], {"record": False}, ["the agent has not created its record", "in the worker check: kubectl -n fleet-system get pods"]),
        ([], {"record": False, "complaint": "cannot join the hub"}, ["cannot join the hub"]),
        ([], {"issued": False}, ["the agent has not requested a certificate"]),
        ([], {"issued": False, "requests": [request()]}, ["request w1-x is not approved since 60 s", "fleet accept w1"]),
        ([], {"issued": False, "requests": [request()], "taken": True}, ["joined already; choose another --name", "fleet accept w1"]),
        (
            [],
            {"issued": False, "requests": [request("w1-x", decided("Denied", "not known"))]},
            ["denied request w1-x: not known", "on the hub run: fleet accept w1"],
        ),
        ([], {"issued": False, "requests": [request("w1-x", decided("Approved"))]}, ["waits for the signer", "kube-controller-manager"]),
        ([], {"accepted": False}, ["has not accepted cluster w1", "on the hub run: fleet accept w1"]),
        ([condition("HubAcceptedManagedCluster", "False")], {"accepted": False}, ["denies cluster w1", "fleet accept w1"]),
        ([], {}, ["has not prepared its namespace", "on the hub check that `fleet hub` runs"]),
        (
            [condition("HubAcceptedManagedCluster", "False", "Error", message="run: kubectl label namespace w1 …")],
            {},
            ["cannot prepare the cluster", "kubectl label namespace w1"],
        ),
        ([*JOINED, condition("ManagedClusterConditionClockSynced", "False")], {}, ["clocks of hub and worker differ", "timedatectl"]),
        ([ACCEPTED], {}, ["the agent has not reported yet", "kubectl -n fleet-system get pods"]),
        (JOINED, {"problem": "the token expired"}, ["the token expired"]),
    ],
)
def test_f_13_each_wait_names_what_is_missing_and_who_has_to_act(conditions: list[Body], changes: dict[str, Any], words: list[str]) -> None:
    found = text(*conditions, **changes)
    assert all(each in found for each in words), found


def test_f_13_of_several_requests_the_last_one_counts() -> None:
    old = request("w1-old", decided("Denied", "no"))
    assert "request w1-new is not approved" in text(issued=False, requests=[request("w1-new", created="2025-12-31T23:59:30Z"), old])


def test_f_13_a_refused_token_is_told_from_an_expired_one_and_never_shown() -> None:
    # {"exp": 1767139200}: 2025-12-31T00:00:00Z.
    expired = "h.eyJleHAiOiAxNzY3MTM5MjAwfQ.s"
    assert refused_token("https://hub.example", expired, now=NOW).startswith("the token expired at 2025-12-31 00:00Z")
    other = refused_token("https://hub.example", "t0k3n", now=NOW)
    assert other == "the hub https://hub.example refuses the token; on the hub run `fleet init` for a new one"
