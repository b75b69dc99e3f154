"""Computes which NetworkPolicies a change of a namespace concerns: those with a `namespaceSelector` that may select it. Pure.

A store files each policy by labels that the namespaces have which it selects, so a change costs nothing for policies that select others.

Invariant: a policy that selects a namespace by its labels is found by them; that one is found which selects none costs a reconcile.
"""

from collections.abc import Iterable, Iterator, Mapping

from kubeocean.networkpolicies.translate import MOST_PEERS, SIDES, cost_of, is_empty, types_of
from vkubelet.api.names import NAMESPACE_NAME, SYSTEM_NAMESPACE
from vkubelet.api.objects import JsonView, Unknown
from vkubelet.api.selectors import match_label_selector

_ANY = ""
"""Files a policy of which no label can be named."""


def terms_of(policy: Unknown) -> list[str]:
    """Returns what a policy is filed by: for each selector a label that a namespace needs, by its name or with a value."""
    selectors = _selectors(policy)
    return [_ANY] if _is_large(selectors) else [term for each in selectors for term in _terms(each)]


def terms_for(labels: Mapping[str, str]) -> Iterator[str]:
    """Yields everything by which policies may be filed that select a namespace with these labels."""
    yield _ANY
    for key, value in labels.items():
        yield key
        yield f"{key}={value}"


def concerns(policy: Unknown, labels: Mapping[str, str]) -> bool:
    """Checks that a policy which is filed by one of `terms_for` selects a namespace with these labels."""
    selectors = _selectors(policy)
    return _is_large(selectors) or any(match_label_selector(each, labels) for each in selectors)


def _selectors(policy: Unknown) -> list[JsonView]:
    spec: JsonView = policy.body.get("spec") or {}
    rules = ((kind, rule) for kind in types_of(spec) for rule in spec.get(kind.lower()) or ())
    peers = (peer for kind, rule in rules for peer in rule.get(SIDES[kind]) or ())
    return [peer["namespaceSelector"] for peer in peers if peer.get("namespaceSelector") is not None]


def _is_large(selectors: Iterable[JsonView]) -> bool:
    """Checks that only a reconcile, which compares no more than is permitted, may compare the selectors of a policy."""
    return sum(map(cost_of, selectors)) > MOST_PEERS


def _terms(selector: JsonView) -> list[str]:
    if is_empty(selector):
        # Translated without names; only whether the namespace of the hub's DNS exists makes a difference.
        return [f"{NAMESPACE_NAME}={SYSTEM_NAMESPACE}"]
    labels = selector.get("matchLabels") or {}
    if labels:
        key = NAMESPACE_NAME if NAMESPACE_NAME in labels else min(labels)
        return [f"{key}={labels[key]}"]
    for each in selector["matchExpressions"]:
        if each["operator"] == "In":
            return [f"{each['key']}={value}" for value in each.get("values") or ()]
        if each["operator"] == "Exists":
            return [each["key"]]
    return [_ANY]
