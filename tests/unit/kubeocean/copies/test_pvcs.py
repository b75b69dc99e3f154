"""Tests of kubeocean.copies.pvcs; the reconciler is driven against real clusters in tests/integration/kubeocean/test_volumes.py."""

from __future__ import annotations

import pytest

from kubeocean.copies.bodies import missing_marks
from kubeocean.copies.pvcs import expanded, physical_claim, unbound
from kubeocean.model import keys
from tests.unit.kubeocean.builders import OWNER, unknown
from vkubelet.api.objects import Json

META: Json = {"namespace": "default", "name": "data", "labels": {"app": "db"}, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}


def test_claim_is_bound_by_name_and_has_no_class() -> None:
    spec = {"storageClassName": "fast", "volumeName": "pv-1", "accessModes": ["ReadWriteOnce"], "dataSourceRef": {"name": "x"}}
    claim = physical_claim(unknown({"metadata": META, "spec": spec}), "copy-of-pv-1", owner=OWNER, namespace="mnt")
    assert claim["spec"] == {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "copy-of-pv-1"}
    assert (claim["metadata"]["namespace"], claim["metadata"]["name"]) == ("mnt", keys.physical_name("default", "data"))
    assert claim["metadata"]["labels"] == {"app": "db", **OWNER.labels}
    assert claim["metadata"]["annotations"] == {
        **OWNER.annotations,
        keys.VIRTUAL_NAME: "data",
        keys.VIRTUAL_NAMESPACE: "default",
        keys.VIRTUAL_VOLUME: "pv-1",
    }


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ({"spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}}, ""),
        (
            {"spec": {}, "status": {"phase": "Pending"}},
            "PersistentVolumeClaim default/data is not bound to a volume yet (it is Pending); the pod starts when it is bound",
        ),
        (
            {"spec": {"volumeName": "pv-1"}},
            "PersistentVolumeClaim default/data is not bound to a volume yet (it is Pending); the pod starts when it is bound",
        ),
        (
            {"spec": {"volumeName": "pv-1"}, "status": {"phase": "Lost"}},
            "PersistentVolumeClaim default/data is not bound to a volume yet (it is Lost); the pod starts when it is bound",
        ),
    ],
)
def test_only_a_bound_claim_can_be_used(claim: Json, why: str) -> None:
    assert unbound(unknown({"metadata": META, **claim})) == why


def test_claim_that_is_deleted_can_not_be_used() -> None:
    gone = {**META, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert unbound(unknown({"metadata": gone, "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}})).startswith(
        "PersistentVolumeClaim default/data is being deleted"
    )


def test_stripped_marks_are_found_and_those_of_others_are_no_matter() -> None:
    wanted = physical_claim(unknown({"metadata": META, "spec": {"volumeName": "pv-1"}}), "copy", owner=OWNER, namespace="mnt")
    whole = {**wanted["metadata"], "annotations": {**wanted["metadata"]["annotations"], "pv.kubernetes.io/bound-by-controller": "yes"}}
    assert missing_marks(unknown({"metadata": whole}).metadata, wanted) == {}
    stripped = {**whole, "labels": {"app": "db"}}
    assert missing_marks(unknown({"metadata": stripped}).metadata, wanted) == {"labels": OWNER.labels}


PENDING: Json = {"type": "FileSystemResizePending", "status": "True"}
NODE: Json = {"allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}}


@pytest.mark.parametrize(
    ("home", "there", "told"),
    [
        ({**NODE, "conditions": [PENDING]}, "2Gi", True),
        (NODE, "2Gi", True),
        ({"conditions": [PENDING]}, "2048Mi", True),
        ({**NODE, "allocatedResources": {"storage": "3Gi"}}, "2Gi", False),
        (NODE, "1Gi", False),
        # The controller at home is still at work.
        ({"allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}, "2Gi", False),
        ({"conditions": [{"type": "Resizing", "status": "True"}]}, "2Gi", False),
        ({}, "2Gi", False),
    ],
)
def test_new_size_is_told_at_home_when_only_the_node_was_waited_for(home: Json, there: str, told: bool) -> None:
    original = unknown({"metadata": META, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, **home}})
    assert (expanded(original, unknown({"metadata": META, "status": {"capacity": {"storage": there}}})) is not None) == told


def test_new_size_ends_what_was_said_of_the_resize_and_nothing_else() -> None:
    other = {"type": "ModifyVolumeError", "status": "True"}
    status = {"capacity": {"storage": "1Gi"}, **NODE, "conditions": [{"type": "Resizing", "status": "True"}, other, PENDING]}
    original = unknown({"metadata": {**META, "uid": "u", "resourceVersion": "8"}, "status": status})
    assert expanded(original, unknown({"metadata": META, "status": {"capacity": {"storage": "2Gi"}}})) == {
        "metadata": {"uid": "u", "resourceVersion": "8"},
        "status": {"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": None}, "conditions": [other]},
    }
