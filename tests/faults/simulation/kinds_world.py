"""Scenarios of a binding whose process mirrors LogConfigs, by the shipped setting.

Invariant: nothing here knows how a mirror is named; it is found by the object that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from attrs import evolve

from kubeocean.model import keys
from kubeocean.model.kinds import ExtraKind
from kubeocean.settings import KubeoceanSettings, read_extra_kinds
from tests.faults.simulation.actors import NAMESPACE
from tests.faults.simulation.kubeocean_world import THEIRS
from tests.faults.simulation.owners_world import OwnersWorld
from tests.support.logconfigs import SHIPPED, logconfig_definition, spec_of

_LOGS = "/apis/cls.cloud.tencent.com/v1/logconfigs"


@lru_cache
def _extra_kinds() -> Sequence[ExtraKind]:
    return read_extra_kinds(SHIPPED)


class KindsWorld(OwnersWorld):
    """All scenarios of one binding."""

    scenarios: ClassVar = {**OwnersWorld.scenarios, "kinds": "kinds", "kinds-unbind": "unbind"}

    def build(self) -> None:
        super().build()
        if self._mirrors_logs:
            for plane in (self.hub, self.worker):
                plane.model.define(logconfig_definition())
            theirs = {"metadata": {"name": THEIRS}, "spec": spec_of("container_stdout", allContainers=True)}
            self.worker.model.call("POST", _LOGS, theirs, user="owner")

    def own_settings(self) -> KubeoceanSettings:
        own = super().own_settings()
        return evolve(own, extra_kinds=_extra_kinds()) if self._mirrors_logs else own

    @property
    def _mirrors_logs(self) -> bool:
        return self.scenario.startswith("kinds")

    def log(self, name: str, *workloads: str) -> None:
        """Creates a LogConfig of these Deployments, or changes it."""
        named = [{"namespace": NAMESPACE, "kind": "deployment", "name": each} for each in workloads]
        body = {"metadata": {"name": name}, "spec": spec_of("container_stdout", workloads=named)}
        self.hub.model.apply(f"{_LOGS}/{name}", body, user="person")

    def logged(self, **wanted: list[str]) -> str | None:
        """Returns how the LogConfigs of the worker differ from the one of its owner and the mirrors for these workloads."""
        seen: dict[str, list[str]] = {}
        for body in self.worker.model.objects("cls.cloud.tencent.com", "v1", "logconfigs"):
            selected = body["spec"]["inputDetail"]["containerStdout"].get("includeLabels") or {}
            name = (body["metadata"].get("annotations") or {}).get(keys.VIRTUAL_NAME, THEIRS)
            seen.setdefault(name, []).append(selected.get(keys.WORKLOAD_NAME, ""))
        expected = {**wanted, THEIRS: [""]}
        return None if {name: sorted(each) for name, each in seen.items()} == expected else f"LogConfigs are {seen}, not {expected}"

    async def kinds(self) -> None:
        """LogConfigs come, change and go, beside one of the worker's owner."""
        hub = self.hub
        await self.pause(5.0)
        self.log("web", "web", "api")
        self.log("gone", "gone")
        hub.stateful("web", replicas=1)
        await self.pause(8.0)
        self.log("web", "api", "db")
        self.log("late", "late")
        await self.pause(4.0)
        hub.attempt("person", "DELETE", f"{_LOGS}/gone")
        self.wish("StatefulSet web", lambda: hub.unready(["web-0"]))
        self.wish("mirrors", lambda: self.logged(web=["api", "db"], late=["late"]))
        self._always()

    async def unbind(self) -> None:
        if self._mirrors_logs:
            self.log("web", "web", "api")
        await super().unbind()
        if self._mirrors_logs:
            self.wish("LogConfigs", self.logged)
