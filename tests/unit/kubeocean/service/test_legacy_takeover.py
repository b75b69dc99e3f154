"""What names no owner."""

from __future__ import annotations

import pytest

from kubeocean.service.legacy_takeover import is_unmarked
from tests.unit.kubeocean.builders import OWNER, unknown


@pytest.mark.parametrize(
    ("labels", "annotations", "unmarked"),
    [
        ({"kubeocean.io/managed-by": "kubeocean"}, {}, True),
        ({}, {}, False),
        ({"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/owner": "somebody"}, {}, False),
        ({"kubeocean.io/managed-by": "kubeocean"}, OWNER.annotations, False),
    ],
)
def test_only_what_a_kubeocean_made_and_nobody_owns_is_unmarked(
    labels: dict[str, str], annotations: dict[str, str], unmarked: bool
) -> None:
    assert is_unmarked(unknown({"metadata": {"name": "x", "labels": labels, "annotations": annotations}}).metadata) is unmarked
