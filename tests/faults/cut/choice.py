"""How much of an enumeration runs: a part that a printed seed chooses, or everything.

Invariant: the part that a test runs depends on the seed and the name of the test alone, so one test is repeated by itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random, SystemRandom
from typing import Self, TypeVar

from attrs import frozen

T = TypeVar("T")

SEED, WHOLE, ONLY = "FAULTS_SEED", "FAULTS_WHOLE", "FAULTS_ONLY"
"""Environment: the seed, that everything runs, and parts of the names of the only cases that run, separated by commas."""
chosen: list[str] = []
"""Cases that the parts of names have chosen in this process."""
_FRESH = str(SystemRandom().randrange(10**6))


@frozen
class Choice:
    """`seed` decides unless the `whole` is wanted."""

    seed: str
    whole: bool
    random: Random

    @classmethod
    def of(cls, name: str) -> Self:
        """Of a test; without a seed in the environment CI has a fixed one."""
        seed = os.environ.get(SEED) or ("1" if os.environ.get("CI") else _FRESH)
        return cls(seed, WHOLE in os.environ, Random(f"{seed} {name}"))

    def part(self, items: Sequence[T], count: int) -> list[T]:
        """As many of them, in their order."""
        if only := os.environ.get(ONLY, ""):
            found = [item for item in items if any(part in str(item) for part in only.split(","))]
            chosen.extend(map(str, found))
            return found
        if self.whole or count >= len(items):
            return list(items)
        return [items[at] for at in sorted(self.random.sample(range(len(items)), count))]
