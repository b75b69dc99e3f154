"""Computes the desired status of a pod from the provider's last report, or infers it when there is none. Pure.

Invariant: the latest report of the provider wins; a decision to make the pod terminal is never reverted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from attrs import evolve, frozen

from vkubelet.api.codec import decode_json, encode_json
from vkubelet.api.compact import NOTHING, shared, shared_strings
from vkubelet.api.objects import POD_CONDITIONS, Json, JsonView, Pod
from vkubelet.api.texts import Text, packed
from vkubelet.pods.phase import TERMINAL
from vkubelet.pods.status import End, adopt_status, compute_status, end_status
from vkubelet.provider import PodReport, Running, Terminated, Waiting


@frozen(kw_only=True)
class StatusInputs:
    """Inputs of the desired status of one pod.

    `status` is packed JSON text: for 100,000 pods that takes little memory and leaves nothing for the garbage collector to traverse.
    `dropped` are the condition types that an earlier `status` had; `generation` is that of the spec that the backend has.
    """

    report: PodReport | None = None
    status: Text | None = None
    annotations: Mapping[str, str] = NOTHING
    waiting: Waiting | None = None
    end: End | None = None
    generation: int = 0
    dropped: frozenset[str] = frozenset()

    def with_report(self, report: PodReport) -> StatusInputs:
        return evolve(self, report=report, status=None, waiting=None)

    def with_status(self, status: JsonView, annotations: Mapping[str, str] | None) -> StatusInputs:
        """Adds a complete PodStatus; None changes no annotation."""
        text = encode_json(status)
        merged = shared_strings({**self.annotations, **(annotations or {})})
        if self.status == text:
            return self if merged == self.annotations else evolve(self, annotations=merged)
        before = _types(decode_json(self.status.read())) if self.status else frozenset()
        return evolve(
            self,
            report=None,
            status=packed(text),
            waiting=None,
            annotations=merged,
            dropped=shared((self.dropped | before) - _types(status) - {"PodScheduled"}),
        )

    @property
    def silent(self) -> bool:
        """Whether there is no status to publish."""
        return self.report is None and self.status is None and self.waiting is None and self.end is None

    @property
    def urgent(self) -> bool:
        """Whether it may make the pod terminal, and is therefore published without delay."""
        if self.end is not None:
            return True
        if self.report is not None:
            return bool(self.report.containers) and all(isinstance(c.state, Terminated) for c in self.report.containers)
        text = self.status.read() if self.status is not None else b""
        return any(f'"phase":"{phase}"'.encode() in text for phase in TERMINAL)


def _types(status: JsonView) -> frozenset[str]:
    return frozenset(condition["type"] for condition in status.get("conditions", ()))


def desired_status(pod: Pod, inputs: StatusInputs, *, now: datetime, host_ips: Sequence[str] = ()) -> Json | None:
    """Returns the desired status of `pod`, or None when there is no report or its published phase is already terminal."""
    if inputs.silent or pod.terminal:
        return None
    if inputs.status is not None:
        wanted = adopt_status(pod, decode_json(inputs.status.read()), now=now, host_ips=host_ips, dropped=inputs.dropped)
    else:
        wanted = compute_status(pod, inputs.report, now=now, host_ips=host_ips, generation=inputs.generation, waiting=inputs.waiting)
    failure = _failure(inputs.report)
    end = inputs.end or failure
    # A pod that was reported as failed is Failed, whatever the exit codes of its containers.
    if end is not None and (failure is not None or wanted["phase"] not in TERMINAL):
        return end_status(pod, wanted, now=now, end=end)
    return wanted


def _failure(report: PodReport | None) -> End | None:
    """Returns a reported failure, which counts when no container runs any more."""
    if report is None or report.failure is None or any(isinstance(c.state, Running) for c in report.containers):
        return None
    return End(report.failure.reason, report.failure.message, failed=True)


def gates(pod: Pod) -> Sequence[tuple[str, str]]:
    """Returns the conditions of other controllers: they may change the desired status although the report does not change."""
    return [(c["type"], c.get("status", "")) for c in pod.status.get("conditions", ()) if c["type"] not in POD_CONDITIONS]
