"""Mirrors CSINode: creates one in the hub for each CSINode of the worker, so that a virtual node lists its physical node's CSI drivers.

Invariant: a CSINode that is not this binding's is neither changed nor deleted, and ours is deleted only when its Node is deleted from the
hub, or the worker answers a live read of that name with NotFound.
"""

import logging
from collections.abc import Mapping

from kubeocean.model import keys
from kubeocean.model.ownership import Mark, Ownership, classify
from kubeocean.nodes.reconciler import physical_name
from kubeocean.scope import WorkerScope
from vkubelet.api.names import LAST_APPLIED
from vkubelet.api.objects import CSINODES, Json, Key, Node, ObjectMeta, Unknown
from vkubelet.client.rest import PatchKind, Selection
from vkubelet.clock import rfc3339
from vkubelet.control.controller import Controller
from vkubelet.control.informer import Change, Informer
from vkubelet.control.workqueue import Priority
from vkubelet.errors import Invalid, NotFound, Unavailable
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_FOREIGN_AGAIN = 300.0
"""Seconds until a name taken by a foreign CSINode is rechecked: foreign CSINodes are not watched."""


class CSINodeReconciler:
    """Reconciles one virtual CSINode for each physical node. Keys are names of physical nodes."""

    def __init__(self, scope: WorkerScope) -> None:
        self._scope = scope
        ours = Selection(labels=f"{keys.CLUSTER_BINDING}={keys.label_value(scope.binding.name)}")
        self.informer: Informer[Unknown] = Informer(
            scope.host.client, CSINODES, where=ours, clock=scope.host.clock, metrics=scope.host.metrics
        )
        self.controller: Controller[str] = Controller(
            "csi nodes", self.reconcile, workers=4, clock=scope.host.clock, metrics=scope.host.metrics
        )
        scope.worker.csinodes.on_change(self._physical_changed)
        self.informer.on_change(self._virtual_changed)

    async def run(self) -> None:
        """Waits for the complete lists of both clusters, then runs the controller until cancelled."""
        for informer in (self._scope.worker.csinodes, self.informer, self._scope.hub_nodes):
            await informer.wait_synced()
        await self.controller.run()

    def hub_node_changed(self, change: Change[Node]) -> None:
        """Enqueues the physical node of a changed virtual node; the caller watches, because its watch of hub Nodes outlives one worker."""
        node = change.new or change.old
        if node is not None and (name := physical_name(node)) and change.more_than_status:
            self.controller.add(name, priority=Priority.LOW if change.initial else Priority.HIGH)

    async def reconcile(self, name: str) -> float | None:
        """Creates or updates the virtual CSINode as a copy of the physical one, or deletes it together with that one or with its Node."""
        if not self._scope.owns_physical(name):
            return None
        virtual = keys.vnode_name(self._owner.cluster_id, name)
        node = self._scope.hub_nodes.store.get(Key("", virtual))
        live = self.informer.store.get(Key("", virtual))
        physical = self._scope.worker.csinodes.store.get(Key("", name))
        with bind(node=virtual, physical_node=name):
            if node is None:
                return await self._delete(live)
            if not is_virtual_node(node.metadata, name, owner=self._owner):
                return None
            if physical is None:
                return await self._delete(live) if live is not None and await self._is_deleted(name) else None
            wanted = virtual_csinode(physical, node, binding=self._scope.binding.name)
            if live is None:
                return await self._create(wanted)
            return await self._update(live, wanted)

    @property
    def _owner(self) -> keys.Owner:
        return self._scope.worker.mount.owner

    async def _is_deleted(self, name: str) -> bool:
        """Checks with a live read that the worker has no such CSINode. Raises Unavailable when it has one, ApiError when the read fails."""
        try:
            self._scope.worker.csinodes.adopt(await self._scope.worker.client.get(CSINODES, name))
        except NotFound:
            return True
        raise Unavailable("a live read differs from the cache", retry_after=2.0)

    async def _create(self, wanted: Json) -> float | None:
        """Creates the CSINode after a live read of its name: one that is not marked as this binding's is not watched."""
        client = self._scope.host.client
        try:
            live = await client.get(CSINODES, wanted["metadata"]["name"])
        except NotFound:
            self.informer.adopt(await client.create(CSINODES, self._timed(wanted)))
            return None
        return await self._update(live, wanted)

    async def _update(self, live: Unknown, wanted: Json) -> float | None:
        if not self._is_ours(live.metadata):
            log.debug("CSINode of this name has another owner")
            return _FOREIGN_AGAIN
        change = difference(live, wanted)
        if change is None:
            return None
        client = self._scope.host.client
        try:
            self.informer.adopt(await client.patch(CSINODES, live.metadata.name, self._timed(change), kind=PatchKind.MERGE))
        except Invalid:
            # The name that a driver gives its node is immutable: only a new object can change it.
            await self._delete(live)
            self.informer.adopt(await client.create(CSINODES, self._timed(wanted)))
        return None

    async def _delete(self, live: Unknown | None) -> float | None:
        if live is not None and self._is_ours(live.metadata):
            try:
                await self._scope.host.client.delete(CSINODES, live.metadata.name, uid=live.metadata.uid)
            except NotFound:
                log.debug("CSINode is deleted already")
        return None

    def _timed(self, body: Json) -> Json:
        """Adds the time of this write, which is never compared."""
        metadata = body["metadata"]
        now = rfc3339(self._scope.host.clock.now())
        return {**body, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), keys.LAST_SYNC_TIME: now}}}

    def _is_ours(self, meta: ObjectMeta) -> bool:
        return classify(meta, self._owner, mark=Mark.NODE) is Ownership.OURS

    def _physical_changed(self, change: Change[Unknown]) -> None:
        self.controller.add(change.key.name, priority=Priority.LOW if change.initial else Priority.HIGH)

    def _virtual_changed(self, change: Change[Unknown]) -> None:
        live = change.new or change.old
        if live is not None and (name := live.metadata.annotations.get(keys.PHYSICAL_NODE_NAME, "")):
            self.controller.add(name, priority=Priority.LOW if change.initial else Priority.HIGH)


