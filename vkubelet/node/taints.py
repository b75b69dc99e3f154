"""Our entries in a Node's taint list, which other writers share.

Invariant: a taint whose key is not ours is never added, changed or removed. The list is atomic for the API server, so it is always written
whole and guarded by the resourceVersion it was computed from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vkubelet.api.shapes import Json, JsonView
from vkubelet.provider import Taint


def taint_body(taint: Taint) -> Json:
    """The JSON form; empty fields are left out, as the API server does."""
    body: Json = {"key": taint.key, "effect": taint.effect}
    if taint.value:
        body["value"] = taint.value
    if taint.time_added:
        body["timeAdded"] = taint.time_added
    return body


def with_added(live: Sequence[JsonView], wanted: Sequence[Taint]) -> list[Json]:
    """The live list with ours put in or corrected, and nothing removed: the first half of a change that closes the node.

    A new one comes before the next of ours that is there, or last: so ours stand in their order, and no order is worth a write.
    """
    merged = [dict(taint) for taint in live]
    before = len(merged)
    for taint in reversed(wanted):
        at = _find(merged, taint)
        if at is None:
            merged.insert(before, taint_body(taint))
        else:
            merged[at], before = _corrected(merged[at], taint), at
    return merged


def without_dropped(live: Sequence[JsonView], wanted: Sequence[Taint], *, owned: Collection[str]) -> list[Json]:
    """The live list without those of our keys (`owned`: keys we set before) that are not wanted any more."""
    keep = {(taint.key, taint.effect) for taint in wanted}
    ours = set(owned) | {taint.key for taint in wanted}
    return [dict(taint) for taint in live if taint["key"] not in ours or (taint["key"], taint["effect"]) in keep]


def _find(taints: Sequence[JsonView], wanted: Taint) -> int | None:
    """Kubernetes identifies a taint by key and effect (core/v1 `Taint.MatchTaint`)."""
    for at, taint in enumerate(taints):
        if (taint["key"], taint["effect"]) == (wanted.key, wanted.effect):
            return at
    return None


def _corrected(live: Json, wanted: Taint) -> Json:
    """Ours wins, but the time at which the taint was first added stays."""
    body = taint_body(wanted)
    if "timeAdded" in live:
        body["timeAdded"] = live["timeAdded"]
    return body
