"""Which hub serves a ResourceLeasingPolicy: each one that leases by it claims it with a finalizer of its own (pure).

Invariant: a claim is made and removed by its owner alone; so a deleted policy stays until the last hub has ended the pods that it leased.

Policies name a ClusterBinding by name, and the bindings of two hubs may have one name. Both lease, but the status has one writer: the hub
whose claim is first in the list. When that claim is removed the next hub writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeocean.model import keys


def claimed(finalizers: Sequence[str], owner: keys.Owner) -> Sequence[str]:
    """The finalizers with the claim of this owner, which is added last."""
    own = keys.policy_finalizer(owner)
    return finalizers if own in finalizers else [*finalizers, own]


def released(finalizers: Sequence[str], owner: keys.Owner, *, meant: bool) -> Sequence[str]:
    """The finalizers without the claim of this owner, and without the one of earlier versions, which names no owner.

    That one is removed with our claim, or when the policy is `meant` for our binding; but not while another hub has a claim.
    """
    own = keys.policy_finalizer(owner)
    left = [each for each in finalizers if each != own]
    if (meant or own in finalizers) and not any(map(_is_claim, left)):
        left = [each for each in left if each != keys.FINALIZER_POLICY]
    return left


def other_writer(finalizers: Sequence[str], owner: keys.Owner) -> str:
    """The mark of the other hub whose claim comes before ours; empty when this hub writes the status."""
    first = next(filter(_is_claim, finalizers), "")
    return "" if first in ("", keys.policy_finalizer(owner)) else first.removeprefix(keys.POLICY_CLAIM)


def _is_claim(finalizer: str) -> bool:
    return finalizer.startswith(keys.POLICY_CLAIM) and finalizer != keys.FINALIZER_POLICY
