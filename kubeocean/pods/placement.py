"""Determines the physical node of a virtual pod and the settings its physical pod needs, from both clusters.

Invariant: a pod is placed on the physical node behind the virtual node its scheduler chose, and on no other.
"""

from __future__ import annotations

import logging

from attrs import evolve, frozen

from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import Target, Workload, replicaset_name, workload
from kubeocean.nodes.virtual_nodes import VirtualNodes
from kubeocean.pods.hub_access import HomeAccess
from kubeocean.pods.service_links import ServiceLinks
from kubeocean.worker.cluster import WorkerCluster
from vkubelet.api.objects import Key, ObjectMeta, Pod
from vkubelet.client.resources import PRIORITYCLASSES, REPLICASETS
from vkubelet.errors import AlreadyExists, Forbidden, NotFound, Unavailable
from vkubelet.provider import Host

log = logging.getLogger(__name__)

_REMEMBERED = 2000
_BINDING_MENDED = 10.0


@frozen(kw_only=True)
class PlacementParts:
    """Dependencies of the placement."""

    host: Host
    worker: WorkerCluster
    virtual: VirtualNodes
    access: HomeAccess
    services: ServiceLinks


class Placement:
    """Builds the Target of a pod."""

    def __init__(self, parts: PlacementParts) -> None:
        self._parts = parts
        self._makers: dict[str, ObjectMeta] = {}
        self._has_priority_class = False

    async def target(self, pod: Pod, binding: ClusterBinding) -> Target:
        """Returns the Target of a pod that is about to be created. Raises Unavailable when its node is not declared, ApiError."""
        if problems := binding.overrides.problems():
            raise Unavailable(f"ClusterBinding {binding.name} is not valid: {problems[0]}", retry_after=_BINDING_MENDED)
        node = self._parts.virtual.physical_name(pod.node)
        if not node:
            raise Unavailable(f"node {pod.node} is not declared", retry_after=2.0)
        replicaset = await self._replicaset(pod)
        access = await self._parts.access.find(binding)
        target = Target.of(
            binding,
            owner=self._parts.worker.mount.owner,
            node=node,
            workload=workload(pod.metadata, replicaset=replicaset),
            api_server=access.api_server,
            dns=access.dns,
        )
        return evolve(target, services=await self._parts.services.find(pod))

    def known_target(self, pod: Pod, physical: Pod, binding: ClusterBinding) -> Target:
        """Returns the Target of a pod that exists in the worker; its labels record the workload that created it."""
        labels = physical.metadata.labels
        made_by = workload(pod.metadata)
        if keys.WORKLOAD_TYPE in labels:
            made_by = Workload(labels[keys.WORKLOAD_TYPE], labels.get(keys.WORKLOAD_NAME, ""))
        access = self._parts.access.known
        target = Target.of(
            binding,
            owner=self._parts.worker.mount.owner,
            node=physical.node,
            workload=made_by,
            api_server=access.api_server,
            dns=access.dns,
        )
        return evolve(target, services=self._parts.services.known(pod))

    async def ensure_priority_class(self, target: Target) -> None:
        """Creates Kubeocean's own class in the worker unless it exists; a class that the binding names is left to its owner."""
        if self._has_priority_class or target.priority_class != keys.DEFAULT_PRIORITY_CLASS:
            return
        body = {
            "metadata": {"name": keys.DEFAULT_PRIORITY_CLASS, "labels": {keys.MANAGED_BY: keys.MANAGED}},
            "value": keys.DEFAULT_PRIORITY,
            "globalDefault": False,
            "preemptionPolicy": "PreemptLowerPriority",
            "description": "Pods leased to a computing cluster; they give way to local ones.",
        }
        try:
            await self._parts.worker.client.create(PRIORITYCLASSES, body)
            log.info("priority class created")
        except (AlreadyExists, Forbidden):
            log.debug("priority class is there, or made by the worker's owner")
        self._has_priority_class = True

    def refused(self, error: Forbidden) -> None:
        """Handles the worker's rejection of a pod: if the error names the priority class, which was deleted, the next call creates it."""
        if keys.DEFAULT_PRIORITY_CLASS in error.message:
            self._has_priority_class = False

    async def _replicaset(self, pod: Pod) -> ObjectMeta | None:
        name = replicaset_name(pod.metadata)
        if not name:
            return None
        uid = pod.metadata.owner_references[0].uid
        if uid not in self._makers:
            try:
                found = await self._parts.host.client.get(REPLICASETS, Key(pod.metadata.namespace, name))
            except NotFound:
                return None
            if len(self._makers) >= _REMEMBERED:
                self._makers.pop(next(iter(self._makers)))
            self._makers[uid] = found.metadata
        return self._makers[uid]
