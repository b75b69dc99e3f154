"""Handles resizes of running pods: judges them, allocates the resources, reports both.

Invariant: one event is emitted for each change of the conditions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from vkubelet.api.objects import Pod
from vkubelet.client.resources import PODS
from vkubelet.containers.life import PodLife, Resize
from vkubelet.containers.resize import DEFERRED, INFEASIBLE, UNSUPPORTED, grant, granted_spec, granted_text, judge, unfinished, wishes
from vkubelet.control.recorder import ObjectReference
from vkubelet.provider import ContainerProvider, Host, NodeDescription, SupportsResize

AGAIN = 60.0
"""Seconds between two checks of a deferred resize, if no pod of the node is removed before."""

_EVENTS = {INFEASIBLE: "ResizeInfeasible", DEFERRED: "ResizeDeferred"}


class Resizer:
    """Resizer of all pods; `lives` are all pods of the provider, `nodes` the descriptions of its nodes."""

    def __init__(
        self, provider: ContainerProvider, host: Host, *, lives: Mapping[str, PodLife], nodes: Mapping[str, NodeDescription]
    ) -> None:
        self._can = isinstance(provider, SupportsResize)
        self._host = host
        self._lives = lives
        self._nodes = nodes
        self._looked: dict[str, float] = {}

    def look(self, life: PodLife, pod: Pod) -> None:
        """Judges the desired resources of the current spec."""
        if not wishes(life):
            self._looked.pop(life.ref.uid, None)
            if life.resize.pending:
                life.resize = Resize(running=life.resize.running)
            return
        if life.ending is not None:
            return
        self._looked[life.ref.uid] = self._host.clock.monotonic()
        reason, message = self._judge(pod) if self._can else (INFEASIBLE, UNSUPPORTED)
        if not reason:
            grant(life)
            life.resize = Resize(running=bool(unfinished(life)))
            return
        if (reason, message) != (life.resize.pending, life.resize.message):
            self._host.events.event(ObjectReference.of(PODS, pod), _EVENTS[reason], message, warning=True)
        life.resize = Resize(pending=reason, message=message, running=life.resize.running)

    def follow(self, life: PodLife) -> bool:
        """Checks whether allocated resources still have to be applied; reports their completion."""
        left = unfinished(life)
        if not left and life.resize.running:
            life.resize = Resize(pending=life.resize.pending, message=life.resize.message if life.resize.pending else "")
            pod = self._host.pods.get(life.ref)
            if pod is not None:
                self._host.events.event(ObjectReference.of(PODS, pod), "ResizeCompleted", f"Pod resize completed: {granted_text(life)}")
        return self._can and any(not c.outgrown for c in left) and not life.resize.failed

    def next_look(self, life: PodLife, pod: Pod | None, now: float) -> float:
        """Returns when to check a deferred resize again (monotonic seconds); checks it if that is due."""
        if life.resize.pending != DEFERRED or pod is None:
            return math.inf
        due = self._looked.get(life.ref.uid, now) + AGAIN
        if now >= due:
            self.look(life, pod)
            return now
        return due

    def _judge(self, pod: Pod) -> tuple[str, str]:
        node = self._nodes.get(pod.node)
        if node is None:
            return DEFERRED, "the provider has not declared the node"
        others = (other for other in self._host.pods.on_node(pod.node) if other.metadata.uid != pod.metadata.uid and not other.terminal)
        specs = [granted_spec(other.spec, self._lives.get(other.metadata.uid)) for other in others]
        return judge(pod.spec, allocatable=node.allocatable or node.capacity, others=specs)
