"""Killed at its writes while it deploys a binding and takes it away again, the manager completes both, and creates nothing twice."""

from __future__ import annotations

from collections import Counter

from attrs import define

from tests.faults.cut.choice import Choice
from tests.faults.cut.crashes import Killer, Operation
from tests.integration.manager.conftest import SYSTEM, USER, Binding, Computing, MakeBinding
from tests.integration.manager.test_life import MANAGER_FINALIZER, identity_paths
from tests.support.audit import Audit
from tests.support.gate import Gate
from tests.support.program import eventually
from tests.support.troubles import Asked

ALONE = {"enabled": False}
"""Otherwise each start waits until the Lease of the killed process has expired."""


def of_manager(asked: Asked) -> bool:
    """The cluster's own controllers do not come this way."""
    return asked.is_write and asked.resource not in ("leases", "events")


@define(eq=False)
class Bindings:
    """One after the other; `current` is deployed or taken away."""

    computing: Computing
    make: MakeBinding
    made: list[Binding]

    @property
    def current(self) -> Binding:
        return self.made[-1]

    async def another(self) -> None:
        self.made.append(self.make(create=False))

    async def create(self) -> None:
        self.current.create()

    async def deployed(self) -> bool:
        body = self.current.body()
        complete = self.current.deployment() is not None and all(map(self.computing.raw, identity_paths(self.current)))
        return bool(complete and body is not None and MANAGER_FINALIZER in body["metadata"]["finalizers"] and self.current.phase())

    async def delete(self) -> None:
        self.current.delete()

    async def gone(self) -> bool:
        paths = [*identity_paths(self.current), f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{self.current.deployment_name}"]
        return self.current.body() is None and not any(map(self.computing.raw, paths))


async def test_manager_completes_each_deployment_and_removal_once(
    computing: Computing, bind: MakeBinding, gate: Gate, choice: Choice
) -> None:
    kept = bind()
    await kept.deployed()
    audit = Audit(computing.hub, USER)
    kubeconfig = gate.lead(computing.hub, computing.hub.client_config(USER))
    bindings = Bindings(computing, bind, [])
    before = _versions(computing, kept)
    with computing.without_manager(), computing.manager("killed", kubeconfig=kubeconfig, leader=ALONE) as program:
        await eventually(lambda: '"message": "leading"' in program.text() or program.messages(), "the manager runs")
        deploy = Operation(name="deploy", prepare=bindings.another, begin=bindings.create, reached=bindings.deployed, counts=of_manager)
        remove = Operation(name="remove", begin=bindings.delete, reached=bindings.gone, counts=of_manager)
        await Killer(gate, program, choice).at_each_write(deploy, remove)
    # What is applied is created by a PATCH.
    created = Counter((call.what, call.namespace, call.name) for call in audit.writes() if call.code == 201 and call.what != "events")
    assert "deployments" in {what for what, *_ in created}
    assert set(created.values()) == {1}, [each for each, times in created.items() if times > 1]
    assert _versions(computing, kept) == before, "the objects of another binding stay as they are"


def _versions(computing: Computing, binding: Binding) -> list[str]:
    return [str((computing.raw(path) or {"metadata": {}})["metadata"].get("uid")) for path in identity_paths(binding)]
