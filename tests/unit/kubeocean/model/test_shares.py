"""Shares of namespaces: a guarantee is kept free for its namespace, a limit is never exceeded, and refusals name the field."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model.crds import ResourceLeasingPolicy
from kubeocean.model.shares import NamespaceShare, why_refused
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import ObjectMeta, Unknown
from vkubelet.api.quantity import Quantity, parse_resources


def policy(*shares: Mapping[str, object]) -> ResourceLeasingPolicy:
    body = {"spec": {"cluster": "prod", "namespaceShares": list(shares)}}
    return ResourceLeasingPolicy.parse(Unknown(ObjectMeta(name="p"), encode_json(body)))


A = {"namespace": "a", "guaranteed": {"cpu": "4"}, "limit": {"cpu": 8}}
REST = {"namespace": "*", "limit": {"cpu": "6"}}


@pytest.mark.parametrize(
    ("namespace", "request_", "used", "leased", "words"),
    [
        ("a", "4", {}, "10", ""),
        ("a", "9", {}, "10", "spec.namespaceShares[0].limit: namespace a would exceed its limit of cpu"),
        ("b", "6", {}, "10", ""),
        ("b", "7", {}, "20", "spec.namespaceShares[1].limit: namespace b would exceed its limit of cpu"),
        ("b", "3", {"c": "5"}, "10", "spec.namespaceShares: 4 of cpu are kept for namespaces a (guaranteed), requested: 3"),
        ("b", "3", {"c": "3", "a": "4"}, "10", ""),
        ("b", "1", {"c": "4", "a": "2"}, "8", "2 of cpu are kept for namespaces a"),
        ("a", "2", {"a": "2", "c": "9"}, "10", ""),
    ],
)
def test_a_pod_is_within_the_shares(namespace: str, request_: str, used: Mapping[str, str], leased: str, words: str) -> None:
    shares = policy(A, REST).shares
    held = {each: parse_resources({"cpu": amount}) for each, amount in used.items()}
    found = why_refused(shares, namespace, parse_resources({"cpu": request_}), used=held, leased=parse_resources({"cpu": leased}))
    assert found.startswith(words) if words.startswith("spec") else words in found and bool(found) == bool(words)


amounts = st.integers(0, 12)


@given(
    st.dictionaries(st.sampled_from("abc"), amounts, min_size=1),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4)), max_size=40),
)
def test_a_guarantee_that_fits_can_always_be_used_in_full(guaranteed: dict[str, int], wanted: list[tuple[str, int]]) -> None:
    """Whatever the order of the pods, a namespace gets its guarantee, and nothing is refused without a guarantee to keep."""
    leased = {"cpu": Quantity.of(sum(guaranteed.values()) + 5)}
    shares = [NamespaceShare(name, {"cpu": Quantity.of(amount)}) for name, amount in guaranteed.items()]
    used: dict[str, dict[str, Quantity]] = {}
    for namespace, amount in wanted:
        own = used.get(namespace, {}).get("cpu", Quantity.of(0))
        total = sum((each["cpu"] for each in used.values()), Quantity.of(0))
        refused = why_refused(shares, namespace, {"cpu": Quantity.of(amount)}, used=used, leased=leased)
        within = own + Quantity.of(amount) <= Quantity.of(guaranteed.get(namespace, 0))
        assert not (within and refused)
        if within:
            assert total + Quantity.of(amount) <= leased["cpu"], "it was kept free"
        if not refused and total + Quantity.of(amount) <= leased["cpu"]:
            used[namespace] = {"cpu": own + Quantity.of(amount)}


@pytest.mark.parametrize(
    ("shares", "field"),
    [
        ([{"namespace": "A!"}], "spec.namespaceShares[0].namespace"),
        ([{"namespace": "a"}, {"namespace": "a"}], "spec.namespaceShares[1].namespace"),
        ([{"namespace": "*", "guaranteed": {"cpu": "1"}}], "spec.namespaceShares[0].guaranteed"),
        ([{"namespace": "a", "guaranteed": {"cpu": "2"}, "limit": {"cpu": "1"}}], "spec.namespaceShares[0]"),
        ([{"namespace": "a", "limit": {"cpu": "lots"}}], "spec.namespaceShares[0].limit.cpu"),
    ],
)
def test_problems_name_the_field(shares: list[Mapping[str, object]], field: str) -> None:
    assert [problem.field for problem in policy(*shares).validate()] == [field]


def test_shares_are_shown_in_words() -> None:
    assert [str(each) for each in policy(A, REST).shares] == ["a: guaranteed cpu=4, limit cpu=8", "*: limit cpu=6"]
