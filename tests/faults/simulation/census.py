"""Counts what a process of the product keeps: the length of every dict, set, list and deque that is reachable from it, by its owner.

Invariant: the world around the process is not counted: what belongs to tests, modules and classes is not followed.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any

_CONTAINERS = (dict, set, frozenset, list, tuple, deque)
_GROWING = (dict, set, list, deque, OrderedDict)
_NOT_FOLLOWED = (type, types.ModuleType, str, bytes, int, float, types.CodeType)
_VALUES = (str, bytes, int, float)
"""Have a size, and lead to nothing."""
_OWN = ("vkubelet", "vkubelet_providers", "kubeocean")


def census(root: object) -> Counter[str]:
    """Returns the number of elements by the attribute that contains them, such as `Informer._deleted`, and of objects by type.

    What a container contains counts as `Owner.attribute[]`, so lists of a growing dict are counted by the dict's owner.
    """
    found: Counter[str] = Counter()
    known: set[int] = {id(root)}
    waiting: deque[tuple[object, str]] = deque([(root, "process")])
    while waiting:
        owner, label = waiting.popleft()
        if isinstance(owner, _GROWING):
            found[label] += len(owner)
        elif type(owner).__module__.partition(".")[0] in _OWN:
            found[type(owner).__qualname__] += 1
        for child, name in _children(owner, label):
            if id(child) not in known and _is_followed(child):
                known.add(id(child))
                waiting.append((child, name))
    return found


def _children(owner: object, label: str) -> Iterator[tuple[object, str]]:
    if isinstance(owner, _CONTAINERS):
        inner = label if label.endswith("[]") else f"{label}[]"
        yield from ((child, inner) for child in _elements(owner))
        return
    if isinstance(owner, types.FunctionType):
        for cell, name in zip(owner.__closure__ or (), owner.__code__.co_freevars, strict=True):
            yield cell, f"{owner.__qualname__}.{name}"
        yield owner.__defaults__, f"{owner.__qualname__}()"
        return
    named: set[int] = set()
    for name, child in _attributes(owner):
        named.add(id(child))
        yield child, f"{type(owner).__qualname__}.{name}"
    attributes = getattr(owner, "__dict__", None)
    for child in gc.get_referents(owner):
        if id(child) not in named and child is not attributes:
            yield child, label if isinstance(owner, types.CellType) else f"{type(owner).__qualname__}"


def _elements(owner: Any) -> Iterable[object]:
    return [*owner, *owner.values()] if isinstance(owner, dict) else list(owner)


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    yield from list(getattr(owner, "__dict__", {}).items())
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(owner, name):
                yield name, getattr(owner, name)


def _is_followed(child: object) -> bool:
    return not isinstance(child, _NOT_FOLLOWED) and not type(child).__module__.startswith("tests.")


def _referents(owner: object) -> Iterable[object]:
    if isinstance(owner, types.FunctionType):
        return [cell for cell, _ in _children(owner, "")]
    # The garbage collector does not know what a struct refers to that it need not traverse.
    fields: tuple[str, ...] = getattr(type(owner), "__struct_fields__", ())
    return [getattr(owner, name) for name in fields] if fields else gc.get_referents(owner)


def weight(root: object) -> int:
    """Returns the bytes of all objects that are reachable from the process, by the same rule; what shares memory counts once."""
    known: set[int] = {id(root)}
    waiting: list[object] = [root]
    total = 0
    while waiting:
        owner = waiting.pop()
        total += sys.getsizeof(owner)
        for child in _referents(owner):
            if id(child) not in known and (isinstance(child, _VALUES) or _is_followed(child)):
                known.add(id(child))
                waiting.append(child)
    return total
