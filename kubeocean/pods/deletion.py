"""Deletes physical pods: with the grace period that is safe for their containers, and before a pod of the same name is created.

Invariant (rule `at-most-one-copy`): grace 0 makes the worker remove the Pod object without its kubelet, while containers may still run. So
it needs a forced deletion in the hub, or a physical Node that is deleted or out of service; a grace period that has expired stays at one
second. A physical pod is never created beside that of an earlier uid of the same name (rule `same-name-new-uid`).
"""

import asyncio
import logging
import math
from datetime import datetime, timedelta
from typing import Final

from attrs import define, field

from kubeocean.model.identity import identity
from kubeocean.pods.physical import PhysicalPodReconciler
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import virtual_uid
from vkubelet.api.objects import NODES, PODS, Key, Node, Pod, PodRef, get_condition
from vkubelet.clock import parse_rfc3339
from vkubelet.control.informer import Change
from vkubelet.errors import Conflict, NotFound, Unavailable

log = logging.getLogger(__name__)

IN_FLIGHT: Final = 32
"""Pods that are created, or deleted, at the same time: more of them would only open more connections to the same API servers."""
_PREDECESSOR_ENDS = 60.0
"""Seconds a sync waits for the deletion of the physical pod of an earlier uid; then it is retried."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint by which an administrator states that the machine of a node is shut down (KEP-2268)."""
_ROUNDING: Final = 1
"""Seconds by which two grace periods that end at the same time differ, as times in objects have whole seconds."""
_SILENT: Final = timedelta(seconds=60)
"""Time a physical node has to be NotReady before a forced deletion removes its pods without its kubelet (rule `at-most-one-copy`)."""


@define(kw_only=True, eq=False)
class PhysicalPodDeleter:
    """Deletes physical pods of one worker."""

    scope: WorkerScope
    physical: PhysicalPodReconciler
    _ended: dict[Key, asyncio.Event] = field(factory=dict, init=False)
    _requested: dict[Key, str] = field(factory=dict, init=False)
    """UIDs of physical pods whose deletion was requested, with or without a response."""
    _slots: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(IN_FLIGHT), init=False)

    def __attrs_post_init__(self) -> None:
        self.scope.worker.pods.on_change(self._on_change)

    async def delete(self, ref: PodRef, physical: Pod, grace: float) -> None:
        """Requests the deletion unless the physical pod terminates in time anyway. Raises ApiError, Unavailable."""
        key, uid = physical.key, physical.metadata.uid
        if self._requested.get(key) == uid and not physical.terminating:
            # What an earlier request did whose response was lost may not be in the cache yet.
            live = await self._live(physical)
            if live is None:
                self._gone(ref, physical)
                return
            physical = live
        period = repeated_period(physical, await self._grace(physical, ref, grace), now=self.scope.host.clock.now())
        if period is None:
            self.physical.controller.add(ref)
            return
        self._requested[key] = uid
        try:
            async with self._slots:
                await self.scope.worker.client.delete(PODS, key, grace=period, uid=uid)
        except NotFound:
            self._gone(ref, physical)
        except Conflict:
            # Not only for a pod of another uid: a deletion may conflict with another write.
            if await self._live(physical) is not None:
                raise
            self._gone(ref, physical)

    def _gone(self, ref: PodRef, physical: Pod) -> None:
        """Reconciles the pod whose physical pod no longer exists, and forgets its deletion: the watch may have shown it before."""
        if self._requested.get(physical.key) == physical.metadata.uid:
            del self._requested[physical.key]
        self.physical.controller.add(ref)

    async def _live(self, physical: Pod) -> Pod | None:
        """Returns the physical pod as it is in the worker now; None when that uid no longer exists. Raises ApiError."""
        live = await self._read(physical.key)
        return live if live is not None and live.metadata.uid == physical.metadata.uid else None

    async def _read(self, key: Key) -> Pod | None:
        """Reads a pod of the worker into the cache, and returns it; None when there is none. Raises ApiError."""
        worker = self.scope.worker
        try:
            found = await worker.client.get(PODS, key)
        except NotFound:
            return None
        worker.pods.adopt(found)
        return found

    async def delete_predecessor(self, pod: Pod, *, read: bool = False) -> None:
        """Deletes the physical pod of an earlier uid, and waits until it no longer exists; `read` reads it from the worker first.

        Raises Unavailable when it is not deleted in time, or is not ours to delete.
        """
        worker, key = self.scope.worker, self.scope.worker.mount.copy_key(pod.ref.key)
        if read and await self._read(key) is None:
            return
        found = worker.pods.store.get(key)
        if found is None or virtual_uid(found.metadata) == pod.metadata.uid:
            return
        earlier = identity(found.metadata)
        if earlier is None or earlier.key != pod.ref.key or not self.physical.is_ours(found):
            text = f"pod {key} of the worker cluster, whose name pod {pod.key} needs, belongs to another owner; delete or rename it there"
            raise Unavailable(text, retry_after=30.0)
        ended = self._ended.setdefault(key, asyncio.Event())
        if not found.terminating:
            await self._confirm_exists(pod)
            try:
                await worker.client.delete(PODS, key, uid=found.metadata.uid)
            except (NotFound, Conflict):
                log.debug("physical pod of the earlier pod is deleted already")
        try:
            async with asyncio.timeout(_PREDECESSOR_ENDS):
                await ended.wait()
        except TimeoutError:
            text = f"the physical pod of an earlier pod {pod.key} has not terminated yet; pod {key} of the worker cluster shows why"
            raise Unavailable(text, retry_after=1.0) from None

    async def _confirm_exists(self, pod: Pod) -> None:
        """Checks that the pod still exists in the hub: if the watch lags, an uid that seems earlier may be later. Raises Unavailable."""
        try:
            live = await self.scope.host.node_client(pod.node).get(PODS, pod.ref)
        except NotFound:
            live = None
        if live is None or live.metadata.uid != pod.metadata.uid:
            raise Unavailable(f"pod {pod.key} was deleted meanwhile", retry_after=1.0)

    async def _grace(self, physical: Pod, ref: PodRef, grace: float) -> int:
        """Returns the grace period in the worker. Raises ApiError when it depends on a physical node that cannot be read."""
        host, worker = self.scope.host, self.scope.worker
        if not physical.node:
            # Without a kubelet the worker deletes it at once, unless it was scheduled meanwhile.
            return max(1, math.ceil(grace))
        node = worker.nodes.store.get(Key("", physical.node))
        if grace <= 0 and (node is None or is_out_of_service(node)):
            try:
                # The cache may lag behind a node that registered again or is back in service.
                node = await worker.client.get(NODES, physical.node)
            except NotFound:
                node = None
        return grace_in_worker(grace, pod=host.pods.by_uid(ref.uid), node=node, now=host.clock.now())

    def _on_change(self, change: Change[Pod]) -> None:
        replaced = change.new is not None and change.old is not None and change.new.metadata.uid != change.old.metadata.uid
        if change.new is None or replaced:
            self._requested.pop(change.key, None)
            ended = self._ended.pop(change.key, None)
            if ended is not None:
                ended.set()


