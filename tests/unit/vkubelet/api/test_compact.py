"""Objects that are kept for a while are compacted, and read as before."""

from __future__ import annotations

import gc
from typing import Any

from attrs import define

from vkubelet.api.codec import encode_json
from vkubelet.api.compact import NOTHING, RECENT, compact_later, shared, shared_strings
from vkubelet.api.objects import Node, Pod, PodRef
from vkubelet.api.texts import Text


@define(eq=False)
class Kept:
    """Counts how often it is compacted, also after nothing else has it."""

    compacted: list[int]
    number: int

    def compact(self) -> None:
        self.compacted.append(self.number)


def pod(number: int, **metadata: Any) -> Pod:
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "image": "nginx", "ready": True, "restartCount": number}]}
    head = {"name": f"web-{number}", "namespace": "default", "uid": f"uid-{number}", "labels": {"app": "web"}, **metadata}
    spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "nginx", "args": ["a" * 200]}]}
    return Pod.decode(encode_json({"metadata": head, "spec": spec, "status": status}))


def test_what_is_kept_is_compacted_after_as_many_others() -> None:
    compacted: list[int] = []
    kept = [Kept(compacted, number) for number in range(10)]
    for each in kept:
        compact_later(each)
    for _ in range(RECENT - 1):
        compact_later(Kept(compacted, -1))
    assert compacted == list(range(9))


def test_what_was_replaced_meanwhile_costs_nothing() -> None:
    compacted: list[int] = []
    for number in range(2 * RECENT):
        compact_later(Kept(compacted, number))
    gc.collect()
    assert compacted == []


def test_pod_reads_the_same_when_it_is_compacted() -> None:
    owners = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-0", "controller": True}]
    one = pod(1, annotations={"b": "2", "a": "1"}, ownerReferences=owners, finalizers=["a/b"], creationTimestamp="2026-01-01T00:00:00Z")
    before, spec_hash, body = pod(1), one.spec_hash, (one.spec, one.status)
    one.compact()
    assert isinstance(one.spec_text, Text)
    assert (one.spec, one.status, one.spec_hash, one.node, one.phase) == (*body, spec_hash, "node-1", "Running")
    assert (one.spec_text, one.status_text) == (before.spec_text, before.status_text)
    assert one.metadata.annotations == {"a": "1", "b": "2"}
    assert [each.uid for each in one.metadata.owner_references] == ["u-0"]
    assert list(one.metadata.finalizers) == ["a/b"]
    one.compact()
    assert (one.spec, one.status) == body


def test_node_reads_the_same_when_it_is_compacted() -> None:
    text = encode_json({"metadata": {"name": "node-1"}, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"images": [{"names": ["x" * 300]}]}})
    one, other = Node.decode(text), Node.decode(text)
    one.compact()
    assert one == other
    assert (one.spec, one.status, one.key) == (other.spec, other.status, other.key)


def test_pods_share_what_they_have_equal() -> None:
    one, other = pod(1), pod(2)
    for each in (one, other):
        each.compact()
    assert one.metadata.labels is other.metadata.labels
    assert one.metadata.annotations is other.metadata.annotations is NOTHING
    assert one.node is other.node
    assert one.metadata.namespace is other.metadata.namespace


def test_labels_are_shared_in_any_order() -> None:
    assert shared_strings({"a": "1", "b": "2"}) is shared_strings({"b": "2", "a": "1"})
    long = "x" * 1000
    assert shared_strings({"a": long})["a"] == long


def test_the_first_of_equal_values_is_shared() -> None:
    first = frozenset({"a", "b"})
    assert shared(first) is shared(frozenset({"b", "a"}))


def test_what_is_shared_keeps_its_type() -> None:
    words = ("default", "web", "a-uid", "a-node")
    shared(words)
    assert type(shared(PodRef(*words))) is PodRef
