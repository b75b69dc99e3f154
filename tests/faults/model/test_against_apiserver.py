"""The model answers random requests as a real API server does. The seed is fixed, so that a run fails by a change alone.

`VKUBELET_FAULTS_SEED` is another one; `python -m tests.faults sequences --seed 7 --count 500` compares more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.model.comparison import ALONE, compare
from vkubelet.testing.cluster import ControlPlane, Site
from vkubelet.testing.fixtures import running

SEQUENCES = 20
SEED = 1678


@pytest.fixture(scope="module")
def plane(cluster_site: Site, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    with running(ControlPlane("alone", cluster_site, options=ALONE), request) as started:
        yield started


@pytest.mark.timeout(600)
async def test_the_model_answers_as_a_real_api_server(plane: ControlPlane) -> None:
    seed = int(os.environ.get("VKUBELET_FAULTS_SEED") or SEED)
    differences = await compare(plane, seed, sequences=SEQUENCES)
    text = "\n".join(str(each) for each in differences[:20])
    assert not differences, f"seed {seed}: {len(differences)} differences\n{text}"
