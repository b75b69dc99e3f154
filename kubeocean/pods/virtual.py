"""Reconciles virtual pods: creates one physical pod per uid, keeps it up to date and deletes it on request.

Invariant: at most one physical pod per virtual uid, and never one beside that of an earlier uid of the same name; decisions depend on the
actual state of the worker, not on the memory of this process (layout.md section 16, rules 3 to 6).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from attrs import frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.copies.dependents import Dependents
from kubeocean.metrics import SyncerMetrics
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import daemonset_allowed, identity, in_virtual_names, is_daemonsets, leaves_home, where, why_pending
from kubeocean.model.references import references, untranslatable
from kubeocean.nodes.virtual_nodes import VirtualNodes
from kubeocean.pods.admission import LeaseAdmission
from kubeocean.pods.changes import changes
from kubeocean.pods.deletion_grace import grace_in_worker, is_out_of_service
from kubeocean.pods.physical import PhysicalPodReconciler
from kubeocean.pods.placement import Placement
from kubeocean.pods.resize import Pending, Room
from kubeocean.pods.translate import physical_pod
from kubeocean.pods.update import EphemeralRefused, ResizePending, bring_up_to_date
from kubeocean.worker.cluster import WorkerCluster, virtual_uid
from vkubelet.api.objects import Key, Pod, PodRef
from vkubelet.api.quantity import Resources, add_resources
from vkubelet.api.scheduling import effective_requests
from vkubelet.api.shapes import Json
from vkubelet.client.resources import NODES, PODS
from vkubelet.clock import parse_rfc3339
from vkubelet.control.informer import Change
from vkubelet.control.recorder import ObjectReference
from vkubelet.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotAdmitted, NotFound, Unavailable, VKubeletError
from vkubelet.provider import Host, PodReport

log = logging.getLogger(__name__)

_PREDECESSOR_ENDS = 60.0
"""Seconds a sync waits for the deletion of the physical pod of an earlier uid; then it is retried."""
REFUSED = "WorkerRefused"
"""Waiting reason of the containers while the worker's API server rejects their pod, for example by Pod Security or a quota."""
_FAILED_CREATE = "FailedCreatePod"
_FAILED_SYNC = "FailedSync"
_NEW = 600.0
"""Seconds for which a pod is new; an earlier process has reported why an older one stays Pending."""
_IN_FLIGHT = 32
"""Pods that are created, or deleted, at the same time: more of them would only open more connections to the same API servers."""


@frozen(kw_only=True)
class VirtualPodParts:
    """Dependencies of the reconciler."""

    host: Host
    worker: WorkerCluster
    binding: BindingReconciler
    virtual: VirtualNodes
    dependents: Dependents
    placement: Placement
    admission: LeaseAdmission
    physical: PhysicalPodReconciler
    metrics: SyncerMetrics


