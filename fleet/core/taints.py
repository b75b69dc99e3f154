"""Taints of clusters: what each effect means for placements, how one API's taints read in the other, and the hub's taints by health.

Invariant: a taint of another client survives every function here; of the hub's two taints at most one remains.
"""

import enum
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from fleet.api import keys
from fleet.api.clusters import NO_SCHEDULE, NO_SELECT, NO_SELECT_IF_NEW, PREFER_NO_SELECT, Taint
from vkubelet.api.objects import Json, JsonView

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


class Effect(enum.Enum):
    """Effect of a taint on a placement that does not tolerate it, the strongest first."""

    BLOCK = "block"
    """The cluster is not chosen, and decisions for it are withdrawn; bindings of KubeFleet that exist remain."""
    BLOCK_NEW = "block-new"
    """The cluster is not chosen again; what was decided remains."""
    PREFER_NOT = "prefer-not"
    """The cluster is chosen only where fewer clusters than desired remain without it."""


_EFFECTS = {
    NO_SELECT: Effect.BLOCK,
    NO_SELECT_IF_NEW: Effect.BLOCK_NEW,
    NO_SCHEDULE: Effect.BLOCK_NEW,
    PREFER_NO_SELECT: Effect.PREFER_NOT,
}


def effect_of(taint: Taint) -> Effect:
    """Returns the effect of a taint of either API."""
    return _EFFECTS[taint.effect]


def as_member_taints(taints: Iterable[Taint]) -> list[Json]:
    """Returns the taints of a MemberCluster that mirrors a ManagedCluster; KubeFleet has no effect like PreferNoSelect."""
    kept = {(each.key, each.value): None for each in taints if effect_of(each) is not Effect.PREFER_NOT}
    return [{"key": key, **({"value": value} if value else {}), "effect": NO_SCHEDULE} for key, value in kept]


def as_managed_taints(taints: Iterable[Taint]) -> list[Json]:
    """Returns the taints of a ManagedCluster that mirrors a MemberCluster."""
    kept = {(each.key, each.value): None for each in taints}
    return [{"key": key, **({"value": value} if value else {}), "effect": NO_SELECT_IF_NEW} for key, value in kept]


def with_health_taint(taints: Sequence[JsonView], available: str, *, now: datetime) -> list[Json]:
    """Returns the taints of a ManagedCluster whose condition Available has this status, "" for none.

    False adds the taint `unavailable`, Unknown or none `unreachable`; a taint that is set keeps its time and place.
    """
    wanted = {"True": "", "False": keys.UNAVAILABLE}.get(available, keys.UNREACHABLE)
    found: list[Json] = []
    for taint in taints:
        if taint.get("key") not in (keys.UNAVAILABLE, keys.UNREACHABLE):
            found.append(dict(taint))
        elif taint["key"] == wanted and taint.get("effect") == NO_SELECT and all(each.get("key") != wanted for each in found):
            found.append({"timeAdded": written(now), **taint})
    if wanted and all(each.get("key") != wanted for each in found):
        found.append({"key": wanted, "effect": NO_SELECT, "timeAdded": written(now)})
    return found


def written(now: datetime) -> str:
    """Formats a time as in an object of the API."""
    return now.astimezone(UTC).strftime(_FORMAT)
