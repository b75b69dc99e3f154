"""Shares of hub namespaces in what a policy leases: a guaranteed minimum and a limit for each, and whether a pod is within them. Pure.

Invariant: amounts are sums over all virtual nodes about which the policy decides; a namespace within its guarantee is never refused.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Self

from attrs import frozen

from vkubelet.api.fields import Fields, Problem
from vkubelet.api.names import is_dns_label
from vkubelet.api.quantity import ZERO, Quantity, Resources, add_resources, sum_resources

EVERY: Final = "*"
"""In place of a name: each namespace that has no entry."""
FIELD: Final = "spec.namespaceShares"


@frozen
class NamespaceShare:
    """One entry of `spec.namespaceShares`; a resource that is not named is neither guaranteed nor limited."""

    namespace: str
    guaranteed: Resources = {}
    limit: Resources = {}

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        return cls(fields.text("namespace"), _amounts(fields.inner("guaranteed")), _amounts(fields.inner("limit")))

    def __str__(self) -> str:
        """Formatted for users: `team-a: guaranteed cpu=4, limit cpu=8`."""
        parts = (("guaranteed", self.guaranteed), ("limit", self.limit))
        named = (f"{name} {' '.join(f'{key}={amount}' for key, amount in amounts.items())}" for name, amounts in parts if amounts)
        return f"{self.namespace}: {', '.join(named)}"


def _amounts(fields: Fields) -> dict[str, Quantity]:
    found = {name: fields.quantity(name) for name in fields.value}
    return {name: amount for name, amount in found.items() if amount is not None}


def problems_of(shares: Sequence[NamespaceShare]) -> list[Problem]:
    """Returns what prevents the shares from having a meaning."""
    problems, seen = [], set()
    for at, share in enumerate(shares):
        path = f"{FIELD}[{at}]"
        if share.namespace != EVERY and not is_dns_label(share.namespace):
            problems.append(Problem(f"{path}.namespace", f"must be the name of a namespace, or {EVERY}"))
        if share.namespace in seen:
            problems.append(Problem(f"{path}.namespace", f"names {share.namespace} again; write one entry for each namespace"))
        seen.add(share.namespace)
        if share.namespace == EVERY and share.guaranteed:
            problems.append(Problem(f"{path}.guaranteed", f"has no meaning for {EVERY}; name a namespace"))
        for name in sorted({*share.guaranteed, *share.limit}):
            low, high = share.guaranteed.get(name, ZERO), share.limit.get(name)
            if low < ZERO or high is not None and high < low:
                problems.append(Problem(path, f"{name}: write 0 or more, and a limit that is not below the guarantee"))
    return problems


def why_refused(
    shares: Sequence[NamespaceShare], namespace: str, request: Resources, *, used: Mapping[str, Resources], leased: Resources
) -> str:
    """Returns why a pod of a namespace is refused, naming the field; "" when it is admitted.

    `used` are the requests of admitted pods by namespace, `leased` all that the policy leases now. A guarantee is kept free for its
    namespace: others may use what it leaves, and it may always use what it was guaranteed, as far as a node has room.
    """
    own = used.get(namespace, {})
    at = _entry(shares, namespace)
    share = shares[at] if at is not None else NamespaceShare(namespace)
    after = add_resources(own, request)
    for name, limit in share.limit.items():
        if request.get(name, ZERO) > ZERO and after[name] > limit:
            have = f"used: {own.get(name, ZERO)}, limited: {limit}"
            return f"{FIELD}[{at}].limit: namespace {namespace} would exceed its limit of {name}, requested: {request[name]}, {have}"
    total = sum_resources(used.values())
    for name, amount in request.items():
        if amount <= ZERO or name not in leased or after[name] <= share.guaranteed.get(name, ZERO):
            continue
        others = [each for each in shares if each.namespace != namespace and name in each.guaranteed]
        kept = sum((_unused(each, used, name) for each in others), ZERO)
        free = leased[name] - total.get(name, ZERO) - kept
        if kept > ZERO and amount > free:
            who = ", ".join(each.namespace for each in others if _unused(each, used, name) > ZERO)
            text = f"{FIELD}: {kept} of {name} are kept for namespaces {who} (guaranteed), requested: {amount}"
            return f"{text}, leased: {leased[name]}, used: {total.get(name, ZERO)}"
    return ""


def _entry(shares: Sequence[NamespaceShare], namespace: str) -> int | None:
    names = [share.namespace for share in shares]
    return next((names.index(each) for each in (namespace, EVERY) if each in names), None)


def _unused(share: NamespaceShare, used: Mapping[str, Resources], name: str) -> Quantity:
    return max(ZERO, share.guaranteed[name] - used.get(share.namespace, {}).get(name, ZERO))
