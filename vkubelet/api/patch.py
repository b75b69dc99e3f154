"""JSON merge patches: computes the difference of two objects, and applies it.

Invariant: `apply_merge(old, diff_merge(old, new))` is `new`, as long as `new` contains no null (RFC 7386 cannot set one).
"""

from __future__ import annotations

from vkubelet.api.shapes import Json, JsonView


def diff_merge(old: JsonView, new: JsonView) -> Json:
    """Returns an RFC 7386 merge patch, empty when nothing differs; lists are replaced completely."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := diff_merge(before, value):
                patch[key] = inner
        elif key not in old or before != value or type(before) is not type(value):
            patch[key] = value
    return patch


def apply_merge(target: JsonView, patch: JsonView) -> Json:
    """Returns the object after a merge patch (RFC 7386, section 2); the arguments are not changed."""
    result: Json = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = apply_merge(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result
