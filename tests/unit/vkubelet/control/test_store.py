"""The store and its indexes."""

import pytest

from vkubelet.api.objects import Key, ObjectMeta, Pod
from vkubelet.control.store import Store


def pod(name: str, node: str = "", *, namespace: str = "default", uid: str = "u", version: str = "1") -> Pod:
    return Pod(ObjectMeta(name=name, namespace=namespace, uid=uid, resource_version=version), node, "", b"{}", b"{}")


def by_node() -> Store[Pod]:
    return Store(indexes={"node": lambda pod: [pod.node] if pod.node else []})


def test_put_tells_what_was_there_and_what_is() -> None:
    store = Store[Pod]()
    first, second = pod("a"), pod("a", version="2")
    assert store.put(first) == (None, first)
    assert store.put(second) == (first, second)
    assert store.get(Key("default", "a")) is second
    assert len(store) == 1
    assert Key("default", "a") in store


def test_remove_gives_the_object_once() -> None:
    store = Store[Pod]()
    store.put(pod("a"))
    assert store.remove(Key("default", "a")) is not None
    assert store.remove(Key("default", "a")) is None
    assert list(store) == []


def test_index_follows_an_object_from_value_to_value() -> None:
    store = by_node()
    store.put(pod("a"))
    assert store.index_values("node") == []
    store.put(pod("a", "n1"))
    store.put(pod("b", "n1"))
    assert [each.metadata.name for each in store.by_index("node", "n1")] == ["a", "b"]
    store.put(pod("a", "n2"))
    assert [each.metadata.name for each in store.by_index("node", "n1")] == ["b"]
    store.remove(Key("default", "b"))
    assert store.index_values("node") == ["n2"]
    assert store.has("node", "n2") and not store.has("node", "n1")


def test_index_lists_objects_of_a_value_in_the_order_in_which_they_came() -> None:
    store = by_node()
    for name in ("a", "b", "c"):
        store.put(pod(name, "n1"))
    store.put(pod("a", "n1", version="2"))
    assert [each.metadata.name for each in store.by_index("node", "n1")] == ["b", "c", "a"]
    for name in ("c", "a"):
        store.remove(Key("default", name))
    assert [each.metadata.name for each in store.by_index("node", "n1")] == ["b"]
    store.put(pod("b", "n1", version="3"))
    store.put(pod("d", "n1"))
    assert [each.metadata.resource_version for each in store.by_index("node", "n1")] == ["3", "1"]


def test_object_is_filed_once_under_a_value_given_twice() -> None:
    store = Store[Pod](indexes={"twice": lambda pod: ["x", "x", "y"]})
    store.put(pod("a"))
    assert len(store.by_index("twice", "x")) == 1
    store.remove(Key("default", "a"))
    assert store.index_values("twice") == []


def test_unknown_index_is_an_error_not_an_empty_answer() -> None:
    with pytest.raises(KeyError):
        by_node().by_index("nodes", "n1")
    with pytest.raises(KeyError):
        by_node().has("nodes", "n1")


def test_keep_drops_at_the_door_and_drops_what_it_kept_before() -> None:
    store = Store[Pod](keep=lambda pod: pod if pod.node == "ours" else None)
    assert store.put(pod("a", "theirs")) == (None, None)
    kept = pod("b", "ours")
    store.put(kept)
    assert store.put(pod("b", "theirs", version="2")) == (kept, None)
    assert len(store) == 0


def test_keep_may_retain_less_than_the_object() -> None:
    store = Store[Pod](keep=lambda pod: Pod(pod.metadata, pod.node, pod.phase, b"{}", b"{}"))
    whole = Pod(ObjectMeta(name="a", uid="u"), "n", "Running", b'{"nodeName":"n"}', b"{}")
    _, kept = store.put(whole)
    assert kept is not None
    assert kept.spec == {}


def test_reader_may_change_the_store_while_reading() -> None:
    store = by_node()
    for name in "abc":
        store.put(pod(name, "n"))
    for each in store:
        store.remove(each.key)
    for key in store.keys():  # noqa: SIM118
        store.remove(key)
    assert len(store) == 0
