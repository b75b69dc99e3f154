"""The rights of the agent: each is used, and none is missing, as the audit log of the worker shows."""

from __future__ import annotations

from fleet.agent.agent_settings import read_agent_settings
from fleet.agent.rights import agent_rules
from tests.integration.fleet.agent.scene import MakeScene
from tests.support.ahead import ahead
from tests.support.audit import Audit
from tests.support.peer import CLUSTERS, PeerHub
from tests.support.program import eventually
from vkubelet.api.rbac import checks_of

UNSEEN = {("list", "nodes"), ("list", "pods"), ("watch", "nodes"), ("watch", "pods")}
"""A watch with its initial events is in the log when it ends; an older server is asked for a list."""


@ahead("scene", long=True)
async def test_f_59_every_right_in_the_worker_is_used_and_none_is_missing(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene(bootstrap="")
    laptop.deploy()
    audit = Audit(laptop.worker, f"system:serviceaccount:{laptop.namespace}:fleet-agent")
    with laptop.program() as program:
        await eventually(lambda: "does not exist" in laptop.ready(), "it waits for the Secret", by=[program])
        laptop.put_secret({"kubeconfig": peer.bootstrap("not.a.token")})
        await eventually(lambda: "refuses the token" in laptop.ready(), "an Event", seconds=60, by=[program])
        laptop.put_secret({"kubeconfig": peer.bootstrap()})
        await eventually(lambda: peer.decide(laptop.cluster), "a request", seconds=60, by=[program])
        peer.accept(laptop.cluster)
        await eventually(lambda: "ManagedClusterJoined" in peer.conditions(laptop.cluster), "joined", by=[program])
        # F-153
        entry = {"clusterSet": "s", "name": f"{laptop.namespace}-managed"}
        peer.send("PATCH", f"{CLUSTERS}/{laptop.cluster}/status", {"status": {"managedNamespaces": [entry]}})
        await eventually(lambda: peer.status(laptop.cluster)["managedNamespaces"][0].get("conditions"), "a namespace", by=[program])
        await laptop.worker.kubectl("delete", "namespace", entry["name"], "--wait=false")
    calls = audit.calls()
    assert not [str(call) for call in calls if call.code == 403]
    used = {(call.verb, call.what) for call in calls}
    granted = {(check.verb, check.resource) for check in checks_of(agent_rules(read_agent_settings({"agent": laptop.own}).agent))}
    # Equal Events are counted by a patch of the first one.
    assert granted - used <= UNSEEN | {("patch", "events")}
