"""`fleet doctor --here` in a worker with prepared faults."""

from __future__ import annotations

import json

from fleet.commands.deployment import settings_body
from tests.integration.fleet.agent.scene import AgentScene, MakeScene
from tests.integration.fleet.test_doctor import examined, found
from tests.support.peer import PeerHub
from tests.support.program import eventually


async def configure(laptop: AgentScene, **own: object) -> None:
    await laptop.worker.kubectl("apply", "-f", "-", stdin=json.dumps(settings_body({**laptop.own, **own}, laptop.namespace)))


async def test_f_15_doctor_names_prepared_faults_of_a_worker(scene: MakeScene, peer: PeerHub) -> None:
    laptop = await scene(bootstrap="")
    here = ("--here", "--namespace", laptop.namespace)
    hub = "hub of Secret bootstrap-hub-kubeconfig"

    async def problems(check: str, *, subject: str = "worker") -> str:
        code, results = await examined(laptop.worker, *here)
        listed = found(results, check, subject=subject)
        assert code == 1 or all(each["level"] != "error" for each in listed)
        return "\n".join(f"{each['level']} {each['problem']} {each['commands']}" for each in listed)

    assert f"error namespace {laptop.namespace} has no agent; on the hub run `fleet init`" in await problems("settings")
    await configure(laptop, client_cert_expiration=60)
    assert "agent.client_cert_expiration" in await problems("settings")
    await configure(laptop)
    assert await problems("settings") == ""
    assert "has no holder" in await problems("process")
    assert 'does not exist, or has no key "kubeconfig"' in await problems("connection", subject=hub)
    laptop.put_secret({"kubeconfig": "no: kubeconfig"})
    assert "key kubeconfig" in await problems("connection", subject=hub)
    laptop.put_secret({"kubeconfig": peer.bootstrap(token="not.a.token")})
    assert "does not accept these credentials" in await problems("connection", subject=hub)

    laptop.put_secret({"kubeconfig": peer.bootstrap()})
    with laptop.program() as agent:
        await eventually(lambda: peer.pending(laptop.cluster), "a request", by=[agent])
        assert f"fleet accept {laptop.cluster}" in await problems("certificate")
        assert "does not accept cluster" in await problems("connection", subject=hub)
        assert await problems("process") == ""
        peer.decide(laptop.cluster)
        peer.accept(laptop.cluster)
        await eventually(lambda: "tls.crt" in laptop.secret(), "a certificate", by=[agent])
        code, results = await examined(laptop.worker, *here)
        assert code == 0 and not [each for each in results if each["findings"] or each["skipped"]], results
        # The rights of the agent are those of `fleet join`; one that is taken away is named.
        await laptop.grant(without=["nodes"])
        assert f"{laptop.namespace}/fleet-agent may not list nodes, watch nodes" in await problems("rights")
