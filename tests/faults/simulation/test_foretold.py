"""What `kubeocean plan` and `kubeocean explain` foretell is what the process then does: 200 random leases in the simulation.

Invariant: each lease is run once; the numbers of comparisons show that the tests compare something.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.faults.simulation.foretold import Findings, compared

LEASES = 200
LEAST: Mapping[str, int] = {
    **{"eviction": 250, "blocked": 20, "attempt": 10, "deadline": 10, "kept": 3},
    **{"offer": 500, "change": 500, "time": 500, "close": 200},
    **{"node": 3000, "policy": 2000, "pod": 2000},
}
"""Comparisons of each kind: fewer would mean that the leases no longer end, shrink or hand over."""
_COLLECTED_EVERY = 10

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def leases() -> Mapping[int, Findings]:
    """The findings about each lease, by its seed."""
    found = {}
    gc.disable()
    try:
        for seed in range(LEASES):
            found[seed] = compared(seed)
            if seed % _COLLECTED_EVERY == 0:
                gc.collect()
    finally:
        gc.enable()
    return found


@pytest.mark.parametrize("kind", LEAST)
def test_what_is_foretold_is_what_happens(leases: Mapping[int, Findings], kind: str) -> None:
    assert not [f"seed {seed}: {text}" for seed, each in leases.items() for text in each.differences if text.startswith(f"{kind}: ")]
    assert sum((each.counts for each in leases.values()), Counter[str]())[kind] >= LEAST[kind]


def test_no_process_fails_meanwhile(leases: Mapping[int, Findings]) -> None:
    assert not [text for each in leases.values() for text in each.differences if text.startswith("problems: ")]
