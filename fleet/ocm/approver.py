"""Approves the certificate requests of clusters: renewals of accepted ones, and first requests of bootstrap users that are trusted.

Invariant: a request is approved only after the pure checks of `fleet.core.requests` and, for a renewal, a SubjectAccessReview; none is
ever denied.
"""

import logging
from collections.abc import Collection
from typing import Final

from fleet.api import keys
from fleet.api.resources import MANAGEDCLUSTERS
from fleet.clusters.hub import Hub, synced
from fleet.clusters.registry import Registry
from fleet.core import requests
from vkubelet.api.objects import CSRS, SUBJECTACCESSREVIEWS, Key, Unknown
from vkubelet.client.rest import Selection
from vkubelet.clock import rfc3339
from vkubelet.control.certificates import approve
from vkubelet.control.informer import Change
from vkubelet.control.store import Store
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

FLAWED: Final = "NotApproved"
WAITING: Final = "ApprovalRequired"
_BY_CLUSTER = "cluster"


class Approver:
    """Controller of these requests; `trusted` are the user names whose first requests need no person."""

    def __init__(self, hub: Hub, registry: Registry, *, trusted: Collection[str]) -> None:
        self._hub = hub
        self._registry = registry
        self._trusted = trusted
        self._recorded: dict[str, str] = {}
        """The obstacle of each request that was recorded last."""
        store: Store[Unknown] = Store(indexes={_BY_CLUSTER: lambda obj: (obj.metadata.labels[keys.CLUSTER_NAME],)})
        self._requests = hub.informer(CSRS, Selection(labels=keys.CLUSTER_NAME), store=store)
        self.informers = [self._requests]
        """The watches that are this controller's own."""
        self.controller = hub.controller("certificate requests", self.reconcile)
        self._requests.on_change(self._changed)
        registry.on_change(self._cluster_changed, status=False)

    async def run(self) -> None:
        """Runs until cancelled."""
        await synced([self._requests, *self._registry.cluster_informers])
        await self.controller.run()

    async def reconcile(self, name: str) -> None:
        """Approves one request, or records why a person has to. Raises ApiError."""
        obj = self._requests.store.get(Key("", name))
        if obj is None:
            return
        request = requests.ClientRequest.parse(obj)
        if request.decided:
            return
        accepted = (request.cluster,) if self._registry.accepts(request.cluster) else ()
        others = self._older(obj, request)
        obstacle = requests.obstacle(request, accepted=accepted, others=others)
        if not obstacle and not await self._may_renew(request):
            obstacle = "the requester may not renew managedclusters/clientcertificates"
        if not obstacle:
            await self._approve(obj, "the renewal of an accepted cluster")
        elif requests.first_obstacle(request, others=others, trusted=self._trusted):
            self._record(obj, request, obstacle)
        elif self._registry.managed.get(request.cluster) is not None:
            # Accepted first: a process that stops in between finds the request again.
            await self._accept(request.cluster)
            await self._approve(obj, f"requested by {request.requester}, which hub.auto_approve_users names")

    async def _may_renew(self, request: requests.ClientRequest) -> bool:
        review = await self._hub.client.create(SUBJECTACCESSREVIEWS, request.review)
        return (review.body.get("status") or {}).get("allowed") is True

    async def _approve(self, obj: Unknown, why: str) -> None:
        message = f"approved by fleet hub: {why}"
        self._requests.adopt(await approve(self._hub.client, obj, reason=requests.REASON, message=message))
        with bind(request=obj.metadata.name, cluster=obj.metadata.labels[keys.CLUSTER_NAME]):
            log.info("certificate request approved")

    async def _accept(self, cluster: str) -> None:
        """Accepts the cluster of a trusted user once, so that a later denial stays."""
        obj, known = self._registry.managed.get(cluster), self._registry.managed_cluster(cluster)
        if obj is None or known is None or known.accepted or known.deleting or keys.ACCEPTED_ON in obj.metadata.annotations:
            return
        now = rfc3339(self._hub.clock.now())
        change = {"metadata": {"annotations": {keys.ACCEPTED_ON: now}}, "spec": {"hubAcceptsClient": True}}
        await self._registry.managed.patch(obj, change)
        message = f"accepted because hub.auto_approve_users names the requester of its certificate ({keys.ACCEPTED_ON})"
        self._hub.event(MANAGEDCLUSTERS, obj, reason="AutomaticallyAccepted", message=message)

    def _older(self, obj: Unknown, request: requests.ClientRequest) -> int:
        """Counts older requests of the cluster; those of others with its label do not keep it from a renewal."""
        own, group = (obj.metadata.creation_timestamp, obj.metadata.name), keys.cluster_group(request.cluster)
        known = self._requests.store.by_index(_BY_CLUSTER, request.cluster)
        older = [each for each in known if (each.metadata.creation_timestamp, each.metadata.name) < own]
        return len(older) if group not in request.groups else sum(group in requests.ClientRequest.parse(each).groups for each in older)

    def _record(self, obj: Unknown, request: requests.ClientRequest, obstacle: str) -> None:
        if self._recorded.get(obj.metadata.name) == obstacle:
            return
        self._recorded[obj.metadata.name] = obstacle
        flaw = requests.content_flaw(request)
        if flaw:
            message = f"not approved: {flaw}; deny it unless another controller approves it"
        else:
            message = f"a person has to approve it: {obstacle}; run: fleet accept {request.cluster}"
        self._hub.event(CSRS, obj, reason=FLAWED if flaw else WAITING, message=message, warning=bool(flaw))

    def _changed(self, change: Change[Unknown]) -> None:
        if change.new is None:
            self._recorded.pop(change.key.name, None)
        elif change.old is None:
            self.controller.add(change.key.name)

    def _cluster_changed(self, cluster: str) -> None:
        """Checks the requests of a cluster again: it may be accepted now, or have a record."""
        for each in self._requests.store.by_index(_BY_CLUSTER, cluster):
            if not (each.body.get("status") or {}).get("conditions"):
                self.controller.add(each.metadata.name)
