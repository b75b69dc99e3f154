"""Reconciles physical pods: publishes their status and deletion to their virtual pods in the hub, and restores owner marks.

Invariant: a virtual pod is marked Failed as PhysicalPodLost only after a GET by name in the worker did not find its physical pod (rule 3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta

from attrs import frozen

from kubeocean.model import keys
from kubeocean.model.crds import FromWorker
from kubeocean.model.identity import identity, where
from kubeocean.pods.virtual_status import REFUSED, virtual_annotations, virtual_labels, virtual_status
from kubeocean.worker.cluster import WorkerCluster, virtual_uid
from vkubelet.api.conditions import get_condition
from vkubelet.api.objects import Pod, PodRef
from vkubelet.api.shapes import Json, JsonView
from vkubelet.client.resources import PODS
from vkubelet.client.rest import PatchKind
from vkubelet.clock import parse_rfc3339
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.control.recorder import ObjectReference
from vkubelet.control.workqueue import Priority
from vkubelet.errors import Conflict, Forbidden, NotFound
from vkubelet.logformat import bind
from vkubelet.pods.phase import OURS
from vkubelet.pods.status import failed_status
from vkubelet.provider import Host

log = logging.getLogger(__name__)

LOST = "PhysicalPodLost"

_LOOK_AGAIN = 10.0
_FIRST_WORD = 5.0
"""Seconds that the annotations and status of a new pod wait for the worker's kubelet, or for the scheduler to report that no node fits.

