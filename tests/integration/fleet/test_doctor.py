"""`fleet doctor` on a hub with prepared faults."""

from __future__ import annotations

import json
from collections.abc import Iterable

import yaml

from fleet.api import keys
from tests.integration.fleet.player import CLUSTERS, CSRS, Body, Caller, gone, joined, new_key, request_certificate
from tests.support.command import run_command
from tests.support.program import LONG, Program
from vkubelet.testing.cluster import ControlPlane

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


async def examined(cluster: ControlPlane, *flags: str, user: str = "") -> tuple[int, list[Body]]:
    kubeconfig = cluster.client_config(user) if user else cluster.kubeconfig
    ran = await run_command("fleet", "doctor", "-o", "json", "--kubeconfig", str(kubeconfig), *flags, within=LONG)
    assert ran.code in (0, 1), ran.stderr
    return ran.code, json.loads(ran.stdout)


def found(results: Iterable[Body], check: str, *, subject: str = "hub") -> list[Body]:
    """The findings of one check."""
    (one,) = [each for each in results if (each["subject"], each["check"]) == (subject, check)]
    assert not one["skipped"], one
    findings: list[Body] = one["findings"]
    return findings


async def test_f_15_doctor_names_prepared_faults_with_their_remedies(
    prepared: ControlPlane, program: Program, bootstrap: Caller, admin: Caller
) -> None:
    await joined(prepared, bootstrap, admin, "sick1")
    forged = await request_certificate(bootstrap, "sick1", new_key(), user="system:open-cluster-management:w2:agent")
    role = {"metadata": {"name": "left", "labels": {keys.CLUSTER_NAME: "sick9"}}, "rules": []}
    await admin.create(ROLES, role)
    _, results = await examined(prepared)
    assert [found(results, check) for check in ("API server", "definitions", "process")] == [[], [], []]
    assert found(results, "fields", subject="cluster sick1") == found(results, "state", subject="cluster sick1") == []
    (request,) = [each for each in found(results, "requests") if forged in each["problem"]]
    kubectl = f"kubectl --kubeconfig {prepared.kubeconfig}"
    assert (request["level"], request["commands"]) == ("warning", [f"{kubectl} certificate deny {forged}"])
    (left,) = [each for each in found(results, "orphans") if "sick9" in each["problem"]]
    assert left["commands"] == [f"{kubectl} delete clusterroles left"]
    assert not [each for each in found(results, "orphans") if "sick1 " in each["problem"]]

    # Line 7: after its deletion, nothing is left of the cluster but its namespace.
    await admin.delete(f"{CSRS}/{forged}")
    await admin.delete(f"{ROLES}/left")
    await admin.delete(f"{CLUSTERS}/sick1")
    await gone(admin, f"{CLUSTERS}/sick1")
    assert program.terminate() == 0
    code, results = await examined(prepared)
    assert not [each for check in ("orphans", "requests") for each in found(results, check) if "sick" in each["problem"]]
    assert not [each for each in results if each["subject"] == "cluster sick1"]
    (stopped,) = found(results, "process")
    assert code == 1 and stopped["level"] == "error" and "no process fleet-hub runs" in stopped["problem"]


async def test_f_15_what_a_user_may_not_read_is_skipped_and_named(prepared: ControlPlane) -> None:
    code, results = await examined(prepared, user="unprivileged")
    as_yaml = await run_command("fleet", "doctor", "-o", "yaml", "--kubeconfig", str(prepared.client_config("unprivileged")), within=LONG)
    assert yaml.safe_load(as_yaml.stdout) == results
    assert code == 0 and not [each for each in results if each["findings"]]
    skipped = {each["check"]: each["skipped"] for each in results}
    assert not skipped["API server"] and "you may not get customresourcedefinitions.apiextensions.k8s.io" in skipped["definitions"]
    # Nothing counts as left over while the records are unknown.
    assert skipped["orphans"] == skipped["requests"] == "the records of clusters were not read"
