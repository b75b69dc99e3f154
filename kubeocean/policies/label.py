"""Labels each physical node with the policy that leases it, for the worker's owner, where the optional permission was granted.

Invariant: the label of a policy for another binding stays; after a refusal nothing is written before the permission is confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.model import keys
from kubeocean.policies.reconciler import ResourceLeasingPolicyReconciler
from kubeocean.worker.cluster import WorkerCluster
from kubeocean.worker.connect import may
from vkubelet.api.objects import Node
from vkubelet.client.resources import NODES
from vkubelet.client.rest import PatchKind
from vkubelet.clock import Clock
from vkubelet.control.backoff import Backoff
from vkubelet.errors import Forbidden, NotFound

log = logging.getLogger(__name__)

_LABELLING = {"verb": "patch", "resource": NODES.plural}

FIRST, LIMIT = 1.0, 300.0
"""Seconds until the permission is checked again after a refusal, at first and at most."""


@frozen(kw_only=True)
class PolicyLabelParts:
    """Dependencies of the label; `granted()` enqueues all nodes again."""

    worker: WorkerCluster
    binding: BindingReconciler
    policies: ResourceLeasingPolicyReconciler
    clock: Clock
    granted: Callable[[], None]


class PolicyLabel:
    """The label `kubeocean.io/policy-applied`."""

    def __init__(self, parts: PolicyLabelParts) -> None:
        self._parts = parts
        self._refusals = Backoff(first=FIRST, limit=LIMIT)
        self._not_before = 0.0
        self._asker = ""

    async def show(self, node: Node | None, policy: str) -> float | None:
        """Sets the label of the node, or removes it with "". Returns the seconds until the next attempt after a refusal, for one node at
        a time.
        """
        said = node.metadata.labels.get(keys.POLICY_APPLIED, "") if node is not None else policy
        if node is None or said == policy or self._parts.policies.is_foreign(said):
            return None
        left = self._not_before - self._parts.clock.monotonic()
        if left > 0:
            return left if node.metadata.name == self._asker else None
        if self._refusals.failures() and not await may(self._parts.worker.client, _LABELLING):
            return self._postponed(node.metadata.name)
        change = {"metadata": {"uid": node.metadata.uid, "labels": {keys.POLICY_APPLIED: policy or None}}}
        try:
            await self._parts.worker.client.patch(NODES, node.metadata.name, change, kind=PatchKind.MERGE)
        except Forbidden:
            self._tell()
            return self._postponed(node.metadata.name)
        except NotFound:
            log.debug("physical node is gone")
        if self._refusals.failures():
            self._refusals.forget()
            self._parts.granted()
        return None

    def _postponed(self, asker: str) -> float | None:
        now = self._parts.clock.monotonic()
        if now < self._not_before:
            # Another node was refused at the same time.
            return None
        self._asker, self._not_before = asker, now + self._refusals.next()
        return self._not_before - now

    def _tell(self) -> None:
        if not self._refusals.failures():
            text = f"physical nodes are not labelled {keys.POLICY_APPLIED}: the kubeconfig's user may not patch nodes"
            self._parts.binding.event("PolicyLabelForbidden", text)
