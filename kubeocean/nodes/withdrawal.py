"""Decides whether a virtual node may be withdrawn: its cause is read live, and too many at once wait for an administrator.

Invariant: unknown does not mean deleted. A failed read raises, and then nothing is withdrawn (rule `unknown-is-not-gone`).
"""

import enum
from collections.abc import Mapping

from attrs import frozen

from kubeocean.leasing.policy import NodeFacts, Terms, matching
from kubeocean.model import keys
from kubeocean.model.crds import POLICIES, ClusterBinding, ResourceLeasingPolicy
from kubeocean.nodes.describe import eligible, stays_in_worker
from kubeocean.scope import WorkerScope
from vkubelet.api import names
from vkubelet.api.objects import NODES, Node
from vkubelet.errors import NotFound

_OVERRIDDEN = frozenset(
    {
        names.HOSTNAME,
        names.INSTANCE_TYPE,
        names.BETA_INSTANCE_TYPE,
        names.OS,
        names.ARCH,
        names.EXCLUDE_FROM_LOAD_BALANCERS,
        keys.NODE_TYPE,
        names.INSTANCE,
    }
)
"""Labels that a virtual node sets itself, whatever its physical node has."""


class Cause(enum.Enum):
    """The cause of a withdrawal, as read live."""

    NONE = "none"
    """The node is offered after all; the watch will observe it too."""
    TERMS = "terms"
    """Binding or policies exclude the node, which itself is unchanged."""
    NODE = "node"
    """The physical node was deleted, replaced, or changed so that it is no longer selected."""


@frozen
class Live:
    """The objects that decide about one node, read now."""

    node: Node | None
    binding: ClusterBinding | None
    policies: list[ResourceLeasingPolicy]


class Withdrawal:
    """Reads the clusters live, then applies the mass guard."""

    def __init__(self, scope: WorkerScope) -> None:
        self._scope = scope

    async def cause(self, physical: str, virtual: Node | None, *, declared_uid: str) -> Cause:
        """Reads everything that decides about the physical node. Raises ApiError when a read fails."""
        binding = await self._scope.binding.live()
        if binding is None or binding.deleting:
            return Cause.TERMS
        live = Live(await self._node(physical), binding, await self._policies())
        return judge(live, virtual, declared_uid=declared_uid, process_zone=self._scope.process_zone)

    def allowed(self, physical: str, cause: Cause, *, total: int) -> bool:
        """Checks whether the mass guard allows the withdrawal; the binding's status shows those it refuses."""
        if cause is Cause.TERMS:
            self.remove(physical)
            return True
        allowed = self._scope.guard.allow(physical, total)
        self.report()
        return allowed

    def remove(self, physical: str) -> None:
        """Drops the refused or confirmed withdrawal of a node that is offered again, or deleted."""
        refused = physical in self._scope.guard.refused
        self._scope.guard.forget(physical)
        if refused:
            self.report()

    def restore(self) -> None:
        """Restores the refusals of an earlier process, which the binding's status shows, until the first round over all nodes is done."""
        if self._scope.binding.held:
            self._scope.guard.trip()

    def release(self) -> None:
        """Releases the guard once every node was decided: only withdrawals refused since then wait."""
        if self._scope.guard.release():
            self.report()

    def confirm(self) -> frozenset[str]:
        """Confirms the refused withdrawals for an administrator; returns the physical nodes that may be withdrawn now."""
        refused = self._scope.guard.refused
        self._scope.guard.confirm()
        self.report()
        return refused

    def report(self) -> None:
        """Shows the refused withdrawals in the binding's status."""
        refused = sorted(self._scope.guard.refused)
        if not refused:
            self._scope.binding.set_held("")
            return
        shown = ", ".join(refused[:5]) + (" …" if len(refused) > 5 else "")
        text = f"{len(refused)} physical nodes disappeared at once, and their virtual nodes are kept ({shown}); to withdraw these"
        self._scope.binding.set_held(f"{text}, annotate ClusterBinding {self._scope.binding.name} with {keys.CONFIRM_RETIRE}=true")

    async def _node(self, physical: str) -> Node | None:
        try:
            return await self._scope.worker.client.get(NODES, physical)
        except NotFound:
            return None

    async def _policies(self) -> list[ResourceLeasingPolicy]:
        listing = await self._scope.worker.client.list(POLICIES)
        return [ResourceLeasingPolicy.parse(obj) for obj in listing.items]


def judge(live: Live, virtual: Node | None, *, declared_uid: str, process_zone: str) -> Cause:
    """Returns why a node is not offered. Pure."""
    node, binding = live.node, live.binding
    if node is None or binding is None or node.metadata.uid != declared_uid or node.metadata.deletion_timestamp:
        return Cause.NODE
    if not eligible(node.metadata.labels):
        return Cause.NODE
    terms = Terms.of(binding, process_zone=process_zone)
    facts = NodeFacts.of(node)
    if any(not policy.validate() for policy in matching(live.policies, node=facts, terms=terms)):
        return Cause.NONE
    return Cause.TERMS if virtual is not None and _labels_as_declared(node.metadata.labels, virtual) else Cause.NODE


def _labels_as_declared(labels: Mapping[str, str], virtual: Node) -> bool:
    """Checks that the physical node's labels are those at the last write of the virtual node."""
    now = {key: value for key, value in labels.items() if not _is_ours(key)}
    then = {key: virtual.metadata.labels.get(key, "") for key in names.owned_keys(virtual).labels if not _is_ours(key)}
    return now == then


def _is_ours(key: str) -> bool:
    """Checks that the label is not copied from the physical node."""
    return key in _OVERRIDDEN or key.startswith(keys.DOMAIN) or stays_in_worker(key)
