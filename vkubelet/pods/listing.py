"""Lists regularly what the backend of the provider has for each node, and derives reports from that for providers that send none.

Invariant: a listing is used only when the provider returned all of it; one that fails is retried within the interval and affects no other
node. A pod is reported missing only when it is absent from complete listings that were requested after the backend had it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from vkubelet.api.objects import PodRef
from vkubelet.clock import Clock
from vkubelet.control.backoff import with_timeout
from vkubelet.control.controller import LONGEST_RETRY, Controller, Isolation
from vkubelet.errors import SettingsError
from vkubelet.metrics import Metrics
from vkubelet.pods.dispatch import Dispatch, DispatchMode
from vkubelet.pods.lifecycle import Lifecycle
from vkubelet.provider import PodReport, Provider, SupportsPolling

MISSES = 2
"""Consecutive listings that a pod must be missing from, unless it is terminating."""

UNSYNCED = 0.5
"""Seconds to wait for the first list of pods: before it, every workload of the backend would seem unknown."""


@frozen(kw_only=True)
class PodSettings:
    """How the backend is compared with the cluster, and which DNS settings pods receive."""

    list_interval: float = 60.0
    """Seconds between two listings of the backend, and between the two listings that must agree before an orphan is terminated."""
    cluster_dns: tuple[str, ...] = ()
    """IP addresses of the cluster's DNS servers, for the resolv.conf of pods that run here; without any, pods use those of this host."""
    cluster_domain: str = "cluster.local"
    """Domain of the cluster, in the names of its Services and of pods with a `subdomain`."""
    resolv_conf: str = "/etc/resolv.conf"
    """File with this host's DNS configuration, for pods with the policy Default, and for search domains of all others."""

    def __attrs_post_init__(self) -> None:
        if self.list_interval <= 0:
            raise SettingsError("pods.list_interval", f"is {self.list_interval:g}; set a number of seconds above 0")


@frozen
class Listing:
    """Everything that the backend had for `node` at some moment between `asked` and `taken` (monotonic seconds)."""

    node: str
    reports: Sequence[PodReport]
    asked: float
    taken: float


class Lister:
    """Periodic listing of each node that is declared or retiring; `on_list` is called after each complete listing."""

    def __init__(
        self, provider: Provider, dispatch: Dispatch, *, clock: Clock, metrics: Metrics | None, settings: PodSettings | None = None
    ) -> None:
        every = (settings or PodSettings()).list_interval
        self._provider = provider
        self._dispatch = dispatch
        self._clock = clock
        self._every = min(every, provider.poll_interval) if isinstance(provider, SupportsPolling) else every
        self._listeners: list[Callable[[Listing], None]] = []
        # A failed listing is retried within the interval: polling is back at its normal rate as soon as the backend is.
        longest = min(self._every, LONGEST_RETRY)
        self.controller: Controller[str] = Controller(
            "pod-lists", self._list, workers=8, clock=clock, metrics=metrics, longest_retry=longest
        )

    def on_list(self, listener: Callable[[Listing], None]) -> None:
        self._listeners.append(listener)

    async def _list(self, node: str) -> float | None:
        if self._dispatch.mode(node) not in (DispatchMode.SYNC, DispatchMode.RETIRE):
            return None
        if not self._dispatch.informer.ever_synced:
            return UNSYNCED
        asked = self._clock.monotonic()
        reports = tuple(await with_timeout(self._provider.list_pods(node), f"list_pods of node {node}", clock=self._clock))
        if self._dispatch.mode(node) is None:
            return None
        listing = Listing(node, reports, asked, self._clock.monotonic())
        for listener in self._listeners:
            listener(listing)
        return self._every


class Polling:
    """Conversion of listings into pod reports and reports of missing pods, which `report` and `on_missing` receive."""

    def __init__(self, lifecycle: Lifecycle, *, report: Callable[[PodReport], None], on_missing: Callable[[PodRef], None]) -> None:
        self._lifecycle = lifecycle
        self._report = report
        self._on_missing = on_missing
        self._misses: dict[str, dict[str, int]] = {}
        self._isolated = Isolation("polled pods")

    def observe(self, listing: Listing) -> None:
        """Handles a listing of a node; a report that fails affects no other."""
        for report in listing.reports:
            with self._isolated(str(report.pod.key)):
                self._report(report)
        listed = {report.pod.uid for report in listing.reports}
        before, misses = self._misses.pop(listing.node, {}), dict[str, int]()
        for record in self._lifecycle.records(listing.node):
            uid = record.ref.uid
            if uid in listed or record.missing or record.syncing or record.accepted_at is None or record.accepted_at >= listing.asked:
                continue
            misses[uid] = before.get(uid, 0) + 1
            if record.sent_deadline is not None or misses[uid] >= MISSES:
                with self._isolated(str(record.ref.key)):
                    self._on_missing(record.ref)
        if misses:
            self._misses[listing.node] = misses
