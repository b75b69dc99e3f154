"""Tests of vkubelet.pods.dispatch; what it delivers is in tests/integration/pods/test_dispatch.py."""

from __future__ import annotations

import pytest

from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.names import MIRROR_POD
from vkubelet.api.objects import Pod
from vkubelet.api.shapes import Json
from vkubelet.pods.dispatch import is_mirror

OWNER: Json = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": True}


@pytest.mark.parametrize(
    ("metadata", "mirror"),
    [
        ({"annotations": {MIRROR_POD: "x"}, "ownerReferences": [OWNER]}, True),
        ({"ownerReferences": [OWNER]}, False),
        ({"annotations": {MIRROR_POD: "x"}}, False),
        ({"annotations": {MIRROR_POD: "x"}, "ownerReferences": [{**OWNER, "kind": "ReplicaSet"}]}, False),
    ],
)
def test_mirror_pod_says_so_and_is_its_nodes(metadata: Json, mirror: bool) -> None:
    assert is_mirror(decode_object(Pod, encode_json({"metadata": metadata}))) is mirror
