"""Server-side apply, as far as the product uses it: one manager, by force, on objects that it created.

Invariant: fields of others stay; a field that the manager applied before and omits now is removed. Owners of fields are not recorded.
"""

from __future__ import annotations

from typing import Any

from tests.faults.model.custom import CustomShape
from tests.faults.model.patches import strategic
from tests.faults.model.shapes import ListOf, MapOf, Shape, Struct

Body = dict[str, Any]


def apply_of(known: Body, patch: Body, before: Body, shape: Shape | None) -> Body:
    """Returns the object after the apply; `before` is what the manager applied last."""
    if isinstance(shape, CustomShape):
        found: Body = _custom(known, before, patch, {"properties": shape.properties})
        return found
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


def _custom(known: Any, before: Any, patch: Any, schema: Body) -> Any:
    """Applies to a part of a custom resource, whose schema shows which lists are merged by keys; other lists are replaced."""
    if isinstance(patch, dict):
        known, before = (each if isinstance(each, dict) else {} for each in (known, before))
        omitted = {key: value for key, value in before.items() if key in known and key not in patch}
        made = {key: value for key, value in known.items() if key not in omitted}
        # Of an object that is omitted now, only what was applied before is removed.
        made |= {key: left for key, value in omitted.items() if isinstance(value, dict) and (left := _custom(known[key], value, {}, {}))}
        further, properties = schema.get("additionalProperties"), schema.get("properties") or {}
        for key, value in patch.items():
            inner = properties.get(key) or (further if isinstance(further, dict) else {})
            made[key] = _custom(known.get(key), before.get(key), value, inner)
        return made
    if isinstance(patch, list) and isinstance(known, list) and schema.get("x-kubernetes-list-type") == "map":
        return _custom_items(known, before or [], patch, schema)
    return patch


def _custom_items(known: list[Body], before: list[Body], patch: list[Body], schema: Body) -> list[Body]:
    names = schema["x-kubernetes-list-map-keys"]
    was, then, now = ({tuple(each.get(name) for name in names): each for each in items} for items in (known, before, patch))
    kept = {key: each for key, each in was.items() if key in now or key not in then}
    merged = {key: _custom(was.get(key), then.get(key), each, schema.get("items") or {}) for key, each in now.items()}
    return list({**kept, **merged}.values())
