"""A simulated binding whose spec is replaced again and again, also by what an older CustomResourceDefinition admits.

Invariant: the process is that of `kubeocean run`; it is started before the first spec and is not started again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any, ClassVar

from attrs import define, field

from kubeocean.model import crds, keys
from tests.faults.model.refusals import Refusal
from tests.faults.simulation.actors import pod_body
from tests.faults.simulation.branches import Branch
from tests.faults.simulation.kubeocean_world import BINDING, MOUNT, KubeoceanWorld, definition
from tests.faults.simulation.schedule import Schedule

Body = dict[str, Any]
PATH = f"/apis/{crds.GROUP}/{crds.VERSION}/clusterbindings/{BINDING}"
FIXED: Body = {
    "clusterID": BINDING,
    "secretRef": {"name": "worker", "namespace": keys.NAMESPACE},
    "mountNamespace": MOUNT,
    "allowInsecureWorker": True,
}
"""Fields without which the binding cannot be served in this world."""
POD = "web"
_NODE = f"vnode-{BINDING}-one"
_SEEN_AFTER = 13.0
"""Seconds: more than `reconnect_interval`, after which a binding that is not served is read again."""
_SETTLED_AFTER = 45.0
_VOLATILE = {
    *("lastTransitionTime", "lastHeartbeatTime", "lastSyncTime", "startTime", "startedAt", "timeAdded"),
    *("observedGeneration", "containerID", "podIP", "podIPs", keys.LEASE_RECORD, keys.LAST_SYNC_TIME),
}
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OF_THE_PAST = {"NothingHeld", "NotShared", "NothingToMirror"}
"""Reasons of conditions that only record that there was a problem, or were mirrors, once."""


@lru_cache
def permissive() -> Body:
    """The definition of ClusterBindings with a spec of any content, as an older one may have admitted it."""
    found = deepcopy(definition(crds.CLUSTERBINDINGS))
    for version in found["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return found


@define
class Step:
    """One spec: the refusal of the API server, if there was one, or the status that the process gave the binding."""

    spec: Body
    refused: str = ""
    status: Body = field(factory=dict)

    @property
    def ready(self) -> Body:
        """The condition Ready."""
        return next((each for each in self.status.get("conditions", ()) if each["type"] == "Ready"), {})


class BindingSequence(KubeoceanWorld):
    """Is bound with `first`, and goes through `specs`. Its pod is created only after the last one, as specs do not change existing pods."""

    name = "bindings"
    scenarios: ClassVar = {"sequence": "sequence"}

    def __init__(self, specs: Sequence[Body], *, first: Body, strict: bool) -> None:
        super().__init__(Branch([Schedule("bindings", "sequence", 1)]))
        self.specs, self.first, self.strict = list(specs), first, strict
        self.steps: list[Step] = []
        self.result: Body = {}
        self.served = ""
        """The process that served the last spec."""

    def defined(self) -> Body:
        return super().defined() if self.strict else permissive()

    def bind(self, **spec: Any) -> None:
        head = {"apiVersion": f"{crds.GROUP}/{crds.VERSION}", "kind": "ClusterBinding", "metadata": {"name": BINDING}}
        self.hub.model.call("POST", PATH.rpartition("/")[0], {**head, "spec": deepcopy(self.first)}, user="admin")

    def replace(self, spec: Body) -> Step:
        """A person replaces the spec."""
        known = self.hub.model.get(crds.GROUP, crds.VERSION, "clusterbindings", "", BINDING)
        assert known is not None
        step = Step(spec)
        try:
            self.hub.model.call("PUT", PATH, {**known, "spec": deepcopy(spec)}, user="admin")
        except Refusal as refusal:
            step.refused = refusal.message
        return step

    async def sequence(self) -> None:
        """Each spec is replaced by the next one, and at the end there is a pod."""
        await self.pause(8.0)
        first = self.running["kubeocean"]
        for spec in self.specs:
            step = self.replace(spec)
            await self.pause(_SEEN_AFTER)
            self.steps.append(step)
            step.status = deepcopy(self._binding()["status"])
        await self.pause(_SETTLED_AFTER)
        self.hub.create_pod(
            {**pod_body(POD), "spec": {**pod_body(POD)["spec"], "nodeName": _NODE, "tolerations": [{"operator": "Exists"}]}}
        )
        await self.pause(_SETTLED_AFTER)
        self.served = self.running["kubeocean"] if self.running["kubeocean"] == first else ""
        self.result = self._state()

    async def _settle(self, since: float, *, brief: bool, within: float) -> None:
        """Waits for nothing: the sequence has waited."""
        self.history.judged_from = since

    def _binding(self) -> Body:
        found = self.hub.model.get(crds.GROUP, crds.VERSION, "clusterbindings", "", BINDING)
        assert found is not None
        return found

    def _state(self) -> Body:
        """Returns what the last spec has led to, without times, versions and UIDs."""
        binding = self._binding()
        conditions = [each for each in binding["status"]["conditions"] if each["reason"] not in _OF_THE_PAST]
        return {
            "phase": binding["status"]["phase"],
            "conditions": {each["type"]: _lasting(each) for each in conditions},
            "nodes": {node["metadata"]["name"]: _shown(node) for node in self.hub.nodes()},
            "pods": {pod["metadata"]["name"]: _shown(pod) for pod in self.hub.pods()},
            "worker": {pod["metadata"]["name"]: _shown(pod) for pod in self.worker.pods()},
        }


def _shown(body: Body) -> Body:
    meta = body["metadata"]
    shown = {name: meta.get(name) or {} for name in ("labels", "annotations")}
    found: Body = _lasting({**shown, "spec": body["spec"], "status": body.get("status")})
    return found


def _lasting(value: Any) -> Any:
    """Returns a value without what differs from one process to the next: times, addresses of pods, versions and UIDs."""
    if isinstance(value, dict):
        return {key: _lasting(each) for key, each in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    return _UID.sub("UID", value) if isinstance(value, str) else value


def gone_through(specs: Sequence[Body], *, first: Body | None = None, strict: bool = True) -> BindingSequence:
    """Runs a world with these specs, one after the other, to its end. Raises AssertionError when the process does not live as long."""
    world = BindingSequence(specs, first=first or FIXED, strict=strict)
    history = world.run()
    assert not history.problems, history.problems
    assert world.served, "the process was started again"
    return world
