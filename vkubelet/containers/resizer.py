"""Follows the wishes of running pods for other resources: judges them, grants them, tells of both.

Invariant: events are told once for each change of the conditions.
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
"""Seconds between two looks at a deferred wish, if no pod of the node goes before."""

_EVENTS = {INFEASIBLE: "ResizeInfeasible", DEFERRED: "ResizeDeferred"}


class Resizer:
    """`lives` are all pods of the provider, `nodes` what it said of its nodes."""

    def __init__(
        self, provider: ContainerProvider, host: Host, *, lives: Mapping[str, PodLife], nodes: Mapping[str, NodeDescription]
    ) -> None:
        self._can = isinstance(provider, SupportsResize)
        self._host = host
        self._lives = lives
        self._nodes = nodes
        self._looked: dict[str, float] = {}

    def look(self, life: PodLife, pod: Pod) -> None:
        """Judge what the spec asks for by now."""
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
        """Whether there is work to do for what was granted; tells when there is none any more."""
        left = unfinished(life)
        if not left and life.resize.running:
            life.resize = Resize(pending=life.resize.pending, message=life.resize.message if life.resize.pending else "")
            pod = self._host.pods.get(life.ref)
            if pod is not None:
                self._host.events.event(ObjectReference.of(PODS, pod), "ResizeCompleted", f"Pod resize completed: {granted_text(life)}")
        return self._can and any(not c.outgrown for c in left) and not life.resize.failed

    def next_look(self, life: PodLife, pod: Pod | None, now: float) -> float:
        """When to look again at a deferred wish (monotonic seconds); looks if it is time."""
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
