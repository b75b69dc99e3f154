"""Reconciles virtual pods: creates one physical pod per uid, keeps it up to date and deletes it on request.

Invariant: at most one physical pod per virtual uid, and never one beside that of an earlier uid of the same name; decisions depend on the
actual state of the worker, not on the memory of this process (rules `lost-is-proven`, `same-name-new-uid`, `at-most-one-copy`,
`owner-mark`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define, field

from kubeocean.copies.dependents import Dependents
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import Target, identity, in_virtual_names, is_daemonsets, leaves_home, where, why_pending
from kubeocean.model.references import references
from kubeocean.pods.admission import LeaseAdmission
from kubeocean.pods.changes import Changed, Decision, Excluded, Missing, Pending, Unconfirmed, decide
from kubeocean.pods.deletion import IN_FLIGHT, PhysicalPodDeleter
from kubeocean.pods.physical import PhysicalPodReconciler
from kubeocean.pods.placement import Placement
from kubeocean.pods.translate import physical_pod
from kubeocean.pods.update import EphemeralRefused, PodUpdater, ResizePending
from kubeocean.scope import WorkerScope
from kubeocean.worker.cluster import virtual_uid
from vkubelet.api.objects import PODS, Json, Pod, PodRef
from vkubelet.clock import parse_rfc3339
from vkubelet.control.recorder import ObjectReference
from vkubelet.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotAdmitted, NotFound, Unavailable, VKubeletError
from vkubelet.provider import PodReport

REFUSED: Final = "WorkerRefused"
"""Waiting reason of the containers while the worker's API server rejects their pod, for example by Pod Security or a quota."""
_FAILED_CREATE: Final = "FailedCreatePod"
_FAILED_SYNC: Final = "FailedSync"
_NEW: Final = 600.0
"""Seconds for which a pod is new; an earlier process has reported why an older one stays Pending."""


