"""Tests of kubeocean.networkpolicies.concerns: no change of a namespace is missed that changes what a policy allows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.networkpolicies.concerns import concerns, terms_for, terms_of
from kubeocean.networkpolicies.desired import desired
from kubeocean.networkpolicies.translate import Spaces
from tests.unit.kubeocean.networkpolicies.test_translate import MOUNT, NAMESPACES, from_, policy
from vkubelet.api.objects import Json, Unknown

KEYS, VALUES = st.sampled_from(["team", "env"]), st.sampled_from(["red", "blue"])
EXPRESSIONS = st.one_of(
    st.builds(lambda key, operator: {"key": key, "operator": operator}, KEYS, st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        KEYS,
        st.sampled_from(["In", "NotIn"]),
        st.lists(VALUES, min_size=1, unique=True),
    ),
)
SELECTORS = st.fixed_dictionaries(
    {}, optional={"matchLabels": st.dictionaries(KEYS, VALUES), "matchExpressions": st.lists(EXPRESSIONS, max_size=2)}
)
PEERS = st.one_of(
    st.just({"podSelector": {}}),
    st.builds(lambda selector: {"namespaceSelector": selector}, SELECTORS),
    st.just({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "late"}}}),
)
RULES = st.lists(st.builds(lambda side, peers: {side: peers}, st.just("to"), st.lists(PEERS)), max_size=2)


def is_found(of: Unknown, labels: Json) -> bool:
    """As a store finds it."""
    return bool(set(terms_of(of)) & set(terms_for(labels))) and concerns(of, labels)


@given(rules=RULES, labels=st.dictionaries(KEYS, VALUES), name=st.sampled_from(["late", "kube-system"]))
def test_every_policy_is_found_for_which_a_namespace_makes_a_difference(rules: list[Json], labels: Json, name: str) -> None:
    labels = {"kubernetes.io/metadata.name": name, **labels}
    ingress = [{"from": each["to"]} for each in rules]
    of = policy(policyTypes=["Ingress", "Egress"], ingress=ingress, egress=rules)
    others = {key: value for key, value in NAMESPACES.items() if key != name}

    def bodies(known: Any) -> Any:
        spaces = Spaces(mount=MOUNT, labels=known, prepared=frozenset({"shop", "ml", "late"}))
        return desired("shop", [of], others=(), spaces=spaces).bodies

    if bodies(others) != bodies({**others, name: labels}):
        assert is_found(of, labels)


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"team": "blue"}},
        {"matchExpressions": [{"key": "team", "operator": "In", "values": ["blue"]}]},
        {"matchExpressions": [{"key": "other", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]},
        {},
    ],
)
def test_policies_that_select_other_namespaces_are_not_found(selector: Json) -> None:
    assert not is_found(policy(**from_({"namespaceSelector": selector})), {"team": "red"})
    assert not is_found(policy(**from_({"podSelector": {}})), {"team": "red"})


def test_a_policy_with_too_many_selectors_is_found_without_comparing_them() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"team": f"t{number}"}}} for number in range(101)]
    assert terms_of(policy(**from_(*peers))) == [""] and is_found(policy(**from_(*peers)), {"team": "red"})
    values = [f"v{number}" for number in range(1000)]
    large = {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": values}]}}
    assert terms_of(policy(**from_(large))) == [""]
