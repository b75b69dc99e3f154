"""Tests of kubeocean.model.keys."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model.keys import ExpectedMetadata, Owner, label_value, physical_name, token_secret_name, vnode_name
from vkubelet.api.names import is_dns_label, is_dns_subdomain, is_label_value
from vkubelet.api.objects import ObjectMeta

OURS = Owner("hub-uid-1", "demo")


def test_physical_name_is_thirty_characters_dash_and_md5_of_namespace_and_name() -> None:
    assert physical_name("default", "web") == "web-f067a42af6a398f89214fae019fbf7d0"
    assert physical_name("default", "a" * 40) == "a" * 30 + "-c91405c4947406c1737f53ffd3b20211"
    assert physical_name("default", "web") != physical_name("other", "web")


def test_vnode_name_is_readable_until_it_is_too_long() -> None:
    assert vnode_name("demo", "node-1") == "vnode-demo-node-1"
    assert len(vnode_name("demo", "n" * 52)) == 63
    assert vnode_name("demo", "n" * 52) == "vnode-demo-" + "n" * 52
    long = vnode_name("demo", "n" * 53)
    assert len(long) == 63
    assert long.startswith("vnode-demo-" + "n" * 19 + "-")


names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?){0,3}", fullmatch=True)


@given(names, names)
def test_derived_names_are_valid(namespace: str, name: str) -> None:
    assert is_dns_subdomain(physical_name(namespace, name))
    assert is_dns_subdomain(token_secret_name(namespace, name, "uid-1"))
    assert len(physical_name(namespace, name)) <= 63


def test_no_secret_that_a_user_can_name_collides_with_a_token_secret() -> None:
    token = token_secret_name("default", "web", "u")
    assert token == physical_name("default", "web_token_u").replace("web_token_u-", "web-")
    assert not is_dns_subdomain("web_token_u")
    assert token_secret_name("default", "web", "u") != token_secret_name("default", "web", "v")


@pytest.mark.parametrize(
    ("text", "value"),
    [("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00-0000-0000-0000-0000-0000-0000-0001"), ("::1", "0000-0000-0000-0000-0000-0000-0000-0001")],
)
def test_addresses_become_label_values(text: str, value: str) -> None:
    assert label_value(text) == value


@given(st.text(max_size=100))
def test_label_value_is_always_valid_and_keeps_valid_ones(text: str) -> None:
    value = label_value(text)
    assert is_label_value(value)
    assert value == text or not is_label_value(text)


def test_owner_mark_tells_hubs_and_bindings_apart_and_fits_a_label() -> None:
    marks = {OURS.mark, Owner("hub-uid-2", "demo").mark, Owner("hub-uid-1", "other").mark}
    assert len(marks) == 3
    longest = Owner("c0ffee00-0000-0000-0000-000000000000", "c" * 24).mark
    assert is_label_value(longest)
    assert is_dns_label(OURS.mark)


def test_owner_is_the_one_that_the_annotations_name() -> None:
    stranger = Owner("hub-uid-2", "demo")
    assert Owner.of(ObjectMeta(annotations=stranger.annotations)) == stranger
    assert Owner.of(ObjectMeta(labels=OURS.labels)) is None


def test_expected_metadata_is_base64_of_json_as_kubeocean_writes_it() -> None:
    expected = ExpectedMetadata({"b": "2", "a": "1"}, {"note": "x"})
    text = expected.encode()
    assert json.loads(base64.b64decode(text)) == {"labels": {"a": "1", "b": "2"}, "annotations": {"note": "x"}}
    assert ExpectedMetadata.decode(text) == expected
    theirs = base64.b64encode(b'{"labels":null,"annotations":{"note":"x"},"taints":[{"key":"k"}]}').decode()
    assert ExpectedMetadata.decode(theirs) == ExpectedMetadata({}, {"note": "x"})


@pytest.mark.parametrize(
    "text", ["", "not base64!", base64.b64encode(b"[]").decode(), base64.b64encode(b'{"labels":{"a":1}}').decode(), "8J+Y"]
)
def test_damaged_expected_metadata_is_none(text: str) -> None:
    assert ExpectedMetadata.decode(text) is None


def test_long_values_are_kept_as_hashes_and_short_ones_whole() -> None:
    long, other = "x" * 20_000, "y" * 20_000
    text = ExpectedMetadata({}, {"a": long, "b": "short"}).encode()
    assert len(text) < 400
    kept = ExpectedMetadata.decode(text)
    assert kept is not None and kept.annotations["b"] == "short"
    assert kept == ExpectedMetadata({}, {"a": long, "b": "short"}).shortened != ExpectedMetadata({}, {"a": other, "b": "short"}).shortened
