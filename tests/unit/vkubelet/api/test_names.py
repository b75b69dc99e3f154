"""Names stay valid however long their source is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.names import (
    INSTANCE,
    OWNED,
    Owned,
    hashed,
    instance_of,
    is_dns_label,
    is_dns_subdomain,
    is_label_value,
    owned_keys,
    short_name,
)
from vkubelet.api.objects import Node

SUBDOMAINS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?){0,3}", fullmatch=True)


def test_hashed_name_is_prefix_and_md5() -> None:
    assert hashed("abcdef", "hello", keep=3) == "abc-5d41402abc4b2a76b9719d911017c592"


def test_short_names_stay_and_long_ones_fit_a_label() -> None:
    assert short_name("a" * 63) == "a" * 63
    assert len(short_name("a" * 64)) == 63
    assert short_name("a" * 64) != short_name("a" * 65)


@given(SUBDOMAINS, st.integers(1, 40))
def test_hash_of_a_valid_name_is_a_valid_name(name: str, keep: int) -> None:
    assert is_dns_subdomain(hashed(name, name, keep=keep))


def test_kinds_of_names() -> None:
    assert is_dns_label("a-1") and not is_dns_label("a.b") and not is_dns_label("a" * 64) and not is_dns_label("-a")
    assert is_dns_subdomain("a.b-1") and not is_dns_subdomain("a..b") and not is_dns_subdomain("A") and not is_dns_subdomain("a" * 254)
    assert is_label_value("") and is_label_value("A_b.c-1") and not is_label_value("_a") and not is_label_value("a" * 64)
    assert not is_dns_label("a\n") and not is_label_value("a\n")


def node(note: str | None = None, **labels: str) -> Node:
    annotations = {} if note is None else {OWNED: note}
    return decode_object(Node, encode_json({"metadata": {"name": "n1", "labels": labels, "annotations": annotations}}))


@pytest.mark.parametrize("damage", ["{", "[]", '{"labels": 3}', '"x"', '{"labels": ["a"], "taints": [5]}'])
def test_damaged_annotation_owns_nothing(damage: str) -> None:
    assert owned_keys(node(damage)) == owned_keys(node()) == Owned()


def test_recorded_keys_are_ours_and_without_resources_all_of_those_are() -> None:
    assert owned_keys(node('{"labels": ["a"], "resources": ["cpu"]}')) == Owned(labels=("a",), resources=("cpu",))
    assert owned_keys(node('{"taints": ["t"]}')) == Owned(taints=("t",), resources=None)


def test_instance_is_that_of_the_label_or_else_of_the_annotation() -> None:
    note = json.dumps({"instance": "noted"})
    assert instance_of(node(note, **{INSTANCE: "labelled"})) == "labelled"
    assert instance_of(node(note)) == "noted"
    assert instance_of(node("{")) == instance_of(node('{"instance": 5}')) == ""
