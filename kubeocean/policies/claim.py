"""Decides which hub serves a ResourceLeasingPolicy: each one that leases by it claims it with its own finalizer. Pure.

Invariant: only its owner adds or removes a claim; so a deleted policy stays until the last hub has terminated the pods that it leased.

Policies refer to a ClusterBinding by name, and the bindings of two hubs may share a name. Both lease, but the status has one writer: the
hub whose claim is first in the list. When that claim is removed the next hub writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeocean.model import keys


def claimed(finalizers: Sequence[str], owner: keys.Owner) -> Sequence[str]:
    """Returns the finalizers with the claim of this owner, which is appended."""
    own = keys.policy_finalizer(owner)
    return finalizers if own in finalizers else [*finalizers, own]


def released(finalizers: Sequence[str], owner: keys.Owner, *, meant: bool) -> Sequence[str]:
    """Returns the finalizers without the claim of this owner, and without the claim of earlier versions, which names no owner.

    The latter is removed with our claim, or when the policy is `meant` for our binding; but not while another hub has a claim.
    """
    own = keys.policy_finalizer(owner)
    left = [each for each in finalizers if each != own]
    if (meant or own in finalizers) and not any(map(_is_claim, left)):
        left = [each for each in left if each != keys.FINALIZER_POLICY]
    return left


def other_writer(finalizers: Sequence[str], owner: keys.Owner) -> str:
    """Returns the mark of the other hub whose claim precedes ours; empty when this hub writes the status."""
    first = next(filter(_is_claim, finalizers), "")
    return "" if first in ("", keys.policy_finalizer(owner)) else first.removeprefix(keys.POLICY_CLAIM)


def _is_claim(finalizer: str) -> bool:
    return finalizer.startswith(keys.POLICY_CLAIM) and finalizer != keys.FINALIZER_POLICY
