"""Applies JSON merge patches and strategic merge patches (k8s.io/apimachinery, util/strategicpatch).

Invariant: neither the object nor the patch is changed; parts that a patch does not name are shared with the object.
"""

from __future__ import annotations

from typing import Any, Final

from tests.faults.model.refusals import bad_request
from tests.faults.model.shapes import ListOf, MapOf, Shape, Struct

Body = dict[str, Any]

_DIRECTIVE: Final = "$patch"
_ORDER: Final = "$setElementOrder/"
_DELETED: Final = "$deleteFromPrimitiveList/"
_RETAINED: Final = "$retainKeys"


def merge(target: Any, patch: Any) -> Any:
    """Applies a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge(result.get(key), value)
        else:
            result[key] = value
    return result


def strategic(original: Body, patch: Body, shape: Shape | None) -> Body:
    """Applies a strategic merge patch to an object of this shape. Raises Refusal."""
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive is not None:
        raise bad_request(f"unknown patch type found: {directive!r}")
    result = dict(original)
    if isinstance(retained := patch.get(_RETAINED), list):
        result = {key: value for key, value in result.items() if key in retained}
    ordered = _merge_ordered(result, patch, shape)
    for key, value in patch.items():
        if key in ordered or key.startswith(_ORDER) or key == _RETAINED:
            continue
        name = key.removeprefix(_DELETED)
        if name != key:
            result[name] = [each for each in result.get(name, ()) if each not in value]
        elif value is None:
            result.pop(key, None)
        else:
            _put(result, key, value, shape)
    return result


def _put(result: Body, key: str, value: Any, shape: Shape | None) -> None:
    old = result.get(key)
    strategy, merge_key, inner = _of_field(shape, key)
    if isinstance(old, dict) and isinstance(value, dict) and "replace" not in strategy:
        result[key] = strategic(old, value, inner)
    elif isinstance(old, list) and isinstance(value, list):
        result[key] = _merge_lists(old, value, merge_key, inner) if "merge" in strategy else value
    elif isinstance(value, dict) and value.get(_DIRECTIVE) == "delete":
        result.pop(key, None)
    else:
        result[key] = _undirected(value)


def _of_field(shape: Shape | None, key: str) -> tuple[list[str], str, Shape | None]:
    """Returns the strategy and merge key of a field, and the shape of its value or of its items."""
    if isinstance(shape, MapOf):
        return [], "", shape.value
    field = shape.fields.get(key) if isinstance(shape, Struct) else None
    if field is None:
        return [], "", None
    return field.strategy, field.merge_key, field.shape.item if isinstance(field.shape, ListOf) else field.shape


def _undirected(value: Any) -> Any:
    """Returns a value that is new: without directives and nulls."""
    if isinstance(value, dict):
        return {key: _undirected(each) for key, each in value.items() if each is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [_undirected(each) for each in value if not (isinstance(each, dict) and _DIRECTIVE in each)]
    return value


def _merge_ordered(result: Body, patch: Body, shape: Shape | None) -> set[str]:
    """Merges the lists whose order the patch prescribes; returns their names."""
    done = set()
    for key, order in patch.items():
        if not key.startswith(_ORDER):
            continue
        name = key.removeprefix(_ORDER)
        done.add(name)
        strategy, merge_key, inner = _of_field(shape, name)
        old, new = result.get(name), patch.get(name)
        if old is None and new is None:
            continue
        if old is None:
            merged = _undirected(new)
        elif new is None:
            merged = old
        else:
            merged = _merge_lists(old, new, merge_key, inner) if "merge" in strategy else new
        server = _overwritten(old, new or [], merge_key) if old and merge_key and "merge" in strategy else old or []
        result[name] = _in_order(merged, order, server, merge_key)
    return done


def _merge_lists(old: list[Any], patch: list[Any], merge_key: str, inner: Shape | None) -> list[Any]:
    if not old and not patch:
        return old
    if not merge_key:
        merged = list(dict.fromkeys([*old, *patch]))
        return _in_order(merged, patch, old, "")
    server, wanted, replaces = list(old), [], False
    for each in patch:
        directive = each.get(_DIRECTIVE) if isinstance(each, dict) else None
        if directive is None:
            wanted.append(each)
        elif directive == "replace":
            replaces = True
        elif directive == "delete":
            if merge_key not in each:
                raise bad_request(f"map: {each} does not contain declared merge key: {merge_key}")
            server = [one for one in server if one.get(merge_key) != each[merge_key]]
        else:
            raise bad_request(f"unknown patch type found: {directive!r}")
    if replaces:
        return _in_order(wanted, [], wanted, merge_key)
    merged = list(server)
    for each in wanted:
        if merge_key not in each:
            raise bad_request(f"map: {each} does not contain declared merge key: {merge_key}")
        at = next((index for index, one in enumerate(merged) if one.get(merge_key) == each[merge_key]), None)
        if at is None:
            merged.append(each)
        else:
            merged[at] = strategic(merged[at], each, inner)
    return _in_order(merged, wanted, server, merge_key)


def _overwritten(old: list[Any], patch: list[Any], merge_key: str) -> list[Any]:
    """Returns the order on the server as the merge leaves it: it deletes from, and appends to, the list by which it orders afterwards."""
    if any(each.get(_DIRECTIVE) == "replace" for each in patch):
        return old
    order, length = list(old), len(old)
    for each in patch:
        if each.get(_DIRECTIVE) == "delete":
            for index in reversed(range(length)):
                if order[index].get(merge_key) == each.get(merge_key):
                    order[index : length - 1] = order[index + 1 : length]
                    length -= 1
    for each in patch:
        known = any(one.get(merge_key) == each.get(merge_key) for one in order[:length])
        if _DIRECTIVE not in each and not known:
            if length == len(order):
                break
            order[length] = each
            length += 1
    return order


def _in_order(merged: list[Any], order: list[Any], server: list[Any], merge_key: str) -> list[Any]:
    """Orders the items of the patch as the patch does, and puts each other one before the first that it preceded on the server."""

    def key(item: Any) -> Any:
        return item.get(merge_key) if merge_key else item

    wanted, known = [key(each) for each in order], [key(each) for each in server]
    patched = sorted((each for each in merged if key(each) in wanted), key=lambda each: wanted.index(key(each)))
    rest = [each for each in merged if key(each) not in wanted]
    rest.sort(key=lambda each: known.index(key(each)) if key(each) in known else len(known))
    result: list[Any] = []
    while rest and patched:
        left, right = key(rest[0]), key(patched[0])
        precedes = left in known and right in known and known.index(left) < known.index(right)
        result.append(rest.pop(0) if precedes else patched.pop(0))
    return [*result, *rest, *patched]