@define(kw_only=True, eq=False)
class VirtualPodReconciler:
    """Implements the provider's `sync_pod`, `delete_pod` and `list_pods`; calls for one uid never overlap."""

    scope: WorkerScope
    dependents: Dependents
    placement: Placement
    admission: LeaseAdmission
    physical: PhysicalPodReconciler
    _updater: PodUpdater = field(init=False)
    _deleter: PhysicalPodDeleter = field(init=False)
    _creating: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(IN_FLIGHT), init=False)
    _runs_daemonsets: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._updater = PodUpdater(scope=self.scope, ensure=self._ensure)
        self._deleter = PhysicalPodDeleter(scope=self.scope, physical=self.physical)

    async def sync(self, pod: Pod) -> None:
        """Creates the physical pod or brings it up to date. Raises PodRejected, Unavailable, ApiError."""
        binding, worker = self.scope.binding.current, self.scope.worker
        if binding is None or not worker.pods.ever_synced:
            raise Unavailable("the pods of the worker cluster have not been listed yet", retry_after=2.0)
        decision = self._decide(pod, worker.physical_pod(pod.ref), binding)
        if isinstance(decision, Excluded):
            self._report_excluded(pod, binding)
            return
        is_new = isinstance(decision, Missing)
        try:
            if isinstance(decision, Missing | Unconfirmed):
                found = await (self._create(pod, binding) if is_new else self._confirm(pod))
                if found is None:
                    return
                # Ephemeral containers can only be added, and an earlier attempt may have created an older generation.
                decision = self._decide(pod, found, binding)
            self.dependents.users.note(pod)
            if isinstance(decision, Changed):
                await self._update(pod, decision)
        except VKubeletError as error:
            raise reported(error) from error
        if not is_new:
            # The watch has reported a new one, which is reconciled once it has a status.
            self.physical.controller.add(pod.ref)

    async def delete(self, ref: PodRef, grace: float) -> None:
        """Deletes the physical pod with a grace period; reports when there is none. Raises ApiError, Unavailable."""
        physical = None
        if ref.namespace not in keys.SYSTEM_NAMESPACES:
            physical = self.backing(ref) or await self._read(ref)
        if physical is None:
            self.physical.report_gone(ref)
        else:
            await self._deleter.delete(ref, physical, grace)

    def binding_changed(self) -> None:
        """Syncs the existing pods of DaemonSets once the binding allows them to run."""
        binding = self.scope.binding.current
        before, self._runs_daemonsets = self._runs_daemonsets, binding is not None and binding.run_daemonsets
        if self._runs_daemonsets and not before:
            for pod in self.scope.host.pods:
                if is_daemonsets(pod.metadata) and leaves_home(pod.metadata) and not pod.terminal:
                    self.scope.host.resync(pod.ref)

    def listing(self, node: str) -> Sequence[PodReport]:
        """Lists our physical pods that back pods of a node. Raises Unavailable while the cache may be incomplete."""
        if not self.scope.worker.pods.synced:
            raise Unavailable("the pods of the worker cluster have not been listed completely")
        found = (identity(physical.metadata) for physical in self.scope.worker.pods_of(node))
        return [PodReport(ref) for ref in found if ref is not None]

    def backing(self, ref: PodRef) -> Pod | None:
        """Returns the cached physical pod of exactly this virtual pod, if it has our mark."""
        physical = self.scope.worker.physical_pod(ref)
        return physical if physical is not None and self.physical.is_ours(physical) else None

    def _decide(self, pod: Pod, physical: Pod | None, binding: ClusterBinding) -> Decision:
        def target(found: Pod) -> Target:
            return self.placement.known_target(pod, found, binding)

        return decide(pod, physical, binding=binding, owner=self.scope.worker.mount.owner, target=target)

    async def _confirm(self, pod: Pod) -> Pod | None:
        """Returns the physical pod that an earlier sync recorded; None when it is missing, which is then reported.

        Raises Unavailable when it was recorded in another mount namespace.
        """
        recorded, mounted = where(pod).namespace, self.scope.worker.mount.copy_key(pod.key).namespace
        if recorded != mounted:
            text = f"the physical pod of {pod.key} is in namespace {recorded} of the worker cluster, not in the mount namespace {mounted}"
            raise Unavailable(f"{text}; set spec.mountNamespace of ClusterBinding {self.scope.binding.name} to {recorded} again")
        physical = await self._read(pod.ref)
        if physical is None and not pod.terminal:
            self.physical.report_lost(pod)
        return physical

    async def _read(self, ref: PodRef) -> Pod | None:
        """Reads the physical pod by name; None when it does not exist, or belongs to another incarnation or another owner."""
        worker = self.scope.worker
        try:
            found = await worker.client.get(PODS, worker.mount.copy_key(ref.key))
        except NotFound:
            return None
        if self.physical.is_disputed(found, self.scope.host.pods.by_uid(ref.uid)):
            text = f"physical pod {found.key} has the marks of another owner in label {keys.OWNER} or its annotations"
            raise Unavailable(f"{text}; remove that label, or delete this pod")
        if virtual_uid(found.metadata) != ref.uid:
            return await self.physical.restore_identity(found, ref)
        if not self.physical.is_ours(found):
            return None
        worker.pods.adopt(found)
        return found

    async def _create(self, pod: Pod, binding: ClusterBinding) -> Pod:
        """Creates the physical pod and what it refers to; returns the one that exists already if there is one after all."""
        with self.scope.metrics.attempt():
            named = references(pod)
            target = await self.placement.target(pod, binding)
            body = physical_pod(pod, target)
            await self._deleter.delete_predecessor(pod)
            if (admitted := await self._admit(pod)) is not None:
                return admitted
            await self.dependents.enter(pod.metadata.namespace)
            async with self._creating:
                await self.dependents.ensure(pod, named)
                await self.placement.ensure_priority_class(target)
                created = await self._post(pod, body)
            if created is None:
                return await self._resolve_name_conflict(pod)
            self.scope.worker.pods.adopt(created)
            return created

    async def _admit(self, pod: Pod) -> Pod | None:
        """Admits a pod that has no physical pod; returns that if there is one after all. Raises NotAdmitted, Unavailable, ApiError."""
        try:
            self.admission.admit(pod)
        except NotAdmitted:
            # The cache may lag behind what an earlier process has created, and running pods are not subject to admission.
            physical = await self._read(pod.ref)
            if physical is None:
                raise
            self.admission.remove(pod.metadata.uid)
            return physical
        return None

    async def _post(self, pod: Pod, body: Json) -> Pod | None:
        """Creates the physical pod; returns None when the name is taken.

        Raises Unavailable with the worker's message, in the names of the hub.
        """
        try:
            with self.scope.metrics.creation():
                return await self.scope.worker.client.create(PODS, body)
        except AlreadyExists:
            return None
        except Forbidden as error:
            self.placement.recheck_priority_class()
            # Quotas, Pod Security and other admission may accept it later.
            text = f"the worker cluster refuses the pod: {self._message(pod, error)}"
            raise Unavailable(text, event=_FAILED_CREATE, waiting=REFUSED) from error
        except Invalid as error:
            text = f"the worker cluster does not accept the pod: {self._message(pod, error)}"
            raise Unavailable(text, retry_after=60.0, event=_FAILED_CREATE, waiting=REFUSED) from error

    def _message(self, pod: Pod, error: ApiError) -> str:
        return in_virtual_names(error.message, pod.key, self.scope.worker.mount.copy_key(pod.key))

    async def _resolve_name_conflict(self, pod: Pod) -> Pod:
        """Handles a name that exists: the pod is ours from an earlier attempt, or a predecessor's, or another owner's."""
        physical = await self._read(pod.ref)
        if physical is not None:
            return physical
        await self._deleter.delete_predecessor(pod, read=True)
        raise Unavailable(f"the physical pod of an earlier pod {pod.key} has just terminated", retry_after=0.2)

    async def _update(self, pod: Pod, changed: Changed) -> None:
        refused: Mapping[str, str] = changed.untranslatable
        try:
            await self._updater.send(pod, changed)
        except EphemeralRefused as error:
            refused = {**refused, **error.problems}
            raise
        except ResizePending as error:
            self._report_pending(pod, changed.physical, error.pending)
            raise
        finally:
            self.physical.report_refused(pod, refused)

    async def _ensure(self, pod: Pod) -> None:
        await self.dependents.ensure(pod, references(pod))

    def _report_pending(self, pod: Pod, physical: Pod, pending: Pending) -> None:
        if pending != Pending.of(physical.metadata):
            self.scope.host.events.event(ObjectReference.of(PODS, pod), f"Resize{pending.reason}", pending.message, warning=True)

    def _report_excluded(self, pod: Pod, binding: ClusterBinding) -> None:
        text, created = why_pending(pod.metadata, binding), pod.metadata.creation_timestamp
        age = (self.scope.host.clock.now() - parse_rfc3339(created)).total_seconds() if created else 0.0
        if text and age < _NEW and not pod.terminating:
            self.scope.host.events.event(ObjectReference.of(PODS, pod), "NotStarted", text, warning=True)


def reported(error: VKubeletError) -> VKubeletError:
    """Returns the error for the runtime to report: one event for one failure, FailedCreatePod where it has no specific reason.

    A cluster that does not respond is reported on the binding.
    """
    if isinstance(error, Unavailable) and not isinstance(error, EphemeralRefused) and error.event == _FAILED_SYNC:
        return Unavailable(str(error), retry_after=error.retry_after, event=_FAILED_CREATE, waiting=error.waiting)
    if isinstance(error, ApiError) and not error.retryable:
        return Unavailable(str(error), event=_FAILED_CREATE)
    return error
