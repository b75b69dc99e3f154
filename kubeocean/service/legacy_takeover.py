"""Adopts what Kubeocean (Go) left in the worker without an owner's mark: our objects are marked, others are reported and not changed.

Invariant: no object is adopted because of its content in the worker alone. The original, read live in the hub, has to record that this
binding copied it, or the virtual pod has to run on a node of ours (layout.md section 16, rule 6).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from attrs import frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.copies.bodies import copy_of
from kubeocean.model import keys
from kubeocean.model.identity import identity
from kubeocean.nodes.virtual_nodes import VirtualNodes
from kubeocean.worker.cluster import WorkerCluster
from vkubelet.api.objects import Key, Node, ObjectMeta, Pod, Unknown
from vkubelet.client.resources import CONFIGMAPS, PODS, PVCS, PVS, SECRETS, Resource
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.control.informer import Informer
from vkubelet.errors import Conflict, Forbidden, NotFound, VKubeletError
from vkubelet.provider import Host

log = logging.getLogger(__name__)

_LOOK_AGAIN = 10.0
_NAMED = 5


@frozen(kw_only=True)
class TakeOverParts:
    """Dependencies of `TakeOver`; `hub_nodes` are the Nodes of this binding."""

    host: Host
    worker: WorkerCluster
    binding: BindingReconciler
    virtual: VirtualNodes
    hub_nodes: Informer[Node]


class TakeOver:
    """Scans the worker once per connection; objects that are created later are created by us, with a mark."""

    def __init__(self, parts: TakeOverParts) -> None:
        self._parts = parts
        self.done = False
        """Whether the scan is complete."""

    async def run(self) -> None:
        """Scans the worker; retries until one scan has succeeded."""
        parts = self._parts
        await parts.worker.wait_complete()
        await parts.worker.configmaps.wait_synced()
        await parts.worker.secrets.wait_synced()
        while not self.done:
            try:
                if parts.virtual.is_complete:
                    self._tell(await self.look())
                    self.done = True
                    return
            except VKubeletError as error:
                log.warning("objects of an earlier Kubeocean can not be taken over yet: %s", error)
            await parts.host.clock.sleep(1.0 if not parts.virtual.is_complete else _LOOK_AGAIN)

    async def look(self) -> list[str]:
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
        worker = self._parts.worker
        return [pod for pod in worker.pods.store if pod.metadata.namespace == worker.mount.namespace and is_unmarked(pod.metadata)]

    async def _unmarked(self) -> list[tuple[Resource[Unknown], list[ObjectMeta]]]:
        worker, ours = self._parts.worker, f"{keys.MANAGED_BY}={keys.MANAGED}"
        known: list[tuple[Resource[Unknown], Iterable[Unknown]]] = [(CONFIGMAPS, worker.configmaps.store), (SECRETS, worker.secrets.store)]
        for kind, namespace in ((PVCS, worker.mount.namespace), (PVS, "")):
            try:
                known.append((kind, (await worker.client.list(kind, Selection(namespace=namespace, labels=ours))).items))
            except Forbidden as error:
                log.debug("volumes are not looked at: %s", error)
        return [(kind, [obj.metadata for obj in found if is_unmarked(obj.metadata)]) for kind, found in known]

    async def _is_ours(self, kind: Resource[Unknown], meta: ObjectMeta) -> bool:
        if keys.TOKEN_SECRET in meta.labels:
            return await self._is_backed(meta)
        original, mount = copy_of(meta), self._parts.worker.mount
        if original is None or meta.name != keys.physical_name(original.namespace, original.name):
            return False
        try:
            live = (await self._parts.host.client.get(kind, original)).metadata
        except NotFound:
            return False
        owner = mount.owner.cluster_id
        return keys.object_finalizer(owner) in live.finalizers or keys.synced_by(owner) in live.labels

    async def _is_backed(self, meta: ObjectMeta) -> bool:
        """Checks that the object names a virtual pod that exists on a node of ours. Raises ApiError."""
        ref = identity(meta)
        if ref is None:
            return False
        try:
            live = await self._parts.host.client.get(PODS, ref)
        except NotFound:
            return False
        return live.metadata.uid == ref.uid and self._parts.hub_nodes.store.get(Key("", live.node)) is not None

    async def _mark(self, kind: Resource[Unknown], meta: ObjectMeta) -> None:
        owner = self._parts.worker.mount.owner
        change = {"metadata": {"uid": meta.uid, "labels": owner.labels, "annotations": owner.annotations}}
        try:
            await self._parts.worker.client.patch(kind, meta, change, kind=PatchKind.MERGE)
            log.info("copy of an earlier Kubeocean is taken over", extra={"kind": kind.kind})
        except (NotFound, Conflict):
            log.debug("copy is gone")

    def _tell(self, left: list[str]) -> None:
        if not left:
            return
        shown = ", ".join(left[:_NAMED]) + (" …" if len(left) > _NAMED else "")
        text = (
            f"{len(left)} objects in the worker cluster were made by a Kubeocean that named no owner, and belong to nothing here: {shown}"
        )
        self._parts.binding.event("LeftAlone", f"{text}; they are left alone, delete them if nobody needs them", warning=True)


def is_unmarked(meta: ObjectMeta) -> bool:
    """Checks for an object that was created by a Kubeocean without owner marks."""
    return keys.is_managed(meta) and keys.Owner.of(meta) is None and keys.OWNER not in meta.labels
