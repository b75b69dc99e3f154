"""Reconciles physical pods: publishes their status and deletion to their virtual pods in the hub, and restores owner marks.

Invariant (rule `lost-is-proven`): a virtual pod is marked Failed as PhysicalPodLost only after a GET by name in the worker did not find its
physical pod.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta

from attrs import define, field

from kubeocean.model import keys
from kubeocean.model.crds import FromWorker
from kubeocean.model.identity import identity, where
from kubeocean.model.ownership import UNOWNED, Ownership, classify
from kubeocean.pods.virtual_status import REFUSED, virtual_annotations, virtual_labels, virtual_status
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import virtual_uid
from vkubelet.api.objects import POD_CONDITIONS, PODS, Json, JsonView, Pod, PodRef, get_condition
from vkubelet.client.rest import PatchKind
from vkubelet.clock import parse_rfc3339
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change
from vkubelet.control.recorder import ObjectReference
from vkubelet.control.workqueue import Priority
from vkubelet.errors import Conflict, Forbidden, NotFound
from vkubelet.logformat import bind
from vkubelet.provider import PodFailure

log = logging.getLogger(__name__)

LOST = "PhysicalPodLost"

_RECHECKED_AFTER = 10.0
_FIRST_STATUS = 5.0
"""Seconds that the annotations and status of a new pod wait for the worker's kubelet, or for the scheduler to report that no node fits.

