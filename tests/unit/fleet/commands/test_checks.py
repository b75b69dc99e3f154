"""Tests of fleet.commands.checks: prepared faults of hub and worker, each named with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import yaml

from fleet.api import keys
from fleet.commands import checks
from fleet.commands.here import issued_kubeconfig
from fleet.core.requests import ClientRequest
from fleet.core.view import Door, Health, View
from tests.unit.fleet.builders import Body, condition, managed, member, unknown
from vkubelet.api.objects import CLUSTERROLES, ROLEBINDINGS, Key
from vkubelet.api.rbac import Rule, checks_of
from vkubelet.clock import parse_rfc3339
from vkubelet.commands.findings import Finding
from vkubelet.control.certificates import Name, entries_of, self_signed

NOW = parse_rfc3339("2026-01-01T12:00:00Z")
AGENT = Key("fleet-system", "fleet-agent")
GOOD: Body = {"name": "w1", "door": Door.OCM, "accepted": True, "joined": True, "health": Health("True")}


def only(found: Iterable[Finding]) -> tuple[str, str, str]:
    """Level, problem and commands of the one finding; empty without one."""
    listed = list(found)
    assert len(listed) <= 1, listed
    return (listed[0].level.value, listed[0].problem, "\n".join(listed[0].commands)) if listed else ("", "", "")


def lease(*, ago: float = 5, holder: str = "one") -> Any:
    renewed = (NOW - timedelta(seconds=ago)).isoformat()
    return unknown({"metadata": {"name": "fleet-agent"}, "spec": {"holderIdentity": holder, "renewTime": renewed}})


def deployment(replicas: int, available: int) -> Any:
    return unknown({"metadata": {"name": "a"}, "spec": {"replicas": replicas}, "status": {"availableReplicas": available}})


@pytest.mark.parametrize(
    ("leader", "replicas", "expected"),
    [
        (lease(), deployment(2, 2), ("", "", "")),
        (lease(), None, ("", "", "")),
        (None, None, ("error", "Lease fleet-system/fleet-agent has no holder", "kubectl get pods -n fleet-system")),
        (lease(holder=""), None, ("error", "has no holder; start it", "kubectl get pods -n fleet-system")),
        (
            lease(ago=90),
            deployment(1, 1),
            ("error", "runs since 2026-01-01T11:58:30Z", "kubectl logs -n fleet-system deployment/fleet-agent"),
        ),
        (lease(), deployment(2, 1), ("warning", "of 2 replicas of Deployment fleet-system/fleet-agent are 1", "kubectl describe pods")),
        (lease(), deployment(1, 0), ("error", "are 0 available", "-l app.kubernetes.io/name=fleet-agent")),
    ],
)
def test_f_15_a_process_that_does_not_run_is_named(leader: Any, replicas: Any, expected: Sequence[str]) -> None:
    found = only(checks.process(AGENT, replicas, leader, now=NOW, kubectl="kubectl"))
    assert all(part in got for part, got in zip(expected, found, strict=True)) and bool(expected[0]) == bool(found[0]), found


def test_f_15_missing_rights_and_policies_are_named() -> None:
    missing = checks_of([Rule("nodes", "list watch", why="")])
    level, problem, command = only(checks.rights(AGENT, missing, remedy="fleet init"))
    assert level == "error" and "fleet-system/fleet-agent may not list nodes, watch nodes" in problem and command == "fleet init"
    wanted = [("ValidatingAdmissionPolicy", "a"), ("ValidatingAdmissionPolicyBinding", "a")]
    assert only(checks.admission(wanted, wanted)) == ("", "", "")
    level, problem, command = only(checks.admission(wanted, wanted[:1]))
    assert level == "error" and "lacks ValidatingAdmissionPolicyBinding a" in problem and command == "fleet init"


def request(**changes: Any) -> ClientRequest:
    made = {
        "name": "w1-x",
        "cluster": "w1",
        "requester": "boot",
        "signer": keys.CLIENT_SIGNER,
        "usages": keys.CLIENT_USAGES,
        "common_name": keys.user_name("w1", "a"),
        "organizations": (keys.cluster_group("w1"),),
    }
    return ClientRequest(**{**made, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"decided": True, "signer": "other"}, ""),
        ({"cluster": "w1", "common_name": keys.user_name("w2", "a")}, "the common name is not that of an agent of the cluster"),
        ({"organizations": ("system:masters",)}, "the organizations are not those of the cluster"),
        ({"signer": "kubernetes.io/kubelet-serving"}, "spec.signerName is not"),
        (
            {"cluster": "w9", "common_name": keys.user_name("w9", "a"), "organizations": (keys.cluster_group("w9"),)},
            "the hub has no ManagedCluster",
        ),
    ],
)
def test_f_109_a_forged_request_is_named_with_the_command_that_denies_it(changes: Body, words: str) -> None:
    level, problem, command = only(checks.requests([request(**changes)], {"w1"}, kubectl="kubectl"))
    assert words in problem and bool(words) == bool(problem)
    assert (level, command) == (("warning", "kubectl certificate deny w1-x") if words else ("", ""))


def test_f_15_objects_of_clusters_that_are_gone_are_listed() -> None:
    role, binding = (unknown({"metadata": {"name": name, "namespace": space}}) for name, space in (("r", ""), ("b", "w2")))
    owned = [(CLUSTERROLES, role, "w1"), (ROLEBINDINGS, binding, "w2")]
    assert only(checks.orphans(owned, {"w1", "w2"}, kubectl="kubectl")) == ("", "", "")
    level, problem, command = only(checks.orphans(owned, {"w1"}, kubectl="kubectl"))
    assert level == "warning" and "RoleBinding w2/b is left of cluster w2" in problem
    assert command == "kubectl delete rolebindings b -n w2"
    leaving = unknown({"metadata": {"name": "r", "deletionTimestamp": "2026-01-01T11:00:00Z"}})
    assert only(checks.orphans([(CLUSTERROLES, leaving, "w1")], set(), kubectl="kubectl")) == ("", "", "")


def test_f_21_fields_that_do_not_parse_are_named() -> None:
    wrong = managed(spec={"leaseDurationSeconds": "soon"})
    level, problem, command = only(checks.records(wrong, member(), kubectl="kubectl"))
    assert level == "warning" and "ManagedCluster spec.leaseDurationSeconds" in problem and command == "kubectl edit managedcluster w1"
    assert "MemberCluster spec.identity" in only(checks.records(None, member(spec={"identity": {"kind": "User"}}), kubectl="k"))[1]


STATES: list[tuple[Body, list[Body], bool, tuple[str, str, str]]] = [
    ({}, [], False, ("", "", "")),
    ({"accepted": False}, [], True, ("warning", "a request waits for approval", "fleet accept w1")),
    ({"accepted": False}, [], False, ("warning", "the hub does not accept it", "fleet accept w1")),
    (
        {},
        [condition("HubAcceptedManagedCluster", "False", message="Namespace w1 exists; run: kubectl label namespace w1 a=w1")],
        False,
        ("error", "the hub cannot prepare it", "kubectl label namespace w1 a=w1"),
    ),
    ({"joined": False}, [], True, ("warning", "a request waits", "fleet accept w1")),
    ({"joined": False}, [], False, ("error", "its agent has not joined", "fleet doctor --here --context WORKER")),
    ({}, [], True, ("warning", "the renewal of its certificate, or another cluster of its name", "fleet accept w1")),
    ({"leaving": True}, [condition("Deleting", "True", message="2 left")], False, ("warning", "removed: 2 left", "fleet leave w1")),
    (
        {"health": Health("Unknown", NOW, "ManagedClusterLeaseUpdateStopped")},
        [],
        False,
        ("error", "since 2026-01-01T12:00:00Z (ManagedClusterLeaseUpdateStopped)", "--here"),
    ),
    ({"health": Health("False", cause="Down")}, [], False, ("error", "its API server is not healthy (Down)", "--here")),
    ({}, [condition("ManagedClusterConditionClockSynced", "False")], False, ("error", "the clocks of hub and worker", "timedatectl")),
    ({}, [condition("ClusterCertificateRotated", "False", message="denied")], False, ("warning", "not renewed: denied", "fleet accept w1")),
]


@pytest.mark.parametrize(("changes", "conditions", "pending", "expected"), STATES)
def test_f_15_what_keeps_a_cluster_from_being_healthy_is_named(
    changes: Body, conditions: list[Body], pending: bool, expected: Sequence[str]
) -> None:
    record = managed(spec={"hubAcceptsClient": True}, status={"conditions": conditions})
    found = only(checks.state(View(**{**GOOD, **changes}), record, pending=pending))
    assert all(part in got for part, got in zip(expected, found, strict=True)) and bool(expected[0]) == bool(found[0]), found


# --- The worker ---


def entries(user: str = "system:open-cluster-management:w1:a", **changes: bytes) -> dict[str, bytes]:
    return {**entries_of(self_signed(Name(user), ["w1.example"], now=NOW)), **changes}


@pytest.mark.parametrize(
    ("stored", "days", "expected"),
    [
        (entries(), 1, ("", "")),
        ({}, 0, ("error", "has no certificate, because its request is not approved; on the hub run: fleet accept w1")),
        (entries(**{"tls.key": b"other"}), 0, ("error", "has no certificate")),
        (entries("system:open-cluster-management:w2:a"), 1, ("error", "w2:a, not of an agent of cluster w1")),
        (entries(), 340, ("warning", "and was not renewed")),
        (entries(), 366, ("error", "expired at")),
    ],
)
def test_f_15_a_certificate_that_ends_is_named(stored: dict[str, bytes], days: int, expected: Sequence[str]) -> None:
    level, problem, _ = only(checks.identity("fleet-system/s", "w1", stored, now=NOW + timedelta(days=days)))
    assert level == expected[0] and expected[1] in problem
    assert "PRIVATE KEY" not in problem


def event(reason: str, at: str, type_: str = "Warning") -> Any:
    return unknown({"type": type_, "reason": reason, "message": "not ours", "lastTimestamp": f"2026-01-01T{at}:00Z"})


def test_f_15_warnings_of_the_agent_are_shown_until_it_has_joined() -> None:
    events = [event("Denied", "11:59"), event("Denied", "11:00"), event("Joining", "11:59", "Normal")]
    assert only(checks.complaints(events, now=NOW)) == ("warning", "the agent reports Denied: not ours", "")
    assert only(checks.complaints([*events, event("Joined", "11:59", "Normal")], now=NOW)) == ("", "", "")


@pytest.mark.parametrize(
    ("accepted", "conditions", "words"),
    [
        (True, [], ""),
        (False, [], "the hub does not accept cluster w1; on the hub run: fleet accept w1"),
        (True, [condition("HubAcceptedManagedCluster", "False", message="Namespace w1 exists")], "Namespace w1 exists"),
    ],
)
def test_f_15_a_hub_that_does_not_accept_the_cluster_is_named(accepted: bool, conditions: list[Body], words: str) -> None:
    record = managed(spec={"hubAcceptsClient": accepted}, status={"conditions": conditions})
    level, problem, _ = only(checks.consent("w1", record))
    assert words in problem and level == ("error" if words else "")


def test_the_issued_identity_is_used_at_its_own_hub_alone() -> None:
    def kubeconfig(server: str) -> bytes:
        clusters = [{"name": "hub", "cluster": {"server": server}}]
        return yaml.safe_dump({"clusters": clusters, "users": [{"name": "u", "user": {"token": "boot"}}]}).encode()

    stored = entries(kubeconfig=kubeconfig("https://one"))
    (user,) = yaml.safe_load(issued_kubeconfig(kubeconfig("https://one"), stored, token=b""))["users"]
    assert user["user"].keys() == {"client-certificate-data", "client-key-data"}
    for text in (
        issued_kubeconfig(kubeconfig("https://two"), stored, token=b""),
        issued_kubeconfig(kubeconfig("https://one"), {}, token=b""),
    ):
        assert yaml.safe_load(text)["users"][0]["user"] == {"token": "boot"}
    member = issued_kubeconfig(kubeconfig("https://one"), {}, token=b"member\n")
    assert yaml.safe_load(member)["users"][0]["user"] == {"token": "member"}
