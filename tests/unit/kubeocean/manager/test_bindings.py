"""What of a binding is counted."""

from __future__ import annotations

import pytest

from kubeocean.manager.bindings import state_of
from tests.unit.kubeocean.builders import unknown


@pytest.mark.parametrize(
    ("metadata", "status", "state"),
    [
        ({}, {}, "Pending"),
        ({}, {"phase": ""}, "Pending"),
        ({}, {"phase": "Ready"}, "Ready"),
        ({}, {"phase": "Failed"}, "Failed"),
        ({}, {"phase": "Strange"}, "Pending"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"phase": "Ready"}, "Deleting"),
    ],
)
def test_a_binding_is_counted_under_one_state(metadata: dict[str, str], status: dict[str, str], state: str) -> None:
    """Line 32: one that is being deleted counts as nothing else."""
    assert state_of(unknown({"metadata": {"name": "demo", **metadata}, "status": status})) == state
