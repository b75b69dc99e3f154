"""Our entries in a Node's taint list, which other clients share.

Invariant: a taint whose key is not ours is never added, changed or removed. The list is atomic for the API server, so it is always written
completely and guarded by the resourceVersion it was computed from.
"""

from collections.abc import Collection, Sequence

from vkubelet.api.objects import Json, JsonView
from vkubelet.provider import Taint


def taint_body(taint: Taint) -> Json:
    """Returns the JSON form; empty fields are omitted, as by the API server."""
    body: Json = {"key": taint.key, "effect": taint.effect}
    if taint.value:
        body["value"] = taint.value
    if taint.time_added:
        body["timeAdded"] = taint.time_added
    return body


def with_added(live: Sequence[JsonView], wanted: Sequence[Taint]) -> list[Json]:
    """Returns the live list with our taints added or corrected, and none removed: the first half of a change that closes the node.

    A new taint is placed before the next existing one of ours, or last: so ours keep their order, and a different order causes no write.
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
    """Returns the live list without taints of our keys (`owned`: keys we set before) that are no longer desired."""
    keep = {(taint.key, taint.effect) for taint in wanted}
    ours = set(owned) | {taint.key for taint in wanted}
    return [dict(taint) for taint in live if taint["key"] not in ours or (taint["key"], taint["effect"]) in keep]


def _find(taints: Sequence[JsonView], wanted: Taint) -> int | None:
    """Finds a taint by key and effect, which identify it in Kubernetes (core/v1 `Taint.MatchTaint`)."""
    for at, taint in enumerate(taints):
        if (taint["key"], taint["effect"]) == (wanted.key, wanted.effect):
            return at
    return None


def _corrected(live: Json, wanted: Taint) -> Json:
    """Returns our taint with the time at which it was first added."""
    body = taint_body(wanted)
    if "timeAdded" in live:
        body["timeAdded"] = live["timeAdded"]
    return body
