"""Adopts what Kubeocean (Go) left in the worker without an owner's mark: our objects are marked, others are reported and not changed.

Invariant: no object is adopted because of its content in the worker alone. The original, read live in the hub, has to record that this
binding copied it, or the virtual pod has to run on a node of ours (rule `owner-mark`).
"""

import logging
from collections.abc import Iterable

from kubeocean.copies.bodies import copy_of
from kubeocean.model import keys
from kubeocean.model.identity import identity
from kubeocean.model.ownership import Ownership, classify, classify_finalizer
from kubeocean.scope import WorkerScope
from vkubelet.api.objects import CONFIGMAPS, PODS, PVCS, PVS, SECRETS, Key, ObjectMeta, Pod, Resource, Unknown
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.errors import Conflict, Forbidden, NotFound, VKubeletError

log = logging.getLogger(__name__)

_RETRY_AFTER = 10.0
_NAMED = 5


class LegacyAdoption:
    """Scans the worker once per connection; objects that are created later are created by us, with a mark."""

    def __init__(self, scope: WorkerScope) -> None:
        self._scope = scope
        self.done = False
        """Whether the scan is complete."""

    async def run(self) -> None:
        """Scans the worker; retries until one scan has succeeded."""
        scope = self._scope
        await scope.worker.wait_complete()
        await scope.worker.configmaps.wait_synced()
        await scope.worker.secrets.wait_synced()
        while not self.done:
            try:
                if scope.virtual.is_complete:
                    self._report(await self.scan())
                    self.done = True
                    return
            except VKubeletError as error:
                log.warning("cannot adopt objects of an earlier Kubeocean; retrying", extra={"error": str(error)})
            await scope.host.clock.sleep(1.0 if not scope.virtual.is_complete else _RETRY_AFTER)

    async def scan(self) -> list[str]:
        """Marks our objects; returns the names of those that are not changed. Raises ApiError."""
        left = [f"pod {pod.key}" for pod in self._unmarked_pods() if not await self._is_backed(pod.metadata)]
        for kind, found in await self._unmarked():
            for meta in found:
                if await self._is_ours(kind, meta):
                    await self._mark(kind, meta)
                else:
                    left.append(f"{kind.kind} {meta.key}")
        return left

    def _unmarked_pods(self) -> list[Pod]:
        worker = self._scope.worker
        return [pod for pod in worker.pods.store if worker.mount.includes(pod.metadata.namespace) and self._is_legacy(pod.metadata)]

    async def _unmarked(self) -> list[tuple[Resource[Unknown], list[ObjectMeta]]]:
        worker, ours = self._scope.worker, f"{keys.MANAGED_BY}={keys.MANAGED}"
        known: list[tuple[Resource[Unknown], Iterable[Unknown]]] = [(CONFIGMAPS, worker.configmaps.store), (SECRETS, worker.secrets.store)]
        # Kubeocean (Go) has one namespace.
        for kind, namespace in ((PVCS, worker.mount.namespace), (PVS, "")):
            try:
                known.append((kind, (await worker.client.list(kind, Selection(namespace=namespace, labels=ours))).items))
            except Forbidden as error:
                log.debug("cannot list volumes for adoption", extra={"error": str(error)})
        return [(kind, [obj.metadata for obj in found if self._is_legacy(obj.metadata)]) for kind, found in known]

    def _is_legacy(self, meta: ObjectMeta) -> bool:
        return classify(meta, self._scope.worker.mount.owner) is Ownership.LEGACY

    async def _is_ours(self, kind: Resource[Unknown], meta: ObjectMeta) -> bool:
        if keys.TOKEN_SECRET in meta.labels:
            return await self._is_backed(meta)
        original, mount = copy_of(meta), self._scope.worker.mount
        if original is None or (kind.namespaced and not original.namespace):
            return False
        if meta.name != keys.physical_name(original.namespace, original.name):
            return False
        try:
            live = (await self._scope.host.client.get(kind, original)).metadata
        except NotFound:
            return False
        claimed = any(classify_finalizer(each, mount.owner) is Ownership.OURS for each in live.finalizers)
        return claimed or keys.synced_by(mount.owner.cluster_id) in live.labels

    async def _is_backed(self, meta: ObjectMeta) -> bool:
        """Checks that the object names a virtual pod that exists on a node of ours. Raises ApiError."""
        ref = identity(meta)
        if ref is None:
            return False
        try:
            live = await self._scope.host.client.get(PODS, ref)
        except NotFound:
            return False
        return live.metadata.uid == ref.uid and self._scope.hub_nodes.store.get(Key("", live.node)) is not None

    async def _mark(self, kind: Resource[Unknown], meta: ObjectMeta) -> None:
        owner = self._scope.worker.mount.owner
        change = {"metadata": {"uid": meta.uid, "labels": owner.labels, "annotations": owner.annotations}}
        try:
            await self._scope.worker.client.patch(kind, meta, change, kind=PatchKind.MERGE)
            log.info("adopted a copy of an earlier Kubeocean", extra={"kind": kind.kind})
        except (NotFound, Conflict):
            log.debug("copy is deleted already")

    def _report(self, left: list[str]) -> None:
        if not left:
            return
        shown = ", ".join(left[:_NAMED]) + (" …" if len(left) > _NAMED else "")
        text = f"{len(left)} objects in the worker cluster have no owner mark and belong to no object of this cluster: {shown}"
        self._scope.binding.event("LeftAlone", f"{text}; they are not changed: delete them if they are not used", warning=True)
