"""Scenes of real clusters whose connections a test cuts and whose processes it kills; the fixtures of other folders that they need.

Invariant: what a test starts ends with the test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.cut.choice import Choice
from tests.integration.kubeocean.conftest import cable, scene
from tests.integration.manager.conftest import bind, computing
from tests.support.cable import Cable
from tests.support.gate import Gate
from vkubelet.testing.cluster import ControlPlane

__all__ = ["bind", "cable", "computing", "scene"]


@pytest.fixture
def choice(request: pytest.FixtureRequest) -> Choice:
    """What of its cases a test runs."""
    made = Choice.of(request.node.name)
    print(f"\n{request.node.name}: seed {made.seed}{', all cases' if made.whole else ''}")
    return made


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as made:
        yield made


@pytest.fixture
def hub_cable(hub: ControlPlane) -> Iterator[Cable]:
    """A line to the hub's API server; ask for it before `scene`."""
    with Cable(hub.port) as line:
        yield line