class VirtualPodReconciler:
    """Implements the provider's `sync_pod`, `delete_pod` and `list_pods`; calls for one uid never overlap."""

    def __init__(self, parts: VirtualPodParts) -> None:
        self._parts = parts
        self._ends: dict[Key, asyncio.Event] = {}
        self._making = asyncio.Semaphore(_IN_FLIGHT)
        self._ending = asyncio.Semaphore(_IN_FLIGHT)
        self._resizing = asyncio.Lock()
        self._runs_daemonsets = False
        parts.worker.pods.on_change(self._tell_waiting)

    async def sync(self, pod: Pod) -> None:
        """Creates the physical pod or brings it up to date. Raises PodRejected, Unavailable, ApiError."""
        binding = self._binding()
        if not leaves_home(pod.metadata) or not daemonset_allowed(pod.metadata, binding):
            self._tell_why_pending(pod, binding)
            return
        try:
            physical = self._parts.worker.physical_pod(pod.ref)
            if physical is None and where(pod).name:
                physical = await self._recorded(pod)
                if physical is None:
                    return
            if physical is None:
                with self._parts.metrics.attempt():
                    physical = await self._create(pod, binding)
            # Also after a creation: ephemeral containers can only be added, and an earlier attempt may have created an older generation.
            await self._update(pod, physical, binding)
        except VKubeletError as error:
            raise reported(error) from error
        self._parts.physical.controller.add(pod.ref)

    async def delete(self, ref: PodRef, grace: float) -> None:
        """Deletes the physical pod with a grace period; reports when there is none. Raises ApiError, Unavailable."""
        if ref.namespace in keys.SYSTEM_NAMESPACES:
            self._parts.physical.gone(ref)
            return
        physical = self.backing(ref) or await self._live(ref)
        if physical is None:
            self._parts.physical.gone(ref)
            return
        seconds = await self._grace(physical, ref, grace)
        left = physical.metadata.deletion_grace_period_seconds
        if physical.terminating and left is not None and left <= seconds:
            self._parts.physical.controller.add(ref)
            return
        try:
            async with self._ending:
                await self._parts.worker.client.delete(PODS, physical.key, grace=seconds, uid=physical.metadata.uid)
        except (NotFound, Conflict):
            self._parts.physical.controller.add(ref)

    def binding_changed(self) -> None:
        """Syncs the existing pods of DaemonSets once the binding allows them to run."""
        binding = self._parts.binding.current
        before, self._runs_daemonsets = self._runs_daemonsets, binding is not None and binding.run_daemonsets
        if self._runs_daemonsets and not before:
            for pod in self._parts.host.pods:
                if is_daemonsets(pod.metadata) and leaves_home(pod.metadata) and not pod.terminal:
                    self._parts.host.resync(pod.ref)

    def listing(self, node: str) -> Sequence[PodReport]:
        """Lists our physical pods that back pods of a node. Raises Unavailable while the cache may be incomplete."""
        if not self._parts.worker.pods.synced:
            raise Unavailable("the worker cluster's pods are not known completely now")
        found = (identity(physical.metadata) for physical in self._parts.worker.pods_of(node))
        return [PodReport(ref) for ref in found if ref is not None]

    def backing(self, ref: PodRef) -> Pod | None:
        """Returns the cached physical pod of exactly this virtual pod, if it has our mark."""
        physical = self._parts.worker.physical_pod(ref)
        return physical if physical is not None and self._is_ours(physical) else None

    def _binding(self) -> ClusterBinding:
        binding = self._parts.binding.current
        if binding is None or not self._parts.worker.pods.ever_synced:
            raise Unavailable("the worker cluster has not been listed yet", retry_after=2.0)
        return binding

    async def _recorded(self, pod: Pod) -> Pod | None:
        """Returns the physical pod that an earlier sync recorded; None when it is missing, which is then reported.

        Raises Unavailable when it was recorded in another mount namespace.
        """
        if where(pod).namespace != self._parts.worker.mount.namespace:
            text = f"its physical pod is in namespace {where(pod).namespace} of the worker, which is not the mount namespace any more"
            raise Unavailable(f"{text}; name it in the binding's spec.mountNamespace again")
        physical = await self._live(pod.ref)
        if physical is None and not pod.terminal:
            self._parts.physical.lose(pod)
        return physical

    async def _live(self, ref: PodRef) -> Pod | None:
        """Reads the physical pod by name; None when it does not exist, or belongs to another incarnation or another owner."""
        try:
            found = await self._parts.worker.client.get(PODS, self._parts.worker.mount.copy_key(ref.key))
        except NotFound:
            return None
        if virtual_uid(found.metadata) != ref.uid:
            return await self._parts.physical.recognised(found, ref)
        if not self._is_ours(found):
            return None
        self._parts.worker.pods.adopt(found)
        return found

    async def _create(self, pod: Pod, binding: ClusterBinding) -> Pod:
        named = references(pod)
        target = await self._parts.placement.target(pod, binding)
        body = physical_pod(pod, target)
        await self._end_predecessor(pod)
        if (entered := await self._enter(pod)) is not None:
            return entered
        async with self._making:
            await self._parts.dependents.ensure(pod, named)
            await self._parts.placement.ensure_priority_class(target)
            created = await self._post(pod, body)
        if created is None:
            return await self._taken(pod)
        self._parts.worker.pods.adopt(created)
        return created

    async def _enter(self, pod: Pod) -> Pod | None:
        """Admits a pod that has no physical pod; returns that if there is one after all. Raises NotAdmitted, Unavailable, ApiError."""
        try:
            self._parts.admission.admit(pod)
        except NotAdmitted:
            # The cache may lag behind what an earlier process has created, and running pods are not subject to admission.
            physical = await self._live(pod.ref)
            if physical is None:
                raise
            self._parts.admission.forget(pod.metadata.uid)
            return physical
        return None

    async def _post(self, pod: Pod, body: Json) -> Pod | None:
        """Creates the physical pod; returns None when the name is taken.

        Raises Unavailable with the worker's message, in the names of the hub.
        """
        try:
            with self._parts.metrics.creation():
                return await self._parts.worker.client.create(PODS, body)
        except AlreadyExists:
            return None
        except Forbidden as error:
            self._parts.placement.refused(error)
            # Quotas, Pod Security and other admission may accept it later.
            text = f"the worker cluster refuses the pod: {self._told(pod, error)}"
            raise Unavailable(text, event=_FAILED_CREATE, waiting=REFUSED) from error
        except Invalid as error:
            text = f"the worker cluster does not accept the pod: {self._told(pod, error)}"
            raise Unavailable(text, retry_after=60.0, event=_FAILED_CREATE, waiting=REFUSED) from error

    def _told(self, pod: Pod, error: ApiError) -> str:
        return in_virtual_names(error.message, pod.key, self._parts.worker.mount.copy_key(pod.key))

    async def _taken(self, pod: Pod) -> Pod:
        """Handles a name that exists: the pod is ours from an earlier attempt, or a predecessor's, or another owner's."""
        physical = await self._live(pod.ref)
        if physical is not None:
            return physical
        await self._end_predecessor(pod, asked=True)
        raise Unavailable("the physical pod of an earlier pod of this name has just ended", retry_after=0.2)

    async def _end_predecessor(self, pod: Pod, *, asked: bool = False) -> None:
        """Waits until the physical pod of an earlier uid is deleted. Raises Unavailable when it is not, or is not ours to delete."""
        key = self._parts.worker.mount.copy_key(pod.ref.key)
        there = self._parts.worker.pods.store.get(key)
        if asked:
            try:
                self._parts.worker.pods.adopt(await self._parts.worker.client.get(PODS, key))
            except NotFound:
                return
            there = self._parts.worker.pods.store.get(key)
        if there is None or virtual_uid(there.metadata) == pod.metadata.uid:
            return
        earlier = identity(there.metadata)
        if earlier is None or earlier.key != pod.ref.key or not self._is_ours(there):
            raise Unavailable(f"pod {key} of the worker cluster belongs to somebody else; delete or rename it there", retry_after=30.0)
        ended = self._ends.setdefault(key, asyncio.Event())
        if not there.terminating:
            await self._be_sure(pod)
            try:
                await self._parts.worker.client.delete(PODS, key, uid=there.metadata.uid)
            except (NotFound, Conflict):
                log.debug("predecessor is gone already")
        try:
            async with asyncio.timeout(_PREDECESSOR_ENDS):
                await ended.wait()
        except TimeoutError:
            raise Unavailable("the physical pod of an earlier pod of this name has not ended yet", retry_after=1.0) from None

    async def _be_sure(self, pod: Pod) -> None:
        """Checks that the pod still exists in the hub: if the watch lags, an uid that seems earlier may be later. Raises Unavailable."""
        try:
            live = await self._parts.host.node_client(pod.node).get(PODS, pod.ref)
        except NotFound:
            live = None
        if live is None or live.metadata.uid != pod.metadata.uid:
            raise Unavailable("the pod was deleted meanwhile", retry_after=1.0)

    async def _update(self, pod: Pod, physical: Pod, binding: ClusterBinding) -> None:
        self._parts.dependents.note(pod)
        if pod.terminal or physical.terminating or physical.terminal or not self._is_ours(physical):
            return
        target = self._parts.placement.known_target(pod, physical, binding)
        wanted = changes(pod, physical, target, room=lambda: self._room(pod, physical))
        refused: Mapping[str, str] = untranslatable(pod.spec)
        try:
            # Two pods that grow at the same time must not both use the same room.
            async with self._resizing if wanted.resize else nullcontext():
                wanted = changes(pod, physical, target, room=lambda: self._room(pod, physical)) if wanted.resize else wanted
                await bring_up_to_date(self._parts.worker, pod, physical, wanted=wanted, ensure=lambda: self._ensure(pod))
        except EphemeralRefused as error:
            refused = {**refused, **error.problems}
            raise
        except ResizePending as error:
            self._tell_pending(pod, physical, error.pending)
            raise
        finally:
            self._parts.physical.refuse(pod, refused)

    def _room(self, pod: Pod, physical: Pod) -> Room | None:
        allocatable = self._parts.virtual.allocatable(pod.node)
        if allocatable is None:
            return None
        others = (each for each in self._parts.worker.pods_of(pod.node) if each.metadata.uid != physical.metadata.uid and not each.terminal)
        used: Resources = {}
        for each in others:
            used = add_resources(used, effective_requests(each.spec))
        return Room(allocatable, used)

    def _tell_pending(self, pod: Pod, physical: Pod, pending: Pending) -> None:
        if pending != Pending.of(physical.metadata):
            self._parts.host.events.event(ObjectReference.of(PODS, pod), f"Resize{pending.reason}", pending.message, warning=True)

    async def _ensure(self, pod: Pod) -> None:
        await self._parts.dependents.ensure(pod, references(pod))

    def _is_ours(self, physical: Pod) -> bool:
        """Checks that it has our mark, or no mark at all and the uid of a pod of ours (rule 6)."""
        owner = keys.Owner.of(physical.metadata)
        if owner is None and keys.OWNER not in physical.metadata.labels:
            return self._parts.host.pods.by_uid(virtual_uid(physical.metadata)) is not None
        return self._parts.worker.mount.owner.owns(physical.metadata)

    async def _grace(self, physical: Pod, ref: PodRef, grace: float) -> int:
        """Returns the grace period in the worker. Raises ApiError when it depends on a physical node that cannot be read."""
        parts = self._parts
        if not physical.node:
            # Without a kubelet the worker deletes it at once, unless it was scheduled meanwhile.
            return max(1, math.ceil(grace))
        node = parts.worker.nodes.store.get(Key("", physical.node))
        if grace <= 0 and (node is None or is_out_of_service(node)):
            try:
                # The cache may lag behind a node that registered again or is back in service.
                node = await parts.worker.client.get(NODES, physical.node)
            except NotFound:
                node = None
        return grace_in_worker(grace, pod=parts.host.pods.by_uid(ref.uid), node=node, now=parts.host.clock.now())

    def _tell_why_pending(self, pod: Pod, binding: ClusterBinding) -> None:
        text, created = why_pending(pod.metadata, binding), pod.metadata.creation_timestamp
        age = (self._parts.host.clock.now() - parse_rfc3339(created)).total_seconds() if created else 0.0
        if text and age < _NEW and not pod.terminating:
            self._parts.host.events.event(ObjectReference.of(PODS, pod), "NotStarted", text, warning=True)

    def _tell_waiting(self, change: Change[Pod]) -> None:
        replaced = change.new is not None and change.old is not None and change.new.metadata.uid != change.old.metadata.uid
        if change.new is None or replaced:
            ended = self._ends.pop(change.key, None)
            if ended is not None:
                ended.set()


def reported(error: VKubeletError) -> VKubeletError:
    """Returns the error for the runtime to report: one event for one failure, FailedCreatePod where it has no specific reason.

    A cluster that does not respond is reported on the binding.
    """
    if isinstance(error, Unavailable) and not isinstance(error, EphemeralRefused) and error.event == _FAILED_SYNC:
        return Unavailable(str(error), retry_after=error.retry_after, event=_FAILED_CREATE, waiting=error.waiting)
    if isinstance(error, ApiError) and not error.retryable:
        return Unavailable(str(error), event=_FAILED_CREATE)
    return error
