"""Labels each physical node with the policy that leases it, for the worker's owner, where the optional permission was granted.

Invariant: the label of a policy for another binding stays; after a refusal nothing is written before the permission is confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kubeocean.model import keys
from kubeocean.policies.reconciler import ResourceLeasingPolicyReconciler
from kubeocean.scope import WorkerScope
from kubeocean.worker.connect import may
from vkubelet.api.objects import Node
from vkubelet.client.resources import NODES
from vkubelet.client.rest import PatchKind
from vkubelet.control.backoff import Backoff
from vkubelet.errors import Forbidden, NotFound

log = logging.getLogger(__name__)

_LABELLING = {"verb": "patch", "resource": NODES.plural}

FIRST, LIMIT = 1.0, 300.0
"""Seconds until the permission is checked again after a refusal, at first and at most."""


class PolicyLabel:
    """The label `kubeocean.io/policy-applied`."""

    def __init__(self, scope: WorkerScope, *, policies: ResourceLeasingPolicyReconciler, granted: Callable[[], None]) -> None:
        self._scope = scope
        self._policies = policies
        self._granted = granted
        self._refusals = Backoff(first=FIRST, limit=LIMIT)
        self._not_before = 0.0
        self._retrying = ""

    async def show(self, node: Node | None, policy: str) -> float | None:
        """Sets the label of the node, or removes it with "". Returns the seconds until the next attempt after a refusal, for one node at
        a time.
        """
        current = node.metadata.labels.get(keys.POLICY_APPLIED, "") if node is not None else policy
        if node is None or current == policy or self._policies.is_foreign(current):
            return None
        left = self._not_before - self._scope.host.clock.monotonic()
        if left > 0:
            return left if node.metadata.name == self._retrying else None
        if self._refusals.failures() and not await may(self._scope.worker.client, _LABELLING):
            return self._postponed(node.metadata.name)
        change = {"metadata": {"uid": node.metadata.uid, "labels": {keys.POLICY_APPLIED: policy or None}}}
        try:
            labelled = await self._scope.worker.client.patch(NODES, node.metadata.name, change, kind=PatchKind.MERGE)
            # A withdrawal that follows at once must know of the label, or it would stay in the worker.
            self._scope.worker.nodes.adopt(labelled)
        except Forbidden:
            self._announce()
            return self._postponed(node.metadata.name)
        except NotFound:
            log.debug("physical node is deleted")
        if self._refusals.failures():
            self._refusals.reset()
            self._granted()
        return None

    def _postponed(self, node: str) -> float | None:
        now = self._scope.host.clock.monotonic()
        if now < self._not_before:
            # Another node was refused at the same time.
            return None
        self._retrying, self._not_before = node, now + self._refusals.next()
        return self._not_before - now

    def _announce(self) -> None:
        if not self._refusals.failures():
            text = f"cannot label physical nodes with {keys.POLICY_APPLIED}: the kubeconfig's user may not patch nodes; grant that right"
            self._scope.binding.event("PolicyLabelForbidden", text)
