"""Server-side apply, as far as the product uses it: one manager, by force, on objects that it created.

Invariant: fields of others stay; a field that the manager applied before and omits now is removed. Owners of fields are not recorded.
"""

from __future__ import annotations

from typing import Any

from tests.faults.model.patches import strategic
from tests.faults.model.shapes import ListOf, MapOf, Shape, Struct

Body = dict[str, Any]


def apply_of(known: Body, patch: Body, before: Body, shape: Shape | None) -> Body:
    """Returns the object after the apply; `before` is what the manager applied last."""
    return strategic(_without(known, before, patch, shape), _replacing(patch, shape), shape)


def _without(known: Any, before: Any, patch: Any, shape: Shape | None) -> Any:
    """Removes what was applied before and is not applied now."""
    if not (isinstance(known, dict) and isinstance(before, dict) and isinstance(patch, dict)):
        return known
    result = dict(known)
    for key, value in before.items():
        if key not in known:
            continue
        field = shape.fields.get(key) if isinstance(shape, Struct) else None
        inner = field.shape if field is not None else shape.value if isinstance(shape, MapOf) else None
        if key not in patch:
            if not isinstance(value, dict):
                del result[key]
                continue
            result[key] = _without(known[key], value, {}, inner)
            if not result[key]:
                del result[key]
        elif isinstance(value, dict):
            result[key] = _without(known[key], value, patch[key], inner)
        elif isinstance(value, list) and field is not None and field.merge_key and isinstance(inner, ListOf):
            result[key] = _items_without(known[key], value, patch[key], by=field.merge_key, shape=inner.item)
    return result


def _items_without(known: list[Body], before: list[Body], patch: list[Body], *, by: str, shape: Shape) -> list[Body]:
    """Removes items that were applied before and are not applied now, and within the others what is not applied any more."""
    then, now = {each[by]: each for each in before}, {each[by]: each for each in patch}
    kept = [each for each in known if each[by] in now or each[by] not in then]
    return [_without(each, then[each[by]], now[each[by]], shape) if each[by] in then else each for each in kept]


def _replacing(patch: Any, shape: Shape | None) -> Any:
    """Returns the apply as a strategic patch: its sets of text are replaced, not merged."""
    if not isinstance(patch, dict):
        return patch
    made: Body = {}
    for key, value in patch.items():
        field = shape.fields.get(key) if isinstance(shape, Struct) else None
        made[key] = _replacing(value, field.shape if field is not None else None)
    return made
