"""Remembers what pure functions read from the JSON of a spec, which several parts of the process ask for one after the other.

Invariant: what is remembered is bounded in number and in bytes: results of longer specs, which are rare, are computed each time.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Texts = TypeVarTuple("Texts")

REMEMBERED: Final = 512
"""Specs, of the pods that a burst has in flight."""
LONGEST: Final = 16_384
"""Bytes of JSON."""


def by_spec(read: Callable[[bytes, *Texts], T]) -> Callable[[bytes, *Texts], T]:
    """Remembers results of a function of a spec's JSON and texts; its callers must not change them. What it raises is not remembered."""
    remembered = lru_cache(REMEMBERED)(read)

    @wraps(read)
    def recalled(spec: bytes, *texts: *Texts) -> T:
        return (remembered if len(spec) <= LONGEST else read)(spec, *texts)

    return recalled
