"""Computes which NetworkPolicies of ours the worker namespace of a tenant should contain, from those of its hub namespace. Pure.

NetworkPolicies only allow, and what one allows no other can deny. So the worker's owner isolates the namespace by a policy without rules,
and ours open it: to the peers that policies of the hub allow, and, for the pods that none of these isolates, to pods of the namespace.

Invariant: no policy of ours adds to what a policy of the worker's owner allows to be sent, and equal inputs give equal bodies.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from kubeocean.copies.bodies import mirror_metadata
from kubeocean.model import keys
from kubeocean.networkpolicies.translate import EGRESS, INGRESS, MOST_PEERS, Budget, Spaces, Translation, translated, types_of
from kubeocean.rbac.tenants import NAME
from vkubelet.api.objects import NETWORKPOLICIES, Json, JsonView, Key, Unknown
from vkubelet.logformat import few

WITHIN: Final = "kubeocean-within-namespace"
"""Name of the policy by which pods of a tenant reach those that no policy of the hub isolates; more than one get a number."""
_MOST: Final = 32
"""Policies that are made of the pods which no policy of the hub selects."""
_OPPOSITE: Final = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}

_Requirement = tuple[str, str, tuple[str, ...]]


@frozen
class Desired:
    """NetworkPolicies of ours by name, and what of the hub's they do not carry over."""

    bodies: Mapping[str, Json]
    problems: Sequence[str] = ()


def desired(namespace: str, policies: Iterable[Unknown], *, others: Iterable[Unknown], spaces: Spaces, limited: bool = False) -> Desired:
    """Returns the desired state for a hub namespace with these policies; `others` are those in the worker namespace that are not ours.

    `limited`: by a label of that namespace, its owner alone decides what pods reach.
    """
    # One with a deletionTimestamp isolates in the hub until its finalizers are removed.
    live = sorted(policies, key=lambda each: each.metadata.name)
    foreign = sorted(others, key=lambda each: each.metadata.name)
    limits = [each for each in foreign if EGRESS in types_of(_spec(each))]
    budget = Budget()
    made = list(_translations(live, spaces, budget, carries_egress=not (limits or limited)))
    problems = [problem for each in made for problem in each.problems]
    if budget.left_out:
        problems.append(_too_many_peers(namespace, sorted(budget.left_out)))
    if (limits or limited) and any(EGRESS in types_of(_spec(each)) for each in live):
        problems.append(_left_to_owner(namespace, limits, spaces))
    isolating = [each.selector for each in made if INGRESS in each.types]
    openers = [each for each in foreign if INGRESS in types_of(_spec(each)) and _spec(each).get("ingress")]
    if isolating and openers:
        problems.append(_opened(namespace, openers))
    bodies = {each.body["metadata"]["name"]: each.body for each in made}
    if any(each.metadata.name == NAME and each not in openers for each in foreign):
        selectors = complement(isolating)
        if selectors is None:
            text = f"the pods that no NetworkPolicy of namespace {namespace} isolates cannot be selected by {_MOST} policies"
            problems.append(f"{text}: they do not reach one another in the worker; select pods by fewer labels")
        bodies |= {
            (body := _within(namespace, selector, at, spaces))["metadata"]["name"]: body for at, selector in enumerate(selectors or ())
        }
    return Desired(bodies, tuple(problems))


def within_alone(namespace: str, others: Iterable[Unknown], spaces: Spaces) -> Desired:
    """Returns the desired state while the hub refuses to list its policies: pods of a namespace reach one another."""
    return desired(namespace, (), others=others, spaces=spaces)


def complement(selectors: Iterable[JsonView]) -> list[Json] | None:
    """Returns selectors that together select what none of the given ones does; None for more than `_MOST`."""
    found: set[frozenset[_Requirement]] = {frozenset()}
    for selector in selectors:
        opposites = {_opposite(requirement) for requirement in _requirements(selector)}
        kept = {before for before in found if not before.isdisjoint(opposites)}
        rest = found - kept
        # Each of the rest gets every opposite, so there are at least as many: this bounds the work, whatever a tenant writes.
        if rest and len(opposites) > _MOST:
            return None
        made = {before | {opposite} for before in rest for opposite in opposites}
        # What has further requirements selects nothing more.
        found = kept | {each for each in made if not any(other < each for other in kept)}
        if len(found) > _MOST:
            return None
    return [_selector(sorted(each)) for each in sorted(found, key=sorted)]


def _translations(policies: Iterable[Unknown], spaces: Spaces, budget: Budget, *, carries_egress: bool) -> Iterable[Translation]:
    for policy in policies:
        types = [each for each in types_of(_spec(policy)) if each == INGRESS or (each == EGRESS and carries_egress)]
        if types:
            yield translated(policy, spaces, types=types, budget=budget)


def _within(namespace: str, selector: Json, at: int, spaces: Spaces) -> Json:
    space = spaces.mount.namespace_of(namespace)
    metadata = mirror_metadata(Key(namespace, ""), Key(space, f"{WITHIN}-{at}" if at else WITHIN), spaces.mount)
    spec = {"podSelector": selector, "policyTypes": [INGRESS], "ingress": [{"from": [{"podSelector": {}}]}]}
    return {"apiVersion": NETWORKPOLICIES.api_version, "kind": NETWORKPOLICIES.kind, "metadata": metadata, "spec": spec}


def _requirements(selector: JsonView) -> list[_Requirement]:
    labels = [(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    return labels + [(each["key"], each["operator"], tuple(each.get("values") or ())) for each in selector.get("matchExpressions") or ()]


def _opposite(requirement: _Requirement) -> _Requirement:
    key, operator, values = requirement
    return key, _OPPOSITE[operator], values


def _selector(requirements: Sequence[_Requirement]) -> Json:
    expressions = [
        {"key": key, "operator": operator, **({"values": list(values)} if values else {})} for key, operator, values in requirements
    ]
    return {"matchExpressions": expressions} if expressions else {}


def _spec(policy: Unknown) -> JsonView:
    spec: JsonView = policy.body.get("spec") or {}
    return spec


def _too_many_peers(namespace: str, left_out: Sequence[str]) -> str:
    text = f"the NetworkPolicies of namespace {namespace} have more than {MOST_PEERS} peers by namespaceSelector, or large ones"
    return f"{text}: nothing is allowed by those in excess, in NetworkPolicy {few(left_out)}; select namespaces by fewer labels and peers"


def _left_to_owner(namespace: str, limits: Sequence[Unknown], spaces: Spaces) -> str:
    by = f"NetworkPolicy {few(str(each.key) for each in limits)}" if limits else f"the label {keys.OWNER_LIMITS_EGRESS}"
    text = f"spec.egress of the NetworkPolicies of namespace {namespace} is not carried over"
    text += f": in namespace {spaces.mount.namespace_of(namespace)} of the worker {by} limits egress"
    return f"{text}, and policies only add to one another; its owner decides what pods reach"


def _opened(namespace: str, openers: Sequence[Unknown]) -> str:
    text = f"NetworkPolicy {few(str(each.key) for each in openers)} of the worker"
    return (
        f"{text} allows connections beside those that the policies of namespace {namespace} allow; its owner removes spec.ingress from it"
    )
