"""Which bindings must not be served beside one another."""

from __future__ import annotations

import pytest

from kubeocean.binding.conditions import CONNECTIVITY_FAILED
from kubeocean.model.crds import ClusterBinding
from kubeocean.worker.cluster import Mount
from kubeocean.worker.connect import changed_identity, older_of_like_id, older_that_overlaps, prove
from tests.support.memory_api import MemoryApi
from tests.unit.kubeocean.builders import OWNER, unknown
from vkubelet.api.objects import Unknown
from vkubelet.client.transport import Call
from vkubelet.errors import Forbidden, ServerError

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def binding(name: str, cluster_id: str, created: str) -> Unknown:
    return unknown({"metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": created}, "spec": {"clusterID": cluster_id}})


def older(own: Unknown, *others: Unknown) -> str:
    return older_of_like_id(ClusterBinding.parse(own), [own, *others])


@pytest.mark.parametrize(("mine", "theirs"), [("a", "a"), ("a-b", "a"), ("a", "a-b")])
def test_younger_binding_gives_way_and_the_older_one_is_left_in_peace(mine: str, theirs: str) -> None:
    young, old = binding("young", mine, LATE), binding("old", theirs, EARLY)
    assert older(young, old) == "old"
    assert older(old, young) == ""


@pytest.mark.parametrize(("mine", "theirs"), [("a", "b"), ("ab", "a"), ("a-b", "a-c"), ("a", "")])
def test_cluster_ids_that_can_not_be_mistaken_live_side_by_side(mine: str, theirs: str) -> None:
    assert older(binding("young", mine, LATE), binding("old", theirs, EARLY)) == ""


def test_of_two_made_in_the_same_second_the_name_decides_the_same_way_for_both() -> None:
    one, two = binding("one", "a", EARLY), binding("two", "a", EARLY)
    assert (older(one, two), older(two, one)) == ("", "one")


def test_binding_that_is_not_listed_yet_is_not_judged() -> None:
    own = binding("own", "a", LATE)
    assert older_of_like_id(ClusterBinding.parse(own), [binding("old", "a", EARLY)]) == ""


def accepted(name: str, cluster_id: str, created: str) -> Unknown:
    obj = binding(name, cluster_id, created).body
    obj["metadata"]["annotations"] = {"kubeocean.io/accepted-as": f"{cluster_id}_uid-{name}"}
    return unknown(obj)


def test_one_that_is_served_counts_as_older_whatever_its_name_or_age() -> None:
    served, other = accepted("z", "a", LATE), binding("a", "a", EARLY)
    assert older(served, other) == "" and older(other, served) == "z"


def test_annotation_copied_with_the_yaml_of_another_says_nothing() -> None:
    copied = accepted("one", "a", LATE).body
    copied["metadata"] |= {"name": "two", "uid": "uid-two"}
    assert older(unknown(copied), binding("one", "a", EARLY)) == "one"


def test_changed_identity_is_refused_by_the_one_that_was_accepted() -> None:
    changed = accepted("one", "a", EARLY).body
    changed["spec"]["clusterID"] = "b"
    failure = changed_identity(ClusterBinding.parse(unknown(changed)))
    assert failure is not None and failure.reason == "ValidationFailed" and "found by a" in failure.message
    moved = accepted("one", "a", EARLY).body
    moved["metadata"]["annotations"]["kubeocean.io/accepted-as"] += "_mnt"
    moved["spec"]["mountNamespace"] = "other"
    failure = changed_identity(ClusterBinding.parse(unknown(moved)))
    assert failure is not None and "in namespace mnt" in failure.message
    assert changed_identity(ClusterBinding.parse(accepted("one", "a", EARLY))) is None
    assert changed_identity(ClusterBinding.parse(binding("one", "a", EARLY))) is None


def test_id_that_was_accepted_stays_taken_when_its_binding_asks_for_another() -> None:
    changed = accepted("one", "a", EARLY).body
    changed["spec"]["clusterID"] = "b"
    for wanted in ("a", "b", "a-x"):
        assert older(binding("two", wanted, LATE), unknown(changed)) == "one"


def spread(name: str, mount: str, created: str, mapping: str = "PerNamespace") -> Unknown:
    obj = binding(name, name, created).body
    obj["spec"] |= {"mountNamespace": mount, "namespaceMapping": mapping}
    return unknown(obj)


@pytest.mark.parametrize(
    ("mine", "theirs", "wanted"),
    [
        (("lent", "PerNamespace"), ("lent-eu", "PerNamespace"), "old"),
        (("lent-eu", "Single"), ("lent", "PerNamespace"), "old"),
        (("lent", "Single"), ("lent-eu", "PerNamespace"), ""),
        (("lent", "Single"), ("lent-eu", "Single"), ""),
        (("lent", "PerNamespace"), ("other", "PerNamespace"), ""),
    ],
)
def test_no_prefix_of_namespaces_extends_another(mine: tuple[str, str], theirs: tuple[str, str], wanted: str) -> None:
    young, old = spread("young", mine[0], LATE, mine[1]), spread("old", theirs[0], EARLY, theirs[1])
    assert older_that_overlaps(ClusterBinding.parse(young), [young, old]) == wanted
    assert older_that_overlaps(ClusterBinding.parse(old), [young, old]) == ""


def test_another_mapping_is_no_changed_identity_and_the_accepted_one_is_served() -> None:
    changed = accepted("one", "a", EARLY).body
    changed["spec"] |= {"mountNamespace": "mnt", "namespaceMapping": "PerNamespace"}
    changed["metadata"]["annotations"] = {"kubeocean.io/accepted-as": "a_uid-one_mnt"}
    found = ClusterBinding.parse(unknown(changed))
    assert changed_identity(found) is None and found.mapping == "Single" and found.requested_mapping == "PerNamespace"


class FailingList(MemoryApi):
    """A worker that refuses its namespace, and fails to list its nodes."""

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if call.path == "/version":
            return b"{}"
        raise ServerError(call.attempt, "etcd") if call.path.endswith("/nodes") else Forbidden(call.attempt, "no")


async def test_a_worker_that_cannot_list_its_nodes_is_named_as_the_cause() -> None:
    failure = await prove(FailingList().client(), Mount(OWNER, "mnt"), hold=None, nodes={"uid-of-node-1"})
    assert failure is not None and failure.reason == CONNECTIVITY_FAILED
    assert "cannot list the nodes of the worker cluster" in failure.message and "check its API server" in failure.message
