"""Compacts objects of the API that a cache has kept for a while, and shares what many of them have equal.

While a pod starts it is read and replaced many times; so an object is compacted only when `RECENT` others were decoded after it, if it
still exists then.

Invariant: an object reads the same before and after. What is shared is read-only for all readers, as heads of objects are.
"""

import sys
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

H = TypeVar("H", bound=Hashable)

RECENT: Final = 512
_OWN_REFERENCES: Final = 2
"""A variable, and the argument of `sys.getrefcount`."""
_SHARED: Final = 2048
"""Values that are remembered to be shared with those that follow."""
_LONGEST_STRING: Final = 80
"""Characters of names, UIDs and times, of which several objects have the same."""
NOTHING: Final[Mapping[str, str]] = {}
"""Labels or annotations of the many objects that have none."""


class Compactable(Protocol):
    """An object that can be stored in less memory, which changes nothing that is read from it."""

    def compact(self) -> None: ...


_recent: deque[Compactable] = deque()


def compact_later(obj: Compactable) -> None:
    """Compacts the object after `RECENT` others."""
    _recent.append(obj)
    if len(_recent) > RECENT:
        oldest = _recent.popleft()
        # Most of them were replaced by a later version meanwhile; then this function alone has it.
        if sys.getrefcount(oldest) > _OWN_REFERENCES:
            oldest.compact()


if TYPE_CHECKING:

    def shared(value: H) -> H:
        """Returns an equal value that others have too, so that one of both can be freed."""
        return value
else:
    # Tuples of different types with equal elements are equal, such as a PodRef and the keys of four annotations.
    shared = lru_cache(_SHARED, typed=True)(lambda value: value)

shared_string = sys.intern
"""Returns an equal text that others have too; as soon as none has it any more, it is freed."""


def shared_list(values: Sequence[H]) -> Sequence[H]:
    """Returns an equal list that others have too."""
    return _shared_list(tuple(values))


@lru_cache(_SHARED)
def _shared_list(values: tuple[H, ...]) -> Sequence[H]:
    return list(values)


def shared_strings(words: Mapping[str, str]) -> Mapping[str, str]:
    """Returns equal labels or annotations that others have too."""
    return _shared_strings(tuple(sorted(words.items()))) if words else NOTHING


@lru_cache(_SHARED)
def _shared_strings(items: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return {shared_string(key): shared_string(value) if len(value) <= _LONGEST_STRING else value for key, value in items}
