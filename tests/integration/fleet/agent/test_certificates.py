"""Certificates that last less than a minute: renewed without a failed request, and requested again after they expired."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from cryptography import x509

from tests.integration.fleet.agent.scene import AgentScene, MakeScene
from tests.support.ahead import ahead
from tests.support.audit import Audit
from tests.support.peer import PeerHub
from tests.support.program import Program, eventually
from vkubelet.testing.fixtures import run_apart

JOINED = "ManagedClusterJoined"
LIFE = 30


@pytest.fixture(scope="module")
def brief(peer: PeerHub) -> Iterator[PeerHub]:
    """The hub, whose signer issues certificates for `LIFE` seconds meanwhile."""
    run_apart(peer.cluster.restart_controllers(f"--cluster-signing-duration={LIFE}s"))
    yield peer
    run_apart(peer.cluster.restart_controllers())


async def joined(laptop: AgentScene, peer: PeerHub, program: Program) -> None:
    await eventually(lambda: peer.decide(laptop.cluster), "a request", by=[program])
    peer.accept(laptop.cluster, seconds=1)
    await eventually(lambda: JOINED in peer.conditions(laptop.cluster), "joined", by=[program])


def end_of(laptop: AgentScene) -> float:
    pem = base64.b64decode(laptop.secret()["tls.crt"])
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


@ahead("scene", group="brief")
async def test_f_110_a_certificate_is_renewed_without_a_failed_request(scene: MakeScene, brief: PeerHub) -> None:
    laptop = await scene(bootstrap=brief.bootstrap())
    name = laptop.cluster
    with laptop.program() as program:
        await joined(laptop, brief, program)
        agent = base64.b64decode(laptop.secret()["agent-name"]).decode()
        audit = Audit(brief.cluster, f"system:open-cluster-management:{name}:{agent}")
        for _ in range(2):
            before = end_of(laptop)
            await eventually(lambda: brief.decide(name), "the next request", seconds=2 * LIFE, by=[program])
            await eventually(lambda: end_of(laptop) > before, "the next certificate", by=[program])  # noqa: B023
        renewed = brief.lease(name)["renewTime"]
        await eventually(lambda: brief.lease(name)["renewTime"] > renewed, "the Lease is renewed")
        requests = brief.requests(name)
        assert {each["spec"]["username"] for each in requests[1:]} == {f"system:open-cluster-management:{name}:{agent}"}
        refused = [str(call) for call in audit.calls() if call.code in (401, 403)]
        assert not refused and not [each for each in program.messages() if "Unauthorized" in str(each)]
        assert laptop.ready() == "ok"
    brief.remove(name)


@ahead("scene", group="brief")
async def test_f_110_after_its_end_the_cluster_asks_again_with_the_bootstrap_token(scene: MakeScene, brief: PeerHub) -> None:
    # F-105
    laptop = await scene(bootstrap=brief.bootstrap())
    name = laptop.cluster
    with laptop.program() as program:
        await joined(laptop, brief, program)
        await eventually(lambda: brief.pending(name), "the renewal", seconds=2 * LIFE, by=[program])
        await eventually(lambda: "has not renewed the certificate" in program.text(), "the warning", seconds=2 * LIFE, by=[program])
        await eventually(lambda: "joins again" in program.text(), "its end", seconds=2 * LIFE, by=[program])
        await eventually(lambda: "not approved" in laptop.ready(), "it asks again", by=[program])
        brief.decide(name)
        await eventually(lambda: laptop.ready() == "ok", "joined again", by=[program])
        assert program.alive
    brief.remove(name)
