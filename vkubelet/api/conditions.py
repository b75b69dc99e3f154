"""Status conditions: changes one, keeps the others and the times.

Invariant: `lastTransitionTime` changes only when `status` does (Kubernetes API conventions, "Typical status properties").
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from vkubelet.api.shapes import Json, JsonView


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
