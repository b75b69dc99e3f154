"""Finds workloads in the backend that have no pod in the API, and terminates them.

Invariant (rule `orphans-are-proven`): a workload is an orphan only when the pod watch is synced, two listings a minute apart showed it,
and the API answers by name that this UID does not exist; too many at once raise an alarm and are not terminated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import define, field

from vkubelet.api.objects import PodRef
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.controller import Controller
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.errors import ApiError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.pods.dispatch import Dispatch
from vkubelet.pods.lifecycle import Lifecycle, exists
from vkubelet.pods.listing import Listing, PodSettings

log = logging.getLogger(__name__)

AT_LEAST, SHARE = 5, 0.1
"""A sweep terminates at most this many, or this share of all listed workloads, whichever is more."""


@define
class _Suspect:
    ref: PodRef
    first: float
    last: float


@define(kw_only=True, eq=False)
class Orphans:
    """Search for orphans; `on_clean(node)` is called when a listing of a node shows no unknown workload."""

    _dispatch: Dispatch
    _lifecycle: Lifecycle
    _node_client: Callable[[str], Client]
    _recorder: Recorder
    _clock: Clock
    _on_clean: Callable[[str], None]
    _metrics: Metrics | None = None
    _interval: float = PodSettings().list_interval
    """Seconds between two sweeps, and between the two listings that must agree."""
    controller: Controller[str] = field(init=False)
    _listed: dict[str, int] = field(factory=dict, init=False)
    _suspects: dict[str, dict[str, _Suspect]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.controller = Controller("orphans", self._sweep, workers=1, clock=self._clock, metrics=self._metrics)
        self.controller.add("sweep", after=self._interval)

    def clean(self, node: str) -> bool:
        """Checks that the last listing of this node showed only known pods."""
        return node in self._listed and not self._suspects.get(node)

    def remove_node(self, node: str) -> None:
        """Drops a node that this process no longer serves."""
        self._listed.pop(node, None)
        self._suspects.pop(node, None)

    def observe(self, listing: Listing) -> None:
        """Handles a listing of a node."""
        node = listing.node
        before = self._suspects.get(node, {})
        unknown = {report.pod.uid: report.pod for report in listing.reports if not self._known(report.pod)}
        self._listed[node] = len(listing.reports)
        self._suspects[node] = {
            uid: _Suspect(ref, before[uid].first if uid in before else listing.taken, listing.taken) for uid, ref in unknown.items()
        }
        if not unknown:
            self._on_clean(node)

    def _known(self, ref: PodRef) -> bool:
        return self._lifecycle.record(ref.uid) is not None or self._dispatch.knows(ref.uid)

    async def _sweep(self, key: str) -> float | None:
        if not self._dispatch.informer.synced:
            return 5.0
        ripe = [s.ref for found in self._suspects.values() for s in found.values() if self._ripe(s)]
        allowed = max(AT_LEAST, int(SHARE * sum(self._listed.values())))
        orphans = [ref for ref in ripe[: 2 * allowed + 1] if await self._is_missing(ref)]
        if len(orphans) > allowed:
            self._alarm(orphans, allowed)
            return self._interval
        for ref in orphans:
            # The API was asked for one pod after the other: meanwhile this pod may have become known.
            if not self._known(ref):
                self._terminate(ref)
        return self._interval

    async def _is_missing(self, ref: PodRef) -> bool:
        """Checks by name that the API does not have the pod.

        Returns False also when the API server refuses to answer for this pod: unknown does not mean deleted. Raises ApiError when the API
        server is unreachable.
        """
        try:
            return not await exists(self._node_client(ref.node), ref)
        except ApiError as error:
            if error.retryable:
                raise
            with bind(node=ref.node, pod=str(ref.key), uid=ref.uid, error=str(error)):
                log.debug("whether the pod exists is unknown")
            return False

    def _ripe(self, suspect: _Suspect) -> bool:
        return suspect.last - suspect.first >= self._interval and not self._known(suspect.ref)

    def _terminate(self, ref: PodRef) -> None:
        with bind(node=ref.node, pod=str(ref.key), uid=ref.uid):
            log.info("orphan is terminated")
        self._suspects.get(ref.node, {}).pop(ref.uid, None)
        self._lifecycle.terminate_orphan(ref)

    def _alarm(self, orphans: list[PodRef], allowed: int) -> None:
        text = (
            f"the backend runs {len(orphans)} or more pods that the cluster does not have, and at most {allowed} are terminated at once; "
            "none is terminated until the Pods exist again or the workloads are removed from the backend"
        )
        node = orphans[0].node
        self._recorder.event(ObjectReference("v1", "Node", node), "TooManyOrphans", text, warning=True)
        with bind(node=node):
            log.warning("too many orphans; none is terminated")
