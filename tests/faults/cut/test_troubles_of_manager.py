"""A manager that meets the troubles of API servers deploys, changes and removes each binding, and creates and rolls out nothing twice.

One manager meets all troubles one after another; its way to the worker leads through the same gate.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

from attrs import define, evolve

from tests.faults.cut.choice import Choice
from tests.faults.cut.kinds import Kind, Result, kinds, of_reads, passes, summary
from tests.faults.cut.test_crashes_of_manager import ALONE, is_deployed, is_removed, judge_created, rolled_out, uids
from tests.integration.manager.conftest import GROUP, PLURAL, USER, VERSION, Binding, Computing, MakeBinding
from tests.support.audit import Audit
from tests.support.gate import Gate
from tests.support.program import Program, eventually

RECOVERS_WITHIN = 90.0
DEFAULT = 3
"""Troubles of the default run."""
CERTIFICATE = "port-tls"
CHANGE = {
    "metadata": {
        "annotations": {"kubeocean.io/logs-proxy-enabled": "true", "kubeocean.io/logs-proxy-secret-name": CERTIFICATE},
    },
    "spec": {"timeZone": "Europe/Berlin"},
}


@define(eq=False)
class Bindings:
    """In each trouble one is created, the last one is changed, and the one before that is deleted."""

    gate: Gate
    program: Program
    made: list[Binding]
    before: dict[str, dict[str, Any]]
    """Deployments that have not been changed yet, by binding."""

    async def meets(self, kind: Kind, created: Binding) -> Result:
        """Returns how often it was met, and the seconds from its end until all is as it should be."""
        pods = self.made[0].computing.raw("/api/v1/pods?limit=1") or {}
        result = await passes(self.gate, kind, pods["metadata"]["resourceVersion"], partial(self._change, created), self.program)
        began = datetime.now(UTC)
        deleted, changed = self.made[-2:]

        def as_it_should_be() -> bool:
            return is_deployed(created) and is_changed(changed) and is_removed(deleted)

        await eventually(as_it_should_be, str(kind), seconds=RECOVERS_WITHIN, every=0.3, by=[self.program])
        result = evolve(result, took=(datetime.now(UTC) - began).total_seconds())
        print(result)
        assert rolled_out(changed.deployment()) == rolled_out(self.before.pop(changed.name), 1), f"{kind}: the change is rolled out once"
        self.add(created)
        return result

    def add(self, binding: Binding) -> None:
        """Of a deployed one."""
        self.made.append(binding)
        self.before[binding.name] = binding.deployment() or {}

    async def _change(self, created: Binding) -> None:
        deleted, changed = self.made[-2:]
        created.create()
        changed.patch(CHANGE)
        deleted.delete()


def is_changed(binding: Binding) -> bool:
    """Deployment and conditions follow annotations and spec."""
    body, deployment = binding.body(), binding.deployment()
    if body is None or deployment is None:
        return False
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    observed = {each.get("observedGeneration") for each in body["status"]["conditions"]}
    mounted = any(each.get("secret", {}).get("secretName") == CERTIFICATE for each in volumes)
    return mounted and observed == {body["metadata"]["generation"]}


async def test_each_binding_is_deployed_changed_and_removed_once(
    computing: Computing, bind: MakeBinding, gate: Gate, choice: Choice
) -> None:
    to_worker = gate.lead(computing.worker, computing.worker.kubeconfig).read_text()
    kept, *others = [bind(kubeconfig=to_worker) for _ in range(3)]
    for each in (kept, *others):
        await eventually(partial(is_deployed, each), f"{each.name} is deployed")
    audit, before = Audit(computing.hub, USER), uids(kept)
    kubeconfig = gate.lead(computing.hub, computing.hub.client_config(USER))
    hub, worker = computing.hub.name, computing.worker.name
    every = [*kinds(hub, f"/apis/{GROUP}/{VERSION}/{PLURAL}", "ClusterBinding"), *of_reads(worker)]
    results = []
    with computing.without_manager(), computing.manager("troubled", kubeconfig=kubeconfig, leader=ALONE) as program:
        bindings = Bindings(gate, program, [kept], {})
        for each in others:
            bindings.add(each)
        for kind in choice.part(every, DEFAULT):
            results.append(await bindings.meets(kind, bind(create=False, kubeconfig=to_worker)))
            assert program.alive, program.tail()
    print(summary(results))
    judge_created(audit)
    assert uids(kept) == before, "the objects of another binding stay as they are"
