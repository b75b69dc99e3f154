"""The one function from namespaces of the hub to those of the worker, and which bindings it keeps apart."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.model.keys import ACCEPTED_AS, PER_NAMESPACE, PREFIX_LIMIT, SINGLE, Identity
from vkubelet.api.names import is_dns_label
from vkubelet.api.objects import ObjectMeta

labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
prefixes = st.from_regex(rf"[a-z0-9]([-a-z0-9]{{0,{PREFIX_LIMIT - 2}}}[a-z0-9])?", fullmatch=True)


def spread(prefix: str) -> Identity:
    return Identity("prod", prefix, PER_NAMESPACE)


@pytest.mark.parametrize(
    ("identity", "namespace", "wanted"),
    [
        (Identity("prod", "mnt"), "team-a", "mnt"),
        (Identity("prod", "mnt"), "", "mnt"),
        (spread("mnt"), "team-a", "mnt-team-a"),
        (spread("mnt"), "", "mnt"),
        (spread("mnt"), "a" * 59, f"mnt-{'a' * 59}"),
        (spread("mnt"), "a" * 60, f"mnt-{'a' * 26}-{hashlib.md5(b'mnt-' + b'a' * 60, usedforsecurity=False).hexdigest()}"),
    ],
)
def test_worker_namespace_of_a_hub_namespace(identity: Identity, namespace: str, wanted: str) -> None:
    assert identity.namespace_of(namespace) == wanted


@given(prefixes, st.lists(labels, min_size=2, max_size=8, unique=True))
def test_worker_namespaces_are_names_that_begin_with_the_prefix_and_differ(prefix: str, namespaces: list[str]) -> None:
    made = [spread(prefix).namespace_of(each) for each in namespaces]
    assert len(set(made)) == len(namespaces)
    assert all(is_dns_label(name) and spread(prefix).includes(name) for name in made)
    assert made == [spread(prefix).namespace_of(each) for each in namespaces]


@given(prefixes, prefixes, labels, labels)
def test_bindings_that_do_not_overlap_never_share_a_namespace(one: str, other: str, here: str, there: str) -> None:
    a, b = spread(one), spread(other)
    if one != other and not a.overlaps(b):
        assert a.namespace_of(here) != b.namespace_of(there)
    assert a.overlaps(b) == b.overlaps(a)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (spread("a"), spread("a-b"), True),
        (spread("a"), Identity("x", "a-b"), True),
        (Identity("x", "a"), Identity("y", "a-b"), False),
        (spread("a"), spread("ab"), False),
        (spread("a-b"), Identity("x", "a"), False),
    ],
)
def test_prefixes_that_extend_each_other_overlap(one: Identity, other: Identity, wanted: bool) -> None:
    assert one.overlaps(other) is wanted and other.overlaps(one) is wanted


@pytest.mark.parametrize("mapping", [SINGLE, PER_NAMESPACE])
def test_accepted_identity_is_read_back(mapping: str) -> None:
    noted = Identity("prod", "mnt", mapping)
    assert Identity.accepted(ObjectMeta(name="b", uid="u-1", annotations={ACCEPTED_AS: noted.note("u-1")})) == noted


def test_note_of_single_is_that_of_earlier_versions() -> None:
    assert Identity("prod", "mnt").note("u-1") == "prod_u-1_mnt"