def is_virtual_node(meta: ObjectMeta, physical: str, *, owner: keys.Owner) -> bool:
    """Checks that the Node represents this physical node of this worker cluster, and is not being deleted."""
    return (
        classify(meta, owner, mark=Mark.NODE) is Ownership.OURS
        and meta.annotations.get(keys.PHYSICAL_NODE_NAME, "") == physical
        and not meta.deletion_timestamp
    )


def virtual_csinode(physical: Unknown, node: Node, *, binding: str) -> Json:
    """Computes the desired CSINode of a virtual node: the physical drivers, with our labels and annotations. Pure. The Node owns it."""
    meta, name = physical.metadata, physical.metadata.name
    labels = {
        **_not_ours(meta.labels),
        keys.CLUSTER_BINDING: keys.label_value(binding),
        keys.PHYSICAL_CLUSTER_ID: node.metadata.labels[keys.PHYSICAL_CLUSTER_ID],
        keys.PHYSICAL_NODE_NAME: keys.label_value(name),
        keys.MANAGED_BY: keys.MANAGED,
    }
    annotations = {**_not_ours(meta.annotations), keys.PHYSICAL_NODE_NAME: name, keys.PHYSICAL_CSINODE_UID: meta.uid}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    return {
        "metadata": {"name": node.metadata.name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]},
        "spec": physical.body.get("spec") or {"drivers": []},
    }


def difference(live: Unknown, wanted: Json) -> Json | None:
    """Returns the merge patch from `live` to the desired CSINode, but for the time of the last write; None when nothing differs. Pure."""
    ours, meta = wanted["metadata"], live.metadata
    labels = _changes(meta.labels, ours["labels"])
    annotations = _changes(meta.annotations, {**ours["annotations"], **_kept(meta.annotations)})
    metadata: Json = {name: change for name, change in (("labels", labels), ("annotations", annotations)) if change}
    if {owner.uid for owner in meta.owner_references} != {owner["uid"] for owner in ours["ownerReferences"]}:
        metadata["ownerReferences"] = ours["ownerReferences"]
    spec = {} if (live.body.get("spec") or {}) == wanted["spec"] else {"spec": wanted["spec"]}
    if not metadata and not spec:
        return None
    return {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, **metadata}, **spec}


def _changes(live: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    dropped: dict[str, str | None] = {key: None for key in live if key not in wanted}
    return {**dropped, **{key: value for key, value in wanted.items() if live.get(key) != value}}


def _kept(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: annotations[key] for key in (keys.LAST_SYNC_TIME,) if key in annotations}


def _not_ours(entries: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in entries.items() if not key.startswith(keys.DOMAIN) and key != LAST_APPLIED}
