"""The agent is killed after its 1st, 2nd, … nth write while it joins: the next one continues, and then nothing more is written."""

from __future__ import annotations

import itertools
from functools import partial

import yaml

from tests.integration.fleet.agent.scene import MakeScene
from tests.support.ahead import ahead
from tests.support.gate import Gate
from tests.support.peer import PeerHub
from tests.support.program import eventually
from tests.support.troubles import Asked

AVAILABLE = "ManagedClusterConditionAvailable"


def counted(asked: Asked) -> bool:
    return asked.is_write and asked.resource not in ("leases", "events")


@ahead("scene", long=True)
async def test_f_8_a_worker_joins_wherever_its_agent_was_killed(scene: MakeScene, peer: PeerHub) -> None:
    with Gate() as gate:
        # On the hub every identity is that of the gate: its rights are shown elsewhere.
        hub = yaml.safe_load(gate.lead(peer.cluster, peer.cluster.kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
        for at in itertools.count(1):
            laptop = await scene(bootstrap=peer.bootstrap(server=hub))
            name, consents = laptop.cluster, Consents(peer, laptop.cluster)
            # Without an election: a process that was killed would hold its Lease for 15 s.
            program = laptop.program(gate=gate, leader={"enabled": False})
            gate.arm(at, program, withheld=at % 2 == 0, counts=counted)
            with program:
                await eventually(partial(consents.lead_to_a_report, gate), f"write {at}", by=[program])
                fired = gate.disarm()
                if fired:
                    program.process.wait(30)
                    program.start()
                await eventually(consents.lead_to_a_report, f"after write {at}", by=[program])
                assert len(peer.requests(name)) == 1, at
                renewed = peer.lease(name)["renewTime"]
                await eventually(partial(consents.renewed_since, renewed), f"it goes on after write {at}", by=[program])
            if not fired:
                assert at > 5, "a worker that joins writes record, key, request, certificate and status"
                return


class Consents:
    """The hub's owner, who consents whenever there is something to consent to."""

    def __init__(self, peer: PeerHub, name: str) -> None:
        self._peer, self._name, self._accepted = peer, name, False

    def lead_to_a_report(self, gate: Gate | None = None) -> bool:
        """Whether the agent has reported, or was killed at the gate."""
        self._peer.decide(self._name)
        if not self._accepted and self._peer.record(self._name) is not None:
            self._peer.accept(self._name, seconds=1)
            self._accepted = True
        reported = AVAILABLE in self._peer.conditions(self._name) and self.renewed_since("")
        return reported or (gate is not None and gate.fired)

    def renewed_since(self, moment: str) -> bool:
        return str(self._peer.lease(self._name).get("renewTime") or "") > moment
