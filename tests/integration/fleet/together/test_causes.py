"""What keeps a worker from joining is named by the line that its owner ran, with the command that helps: ten causes."""

from __future__ import annotations

import pytest

from tests.integration.fleet.player import CLUSTERS, Caller, accept, approve, has_condition, managed
from tests.integration.fleet.together.scene import Fleet, Laptop
from tests.integration.fleet.together.test_joins import request_of
from tests.support.ahead import ahead
from tests.support.program import eventually
from vkubelet.testing.cluster import ControlPlane

SINCE = "2026-01-01T00:00:00Z"
EXPIRED = "h.eyJleHAiOiAxNzY3MTM5MjAwfQ.s"


async def refused(cluster: ControlPlane) -> str:
    """A token whose ServiceAccount was deleted."""
    await cluster.kubectl("-n", "default", "create", "serviceaccount", "former")
    token = await cluster.kubectl("-n", "default", "create", "token", "former")
    await cluster.kubectl("-n", "default", "delete", "serviceaccount", "former")
    return token.strip()


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("hub", "https://127.0.0.1:1", ["the hub https://127.0.0.1:1 is not reached", "check --hub"]),
        ("ca_hash", "sha256:0000", ["has a CA with another hash", "on the hub run: fleet init"]),
        ("token", "", ["refuses the token", "on the hub run `fleet init`"]),
        ("token", EXPIRED, ["the token expired at 2025-12-31 00:00Z", "on the hub run `fleet init`"]),
    ],
    ids=["wrong URL", "wrong CA hash", "token refused", "token expired"],
)
@ahead("laptop")
async def test_f_13_what_the_hub_refuses_is_named_before_anything_is_written(
    laptop: Laptop, flag: str, value: str, words: list[str]
) -> None:
    value = value or await refused(laptop.fleet.hub)
    ran = await laptop.run(*laptop.line("--timeout", "1", **{flag: value}))
    assert ran.code == 1 and all(each in ran.stderr for each in words), ran.stderr
    assert laptop.namespace not in await laptop.worker.kubectl("get", "namespaces", "-o", "name")


@ahead("laptop")
async def test_f_13_missing_rights_in_the_worker_are_named(laptop: Laptop) -> None:
    kubeconfig = laptop.worker.client_config("unprivileged")
    ran = await laptop.run(*laptop.line(), "--kubeconfig", str(kubeconfig))
    assert ran.code == 1 and "the worker refuses" in ran.stderr and "ask its owner for that right" in ran.stderr


async def nothing(laptop: Laptop, owner: Caller) -> None:
    """The owner of the hub does nothing."""


async def deny(laptop: Laptop, owner: Caller) -> None:
    await laptop.fleet.hub.kubectl("certificate", "deny", await request_of(owner, laptop.name))


async def approve_alone(laptop: Laptop, owner: Caller) -> None:
    await approve(owner, await request_of(owner, laptop.name))


async def accept_fully(laptop: Laptop, owner: Caller) -> None:
    await request_of(owner, laptop.name)
    await laptop.fleet.done("accept", laptop.name, "--yes")


WAITS = {
    "request unapproved": (nothing, 0, ["is not approved since", "on the hub run: fleet accept NAME"]),
    "denied": (deny, 0, ["the hub denied request", "the agent asks again, then on the hub run: fleet accept NAME"]),
    "cluster unaccepted": (approve_alone, 0, ["has not accepted cluster NAME; on the hub run: fleet accept NAME"]),
    "clock an hour ahead": (accept_fully, 3600, ["clocks of hub and worker differ", "timedatectl set-ntp true"]),
    "clock an hour behind": (accept_fully, -3600, ["clocks of hub and worker differ", "timedatectl set-ntp true"]),
}


@pytest.mark.parametrize("cause", WAITS)
@ahead("laptop")
async def test_f_13_what_a_worker_waits_for_is_named(laptop: Laptop, owner: Caller, cause: str) -> None:
    # F-14, F-106, F-107, F-143
    prepare, skew, words = WAITS[cause]
    with laptop.joining() as join, await laptop.agent(join, ahead=skew) as agent:
        await prepare(laptop, owner)
        expected = [each.replace("NAME", laptop.name) for each in words]
        await eventually(lambda: all(each in join.text() for each in expected), f"{expected}", by=[join, agent])
        assert join.alive
    await owner.delete(f"{CLUSTERS}/{laptop.name}")


@ahead("laptop")
async def test_f_13_a_name_that_another_cluster_has_is_named(fleet: Fleet, laptop: Laptop, owner: Caller) -> None:
    # F-112: on both sides.
    name = laptop.name
    await owner.create(CLUSTERS, managed(name, accepted=False))
    await accept(owner, name)
    await has_condition(owner, name, "HubAcceptedManagedCluster", ("True", "HubClusterAdminAccepted"))
    joined = {"type": "ManagedClusterJoined", "status": "True", "reason": "ManagedClusterJoined", "message": ""}
    listed = [*(await owner.call("GET", f"{CLUSTERS}/{name}"))["status"]["conditions"], {**joined, "lastTransitionTime": SINCE}]
    await owner.merge(f"{CLUSTERS}/{name}/status", {"status": {"conditions": listed}})
    with laptop.joining() as join, await laptop.agent(join) as agent:
        text = f"cluster {name} is joined already; choose another --name"
        await eventually(lambda: text in join.text(), "it is named", by=[join, agent])
        accepted = await fleet.done("accept", name, "--yes")
        assert "is joined already; a request of another cluster gets the same identity" in accepted
    await owner.delete(f"{CLUSTERS}/{name}")
