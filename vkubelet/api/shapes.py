"""JSON bodies: names for their types, merge patches, and lists of conditions.

Invariant: a body is always the complete decoded JSON; keys unknown here survive a round trip. `apply_merge(old, diff_merge(old, new))` is
`new`, as long as `new` contains no null (RFC 7386 cannot set one). The `lastTransitionTime` of a condition changes only when its `status`
does (Kubernetes API conventions, "Typical status properties").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]
"""A decoded JSON object that its reader owns and may change."""

JsonView = Mapping[str, Any]
"""A decoded JSON object that another component owns."""

POD_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
"""Types of the conditions of a pod that its kubelet or the scheduler sets; all others belong to other controllers."""


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


def get_condition(conditions: Sequence[JsonView], type_: str) -> Json | None:
    """Returns a copy of the condition of this type."""
    return next((dict(condition) for condition in conditions if condition.get("type") == type_), None)


def set_condition(conditions: Sequence[JsonView], new: JsonView, *, now: datetime) -> list[Json]:
    """Returns the conditions with `new` in place of the one of its type, or appended.

    `lastTransitionTime` is the old one's while the status is the same; else that of `new`, or `now`.
    """
    changed = [_merged(old, new, now) if old.get("type") == new["type"] else dict(old) for old in conditions]
    if all(old.get("type") != new["type"] for old in conditions):
        changed.append(_merged({}, new, now))
    return changed


def _merged(old: JsonView, new: JsonView, now: datetime) -> Json:
    kept = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
    moment = kept or new.get("lastTransitionTime") or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**new, "lastTransitionTime": moment}
