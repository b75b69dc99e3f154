"""Probes whether the addresses of leased pods are reached from the hub, as Services of the hub need it.

Invariant: only an answer of a pod's address counts as a route, also one that refuses the connection; without a running pod nothing is
reported.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from kubeocean.binding.conditions import Observation
from kubeocean.scope import WorkerScope
from vkubelet.api.objects import Pod

_PROBED: Final = 3
"""Pods of a probe, of which one has to answer: the others may be closed by a NetworkPolicy."""
_TIMEOUT: Final = 3.0
_FIRST_EVERY: Final = 5.0
"""Seconds between two checks whether there is a pod to probe."""
_ANY_PORT: Final = 9
"""Port of a pod that declares none: a closed port refuses a connection, which is an answer."""


class RouteProbe:
    """Connects to pods of the worker, and reports the result on the binding."""

    def __init__(self, scope: WorkerScope) -> None:
        self._scope = scope
        self._known: Observation | None = None

    async def run(self) -> None:
        """Probes until cancelled; not at all with an interval of 0."""
        interval = self._scope.settings.pod_network_probe_interval
        while interval > 0:
            await self._scope.host.clock.sleep(interval if self._known is not None else min(_FIRST_EVERY, interval))
            await self._probe()

    async def _probe(self) -> None:
        pods = [pod for pod in self._scope.worker.backing_pods() if is_probed(pod)]
        chosen = random.sample(pods, min(_PROBED, len(pods)))
        if not chosen:
            return
        for pod in chosen:
            if await is_reached(pod.status["podIP"], port_of(pod)):
                self._set(Observation(True, "Reached", "addresses of pods in the worker answer connections from this process in the hub"))
                return
        self._set(Observation(False, "Unreachable", unreachable(chosen)))

    def _set(self, found: Observation) -> None:
        """Keeps the pods that a report names: others would be a write for each probe."""
        if self._known is None or self._known.holds != found.holds:
            self._known = found
            self._scope.binding.set_network(found)


def is_probed(pod: Pod) -> bool:
    """Checks that a pod runs at an address of the pod network."""
    return pod.phase == "Running" and not pod.terminating and bool(pod.status.get("podIP")) and not pod.spec.get("hostNetwork")


def port_of(pod: Pod) -> int:
    """Returns a TCP port that the pod declares, else any."""
    for container in pod.spec.get("containers") or ():
        for port in container.get("ports") or ():
            if (port.get("protocol") or "TCP") == "TCP":
                return int(port["containerPort"])
    return _ANY_PORT


def unreachable(pods: Sequence[Pod]) -> str:
    """Returns the message for pods of which none answered."""
    named = ", ".join(f"{pod.key} at {pod.status['podIP']}" for pod in pods)
    remedy = "route the pod networks of both clusters to one another, and allow the hub in NetworkPolicies of their namespaces"
    return f"no connection from this process to pods in the worker: {named}; Services of the hub do not reach them; {remedy}"


async def is_reached(address: str, port: int, *, timeout: float = _TIMEOUT) -> bool:
    """Checks that an address answers a TCP connection, by accepting or refusing it, within `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(address, port)
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    except OSError:
        return False
    writer.close()
    return True
