"""What a provider says of its nodes, word for word in the cluster, soon, and beside what others wrote there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.integration.runtime.fleet import Body, Fleet, audited, complaints, received, renewed_at
from tests.support.bound import condition
from tests.support.program import Program, eventually

BILLBOARD = Path(__file__).with_name("billboard.py")
CAPACITY = {"cpu": "8", "memory": "32Gi", "pods": "50"}
HEALTHY = {"type": "GpuHealthy", "status": "True", "reason": "AllFine", "message": ""}
SOON = 15.0
"""Generous for a loaded machine: the promise is 1 s, and waiting for the next report would take 300."""


def show(fleet: Fleet, suffix: str = "a", **description: Any) -> str:
    name = fleet.name(suffix)
    draft = fleet.directory / "draft"
    draft.write_text(json.dumps([{"name": name, "capacity": CAPACITY, **description}]))
    draft.replace(fleet.directory / "descriptions.json")
    return name


@asynccontextmanager
async def shown(fleet: Fleet, **description: Any) -> AsyncIterator[tuple[Program, str]]:
    """A running program with one node."""
    name = show(fleet, **description)
    with fleet.program(str(BILLBOARD), provider={"directory": str(fleet.directory)}, lease={"renew_every": 1.0}) as program:
        await fleet.ready([name], program=program)
        yield program, name


def part(body: Body, kind: str) -> Body:
    found: Body = next(each for each in body["status"]["conditions"] if each["type"] == kind)
    return found


async def test_addresses_provider_id_conditions_and_info_are_as_described(fleet: Fleet) -> None:
    addresses = [{"type": "InternalIP", "address": a} for a in ("10.9.0.2", "10.9.0.1")] + [{"type": "ExternalIP", "address": "10.9.9.9"}]
    described = {"addresses": addresses, "provider_id": "made-up://zone/7", "conditions": [HEALTHY], "os": "linux", "arch": "arm64"}
    async with shown(fleet, **described, allocatable={"cpu": "7500m", "memory": "30Gi", "pods": "50"}) as (_, name):
        node = await fleet.node(name)
        assert node is not None
        assert node["status"]["addresses"] == addresses, "two of a type stay two, in this order"
        assert node["spec"]["providerID"] == "made-up://zone/7"
        assert (node["status"]["capacity"]["cpu"], node["status"]["allocatable"]["cpu"]) == ("8", "7500m")
        assert part(node, "GpuHealthy")["reason"] == "AllFine"
        labels = node["metadata"]["labels"]
        assert [labels[f"kubernetes.io/{key}"] for key in ("os", "arch", "hostname")] == ["linux", "arm64", name]
        assert labels["node.kubernetes.io/exclude-from-external-load-balancers"] == "true"
        show(fleet, **described | {"addresses": addresses[::-1]})
        await fleet.until_node(name, lambda body: body["status"]["addresses"] == addresses[::-1], "other order", seconds=SOON)


async def test_changes_of_every_part_arrive_and_transition_times_follow_the_status(fleet: Fleet) -> None:
    taint = {"key": "made-up.io/maintenance", "effect": "NoSchedule"}
    async with shown(fleet, conditions=[HEALTHY], labels={"tier": "gold", "old": "1"}) as (_, name):
        before = await fleet.node(name)
        assert before is not None
        await fleet.kubectl("taint", "node", name, "example.com/gpu=yes:NoSchedule")
        show(
            fleet,
            conditions=[{**HEALTHY, "reason": "StillFine"}],
            labels={"tier": "silver"},
            capacity={**CAPACITY, "cpu": "4"},
            taints=[taint],
        )

        def all_there(body: Body) -> bool:
            return (
                body["status"]["capacity"]["cpu"] == "4"
                and body["metadata"]["labels"].get("tier") == "silver"
                and "old" not in body["metadata"]["labels"]
                and {each["key"] for each in body["spec"].get("taints", ())} == {"example.com/gpu", "made-up.io/maintenance"}
                and part(body, "GpuHealthy")["reason"] == "StillFine"
            )

        node = await fleet.until_node(name, all_there, "everything said anew", seconds=SOON)
        assert part(node, "GpuHealthy")["lastTransitionTime"] == part(before, "GpuHealthy")["lastTransitionTime"]
        show(fleet, conditions=[{**HEALTHY, "status": "False"}], labels={"tier": "silver"}, capacity={**CAPACITY, "cpu": "4"})
        node = await fleet.until_node(name, lambda body: condition(body, "GpuHealthy") == "False", "unhealthy", seconds=SOON)
        assert moment(node, "GpuHealthy") >= moment(before, "GpuHealthy")
        assert part(node, "Ready")["lastTransitionTime"] == part(before, "Ready")["lastTransitionTime"]
        keys = await eventually(lambda: taint_keys(fleet, name, {"example.com/gpu"}), "our taint is gone, the other one is not")
        assert keys == {"example.com/gpu"}
        show(fleet, labels={"tier": "silver"}, capacity={**CAPACITY, "cpu": "4"})
        await fleet.until_node(name, lambda body: not any(c["type"] == "GpuHealthy" for c in body["status"]["conditions"]), "no condition")


def moment(body: Body, kind: str) -> datetime:
    return datetime.fromisoformat(part(body, kind)["lastTransitionTime"])


async def taint_keys(fleet: Fleet, name: str, wanted: set[str]) -> set[str] | None:
    node = await fleet.node(name)
    keys = {each["key"] for each in (node or {}).get("spec", {}).get("taints", ())}
    return keys if keys == wanted else None


async def test_conditions_and_labels_of_ours_that_others_change_come_back(fleet: Fleet) -> None:
    async with shown(fleet, conditions=[HEALTHY]) as (_, name):
        wrong = {"status": {"conditions": [{**HEALTHY, "status": "False", "reason": "SaysWho"}]}}
        await fleet.kubectl("patch", "node", name, "--subresource=status", "--type=strategic", "-p", json.dumps(wrong))
        await fleet.until_node(name, lambda body: part(body, "GpuHealthy")["reason"] == "AllFine", "our condition", seconds=SOON)
        for key in ("os", "arch", "hostname"):
            await fleet.kubectl("label", "node", name, f"kubernetes.io/{key}-")

        def restored(body: Body) -> bool:
            return {f"kubernetes.io/{key}" for key in ("os", "arch", "hostname")} <= set(body["metadata"]["labels"])

        await fleet.until_node(name, restored, "the labels of every node", seconds=SOON)


async def test_existing_node_is_adopted_with_all_that_others_put_on_it(fleet: Fleet) -> None:
    name = fleet.name("a")
    marks = {"labels": {"example.com/rack": "9"}, "annotations": {"example.com/note": "kept"}}
    spec = {"taints": [{"key": "example.com/gpu", "effect": "NoSchedule"}], "unschedulable": True}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **marks}, "spec": spec}
    await fleet.kubectl("create", "-f", "-", stdin=json.dumps(body))
    before = await fleet.node(name)
    async with shown(fleet) as (program, _):
        node = await fleet.node(name)
        assert node is not None and before is not None
        assert node["metadata"]["uid"] == before["metadata"]["uid"]
        assert node["metadata"]["labels"]["example.com/rack"] == "9"
        assert node["metadata"]["annotations"]["example.com/note"] == "kept"
        assert "example.com/gpu" in {each["key"] for each in node["spec"]["taints"]}
        assert node["spec"]["unschedulable"] is True
        assert complaints(program) == []


async def test_lease_survives_a_foreign_writer_and_a_deletion(fleet: Fleet) -> None:
    async with shown(fleet) as (program, name):

        async def changed(what: Callable[[Body], bool]) -> Body | None:
            lease = await fleet.lease(name)
            return lease if lease is not None and what(lease) else None

        lease = await eventually(lambda: changed(lambda _: True), "the lease is there")
        first = renewed_at(lease)
        stale = json.dumps({"metadata": {"labels": {"example.com/seen": "yes"}}, "spec": {"holderIdentity": "somebody"}})
        await fleet.plane.kubectl("patch", "lease", name, "-n", "kube-node-lease", "--type=merge", "-p", stale)
        lease = await eventually(
            lambda: changed(lambda body: body["spec"]["holderIdentity"] == name and renewed_at(body) > first), "is ours again"
        )
        assert lease["metadata"]["labels"] == {"example.com/seen": "yes"}
        await fleet.plane.kubectl("delete", "lease", name, "-n", "kube-node-lease")
        again = await eventually(lambda: changed(lambda body: body["metadata"]["uid"] != lease["metadata"]["uid"]), "is made again")
        assert (again["spec"]["holderIdentity"], again["spec"]["leaseDurationSeconds"]) == (name, 40)
        node = await fleet.node(name)
        assert node is not None
        assert [owner["uid"] for owner in again["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]
        assert complaints(program) == []


async def test_equal_descriptions_are_not_written_again(fleet: Fleet) -> None:
    user = f"{fleet.instance}-quiet"
    fleet.kubeconfig = fleet.plane.client_config(user, ["system:masters"])
    async with shown(fleet, labels={"n": "0"}) as (_, name):
        began = datetime.now(UTC)

        def writes() -> int:
            own = [entry for entry in audited(fleet.plane, user) if received(entry) > began]
            return sum(entry["objectRef"].get("resource") == "nodes" and entry["verb"] == "patch" for entry in own)

        for spelled in ("8000m", "8", "8000000u"):
            show(fleet, labels={"n": "0"}, capacity={**CAPACITY, "cpu": spelled})
            await eventually(lambda spelled=spelled: f'"{spelled}"' in declared(fleet), "it is declared", every=0.02)
        show(fleet, labels={"n": "1"})
        await fleet.until_node(name, lambda body: body["metadata"]["labels"]["n"] == "1", "the one real change", seconds=SOON)
        await eventually(lambda: writes() >= 1, "the one write is in the audit log")
        assert writes() == 1


def declared(fleet: Fleet) -> str:
    file = fleet.directory / "declared.json"
    return file.read_text() if file.exists() else ""
