"""The mock provider with much to say: of every new pod, and once more at the stop.

Invariant: what it says last, it says after the stop was asked for.
"""

from __future__ import annotations

from attrs import evolve

from vkubelet import Host, Pod, PodRef, Terminated
from vkubelet.control.recorder import ObjectReference
from vkubelet_providers.mock import Mock

DIFFERENT, EQUAL, LAST = 60, 20, 3
"""Events of a pod: more of one kind than one object gets, equal ones, and at the stop few, as all of them get two seconds then."""


class Talkative(Mock):
    async def run(self, host: Host) -> None:
        await super().run(host)
        now = host.clock.now()
        for pod in self.pods.values():
            report = pod.report()
            ended = [evolve(each, state=Terminated(3, started_at=now, finished_at=now)) for each in report.containers]
            host.report(evolve(report, containers=ended))
            for number in range(LAST):
                host.events.event(about(pod.ref), "LastWords", f"word {number}")

    async def sync_pod(self, pod: Pod) -> None:
        new = pod.ref.uid not in self.pods
        await super().sync_pod(pod)
        if new and pod.ref.name == "different":
            for number in range(DIFFERENT):
                self.host.events.event(about(pod.ref), "Different", f"message {number}")
        if new and pod.ref.name == "equal":
            for _ in range(EQUAL):
                self.host.events.event(about(pod.ref), "Equal", "again and again")


def about(pod: PodRef) -> ObjectReference:
    return ObjectReference("v1", "Pod", pod.name, pod.namespace, pod.uid)
