"""Store: the objects of one resource as last observed, by key and by named indexes.

Invariant: an index contains exactly the objects of the store; a reader gets frozen heads and its own list.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from vkubelet.api.objects import Key, KubeObject

T = TypeVar("T", bound=KubeObject)


class Store(Generic[T]):
    """Objects by key; `keep` decides on entry what is retained of an object, None for nothing; `indexes` are functions from an object to
    values."""

    def __init__(
        self, *, indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None, keep: Callable[[T], T | None] | None = None
    ) -> None:
        self._keep = keep
        self._functions = dict(indexes or {})
        self._objects: dict[Key, T] = {}
        self._indexes: dict[str, dict[str, T | dict[Key, T]]] = {name: {} for name in self._functions}
        """Most values of some indexes, such as UIDs, have one object each: a dict for each would need much memory."""

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[T]:
        """Iterates over the objects as of now; the store may change meanwhile."""
        return iter(list(self._objects.values()))

    def keys(self) -> Sequence[Key]:
        return list(self._objects)

    def by_index(self, index: str, value: str) -> list[T]:
        """Returns the objects for which the index function returned `value`. Raises KeyError for an unknown index."""
        found = self._indexes[index].get(value)
        if found is None:
            return []
        return list(found.values()) if isinstance(found, dict) else [found]

    def has(self, index: str, value: str) -> bool:
        """Checks that the index function returned `value` for any object; costs the same however many. Raises KeyError like `by_index`."""
        return value in self._indexes[index]

    def index_values(self, index: str) -> list[str]:
        """Returns the current values of an index. Raises KeyError for an unknown index."""
        return list(self._indexes[index])

    def put(self, obj: T) -> tuple[T | None, T | None]:
        """Stores an object; returns the previous object of its key, and the one stored now (None: `keep` retains nothing of it)."""
        new = self.admit(obj)
        old = self.remove(obj.key)
        if new is not None:
            self.place(new)
        return old, new

    def admit(self, obj: T) -> T | None:
        """Returns what `keep` would retain of it."""
        return self._keep(obj) if self._keep else obj

    def place(self, admitted: T) -> None:
        """Stores what `admit` returned, under a key that is free."""
        key = admitted.key
        self._objects[key] = admitted
        for index, value in self._filed(admitted):
            self._file(self._indexes[index], value, key, admitted)

    def remove(self, key: Key) -> T | None:
        """Removes an object and returns it."""
        old = self._objects.pop(key, None)
        if old is not None:
            for index, value in self._filed(old):
                self._unfile(self._indexes[index], value, key)
        return old

    def _filed(self, obj: T) -> Iterator[tuple[str, str]]:
        return ((index, value) for index, function in self._functions.items() for value in set(function(obj)))

    @staticmethod
    def _file(index: dict[str, T | dict[Key, T]], value: str, key: Key, obj: T) -> None:
        filed = index.get(value)
        if filed is None:
            index[value] = obj
        elif isinstance(filed, dict):
            filed[key] = obj
        else:
            index[value] = {filed.key: filed, key: obj}

    @staticmethod
    def _unfile(index: dict[str, T | dict[Key, T]], value: str, key: Key) -> None:
        filed = index[value]
        if isinstance(filed, dict):
            del filed[key]
        if not isinstance(filed, dict) or not filed:
            del index[value]
