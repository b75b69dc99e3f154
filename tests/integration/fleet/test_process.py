"""The process `fleet hub`: trusted users, restarts, standby, readiness."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from fleet.api import keys
from fleet.api.resources import guard_rails
from tests.integration.fleet.conftest import define, serving
from tests.integration.fleet.player import (
    ACCEPTED,
    CLUSTERS,
    CSRS,
    MEMBERS,
    RBAC,
    Body,
    Caller,
    accept,
    agent_of,
    found,
    has_condition,
    issued,
    joined,
    managed,
    member,
    new_key,
    profile,
    reaches,
    record,
    report,
    request_certificate,
)
from tests.support.audit import Audit
from tests.support.gate import Gate
from tests.support.program import Program, eventually
from tests.support.troubles import Trouble
from vkubelet.testing.cluster import ControlPlane

QUIET = timedelta(seconds=3)


@pytest.fixture(scope="module")
def hub_settings() -> Body:
    return {"auto_approve_users": ["trusted"], "profile_namespace": "default"}


@pytest.fixture
def trusted(prepared: ControlPlane) -> Caller:
    return Caller(prepared.client_config("trusted", ["system:bootstrappers:managedcluster"]))


async def test_f_108_a_trusted_user_joins_without_a_person_once(
    program: Program, trusted: Caller, bootstrap: Caller, admin: Caller
) -> None:
    await record(trusted, "p1")
    await issued(admin, await request_certificate(trusted, "p1", new_key()))
    await has_condition(admin, "p1", "HubAcceptedManagedCluster", ACCEPTED)
    assert keys.ACCEPTED_ON in (await admin.call("GET", f"{CLUSTERS}/p1"))["metadata"]["annotations"]
    await accept(admin, "p1", accepts=False)
    await has_condition(admin, "p1", "HubAcceptedManagedCluster", ("False", "HubClusterAdminDenied"))
    await issued(admin, await request_certificate(trusted, "p1", new_key()))
    assert (await admin.call("GET", f"{CLUSTERS}/p1"))["spec"]["hubAcceptsClient"] is False
    # What another bootstrap user asks for waits, and what a trusted one forges too.
    waiting = [await request_certificate(bootstrap, "p1", new_key())]
    waiting.append(await request_certificate(trusted, "p1", new_key(), user="system:open-cluster-management:p2:agent"))
    await issued(admin, await request_certificate(trusted, "p1", new_key()))
    for name in waiting:
        assert not ((await admin.call("GET", f"{CSRS}/{name}")).get("status") or {}).get("conditions")
        await admin.delete(f"{CSRS}/{name}")


async def test_f_502_a_restart_writes_nothing_to_a_cluster(
    prepared: ControlPlane, program: Program, bootstrap: Caller, admin: Caller
) -> None:
    audit = Audit(prepared, keys.HUB)
    await joined(prepared, bootstrap, admin, "p3")
    await admin.create(MEMBERS, member("p4", labels={"env": "prod"}, taints=[{"key": "a", "effect": "NoSchedule"}]))
    await report(await agent_of(prepared, "p4"), "p4")
    await reaches(admin, profile("default", "p4"), "ControlPlaneHealthy", ("True", "MemberClusterAPIServerHealthy"))
    await has_condition(admin, "p4", "HubAcceptedManagedCluster", ACCEPTED)
    await reaches(admin, f"{MEMBERS}/p3", "ReadyToJoin", ("True", "MemberClusterReadyToJoin"))

    others = ("p3", "p4", "fleet-member-p3", "fleet-member-p4")

    async def settled() -> bool:
        record = await admin.call("GET", f"{CLUSTERS}/p3")
        last = max(call.at for call in audit.writes() if call.name in others or call.namespace in others)
        return not record["spec"].get("taints") and datetime.now(UTC) - last > QUIET

    await eventually(settled, "the cluster has joined, and nothing more is written")
    assert program.terminate() == 0
    audit = Audit(prepared, keys.HUB)
    program.start()
    await admin.create(CLUSTERS, managed("p5"))
    await reaches(admin, f"{MEMBERS}/p5", "ReadyToJoin", ("True", "MemberClusterReadyToJoin"))
    written = [call for call in audit.writes() if call.name in others or call.namespace in others]
    assert not written, [(str(call), call.body) for call in written]


async def test_f_1_a_standby_takes_the_lease_of_a_leader_that_stops(
    prepared: ControlPlane, program: Program, admin: Caller, tmp_path: Path
) -> None:
    await admin.create(CLUSTERS, managed("p6"))
    await has_condition(admin, "p6", "HubAcceptedManagedCluster", ACCEPTED)
    standby = Program("fleet", *program.arguments, log=tmp_path / "standby.log")
    with standby:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{keys.NAMESPACE}/leases/{keys.HUB}"
        first = (await admin.call("GET", path))["spec"]["holderIdentity"]
        await eventually(lambda: "starting" in standby.text(), "the standby runs")
        assert program.terminate() == 0
        await admin.create(CLUSTERS, managed("p7"))
        await has_condition(admin, "p7", "HubAcceptedManagedCluster", ACCEPTED)
        assert (await admin.call("GET", path))["spec"]["holderIdentity"] != first


async def test_f_3_without_a_module_its_objects_are_not_made(prepared: ControlPlane, admin: Caller, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"modules": ["registration"], "leader": {"enabled": False}}
    settings["health"] = {"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"}
    config = tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump(settings))
    kubeconfig = prepared.client_config(keys.HUB)
    audit = Audit(prepared, keys.HUB)
    with Program("fleet", "hub", "--config", str(config), "--kubeconfig", str(kubeconfig), log=tmp_path / "hub.log"):
        await admin.create(CLUSTERS, managed("p8"))
        await has_condition(admin, "p8", "HubAcceptedManagedCluster", ACCEPTED)
    assert await admin.get(f"{MEMBERS}/p8") is None
    assert not [call for call in audit.calls() if call.what.partition("/")[0] in ("memberclusters", "clusterprofiles", "works")]


async def test_f_64_administrators_are_a_setting(prepared: ControlPlane, admin: Caller, tmp_path: Path) -> None:
    await prepared.kubectl("create", "clusterrolebinding", "deputy", "--clusterrole=cluster-admin", "--user=deputy")
    deputy = Caller(prepared.client_config("deputy"))
    guarded = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet-other"}}

    async def answer(status: int) -> bool:
        return await deputy.status_of("POST", "/api/v1/namespaces?dryRun=All", guarded) == status

    try:
        with serving(prepared, tmp_path, {"administrators": ["bare-admin"], "profile_namespace": "default"}):
            await eventually(partial(answer, 403), "the policy is enforced")
            policy = await admin.call("GET", f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{keys.GUARD_RAILS}")
            role = await admin.call("GET", f"{RBAC}/clusterroles/{keys.HUB}")
            assert [each["uid"] for each in policy["metadata"]["ownerReferences"]] == [role["metadata"]["uid"]]
            await admin.create(MEMBERS, member("p9"))
            await reaches(admin, f"{MEMBERS}/p9", "ReadyToJoin", ("True", "MemberClusterReadyToJoin"))
        with serving(prepared, tmp_path, {"profile_namespace": "default"}):
            await eventually(partial(answer, 200), "the policy is removed")
    finally:
        await prepared.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=guard_rails(["any"]))
        await prepared.kubectl("delete", "clusterrolebinding", "deputy")


async def test_f_3_a_module_without_its_kinds_waits_and_is_named(prepared: ControlPlane, admin: Caller, tmp_path: Path) -> None:
    port, config, log = prepared.site.free_port(), tmp_path / "settings.yaml", tmp_path / "hub.log"
    health = {"health_address": f"127.0.0.1:{port}", "metrics_address": ""}
    config.write_text(yaml.safe_dump({"health": health, "leader": {"enabled": False}}))
    deployments = f"/apis/apps/v1/namespaces/{keys.NAMESPACE}/deployments"
    await admin.create(deployments, deployment(keys.HUB))
    await prepared.kubectl("delete", "crd", "clusterprofiles.multicluster.x-k8s.io")
    with Gate() as gate, gate.trouble(Trouble(when=lambda asked: asked.resource == "memberclusters", status=404)) as absent:
        program = Program("fleet", "hub", "--config", str(config), "--kubeconfig", str(gate.way(prepared, keys.HUB)), log=log)
        try:
            with program:

                async def named() -> bool:
                    text = (await readiness(port))[1]
                    return all(f"module {each} waits" in text for each in ("inventory", "kubefleet"))

                await eventually(named, "/readyz names both modules")
                await admin.create(CLUSTERS, managed("p10"))
                await has_condition(admin, "p10", "HubAcceptedManagedCluster", ACCEPTED)

                async def recorded() -> bool:
                    listed = await admin.items(f"/api/v1/namespaces/{keys.NAMESPACE}/events?fieldSelector=reason=MissingKinds")
                    return any("clusterprofiles.multicluster.x-k8s.io; run: fleet init" in each["message"] for each in listed)

                await eventually(recorded, "an Event about the Deployment")
                absent.trouble = Trouble(when=lambda asked: False)
                await define(prepared)
                await found(admin, f"{MEMBERS}/p10")

                async def ready() -> bool:
                    return (await readiness(port))[0] == 200

                await eventually(ready, "the modules run")
        finally:
            await define(prepared)
            await admin.delete(f"{deployments}/{keys.HUB}")


def deployment(name: str) -> Body:
    """A Deployment whose pods run nowhere."""
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def readiness(port: int) -> tuple[int, str]:
    """Status and text of /readyz; 0 when nothing listens."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz?verbose") as answer:
            return answer.status, await answer.text()
    except aiohttp.ClientError:
        return 0, ""