Usually one of them has reported by then, also when many pods are created at once, so that one write is enough.
"""


@define(kw_only=True, eq=False)
class PhysicalPodReconciler:
    """Controller whose keys are virtual pods; the annotations of a physical pod identify its virtual pod.

    `released(ref)` is called when nothing of a pod is left in the worker.
    """

    scope: WorkerScope
    released: Callable[[PodRef], None]
    controller: Controller[PodRef] = field(init=False)
    _unscheduled_since: dict[str, float] = field(factory=dict, init=False)
    _silent_since: dict[str, float] = field(factory=dict, init=False)
    _refused: dict[str, Mapping[str, str]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        host, workers = self.scope.host, self.scope.settings.pod_workers
        self.controller = Controller("physical pods", self.reconcile, workers=workers, clock=host.clock, metrics=host.metrics)
        self.scope.worker.pods.on_change(self._on_change)

    def recheck(self) -> None:
        """Publishes every pod's status again."""
        self.controller.add_many(ref for pod in list(self.scope.worker.pods.store) if (ref := self._virtual_of(pod)) is not None)

    async def reconcile(self, ref: PodRef) -> float | None:
        """Publishes the status of the physical pod, or its deletion."""
        with bind(pod=str(ref.key), node=ref.node, uid=ref.uid):
            physical = self.scope.worker.physical_pod(ref)
            if physical is None or physical.node:
                self._unscheduled_since.pop(ref.uid, None)
            if physical is None:
                self._silent_since.pop(ref.uid, None)
                return await self._missing(ref)
            pod = self.scope.host.pods.by_uid(ref.uid)
            if pod is None and not physical.terminating:
                # A worker that was restored from a backup has the physical pods of deleted pods again.
                self.scope.host.resync(ref)
            if pod is not None:
                if (left := self._wait_for_first_status(pod, physical)) > 0:
                    return left
                self.publish(pod, physical)
                await self._publish_labels(pod, physical)
                await self._repair_marks(pod, physical)
                if not physical.node and not physical.terminating:
                    return await self._unscheduled(pod, physical)
            return None

    def _enqueue(self, ref: PodRef, *, priority: Priority) -> None:
        """Enqueues a pod whose status may have to be published; one that waits for its first status is not reconciled until it has one."""
        pod, physical = self.scope.host.pods.by_uid(ref.uid), self.scope.worker.physical_pod(ref)
        left = self._wait_for_first_status(pod, physical) if pod is not None and physical is not None else 0.0
        self.controller.add(ref, after=left, priority=priority)

    def _wait_for_first_status(self, pod: Pod, physical: Pod) -> float:
        """Returns the seconds left to wait; 0 as soon as there is a status to publish."""
        if where(pod).name or physical.terminating or physical.terminal or _has_first_status(physical.status):
            self._silent_since.pop(pod.metadata.uid, None)
            return 0.0
        now = self.scope.host.clock.monotonic()
        if not physical.node:
            self._unscheduled_since.setdefault(pod.metadata.uid, now)
        return self._silent_since.setdefault(pod.metadata.uid, now) + _FIRST_STATUS - now

    @property
    def _from_worker(self) -> FromWorker:
        """Labels and annotations that the binding allows a worker to add."""
        binding = self.scope.binding.current
        return binding.from_worker if binding is not None else FromWorker()

    def publish(self, pod: Pod, physical: Pod) -> None:
        """Passes the physical pod's status to the runtime."""
        status = virtual_status(pod, physical, refused=self._refused.get(pod.metadata.uid) or {})
        if physical.terminal and physical.terminating and not pod.terminating and not terminated_by_itself(physical):
            # Killed in the worker: even if its containers exited with 0, the pod has not completed. It becomes Failed once it is deleted.
            status = {key: value for key, value in status.items() if key not in ("reason", "message")}
            status["phase"] = pod.phase or "Pending"
        annotations = virtual_annotations(pod, physical, allowed=self._from_worker.pod_annotations)
        self.scope.host.set_pod_status(pod.ref, status, annotations=annotations or None)

    def report_refused(self, pod: Pod, problems: Mapping[str, str]) -> None:
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
                self.scope.host.events.event(ObjectReference.of(PODS, pod), REFUSED, text, warning=True)
        self.controller.add(pod.ref)

    def report_gone(self, ref: PodRef) -> None:
        """Reports to the runtime that nothing of this pod is left in the worker."""
        self._refused.pop(ref.uid, None)
        self.scope.host.pod_gone(ref)
        self.released(ref)

    def report_lost(self, pod: Pod) -> None:
        """Marks a virtual pod Failed whose physical pod was deleted although the virtual pod was not; its controller creates another."""
        self._refused.pop(pod.metadata.uid, None)
        key = self.scope.worker.mount.copy_key(pod.key)
        text = f"physical pod {key} was deleted in the worker cluster, and this pod failed with it; delete pods in this cluster only"
        self.scope.host.fail_pod(pod.ref, PodFailure(LOST, text))
        self.scope.host.events.event(ObjectReference.of(PODS, pod), LOST, text, warning=True)
        self.released(pod.ref)
        log.info("physical pod was lost")

    async def restore_identity(self, found: Pod, ref: PodRef) -> Pod | None:
        """Restores the marks of a pod that was recorded for `ref` by its own uid and has no identity annotations. None for any other."""
        pod, owner = self.scope.host.pods.by_uid(ref.uid), self.scope.worker.mount.owner
        if pod is None or not _is_recorded(pod, found) or classify(found.metadata, owner) is Ownership.ANOTHERS:
            return None
        if identity(found.metadata) is not None:
            # Its annotations name another incarnation.
            return None
        who = {
            keys.VIRTUAL_POD_NAMESPACE: ref.namespace,
            keys.VIRTUAL_POD_NAME: ref.name,
            keys.VIRTUAL_POD_UID: ref.uid,
            keys.VIRTUAL_NODE_NAME: pod.node,
        }
        metadata = {"uid": found.metadata.uid, "labels": owner.labels, "annotations": {**owner.annotations, **who}}
        log.info("restored the identity annotations of a physical pod")
        return await self.scope.worker.client.patch(PODS, found.key, {"metadata": metadata}, kind=PatchKind.MERGE)

    def is_disputed(self, found: Pod, pod: Pod | None) -> bool:
        """Checks whether `found` is the recorded physical pod of `pod`, with the marks of another owner.

        It exists, so it is not lost (rule `lost-is-proven`); and it is not changed (rule `owner-mark`).
        """
        if pod is None or pod.terminating or not _is_recorded(pod, found):
            return False
        return classify(found.metadata, self.scope.worker.mount.owner) is Ownership.ANOTHERS

    async def _missing(self, ref: PodRef) -> float | None:
        """Handles a physical pod that is missing from the cache, after a GET in the worker. Raises ApiError when the GET fails.

        Of a pod that is being deleted the watch proves it as well: it selects all pods, so it reports as deleted what no longer exists.
        """
        pod = self.scope.host.pods.by_uid(ref.uid)
        recorded = pod.metadata.annotations.get(keys.PHYSICAL_POD_UID, "") if pod is not None and pod.terminating else ""
        if recorded and self.scope.worker.pods.saw_deleted(recorded):
            self.report_gone(ref)
            return None
        try:
            found = await self.scope.worker.client.get(PODS, self.scope.worker.mount.copy_key(ref.key))
            backing = found if virtual_uid(found.metadata) == ref.uid else await self.restore_identity(found, ref)
            if backing is not None:
                self.scope.worker.pods.adopt(backing)
                return None
            if self.is_disputed(found, self.scope.host.pods.by_uid(ref.uid)):
                return _RECHECKED_AFTER
        except NotFound:
            log.debug("physical pod does not exist")
        # As it is after the GET: its deletion may have been requested meanwhile.
        pod = self.scope.host.pods.by_uid(ref.uid)
        if pod is None or pod.terminating:
            self.report_gone(ref)
        elif not pod.terminal:
            self.report_lost(pod)
        return None

    async def _unscheduled(self, pod: Pod, physical: Pod) -> float | None:
        """Deletes a physical pod that stays unschedulable for too long, so that its owner creates another pod on another node."""
        # Measured by our own clock: where the clocks of the clusters differ, a pod would be too old when it is created.
        now = self.scope.host.clock.monotonic()
        left = self._unscheduled_since.setdefault(pod.metadata.uid, now) + self.scope.settings.unscheduled_after - now
        if left > 0:
            return left
        waited = f"{self.scope.settings.unscheduled_after:.0f} s"
        text = f"physical pod {physical.key} was deleted: the worker cluster found no node for it within {waited}; its events show why"
        meta = physical.metadata
        try:
            # It may have been scheduled since, and be running, if the watch lags.
            await self.scope.worker.client.delete(PODS, physical.key, uid=meta.uid, resource_version=meta.resource_version)
        except (NotFound, Conflict):
            log.debug("physical pod has changed or was deleted")
            return _RECHECKED_AFTER
        self.scope.host.events.event(ObjectReference.of(PODS, pod), "FailedSchedulingPod", text, warning=True)
        return None

    async def _publish_labels(self, pod: Pod, physical: Pod) -> None:
        """Writes the labels added in the worker to the virtual pod; an update of the status cannot contain them."""
        labels = virtual_labels(pod, physical, allowed=self._from_worker.pod_labels)
        if labels and not pod.terminating:
            change = {"metadata": {"uid": pod.metadata.uid, "labels": labels}}
            await self.scope.host.client.patch(PODS, pod.ref, change, kind=PatchKind.MERGE)

    async def _repair_marks(self, pod: Pod, physical: Pod) -> None:
        """Restores the marks by which we find our own pods: another client removed them, or Kubeocean (Go) never set them."""
        owner, meta = self.scope.worker.mount.owner, physical.metadata
        if classify(meta, owner) is Ownership.ANOTHERS:
            return
        labels = {key: value for key, value in owner.labels.items() if meta.labels.get(key) != value}
        annotations = {key: value for key, value in owner.annotations.items() if meta.annotations.get(key) != value}
        if not labels and not annotations:
            return
        change = {"metadata": {"uid": meta.uid, "labels": labels, "annotations": annotations}}
        try:
            await self.scope.worker.client.patch(PODS, physical.key, change, kind=PatchKind.MERGE)
            log.info("restored the owner marks of a physical pod")
        except (NotFound, Conflict, Forbidden) as error:
            with bind(error=str(error)):
                log.debug("cannot restore the owner marks of a physical pod")

    def _on_change(self, change: Change[Pod]) -> None:
        priority = Priority.LOW if change.initial else Priority.HIGH
        if change.old is not None and (change.new is None or _who(change.old) != _who(change.new)):
            self._add(change.old, priority=priority)
        if change.new is not None:
            self._add(change.new, priority=priority)
            if change.restored and (ref := self._virtual_of(change.new)) is not None:
                # What was changed in it since the backup is lost.
                self.scope.host.resync(ref)

    def _add(self, physical: Pod, *, priority: Priority) -> None:
        ref = self._virtual_of(physical)
        if ref is not None:
            self._enqueue(ref, priority=priority)

    def _virtual_of(self, physical: Pod) -> PodRef | None:
        ref = identity(physical.metadata) if self.scope.worker.mount.includes(physical.metadata.namespace) else None
        return ref if ref is not None and self.scope.owns(ref.node) and self.is_ours(physical) else None

    def is_ours(self, physical: Pod) -> bool:
        """Checks that it has our mark, or no mark at all and the uid of a pod of ours (rule `owner-mark`).

        Without a mark: Kubeocean (Go) created it for a pod of ours, or another client removed our marks.
        """
        ownership = classify(physical.metadata, self.scope.worker.mount.owner)
        if ownership in UNOWNED:
            return self.scope.host.pods.by_uid(virtual_uid(physical.metadata)) is not None
        return ownership is Ownership.OURS


def _is_recorded(pod: Pod, physical: Pod) -> bool:
    """Checks whether the virtual pod has recorded exactly this physical pod."""
    return bool(where(pod).name) and pod.metadata.annotations.get(keys.PHYSICAL_POD_UID) == physical.metadata.uid


def _has_first_status(status: JsonView) -> bool:
    """Checks for a report of its kubelet, or of the scheduler that has found no node."""
    scheduled = get_condition(status.get("conditions") or (), "PodScheduled") or {}
    return bool(status.get("startTime")) or scheduled.get("status") == "False"


def _who(physical: Pod) -> tuple[str, PodRef | None]:
    return physical.metadata.uid, identity(physical.metadata)


def terminated_by_itself(physical: Pod) -> bool:
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
    """Returns the status of a virtual pod whose worker is unreachable (rule `worker-unreachable`)."""
    status = pod.status
    condition = {"type": "Ready", "status": "False", "reason": "WorkerUnreachable", "message": message}
    # Conditions of other clients stay without being sent; if they were repeated here they would count as ours.
    others = [each for each in status.get("conditions") or () if each["type"] in POD_CONDITIONS and each["type"] != "Ready"]
    return {**status, "conditions": [*others, condition]}
