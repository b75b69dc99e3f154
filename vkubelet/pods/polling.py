"""Derives reports from listings, for providers whose backend does not report changes itself.

Invariant: a pod is reported missing only when it is absent from complete listings that were requested after the backend had it.
"""

from __future__ import annotations

from collections.abc import Callable

from vkubelet.api.objects import PodRef
from vkubelet.pods.lifecycle import Lifecycle
from vkubelet.pods.listing import Listing
from vkubelet.provider import PodReport

MISSES = 2
"""Consecutive listings that a pod must be missing from, unless it is terminating."""


class Polling:
    """Conversion of listings into pod reports and reports of missing pods."""

    def __init__(self, lifecycle: Lifecycle, *, report: Callable[[PodReport], None], gone: Callable[[PodRef], None]) -> None:
        self._lifecycle = lifecycle
        self._report = report
        self._gone = gone
        self._missed: dict[str, dict[str, int]] = {}

    def observe(self, listing: Listing) -> None:
        """Handles a listing of a node."""
        for report in listing.reports:
            self._report(report)
        listed = {report.pod.uid for report in listing.reports}
        before, missed = self._missed.pop(listing.node, {}), dict[str, int]()
        for life in self._lifecycle.lives(listing.node):
            uid = life.ref.uid
            if uid in listed or life.gone or life.syncing or life.handed_at is None or life.handed_at >= listing.asked:
                continue
            missed[uid] = before.get(uid, 0) + 1
            if life.told is not None or missed[uid] >= MISSES:
                self._gone(life.ref)
        if missed:
            self._missed[listing.node] = missed
