"""Which Nodes without our label are adopted, and what is reported about the others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Lease, Node
from vkubelet.api.registration import OWNED
from vkubelet.api.shapes import Json
from vkubelet.clock import rfc3339_micro
from vkubelet.node.adoption import foreign_kubelet
from vkubelet.testing.clock import ManualClock

NOW = ManualClock().now()
OURS = "v1.34.0-vkubelet"


def node(version: str | None, **metadata: Json) -> Node:
    info = {} if version is None else {"nodeInfo": {"kubeletVersion": version}}
    return Node.decode(encode_json({"metadata": {"name": "n", **metadata}, "status": info}))


def lease(age: float | str | None, **spec: Json) -> Lease | None:
    if age is None:
        return None
    renewed = age if isinstance(age, str) else rfc3339_micro(NOW - timedelta(seconds=age))
    return Lease.decode(encode_json({"metadata": {"name": "n"}, "spec": {"renewTime": renewed, **spec}}))


@pytest.mark.parametrize(
    ("version", "age", "evidence"),
    [
        ("v1.34.4", None, "v1.34.4"),
        ("v1.34.4", 9000, "v1.34.4"),
        (OURS, 39, "is alive"),
        ("", 5, "is alive"),
        (None, -30, "is alive"),
        (None, "0000-01-01T00:00:00.000000Z", "is alive"),
        (OURS, 41, ""),
        (OURS, None, ""),
        ("", "", ""),
        (None, None, ""),
    ],
)
def test_a_node_is_adopted_only_when_no_other_kubelet_is_seen(version: str | None, age: float | str | None, evidence: str) -> None:
    refusal = foreign_kubelet(node(version), lease(age), version=OURS, now=NOW)
    assert evidence in refusal
    assert bool(refusal) == bool(evidence)
    assert not refusal or "node.adopt_foreign" in refusal


def test_a_node_that_lost_our_label_is_ours() -> None:
    live = node(OURS, annotations={OWNED: "{}"})
    assert foreign_kubelet(live, lease(1), version=OURS, now=NOW) == ""


def test_a_lease_that_lasts_longer_than_ours_counts_for_its_own_time() -> None:
    assert "is alive" in foreign_kubelet(node(OURS), lease(199, leaseDurationSeconds=200), version=OURS, now=NOW)
    assert foreign_kubelet(node(OURS), lease(201, leaseDurationSeconds=200), version=OURS, now=NOW) == ""
