"""The agent joins an independent hub, and stays joined; its requests, certificates and reports as the hub sees them."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

from cryptography import x509

from tests.integration.fleet.agent.scene import AgentScene, MakeScene
from tests.support.ahead import ahead
from tests.support.audit import Audit
from tests.support.cable import Cable
from tests.support.peer import CLUSTERS, REQUESTS, PeerHub
from tests.support.program import Program, eventually, holds
from vkubelet.control.certificates import Name, certificate_request, new_key, self_signed

ACCEPTED, JOINED, AVAILABLE = "HubAcceptedManagedCluster", "ManagedClusterJoined", "ManagedClusterConditionAvailable"


async def test_f_107_a_worker_joins_once_both_consents_are_given(scene: MakeScene, peer: PeerHub) -> None:
    # F-101, F-102, F-103, F-105, F-131, F-132, F-133
    laptop = await scene(labels={"agent.open-cluster-management.io/site": "lab"})
    name = laptop.cluster
    with laptop.program() as program:
        await eventually(lambda: peer.pending(name), "a request", by=[program])
        assert (peer.record(name) or {})["metadata"]["labels"] == {"agent.open-cluster-management.io/site": "lab"}
        assert "fleet accept" in laptop.ready()
        (request,) = peer.decide(name)
        spec = request["spec"]
        assert request["metadata"]["generateName"] == f"{name}-"
        assert spec["signerName"] == "kubernetes.io/kube-apiserver-client"
        assert spec["usages"] == ["digital signature", "key encipherment", "client auth"] and "expirationSeconds" not in spec
        subject = x509.load_pem_x509_csr(base64.b64decode(spec["request"])).subject.rfc4514_string()
        agent = base64.b64decode(laptop.secret()["agent-name"]).decode()
        assert subject == f"CN=system:open-cluster-management:{name}:{agent},O=system:open-cluster-management:{name}"
        peer.let_read(name)
        await eventually(lambda: "has not accepted" in laptop.ready(), "it waits for acceptance", by=[program])
        assert laptop.secret().keys() == {"tls.crt", "tls.key", "kubeconfig", "cluster-name", "agent-name"}
        assert JOINED not in peer.conditions(name)
        peer.accept(name)
        await eventually(lambda: JOINED in peer.conditions(name), "joined", seconds=15, by=[program])

        async def complete() -> None:
            conditions = peer.conditions(name)
            assert conditions[ACCEPTED][0] == conditions[JOINED][0] == "True"
            assert conditions[AVAILABLE] == ("True", "ManagedClusterAvailable")
            assert peer.lease(name).get("renewTime")
            status = peer.status(name)
            assert status["version"]["kubernetes"].startswith("v1.") and "cpu" in status["capacity"]
            assert {each["name"] for each in status["clusterClaims"]} == {"id.k8s.io", "kubeversion.open-cluster-management.io"}

        await holds(complete)
        await eventually(lambda: laptop.ready() == "ok", "the process is ready")


async def joined(laptop: AgentScene, peer: PeerHub, program: Program, *, seconds: int = 60) -> None:
    """Both consents are given, and the worker has reported."""
    name = laptop.cluster
    await eventually(lambda: peer.decide(name), "a request", by=[program])
    peer.accept(name, seconds=seconds)
    await eventually(lambda: AVAILABLE in peer.conditions(name), f"{name} joined", by=[program])


def secrets_of(laptop: AgentScene, peer: PeerHub) -> list[str]:
    """Texts that stand nowhere but in Secrets of the worker."""
    entries = {**laptop.secret("bootstrap-hub-kubeconfig"), **{"key": laptop.secret().get("tls.key", "")}}
    kubeconfig = base64.b64decode(entries["kubeconfig"]).decode()
    token = next(line.split()[-1] for line in kubeconfig.splitlines() if "token:" in line)
    return [token, *(line for line in base64.b64decode(entries["key"]).decode().splitlines() if line and "-----" not in line)]


async def test_f_107_the_consents_may_come_in_the_other_order(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    with laptop.program() as program:
        await eventually(lambda: peer.pending(laptop.cluster), "a request", by=[program])
        peer.accept(laptop.cluster)
        assert JOINED not in peer.conditions(laptop.cluster)
        peer.decide(laptop.cluster)
        await eventually(lambda: AVAILABLE in peer.conditions(laptop.cluster), "joined", seconds=15, by=[program])


@ahead("scene")
async def test_f_2_no_key_and_no_token_of_the_worker_reaches_the_hub_or_the_log(scene: MakeScene, peer: PeerHub) -> None:
    # F-59, F-102
    laptop = await scene()
    with laptop.program() as program:
        await joined(laptop, peer, program)
        kinds = "managedclusters,certificatesigningrequests,secrets,configmaps,leases,events"
        found = await peer.cluster.kubectl("get", kinds, "--all-namespaces", "-o", "json")
        hidden = secrets_of(laptop, peer)
        assert len(hidden) >= 3
        for text in hidden[1:]:
            assert text not in found
        events = await laptop.worker.kubectl("get", "events", "-n", laptop.namespace, "-o", "json")
    for text in hidden:
        assert text not in program.text() and text not in events


@ahead("scene")
async def test_f_101_a_missing_or_wrong_bootstrap_secret_is_named_and_waited_for(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene(bootstrap="")
    laptop.deploy()
    with laptop.program() as program:
        await eventually(lambda: "Secret bootstrap-hub-kubeconfig: does not exist" in laptop.ready(), "it is named", by=[program])

        async def event() -> bool:
            listed = laptop.core.list_namespaced_event(laptop.namespace, field_selector="involvedObject.name=fleet-agent").items
            return any(each.reason == "NoBootstrap" and each.involved_object.kind == "Deployment" for each in listed)

        await eventually(event, "an Event on the Deployment")
        laptop.put_secret({"kubeconfig": "nonsense"})
        await eventually(lambda: "key kubeconfig" in laptop.ready(), "it is wrong", by=[program])
        laptop.put_secret({"kubeconfig": peer.bootstrap()})
        await eventually(lambda: peer.pending(laptop.cluster), "a request", by=[program])
        assert program.alive


@ahead("scene")
async def test_f_101_a_refused_token_is_named_until_the_secret_has_another(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene(bootstrap=peer.bootstrap("not.a.token"))
    with laptop.program() as program:
        await eventually(lambda: "refuses the token" in laptop.ready(), "it is refused", by=[program])
        assert "fleet init" in laptop.ready()
        laptop.put_secret({"kubeconfig": peer.bootstrap()})
        await eventually(lambda: peer.pending(laptop.cluster), "a request", by=[program])
        assert sum("refuses the token" in each.get("message", "") for each in program.messages()) == 1


@ahead("scene")
async def test_f_105_a_restart_uses_the_stored_certificate(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    with laptop.program() as program:
        await joined(laptop, peer, program)
        before = laptop.secret()
    with laptop.program("second") as program:
        await eventually(lambda: laptop.ready() == "ok", "joined", by=[program])
    assert laptop.secret() == before and len(peer.requests(laptop.cluster)) == 1


@ahead("scene")
async def test_f_105_another_address_in_the_bootstrap_secret_is_followed(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    with laptop.program() as program:
        await joined(laptop, peer, program)
        server = f"https://{peer.cluster.host_address}:{peer.cluster.port}"
        laptop.put_secret({"kubeconfig": peer.bootstrap(server=server)})
        await eventually(lambda: peer.decide(laptop.cluster), "another request", seconds=90, by=[program])
        await eventually(lambda: laptop.ready() == "ok", "joined", by=[program])
        assert server in base64.b64decode(laptop.secret()["kubeconfig"]).decode() and program.alive


@ahead("scene")
async def test_f_102_a_killed_agent_goes_on_with_its_pending_request(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    for number in range(3):
        # Without an election: a process that was killed would hold its Lease for 15 s.
        with laptop.program(f"agent-{number}", leader={"enabled": False}) as program:
            await eventually(lambda: "not approved" in laptop.ready(), "it waits", seconds=90, by=[program])
            program.kill()
    assert len(peer.requests(laptop.cluster)) == 1
    with laptop.program("last") as program:
        await joined(laptop, peer, program)
    assert len(peer.requests(laptop.cluster)) == 1


@ahead("scene")
async def test_f_112_a_second_cluster_of_a_taken_name_waits_and_changes_nothing(scene: MakeScene, peer: PeerHub) -> None:
    first = await scene()
    second = await scene()
    second.cluster = first.cluster
    with first.program("first") as program:
        await joined(first, peer, program, seconds=2)
        before = peer.record(first.cluster)
        with second.program("second") as other:
            await eventually(lambda: peer.pending(first.cluster), "its request", by=[other])
            renewed = peer.lease(first.cluster)["renewTime"]
            await eventually(lambda: peer.lease(first.cluster)["renewTime"] > renewed, "the first one lives")
            after = peer.record(first.cluster)
            assert before is not None and after is not None and after["spec"] == before["spec"]
            assert "not approved" in second.ready() and first.ready() == "ok"


@ahead("scene")
async def test_f_54_a_second_agent_of_the_same_worker_stands_by(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    with laptop.program("first") as first:
        await joined(laptop, peer, first, seconds=1)
        holder = peer.lease(laptop.cluster)["holderIdentity"]
        with laptop.program("second", health={"health_address": "127.0.0.1:0", "metrics_address": "127.0.0.1:0"}) as second:
            await eventually(lambda: "another process leads" in second.text(), "it stands by", by=[second])
            assert peer.lease(laptop.cluster)["holderIdentity"] == holder
            assert first.terminate() == 0
            await eventually(lambda: peer.lease(laptop.cluster)["holderIdentity"] != holder, "it reports", by=[second])
    assert len(peer.requests(laptop.cluster)) == 1


@ahead("scene")
async def test_f_111_the_next_hub_is_used_when_the_first_one_denies_the_cluster(
    scene: MakeScene, peer: PeerHub, second_hub: PeerHub
) -> None:
    laptop = await scene(bootstrap_secrets=["bootstrap-hub-kubeconfig", "second-hub"])
    laptop.put_secret({"kubeconfig": second_hub.bootstrap()}, "second-hub")
    with laptop.program() as program:
        await joined(laptop, peer, program)
        peer.deny(laptop.cluster)
        await joined(laptop, second_hub, program)
        assert laptop.ready() == "ok" and peer.conditions(laptop.cluster)[ACCEPTED][0] == "False"
    second_hub.remove(laptop.cluster)


@ahead("scene", long=True)
async def test_f_111_the_next_hub_is_used_when_the_first_one_does_not_answer(scene: MakeScene, peer: PeerHub, second_hub: PeerHub) -> None:
    with Cable(peer.cluster.port) as cable:
        bootstrap = peer.bootstrap(server=f"https://127.0.0.1:{cable.port}")
        laptop = await scene(bootstrap=bootstrap, bootstrap_secrets=["bootstrap-hub-kubeconfig", "second-hub"], lost_hub_after=8)
        laptop.put_secret({"kubeconfig": second_hub.bootstrap()}, "second-hub")
        with laptop.program() as program:
            await joined(laptop, peer, program, seconds=1)
            cable.cut()
            await joined(laptop, second_hub, program, seconds=1)
            assert "the Lease could not be renewed" in program.text() and laptop.ready() == "ok"
    second_hub.remove(laptop.cluster)


@ahead("scene")
async def test_f_131_the_lease_is_renewed_and_followed_when_the_hub_makes_it_again(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    name, seconds = laptop.cluster, 1
    path = f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases"
    with laptop.program() as program:
        await joined(laptop, peer, program, seconds=seconds)
        first = await eventually(lambda: peer.lease(name).get("renewTime"), "renewed")
        await eventually(lambda: peer.lease(name)["renewTime"] > first, "renewed again")
        peer.send("DELETE", f"{path}/managed-cluster-lease")
        await eventually(lambda: "cannot renew the Lease of the cluster on the hub" in laptop.ready(), "noticed", by=[program])
        assert peer.lease(name) == {}
        peer.send("POST", path, {"metadata": {"name": "managed-cluster-lease"}, "spec": {"leaseDurationSeconds": seconds}})
        await eventually(lambda: peer.lease(name).get("renewTime"), "renewed", by=[program])
        await eventually(lambda: laptop.ready() == "ok", "ready again", by=[program])


@ahead("scene")
async def test_f_4_in_steady_state_nothing_but_the_lease_is_written(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    name = laptop.cluster
    with laptop.program() as program:
        await joined(laptop, peer, program, seconds=1)
        await eventually(lambda: "capacity" in peer.status(name), "resources", by=[program])
        agent = base64.b64decode(laptop.secret()["agent-name"]).decode()
        audit = Audit(peer.cluster, f"system:open-cluster-management:{name}:{agent}")
        # The status is looked at every two seconds at most.
        await eventually(lambda: sum(call.what == "leases" for call in audit.calls()) >= 8, "renewals")
        assert {call.what for call in audit.calls() if call.is_write} == {"leases"}


@ahead("scene", long=True)
async def test_f_132_an_api_server_that_does_not_answer_makes_the_cluster_unavailable(scene: MakeScene, peer: PeerHub) -> None:
    # F-25, F-125: a cluster of the first door that is a member too reports the same health there.
    laptop = await scene(modules=["kubefleet"])
    name = laptop.cluster
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": f"system:open-cluster-management:{name}"}
    with Cable(laptop.worker.port) as cable, laptop.program(port=cable.port) as program:
        await joined(laptop, peer, program, seconds=1)
        peer.admit(name, group)
        await eventually(lambda: "Healthy" in peer.member_agent(name), "a member", seconds=60, by=[program])
        cable.cut()
        down = ("False", "ManagedClusterKubeAPIServerUnavailable")
        await eventually(lambda: peer.conditions(name)[AVAILABLE] == down, "down", seconds=60, by=[program])
        await eventually(lambda: peer.member_agent(name)["Healthy"] == ("False", "InternalMemberClusterUnhealthy"), "as a member too")
        renewed = peer.lease(name)["renewTime"]
        await eventually(lambda: peer.lease(name)["renewTime"] > renewed, "the Lease is still renewed")
        cable.mend()
        up = ("True", "ManagedClusterAvailable")
        await eventually(lambda: peer.conditions(name)[AVAILABLE] == up, "up", seconds=60, by=[program])
        await eventually(lambda: peer.member_agent(name)["Healthy"][0] == "True", "as a member too", by=[program])
        assert program.alive


async def test_f_133_a_list_that_the_agent_may_not_make_is_named_and_the_rest_reported(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene(without=("nodes",))
    with laptop.program() as program:
        await joined(laptop, peer, program)

        def message() -> str:
            found = peer.status(laptop.cluster)["conditions"]
            return next(str(each["message"]) for each in found if each["type"] == AVAILABLE)

        await eventually(lambda: "resources: [nodes], verbs: [list, watch]" in message(), "the rule", by=[program])
        status = peer.status(laptop.cluster)
        assert status["version"]["kubernetes"] and status["clusterClaims"] and "capacity" not in status


async def test_f_161_claims_of_the_worker_are_reported(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    claims = [("platform.open-cluster-management.io", "edge", {}), ("local", "x", {"open-cluster-management.io/spoke-only": ""})]
    bodies = [
        {
            "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
            "kind": "ClusterClaim",
            "metadata": {"name": name, "labels": labels},
            "spec": {"value": value},
        }
        for name, value, labels in claims
    ]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    await laptop.worker.kubectl("apply", "-f", "-", stdin=listed)
    try:
        with laptop.program() as program:
            await joined(laptop, peer, program)
            found = [each["name"] for each in peer.status(laptop.cluster)["clusterClaims"]]
            reserved = ["id.k8s.io", "kubeversion.open-cluster-management.io", "platform.open-cluster-management.io"]
            assert found == reserved
    finally:
        await laptop.worker.kubectl("delete", "-f", "-", stdin=listed)


@ahead("scene")
async def test_f_143_nothing_is_reported_while_the_clocks_differ(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    name, synced = laptop.cluster, "ManagedClusterConditionClockSynced"
    with laptop.program() as program:
        await joined(laptop, peer, program, seconds=1)
        peer.set_condition(name, synced, "False", "ManagedClusterClockOutOfSync")
        await eventually(lambda: "clock" in laptop.ready(), "it is named", by=[program])
        peer.set_condition(name, AVAILABLE, "Unknown", "ManagedClusterLeaseUpdateStopped")
        renewed = peer.lease(name)["renewTime"]
        await eventually(lambda: peer.lease(name)["renewTime"] > renewed, "the Lease is still renewed")
        assert peer.conditions(name)[AVAILABLE][0] == "Unknown"
        peer.set_condition(name, synced, "True", "ManagedClusterClockSynced")
        await eventually(lambda: peer.conditions(name)[AVAILABLE][0] == "True", "it reports", by=[program])


@ahead("scene")
async def test_f_154_a_denied_cluster_reports_nothing_until_it_is_accepted_again(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    name = laptop.cluster
    with laptop.program() as program:
        await joined(laptop, peer, program, seconds=1)
        peer.deny(name)
        await eventually(lambda: "denies" in laptop.ready(), "denied", by=[program])
        assert f"fleet accept {name}" in laptop.ready()
        denied = peer.record(name)
        renewed = peer.lease(name)["renewTime"]
        # The agent sees this change, and would answer it with its own status.
        peer.set_condition(name, AVAILABLE, "Unknown", "ManagedClusterLeaseUpdateStopped")
        peer.accept(name, seconds=1)
        await eventually(lambda: peer.lease(name)["renewTime"] > renewed, "accepted", by=[program])
        await eventually(lambda: peer.conditions(name)[AVAILABLE][0] == "True", "it reports again", by=[program])
        assert denied is not None and laptop.ready() == "ok"


@ahead("scene")
async def test_f_105_a_certificate_that_the_hub_refuses_is_requested_again(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene(lost_hub_after=5)
    name = laptop.cluster
    with laptop.program() as program:
        await joined(laptop, peer, program)
    user = Name(f"system:open-cluster-management:{name}:{base64.b64decode(laptop.secret()['agent-name']).decode()}")
    foreign = self_signed(user, ["other"], now=datetime.now(UTC))
    laptop.put_secret({"tls.crt": foreign.certificate.decode(), "tls.key": foreign.key.decode()}, "hub-kubeconfig-secret")
    with laptop.program("second") as program:
        await eventually(lambda: peer.decide(name), "a request", by=[program])
        await eventually(lambda: laptop.ready() == "ok", "joined", by=[program])
        assert "has refused the certificate" in program.text()


@ahead("scene")
async def test_f_26_a_removed_cluster_joins_again_only_with_a_new_bootstrap_secret(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    name = laptop.cluster
    with laptop.program() as program:
        await joined(laptop, peer, program)
        peer.send("DELETE", f"{CLUSTERS}/{name}")
        await eventually(lambda: f"no ManagedCluster {name} any more" in laptop.ready(), "it is reported", by=[program])
        assert peer.record(name) is None
        laptop.put_secret({"kubeconfig": peer.bootstrap()})
        await eventually(lambda: peer.pending(name), "it asks again", by=[program])
        assert not (peer.record(name) or {})["spec"].get("hubAcceptsClient")
        await joined(laptop, peer, program)


@ahead("scene")
async def test_f_106_no_eleventh_request_is_posted(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene()
    key, label = laptop.cluster, "open-cluster-management.io/cluster-name"
    for number in range(10):
        request = base64.b64encode(certificate_request(new_key(), Name("other"))).decode()
        spec = {"request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}
        peer.send("POST", REQUESTS, {"metadata": {"name": f"{key}-old-{number}", "labels": {label: key}}, "spec": spec})
    with laptop.program() as program:
        await eventually(lambda: "has 10 certificate requests" in laptop.ready(), "it is reported", by=[program])
        assert len(peer.requests(key)) == 10
        peer.send("DELETE", f"{REQUESTS}/{key}-old-0")
        await eventually(lambda: len(peer.requests(key)) == 10, "its request", seconds=60, by=[program])
    assert peer.send("GET", f"{CLUSTERS}/{key}") is not None