Usually one of them has reported by then, also when many pods are created at once, so that one write is enough.
"""


@frozen(kw_only=True)
class PhysicalPodParts:
    """Dependencies of the reconciler; `released(ref)` is called when nothing of a pod is left in the worker.

    `from_worker()` returns the labels and annotations that the binding allows a worker to add.
    """

    host: Host
    worker: WorkerCluster
    released: Callable[[PodRef], None]
    from_worker: Callable[[], FromWorker]
    workers: int
    unscheduled_after: float


class PhysicalPodReconciler:
    """Controller whose keys are virtual pods; the annotations of a physical pod identify its virtual pod."""

    def __init__(self, parts: PhysicalPodParts) -> None:
        self._parts = parts
        self._unscheduled_since: dict[str, float] = {}
        self._silent_since: dict[str, float] = {}
        self._refused: dict[str, Mapping[str, str]] = {}
        self.controller: Controller[PodRef] = Controller(
            "physical pods", self.reconcile, workers=parts.workers, clock=parts.host.clock, metrics=parts.host.metrics
        )
        parts.worker.pods.on_change(self._changed)

    def recheck(self) -> None:
        """Publishes every pod's status again."""
        for pod in self._parts.worker.pods.store:
            self._add(pod, priority=Priority.LOW)

    async def reconcile(self, ref: PodRef) -> float | None:
        """Publishes the status of the physical pod, or its deletion."""
        with bind(pod=str(ref.key), node=ref.node, uid=ref.uid):
            physical = self._parts.worker.physical_pod(ref)
            if physical is None or physical.node:
                self._unscheduled_since.pop(ref.uid, None)
            if physical is None:
                self._silent_since.pop(ref.uid, None)
                return await self._missing(ref)
            pod = self._parts.host.pods.by_uid(ref.uid)
            if pod is not None:
                if (left := self._wait_for_first_word(pod, physical)) > 0:
                    return left
                self.publish(pod, physical)
                await self._labels_up(pod, physical)
                await self._repair_marks(pod, physical)
                if not physical.node and not physical.terminating:
                    return await self._unscheduled(pod, physical)
            return None

    def _wait_for_first_word(self, pod: Pod, physical: Pod) -> float:
        """Returns the seconds left to wait; 0 as soon as there is a status to publish."""
        if where(pod).name or physical.terminating or physical.terminal or _has_word(physical.status):
            self._silent_since.pop(pod.metadata.uid, None)
            return 0.0
        now = self._parts.host.clock.monotonic()
        if not physical.node:
            self._unscheduled_since.setdefault(pod.metadata.uid, now)
        return self._silent_since.setdefault(pod.metadata.uid, now) + _FIRST_WORD - now

    def publish(self, pod: Pod, physical: Pod) -> None:
        """Passes the physical pod's status to the runtime."""
        status = virtual_status(pod, physical, refused=self._refused.get(pod.metadata.uid) or {})
        if physical.terminal and physical.terminating and not pod.terminating and not ended_by_itself(physical):
            # Killed in the worker: even if its containers exited with 0, the pod has not completed. It becomes Failed once it is deleted.
            status = {key: value for key, value in status.items() if key not in ("reason", "message")}
            status["phase"] = pod.phase or "Pending"
        annotations = virtual_annotations(pod, physical, allowed=self._parts.from_worker().pod_annotations)
        self._parts.host.set_pod_status(pod.ref, status, annotations=annotations or None)

    def refuse(self, pod: Pod, problems: Mapping[str, str]) -> None:
        """Reports the ephemeral containers of a pod, by name, that the worker does not have, with the reason; all others are accepted."""
        before = self._refused.get(pod.metadata.uid, {})
        if problems == before:
            return
        if problems:
            self._refused[pod.metadata.uid] = problems
        else:
            self._refused.pop(pod.metadata.uid, None)
        for name, problem in problems.items():
            if before.get(name) != problem:
                text = f"ephemeral container {name}: {problem}"
                self._parts.host.events.event(ObjectReference.of(PODS, pod), REFUSED, text, warning=True)
        self.controller.add(pod.ref)

    def gone(self, ref: PodRef) -> None:
        """Reports to the runtime that nothing of this pod is left in the worker."""
        self._refused.pop(ref.uid, None)
        self._parts.host.pod_gone(ref)
        self._parts.released(ref)

    def lose(self, pod: Pod) -> None:
        """Marks a virtual pod Failed whose physical pod was deleted although the virtual pod was not; its controller creates another."""
        self._refused.pop(pod.metadata.uid, None)
        text = "its physical pod was deleted in the worker cluster"
        status = failed_status(pod, LOST, message=text, now=self._parts.host.clock.now())
        self._parts.host.set_pod_status(pod.ref, status)
        self._parts.host.events.event(ObjectReference.of(PODS, pod), LOST, text, warning=True)
        self._parts.released(pod.ref)
        log.info("physical pod is lost")

    async def recognised(self, found: Pod, ref: PodRef) -> Pod | None:
        """Restores the marks of a pod that was recorded for `ref` by its own uid and has no identity annotations. None for any other."""
        pod, owner = self._parts.host.pods.by_uid(ref.uid), self._parts.worker.mount.owner
        if pod is None or not where(pod).name or keys.Owner.of(found.metadata) not in (None, owner):
            return None
        if identity(found.metadata) is not None:
            # Its annotations name another incarnation.
            return None
        if pod.metadata.annotations.get(keys.PHYSICAL_POD_UID) != found.metadata.uid:
            return None
        who = {
            keys.VIRTUAL_POD_NAMESPACE: ref.namespace,
            keys.VIRTUAL_POD_NAME: ref.name,
            keys.VIRTUAL_POD_UID: ref.uid,
            keys.VIRTUAL_NODE_NAME: pod.node,
        }
        metadata = {"uid": found.metadata.uid, "labels": owner.labels, "annotations": {**owner.annotations, **who}}
        log.info("marks of a physical pod were put back")
        return await self._parts.worker.client.patch(PODS, found.key, {"metadata": metadata}, kind=PatchKind.MERGE)

    async def _missing(self, ref: PodRef) -> float | None:
        """Handles a physical pod that is missing from the cache, after a GET in the worker. Raises ApiError when the GET fails."""
        try:
            found = await self._parts.worker.client.get(PODS, self._parts.worker.mount.copy_key(ref.key))
            backing = found if virtual_uid(found.metadata) == ref.uid else await self.recognised(found, ref)
            if backing is not None:
                self._parts.worker.pods.adopt(backing)
                return None
        except NotFound:
            log.debug("physical pod does not exist")
        pod = self._parts.host.pods.by_uid(ref.uid)
        if pod is None or pod.terminating:
            self.gone(ref)
        elif not pod.terminal:
            self.lose(pod)
        return None

    async def _unscheduled(self, pod: Pod, physical: Pod) -> float | None:
        """Deletes a physical pod that stays unschedulable for too long, so that its owner creates another pod on another node."""
        # Measured by our own clock: where the clocks of the clusters differ, a pod would be too old when it is created.
        now = self._parts.host.clock.monotonic()
        left = self._unscheduled_since.setdefault(pod.metadata.uid, now) + self._parts.unscheduled_after - now
        if left > 0:
            return left
        text = f"the worker cluster could not schedule its physical pod for {self._parts.unscheduled_after:.0f} s"
        meta = physical.metadata
        try:
            # It may have been scheduled since, and be running, if the watch lags.
            await self._parts.worker.client.delete(PODS, physical.key, uid=meta.uid, resource_version=meta.resource_version)
        except (NotFound, Conflict):
            log.debug("physical pod has changed or is gone")
            return _LOOK_AGAIN
        self._parts.host.events.event(ObjectReference.of(PODS, pod), "FailedSchedulingPod", text, warning=True)
        return None

    async def _labels_up(self, pod: Pod, physical: Pod) -> None:
        """Writes the labels added in the worker to the virtual pod; an update of the status cannot contain them."""
        labels = virtual_labels(pod, physical, allowed=self._parts.from_worker().pod_labels)
        if labels and not pod.terminating:
            change = {"metadata": {"uid": pod.metadata.uid, "labels": labels}}
            await self._parts.host.client.patch(PODS, pod.ref, change, kind=PatchKind.MERGE)

    async def _repair_marks(self, pod: Pod, physical: Pod) -> None:
        """Restores the marks by which we find our own pods: another client removed them, or Kubeocean (Go) never set them."""
        owner, meta = self._parts.worker.mount.owner, physical.metadata
        if keys.Owner.of(meta) not in (None, owner):
            return
        labels = {key: value for key, value in owner.labels.items() if meta.labels.get(key) != value}
        annotations = {key: value for key, value in owner.annotations.items() if meta.annotations.get(key) != value}
        if not labels and not annotations:
            return
        change = {"metadata": {"uid": meta.uid, "labels": labels, "annotations": annotations}}
        try:
            await self._parts.worker.client.patch(PODS, physical.key, change, kind=PatchKind.MERGE)
            log.info("marks of a physical pod were put back")
        except (NotFound, Conflict, Forbidden) as error:
            log.debug("marks could not be put back: %s", error)

    def _changed(self, change: Change[Pod]) -> None:
        priority = Priority.LOW if change.initial else Priority.HIGH
        if change.old is not None and (change.new is None or _who(change.old) != _who(change.new)):
            self._add(change.old, priority=priority)
        if change.new is not None:
            self._add(change.new, priority=priority)

    def _add(self, physical: Pod, *, priority: Priority) -> None:
        ref = identity(physical.metadata) if physical.metadata.namespace == self._parts.worker.mount.namespace else None
        if ref is None:
            return
        if self._parts.worker.mount.owner.owns(physical.metadata) or self._is_unowned(physical, ref):
            self.controller.add(ref, priority=priority)

    def _is_unowned(self, physical: Pod, ref: PodRef) -> bool:
        """Checks that Kubeocean (Go) created it for a pod of ours (layout.md section 16, rule 6)."""
        return keys.Owner.of(physical.metadata) is None and self._parts.host.pods.by_uid(ref.uid) is not None


