"""The difference of two JSON objects as a merge patch.

Invariant: applying `diff_merge(old, new)` to `old` gives `new`, as long as `new` holds no null (RFC 7386 can not set one).
"""

from __future__ import annotations

from vkubelet.api.shapes import Json, JsonView


def diff_merge(old: JsonView, new: JsonView) -> Json:
    """An RFC 7386 merge patch, empty when nothing differs; lists are replaced whole."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := diff_merge(before, value):
                patch[key] = inner
        elif key not in old or before != value or type(before) is not type(value):
            patch[key] = value
    return patch
