"""Which fields a write has changed.

Invariant: a field is named by its path; items of a list by their key, where they have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Body = dict[str, Any]
_NESTED = (dict, list)


def changed_paths(old: Body | None, new: Body | None) -> frozenset[str]:
    """Returns the paths of the fields that differ."""
    found: set[str] = set()
    _compare(old or {}, new or {}, "", found)
    found.discard("/metadata/resourceVersion")
    return frozenset(found)


def _compare(old: Any, new: Any, path: str, found: set[str]) -> None:
    """Adds the paths of two values that differ."""
    before, after = _members(old), _members(new)
    if before is None or after is None:
        if before is after or (old if before is None else new) is not None:
            found.add(path)
        before, after = before or {}, after or {}
    for name, other in after.items():
        one = before.get(name)
        # A write leaves most parts of an object as they are: the same objects in memory.
        if one is not other and one != other:
            if isinstance(one, _NESTED) or isinstance(other, _NESTED):
                _compare(one, other, f"{path}/{name}", found)
            else:
                found.add(f"{path}/{name}")
    for name, one in before.items():
        if one is not None and name not in after:
            if isinstance(one, _NESTED):
                _compare(one, None, f"{path}/{name}", found)
            else:
                found.add(f"{path}/{name}")


def _members(value: Any) -> Mapping[str, Any] | None:
    """Returns the fields of an object or the items of a list by their names, None for any other value."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {_label(item, number): item for number, item in enumerate(value)}
    return None


def _label(item: Any, number: int) -> str:
    """Returns the key by which an item of a list is known; the item itself where it is plain."""
    if not isinstance(item, dict):
        return str(item)
    return next((str(item[key]) for key in ("type", "name", "key", "uid", "ip") if key in item), str(number))
