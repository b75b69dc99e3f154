"""The agent is killed after its 1st, 2nd, … nth write while it joins: the next one continues, and then nothing more is written."""

from __future__ import annotations

import itertools

import yaml

from tests.integration.fleet.agent.scene import MakeScene
from tests.support.gate import Gate
from tests.support.peer import PeerHub
from tests.support.program import eventually
from tests.support.troubles import Asked

AVAILABLE = "ManagedClusterConditionAvailable"


def counted(asked: Asked) -> bool:
    return asked.is_write and asked.resource not in ("leases", "events")


async def test_f_8_a_worker_joins_wherever_its_agent_was_killed(scene: MakeScene, peer: PeerHub) -> None:
    with Gate() as gate:
        # On the hub every identity is that of the gate: its rights are shown elsewhere.
        hub = yaml.safe_load(gate.lead(peer.cluster, peer.cluster.kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
        for at in itertools.count(1):
            laptop = await scene(bootstrap=peer.bootstrap(server=hub))
            name = laptop.cluster
            program = laptop.program(gate=gate)
            gate.arm(at, program, withheld=at % 2 == 0, counts=counted)
            with program:
                peer_acts = Consents(peer, name)
                await eventually(lambda: peer_acts.given() and (gate.fired or laptop.ready() == "ok"), f"write {at}\n{program.tail()}")  # noqa: B023
                fired = gate.disarm()
                if fired:
                    program.process.wait(30)
                    program.start()
                await eventually(lambda: peer_acts.given() and laptop.ready() == "ok", f"after write {at}\n{program.tail()}")  # noqa: B023
                await eventually(lambda: AVAILABLE in peer.conditions(name), f"reported after write {at}\n{program.tail()}")  # noqa: B023
                assert len(peer.requests(name)) == 1, at
                settled = peer.record(name)
                renewed = peer.lease(name)["renewTime"]
                await eventually(lambda: peer.lease(name)["renewTime"] > renewed, "the Lease is renewed")  # noqa: B023
                assert settled is not None
            if not fired:
                assert at > 5, "a worker that joins writes record, key, request, certificate and status"
                return


class Consents:
    """The hub's owner, who consents whenever there is something to consent to."""

    def __init__(self, peer: PeerHub, name: str) -> None:
        self._peer, self._name, self._accepted = peer, name, False

    def given(self) -> bool:
        self._peer.decide(self._name)
        if not self._accepted and self._peer.record(self._name) is not None:
            self._peer.accept(self._name, seconds=1)
            self._accepted = True
        return True