async def test_f_1_without_its_hub_the_process_stays_up_and_is_not_ready(prepared: ControlPlane, tmp_path: Path) -> None:
    port, config = prepared.site.free_port(), tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump({"health": {"health_address": f"127.0.0.1:{port}", "metrics_address": ""}}))
    kubeconfig = tmp_path / "nowhere.kubeconfig"
    nowhere = f"https://127.0.0.1:{prepared.site.free_port()}"
    kubeconfig.write_text(prepared.client_config(keys.HUB).read_text().replace(prepared.url, nowhere))
    arguments = ("hub", "--config", str(config), "--kubeconfig")
    with Program("fleet", *arguments, str(kubeconfig), log=tmp_path / "nowhere.log") as program:

        async def unready() -> bool:
            status, text = await readiness(port)
            return status == 503 and "managedclusters.cluster.open-cluster-management.io (" in text and nowhere.rpartition(":")[2] in text

        await eventually(unready, "/readyz names the hub that is not reached")
        assert program.alive
    with Program("fleet", *arguments, str(prepared.client_config(keys.HUB)), log=tmp_path / "hub.log"):

        async def ready() -> bool:
            return (await readiness(port))[0] == 200

        await eventually(ready, "/readyz of a process that has its watches")


async def test_f_1_a_bad_setting_is_refused_by_its_path(prepared: ControlPlane, tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text(json.dumps({"hub": {"force_leave_after": 5}}))
    program = Program("fleet", "hub", "--config", str(config), log=tmp_path / "hub.log").start()
    await eventually(lambda: not program.alive, "the process ends")
    assert program.process.returncode == 2 and "hub.force_leave_after" in program.text()
