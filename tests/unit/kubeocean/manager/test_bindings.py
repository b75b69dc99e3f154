"""What of a binding is counted."""

from __future__ import annotations

import pytest

from kubeocean.manager.bindings import not_written, state_of
from tests.unit.kubeocean.builders import unknown
from vkubelet.errors import Forbidden, NotFound


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


def test_a_missing_namespace_is_named_with_its_remedy_as_the_manager_may_not_create_it() -> None:
    missing = not_written(NotFound("apply pods kubeocean-fake/x", 'namespaces "kubeocean-fake" not found'))
    assert 'namespaces "kubeocean-fake" not found' in missing.message and "helm upgrade" in missing.message
    assert "grant the manager the rights" in not_written(Forbidden("apply roles", "no")).message
