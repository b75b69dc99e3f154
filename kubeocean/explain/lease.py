"""The lease of one ClusterBinding as read at one moment: what the process of the binding decides from.

Invariant: a value contains everything that a decision needs, and nothing that only one process knows.
"""

from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from attrs import frozen

from kubeocean.explain.budgets import Budgets
from kubeocean.leasing.policy import Ended, NodeFacts, Terms, ended
from kubeocean.leasing.reclaim import LeasedPod
from kubeocean.leasing.record import LeaseRecord
from kubeocean.model.crds import ResourceLeasingPolicy
from vkubelet.api.quantity import Resources


@frozen(kw_only=True)
class LeasedNode:
    """A physical node that may be leased, and the state that its virtual node records."""

    facts: NodeFacts
    virtual: str
    """Name of the virtual node, whether or not it exists."""
    used: Resources
    """Requests of the worker's other pods on the node."""
    pods: Sequence[LeasedPod] = ()
    """The pods of the virtual node that use leased capacity and are not terminating."""
    record: LeaseRecord | None = None
    closed_since: datetime | None = None
    excluded: str = ""
    """Why it is never leased, whatever the policies are; empty for a node that may be."""


@frozen(kw_only=True)
class Lease:
    """Everything that decides about the nodes of one binding."""

    terms: Terms
    policies: Sequence[ResourceLeasingPolicy]
    """Those that name this binding, valid or not."""
    nodes: Sequence[LeasedNode]
    budgets: Budgets | None = None
    """The PodDisruptionBudgets of their pods; None where they may not be listed."""

    def zone_of(self, policy: ResourceLeasingPolicy) -> ZoneInfo:
        """Returns the time zone in force for a policy; that of the binding for one whose own is unknown."""
        try:
            return self.terms.zone_for(policy)
        except ValueError:
            return self.terms.zone

    def named(self, policy: str) -> ResourceLeasingPolicy | None:
        return next((each for each in self.policies if each.name == policy), None)

    def last_ended(self, node: LeasedNode, instant: datetime) -> Ended | None:
        """Returns the policy whose lease of the node expired last by the clock."""
        return ended(self.policies, node=node.facts, terms=self.terms, instant=instant)
