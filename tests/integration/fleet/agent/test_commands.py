"""The commands of both owners, from a fresh hub to a cluster that joined and left; what the hub's process would do is done by the peer."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from attrs import define

from tests.integration.fleet.agent.scene import AgentScene, MakeScene
from tests.support.command import run_command
from tests.support.kubectl import Ran
from tests.support.peer import CLUSTERS, PeerHub
from tests.support.program import LONG, Program, eventually

AVAILABLE = "ManagedClusterConditionAvailable"
PUBLIC = "/api/v1/namespaces/kube-public/configmaps/fleet-hub"


async def fleet(*arguments: str) -> Ran:
    return await run_command("fleet", *arguments, within=LONG)


@define
class Owners:
    """Both owners, with a hub that `fleet init` prepared."""

    peer: PeerHub
    line: list[str]
    """The words of the printed line, without the name."""

    @property
    def hub(self) -> tuple[str, str]:
        return ("--kubeconfig", str(self.peer.cluster.kubeconfig))

    def join(self, laptop: AgentScene, *flags: str, **changes: str) -> list[str]:
        """The printed line in the worker of a scene, with other values of its flags."""
        words = list(self.line)
        for flag, value in changes.items():
            words[words.index(f"--{flag.replace('_', '-')}") + 1] = value
        here = ("--namespace", laptop.namespace, "--kubeconfig", str(laptop.worker.kubeconfig), "--image", "none:1")
        return [*words, "--name", laptop.cluster, *here, "--yes", *flags]


@pytest.fixture
async def owners(peer: PeerHub) -> AsyncIterator[Owners]:
    ran = await fleet("init", "--kubeconfig", str(peer.cluster.kubeconfig), "--yes", "--token-life", "1h")
    assert ran.code == 0, ran.stderr
    (line,) = re.findall(r"^  (fleet join .*) --name NAME$", ran.stdout.decode(), re.MULTILINE)
    yield Owners(peer, shlex.split(line)[1:])


def settings_of(laptop: AgentScene) -> dict[str, object]:
    """The section `agent:` that `fleet join` wrote."""
    text = laptop.core.read_namespaced_config_map("fleet-agent", laptop.namespace).data["settings.yaml"]
    own: dict[str, object] = yaml.safe_load(text)["agent"]
    return own


async def test_f_12_f_13_f_14_three_lines_join_a_worker(scene: MakeScene, owners: Owners, tmp_path: Path) -> None:
    laptop, peer = await scene(bootstrap=""), owners.peer
    name = laptop.cluster
    with Program("fleet", *owners.join(laptop), log=tmp_path / "join.log") as join:
        await eventually(lambda: "the agent has not created its record" in join.text(), "it waits for the agent", by=[join])
        assert "Adds up the resources of the cluster" in join.text() and "<hidden>" in join.text()
        assert settings_of(laptop) == {"cluster": name, "namespace": laptop.namespace}
        with laptop.program() as agent:
            await eventually(lambda: f"on the hub run: fleet accept {name}" in join.text(), "unapproved", by=[join, agent])
            accepted = await fleet("accept", name, "--yes", *owners.hub)
            assert accepted.code == 0, accepted.stderr
            for words in (
                "requester    system:serviceaccount:open-cluster-management:agent-registration",
                f"O=system:open-cluster-management:{name}",
            ):
                assert words in accepted.stdout.decode()
            assert "public key   sha256:" in accepted.stdout.decode() and (peer.record(name) or {})["spec"]["hubAcceptsClient"]
            await eventually(lambda: "has not prepared its namespace" in join.text(), "unprepared", by=[join])
            peer.accept(name)
            await eventually(lambda: not join.alive, "it ends", by=[join, agent])
            assert join.process.poll() == 0 and f"cluster {name} joined the hub" in join.text()
            assert owners.line[owners.line.index("--token") + 1] not in join.text()

            listed = await fleet("get", "clusters", *owners.hub)
            row = next(line for line in listed.stdout.decode().splitlines() if line.startswith(name))
            assert row.split()[:5] == [name, "ocm", "yes", "yes", "True"]
            data = json.loads((await fleet("get", "clusters", "-o", "json", *owners.hub)).stdout)
            (view,) = [each for each in data if each["name"] == name]
            assert view["joined"] and view["health"]["status"] == "True" and view["problem"] == ""
            assert yaml.safe_load((await fleet("get", "clusters", "-o", "yaml", *owners.hub)).stdout) is not None

            again = await fleet(*owners.join(laptop))
            assert again.code == 0 and f"Deployment fleet-agent in namespace {laptop.namespace}: unchanged" in again.stdout.decode()
            denied = await fleet("deny", name, "--yes", *owners.hub)
            assert denied.code == 0 and not (peer.record(name) or {})["spec"]["hubAcceptsClient"]


async def test_f_13_the_agent_runs_in_the_foreground(scene: MakeScene, owners: Owners, tmp_path: Path) -> None:
    laptop, peer = await scene(bootstrap=""), owners.peer
    with Program("fleet", *owners.join(laptop, "--run"), log=tmp_path / "join.log") as join:
        await eventually(lambda: peer.decide(laptop.cluster), "a request", by=[join])
        peer.accept(laptop.cluster)
        await eventually(lambda: AVAILABLE in peer.conditions(laptop.cluster), "joined", by=[join])
        assert "kind: Deployment" not in join.text() and join.terminate() == 0


async def test_f_12_a_second_init_changes_nothing_but_the_token(owners: Owners) -> None:
    first = owners.peer.send("GET", PUBLIC)
    ran = await fleet("init", *owners.hub, "--yes")
    text = ran.stdout.decode()
    assert ran.code == 0 and ": created" not in text and ": updated" not in text and owners.peer.send("GET", PUBLIC) == first
    (line,) = re.findall(r"^  (fleet join .*) --name NAME$", text, re.MULTILINE)
    words = shlex.split(line)[1:]
    assert words[: words.index("--token")] == owners.line[: owners.line.index("--token")] and words != owners.line
    data = json.loads((await fleet("init", *owners.hub, "--yes", "-o", "json")).stdout)
    assert data.keys() == {"server", "token", "caHash"} and data["caHash"] == owners.line[owners.line.index("--ca-hash") + 1]


async def test_f_12_what_init_prints_can_be_applied(owners: Owners) -> None:
    printed = (await fleet("init", "--print", *owners.hub)).stdout.decode()
    assert "fleet join" not in printed and "eyJ" not in printed
    await owners.peer.cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=printed)


async def test_f_13_what_join_prints_can_be_applied_where_the_hub_is_not_reached(scene: MakeScene, owners: Owners) -> None:
    laptop = await scene(bootstrap="")
    printed = await fleet(*owners.join(laptop, "--print", hub="https://192.0.2.1:6443"))
    assert printed.code == 0, printed.stderr
    await laptop.worker.kubectl("apply", "--dry-run=server", "-f", "-", stdin=printed.stdout.decode())


async def test_f_14_a_request_of_a_user_that_is_no_bootstrap_identity_needs_a_flag(scene: MakeScene, owners: Owners) -> None:
    laptop, peer = await scene(), owners.peer
    with laptop.program() as agent:
        await eventually(lambda: peer.pending(laptop.cluster), "a request", by=[agent])
        (request,) = peer.pending(laptop.cluster)
        peer.send("DELETE", f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{request['metadata']['name']}")
        # Posted by the administrator, who is no bootstrap identity.
        body = {"metadata": {"generateName": "x-", "labels": request["metadata"]["labels"]}, "spec": dict(request["spec"])}
        for field in ("username", "groups", "uid", "extra"):
            body["spec"].pop(field, None)
        peer.send("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", body)
        refused = await fleet("accept", laptop.cluster, "--yes", *owners.hub)
        assert refused.code == 1 and "--any-requester" in refused.stderr and "kubectl" in refused.stderr
        assert len(peer.pending(laptop.cluster)) >= 1 and not (peer.record(laptop.cluster) or {})["spec"].get("hubAcceptsClient")
        accepted = await fleet("accept", laptop.cluster, "--yes", "--any-requester", *owners.hub)
        assert accepted.code == 0, accepted.stderr


async def test_f_14_a_cluster_that_nobody_announced_is_not_accepted(owners: Owners) -> None:
    ran = await fleet("accept", "unknown", "--yes", *owners.hub, "-o", "json")
    assert ran.stdout == b""
    assert ran.code == 1 and "has no ManagedCluster unknown; in the worker run: fleet join --name unknown" in ran.stderr


async def test_f_16_a_cluster_leaves_from_either_side(scene: MakeScene, owners: Owners) -> None:
    laptop, peer = await scene(), owners.peer
    name = laptop.cluster
    with laptop.program() as agent:
        await eventually(lambda: peer.decide(name), "a request", by=[agent])
        peer.accept(name)
        await eventually(lambda: AVAILABLE in peer.conditions(name), "joined", by=[agent])
        left = await fleet("leave", name, "--yes", *owners.hub)
        assert left.code == 0 and peer.record(name) is None and f"Namespace {name} stays" in left.stdout.decode()
        assert (peer.send("GET", f"/api/v1/namespaces/{name}") or {})["status"]["phase"] == "Active"
        await eventually(lambda: f"no ManagedCluster {name} any more" in laptop.ready(), "it is reported", by=[agent])
    assert peer.record(name) is None
    here = ("--here", "--namespace", laptop.namespace, "--kubeconfig", str(laptop.worker.kubeconfig), "--yes")
    gone = await fleet("leave", *here)
    assert gone.code == 0 and f"Namespace {laptop.namespace} stays" in gone.stdout.decode(), gone.stderr
    assert laptop.secret() == {} and laptop.secret("bootstrap-hub-kubeconfig") == {}
    again = await fleet("leave", *here)
    assert again.code == 0 and "has no agent" in again.stdout.decode()


async def test_f_16_a_cluster_that_cannot_leave_in_time_is_named_with_what_is_left(scene: MakeScene, owners: Owners) -> None:
    laptop, peer = await scene(bootstrap=""), owners.peer
    name = laptop.cluster
    metadata = {"name": name, "finalizers": ["cluster.open-cluster-management.io/resource-cleanup"]}
    peer.send("POST", CLUSTERS, {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": metadata})
    peer.set_condition(name, "Deleting", "True", "ResourceRemaining")
    ran = await fleet("leave", name, "--yes", "--timeout", "1", "--force-after", "60", *owners.hub)
    assert ran.code == 1 and f"fleet leave {name} --force-after" in ran.stderr
    record = peer.record(name) or {}
    assert record["metadata"]["annotations"]["fleet.vkubelet.io/force-cleanup-after"] == "60" and record["metadata"]["deletionTimestamp"]
    peer.send("PATCH", f"{CLUSTERS}/{name}", {"metadata": {"finalizers": None}})


async def test_f_16_without_a_terminal_nothing_is_deleted_without_yes(owners: Owners) -> None:
    ran = await fleet("leave", "--here", "--kubeconfig", str(owners.peer.cluster.kubeconfig), "--namespace", "none")
    assert ran.code == 0
    ran = await fleet("init", *owners.hub)
    assert ran.code == 2 and "--yes" in ran.stderr
