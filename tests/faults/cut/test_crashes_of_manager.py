"""Killed at its writes while it deploys, changes and removes bindings, the manager completes each, and does nothing twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import define

from tests.faults.cut.choice import Choice
from tests.faults.cut.crashes import Killer, Operation
from tests.integration.manager.conftest import SYSTEM, USER, Binding, Computing, MakeBinding
from tests.integration.manager.test_life import MANAGER_FINALIZER, identity_paths
from tests.support.audit import Audit
from tests.support.bound import apply, delete, roles_for
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
    """Those that stay come first."""
    killer: Killer

    @property
    def current(self) -> Binding:
        return self.made[-1]

    async def another(self) -> None:
        await self.quiet()
        self.made.append(self.make(create=False))

    async def quiet(self) -> None:
        """Waits until a process that was started again has applied the objects of all bindings: these writes are not the operation's."""
        names = [each.deployment_name for each in self.made if _stays(each.body())]

        def all_applied() -> bool:
            starts = self.killer.program.text().split('"message": "starting"')[1:]
            since = starts[-1] if len(starts) > sum(map(len, self.killer.kills.values())) else ""
            return all(re.search(rf'"method": "PATCH", "path": "[^"]*/deployments/{name}"', since) for name in names)

        await eventually(all_applied, f"{names} are applied", by=[self.killer.program])

    async def create(self) -> None:
        self.current.create()

    async def deployed(self) -> bool:
        return is_deployed(self.current)

    async def delete(self) -> None:
        self.current.delete()

    async def gone(self) -> bool:
        return is_removed(self.current)


def is_deployed(binding: Binding) -> bool:
    """Everything that runs it exists, and it has finalizer and status."""
    body = binding.body()
    complete = binding.deployment() is not None and all(map(binding.computing.raw, identity_paths(binding)))
    return bool(complete and body is not None and MANAGER_FINALIZER in body["metadata"]["finalizers"] and binding.phase())


def is_removed(binding: Binding) -> bool:
    """With everything that ran it."""
    paths = [*identity_paths(binding), f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{binding.deployment_name}"]
    return binding.body() is None and not any(map(binding.computing.raw, paths))


def _stays(body: dict[str, Any] | None) -> bool:
    return body is not None and "deletionTimestamp" not in body["metadata"]


@define(eq=False)
class Changed:
    """A binding whose spec, annotations and kubeconfig change at once, back and forth; its Deployment exists."""

    binding: Binding
    kubeconfigs: tuple[Path, Path]
    """The user of the second one lacks a right without which pods still run."""
    rounds: int = 0

    @property
    def _odd(self) -> bool:
        return self.rounds % 2 == 1

    async def change(self) -> None:
        self.rounds += 1
        secret = {"stringData": {"kubeconfig": self.kubeconfigs[self._odd].read_text()}}
        self.binding.computing.core.patch_namespaced_secret(self.binding.secret, SYSTEM, secret)
        notes = {"kubeocean.io/logs-proxy-enabled": "true", "kubeocean.io/logs-proxy-secret-name": self._certificate}
        zone = "Europe/Berlin" if self._odd else "Asia/Shanghai"
        self.binding.patch({"metadata": {"annotations": {key: value or None for key, value in notes.items()}}, "spec": {"timeZone": zone}})

    @property
    def _certificate(self) -> str:
        return f"port-tls-{self.rounds}" if self._odd else ""

    async def changed(self) -> bool:
        """Deployment and settings follow the annotations, conditions and their generation the spec and the rights of the user."""
        deployment, body = self.binding.deployment(), self.binding.body() or {}
        settings = self.binding.computing.raw(f"/api/v1/namespaces/{SYSTEM}/configmaps/{self.binding.deployment_name}")
        if deployment is None or settings is None:
            return False
        mounted = [each["secret"]["secretName"] for each in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in each]
        has_file = "certificate_file" in settings["data"]["settings.yaml"]
        observed = {each.get("observedGeneration") for each in body["status"]["conditions"]} == {body["metadata"]["generation"]}
        permitted = ("False", "RightsMissing") if self._odd else ("True", "RightsGranted")
        follows = mounted == ([self._certificate] if self._certificate else []) and has_file == bool(mounted)
        return follows and observed and self.binding.conditions().get("Permitted") == permitted


@asynccontextmanager
async def user_without_logs(binding: Binding) -> AsyncIterator[Path]:
    """The kubeconfig of a user of the worker that may not read logs of pods, and everything else that a binding needs."""
    worker, user, mount = binding.computing.worker, f"weak-{binding.name}", binding.spec["mountNamespace"]
    bodies = roles_for(user, "worker-rbac.yaml", name=user, namespaces={"kubeocean-worker": mount})
    for body in bodies:
        if "rules" in body:
            body["rules"] = [rule for rule in body["rules"] if rule["resources"] != ["pods/log"]]
    await apply(worker, *bodies)
    try:
        yield worker.client_config(user)
    finally:
        for body in bodies:
            where = ("-n", body["metadata"]["namespace"]) if "namespace" in body["metadata"] else ()
            await delete(worker, body["kind"].lower(), body["metadata"]["name"], *where, "--wait=false")


async def test_manager_completes_each_deployment_change_and_removal_once(
    computing: Computing, bind: MakeBinding, gate: Gate, choice: Choice
) -> None:
    kept, moved = bind(), bind()
    await kept.deployed()
    made = await moved.deployed()
    audit = Audit(computing.hub, USER)
    kubeconfig = gate.lead(computing.hub, computing.hub.client_config(USER))
    before = uids(kept)
    async with user_without_logs(moved) as weak:
        changed = Changed(moved, (computing.worker.kubeconfig, weak))
        with computing.without_manager(), computing.manager("killed", kubeconfig=kubeconfig, leader=ALONE) as program:
            killer = Killer(gate, program, choice)
            bindings = Bindings(computing, bind, [kept, moved], killer)
            deploy = Operation(name="deploy", prepare=bindings.another, begin=bindings.create, reached=bindings.deployed, counts=of_manager)
            change = Operation(name="change", prepare=bindings.quiet, begin=changed.change, reached=changed.changed, counts=of_manager)
            remove = Operation(name="remove", prepare=bindings.quiet, begin=bindings.delete, reached=bindings.gone, counts=of_manager)
            await killer.at_each_write(deploy, change, remove)
    judge_created(audit)
    assert uids(kept) == before, "the objects of another binding stay as they are"
    assert rolled_out(moved.deployment()) == rolled_out(made, changed.rounds), "each change is rolled out once"


def judge_created(audit: Audit) -> None:
    """Nothing was created twice. What is applied is created by a PATCH."""
    created = Counter((call.what, call.namespace, call.name) for call in audit.writes() if call.code == 201 and call.what != "events")
    assert "deployments" in {what for what, *_ in created}
    assert set(created.values()) == {1}, [each for each, times in created.items() if times > 1]


def rolled_out(deployment: dict[str, Any] | None, times: int = 0) -> tuple[str, int]:
    """UID and generation, which each change of its spec increases, `times` changes later."""
    metadata = (deployment or {"metadata": {"uid": "", "generation": 0}})["metadata"]
    return metadata["uid"], metadata["generation"] + times


def uids(binding: Binding) -> list[str]:
    """Of the objects of its identity."""
    return [str((binding.computing.raw(path) or {"metadata": {}})["metadata"].get("uid")) for path in identity_paths(binding)]