def _has_word(status: JsonView) -> bool:
    """Checks for a report of its kubelet, or of the scheduler that has found no node."""
    scheduled = get_condition(status.get("conditions") or (), "PodScheduled") or {}
    return bool(status.get("startTime")) or scheduled.get("status") == "False"


def _who(physical: Pod) -> tuple[str, PodRef | None]:
    return physical.metadata.uid, identity(physical.metadata)


def ended_by_itself(physical: Pod) -> bool:
    """Checks that every container terminated before the pod's deletion was requested.

    Times have a resolution of one second, so equal times count as killed.
    """
    meta = physical.metadata
    if meta.deletion_timestamp is None:
        return physical.terminal
    # The kubelet's last call sets the grace to 0 and keeps the time: then the requested grace is assumed to be the pod's own.
    grace = meta.deletion_grace_period_seconds or physical.spec.get("terminationGracePeriodSeconds") or 0
    asked = parse_rfc3339(meta.deletion_timestamp) - timedelta(seconds=grace)
    ends = [(each.get("state") or {}).get("terminated") or {} for each in physical.status.get("containerStatuses") or ()]
    return bool(ends) and all(end.get("finishedAt") and parse_rfc3339(end["finishedAt"]) < asked for end in ends)


def not_ready(pod: Pod, message: str) -> Json:
    """Returns the status of a virtual pod whose worker is unreachable (rule 10)."""
    status = pod.status
    condition = {"type": "Ready", "status": "False", "reason": "WorkerUnreachable", "message": message}
    # Conditions of other clients stay without being sent; if they were repeated here they would count as ours.
    others = [each for each in status.get("conditions") or () if each["type"] in OURS and each["type"] != "Ready"]
    return {**status, "conditions": [*others, condition]}