def repeated_period(physical: Pod, seconds: int, *, now: datetime) -> int | None:
    """Returns the gracePeriodSeconds that terminates a physical pod in so many seconds, or None when it terminates by then anyway.

    An API server counts the period of a repeated deletion from the first request (k8s.io/apiserver, BeforeDelete): with the seconds that
    remain after a restart or a lost response, the containers would be killed early. Until the remaining time has expired, a worker whose
    clock is ahead of ours is not asked again.
    """
    granted = physical.metadata.deletion_grace_period_seconds
    if physical.metadata.deletion_timestamp is None or granted is None:
        return seconds
    if granted <= seconds or seconds <= 1:
        return seconds if seconds < granted else None
    requested = parse_rfc3339(physical.metadata.deletion_timestamp) - timedelta(seconds=granted)
    period = math.floor((now - requested).total_seconds() + seconds)
    return period if seconds <= period < granted - _ROUNDING else None


def grace_in_worker(grace: float, *, pod: Pod | None, node: Node | None, now: datetime) -> int:
    """Returns the gracePeriodSeconds for the deletion of a physical pod.

    `pod` is the virtual pod, None when the hub has deleted it; `node` is the physical node, None when the worker has deleted it.
    """
    if grace > 0:
        return max(1, math.ceil(grace))
    if node is None or is_out_of_service(node):
        return 0
    forced = pod is None or pod.metadata.deletion_grace_period_seconds == 0
    return 0 if forced and _is_silent(node, now) else 1


def is_out_of_service(node: Node) -> bool:
    """Checks for the out-of-service taint; the node also has to be NotReady, as for the worker's own garbage collection of pods."""
    return _not_ready_since(node) is not None and any(taint.get("key") == OUT_OF_SERVICE for taint in node.spec.get("taints") or ())


def _is_silent(node: Node, now: datetime) -> bool:
    since = _not_ready_since(node)
    return since is not None and now - since > _SILENT


def _not_ready_since(node: Node) -> datetime | None:
    """Returns the time since which the node is NotReady, None when it is Ready or has never reported."""
    ready = get_condition(node.status.get("conditions") or (), "Ready")
    if ready is None or ready.get("status") == "True":
        return None
    return parse_rfc3339(ready.get("lastTransitionTime") or node.metadata.creation_timestamp)
