"""The agent as a member of a hub with KubeFleet's API; the hub is played by the peer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.integration.fleet.agent.scene import AgentScene, MakeScene
from tests.support.ahead import ahead
from tests.support.command import run_command
from tests.support.gate import Gate
from tests.support.peer import Body, PeerHub
from tests.support.program import LONG, Program, eventually
from tests.support.troubles import Trouble

JOINED, HEALTHY = ("True", "InternalMemberClusterJoined"), ("True", "InternalMemberClusterHealthy")
TOKEN = {"door": "kubefleet", "token": {"secret": "hub-token"}}


async def admitted(laptop: AgentScene, peer: PeerHub) -> None:
    """A worker with a token, and its record on the hub."""
    subject, token = peer.account(laptop.cluster)
    laptop.put_secret({"token": token}, "hub-token")
    peer.admit(laptop.cluster, subject)


async def reports(laptop: AgentScene, peer: PeerHub, program: Program) -> None:
    await eventually(lambda: peer.member_agent(laptop.cluster).get("Joined") == JOINED, "joined", by=[program])


def events(peer: PeerHub, name: str) -> set[str]:
    listed = peer.send("GET", f"/api/v1/namespaces/fleet-member-{name}/events") or {"items": []}
    return {each["reason"] for each in listed["items"]}


@ahead("scene")
async def test_f_125_a_member_reports_heartbeats_health_properties_and_usage(scene: MakeScene, peer: PeerHub) -> None:
    # F-124, F-162, F-163
    laptop = await scene(**TOKEN)
    name = laptop.cluster
    await admitted(laptop, peer)
    with laptop.program() as program:
        await reports(laptop, peer, program)
        await eventually(lambda: laptop.ready() == "ok", "the process is ready")
        assert peer.member_agent(name)["Healthy"] == HEALTHY
        first = peer.member_agent(name)["heartbeat"]
        await eventually(lambda: peer.member_agent(name)["heartbeat"] > first, "the next heartbeat")
        await eventually(lambda: (peer.member(name)["status"].get("resourceUsage") or {}).get("capacity"), "usage", by=[program])
        status = peer.member(name)["status"]
        assert status["properties"]["k8s.io/k8s-version"]["value"].startswith("v1.")
        assert "kubernetes-fleet.io/node-count" in status["properties"]
        types = {each["type"]: each["reason"] for each in status["conditions"]}
        assert types["ClusterPropertyCollectionSucceeded"] == "PropertiesCollected"
        await eventually(lambda: events(peer, name) >= {"InternalMemberClusterJoined", "InternalMemberClusterHealthy"}, "Events")
    assert peer.record(name) is None


@ahead("scene")
async def test_f_125_heartbeats_go_on_when_the_watch_is_behind(scene: MakeScene, peer: PeerHub) -> None:
    behind = Trouble(when=lambda asked: asked.is_watch and asked.resource == "internalmemberclusters", events=without_changes)
    with Gate() as gate, gate.trouble(behind):
        server = yaml.safe_load(gate.lead(peer.cluster, peer.cluster.kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
        laptop = await scene(bootstrap=peer.bootstrap(server=server), **TOKEN)
        name = laptop.cluster
        await admitted(laptop, peer)
        with laptop.program() as program:
            await reports(laptop, peer, program)
            for number in range(3):
                peer.annotate_member(name, str(number))
                first = peer.member_agent(name)["heartbeat"]
                await eventually(lambda first=first: peer.member_agent(name)["heartbeat"] > first, "heartbeat", by=[program])  # type: ignore[misc]


def without_changes(event: Body) -> Iterator[Body]:
    if event["type"] != "MODIFIED":
        yield event


@ahead("scene")
async def test_f_127_a_member_that_leaves_acknowledges_and_reports_no_longer(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene(**TOKEN)
    name = laptop.cluster
    await admitted(laptop, peer)
    with laptop.program() as program:
        await reports(laptop, peer, program)
        peer.let_leave(name)
        left = ("False", "InternalMemberClusterLeft")
        await eventually(lambda: peer.member_agent(name)["Joined"] == left, "left", by=[program])
        version = peer.member(name)["metadata"]["resourceVersion"]
        await eventually(lambda: f"removes member {name}" in laptop.ready(), "it is reported", by=[program])
        await eventually(lambda: "InternalMemberClusterLeft" in events(peer, name), "the Event")
        assert peer.member(name)["metadata"]["resourceVersion"] == version
        subject, _ = peer.account(name)
        peer.admit(name, subject)
        await reports(laptop, peer, program)


@ahead("scene")
async def test_f_126_a_missing_token_is_named(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene(**TOKEN)
    with laptop.program() as program:
        await eventually(lambda: "hub-token does not exist, or has no key token" in laptop.ready(), "named", by=[program])
        assert program.alive


@ahead("scene", "tmp_path")
async def test_f_126_a_token_file_that_is_replaced_is_followed(scene: MakeScene, peer: PeerHub, tmp_path: Path) -> None:
    file = tmp_path / "token"
    laptop = await scene(door="kubefleet", token={"file": str(file)})
    with laptop.program() as program:
        await eventually(lambda: f"cannot read the token file {file}" in laptop.ready(), "named", by=[program])
        subject, token = peer.account(laptop.cluster)
        peer.admit(laptop.cluster, subject)
        file.write_text(token)
        await eventually(lambda: laptop.ready() == "ok", "joined", seconds=60, by=[program])


@ahead("scene", "tmp_path")
async def test_f_13_the_second_door_is_joined_by_a_token_file(scene: MakeScene, peer: PeerHub, tmp_path: Path) -> None:
    laptop = await scene(bootstrap="", **TOKEN)
    name = laptop.cluster
    subject, token = peer.account(name)
    (tmp_path / "token").write_text(token)
    arguments = ["join", "--hub", peer.cluster.url, "--ca-file", str(peer.cluster.ca), "--name", name, "--door", "kubefleet"]
    arguments += ["--token-file", str(tmp_path / "token"), "--namespace", laptop.namespace, "--kubeconfig", str(laptop.worker.kubeconfig)]
    with Program("fleet", *arguments, "--yes", log=tmp_path / "join.log") as join:
        await eventually(lambda: f"the hub has no MemberCluster {name}" in join.text(), "it is reported", by=[join])
        peer.admit(name, subject)
        with laptop.program() as program:
            await eventually(lambda: not join.alive, "joined", seconds=LONG, by=[join, program])
            assert join.process.poll() == 0 and f"cluster {name} is a member of the hub" in join.text() and token not in join.text()


@ahead()
async def test_f_13_the_second_door_needs_a_token(peer: PeerHub) -> None:
    ran = await run_command("fleet", "join", "--hub", peer.cluster.url, "--name", "w1", "--door", "kubefleet", within=LONG)
    assert ran.code == 2 and "--token-file" in ran.stderr
