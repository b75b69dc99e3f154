"""Lists regularly what the backend of the provider has for each node; derives reports from that for providers that send none, and
terminates workloads that have no pod in the API.

Invariant: a listing is used only when the provider returned all of it; one that fails is retried within the interval and affects no other
node. A pod is reported missing only when it is absent from complete listings that were requested after the backend had it.
Rule `orphans-are-proven`: a workload is an orphan only when the pod watch is synced, two listings a minute apart showed it, and the API
answers by name that this UID does not exist; too many at once raise an alarm and are not terminated. One whose deletion was observed here
needs no listings.
"""

import logging
from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from vkubelet.api.objects import PodRef
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.backoff import with_timeout
from vkubelet.control.controller import LONGEST_RETRY, Controller, Isolation
from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.errors import ApiError, SettingsError
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics
from vkubelet.pods.dispatch import Dispatch, DispatchMode
from vkubelet.pods.lifecycle import Lifecycle, exists
from vkubelet.provider import PodReport, Provider, SupportsPolling

log = logging.getLogger(__name__)

MISSES = 2
"""Consecutive listings that a pod must be missing from, unless it is terminating."""

UNSYNCED = 0.5
"""Seconds to wait for the first list of pods: before it, every workload of the backend would seem unknown."""

_SWEEP = "sweep"

AT_LEAST, SHARE = 5, 0.1
"""A sweep terminates at most this many, or this share of all listed workloads, whichever is more."""


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
            with self._isolated(report.pod.key):
                self._report(report)
        listed = {report.pod.uid for report in listing.reports}
        before, misses = self._misses.pop(listing.node, {}), dict[str, int]()
        for record in self._lifecycle.records(listing.node):
            uid = record.ref.uid
            if uid in listed or record.missing or record.syncing or record.accepted_at is None or record.accepted_at >= listing.asked:
                continue
            misses[uid] = before.get(uid, 0) + 1
            if record.sent_deadline is not None or misses[uid] >= MISSES:
                with self._isolated(record.ref.key):
                    self._on_missing(record.ref)
        if misses:
            self._misses[listing.node] = misses


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
    _returned: dict[str, PodRef] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.controller = Controller("orphans", self._reconcile, workers=1, clock=self._clock, metrics=self._metrics)
        self.controller.add(_SWEEP, after=self._interval)

    def clean(self, node: str) -> bool:
        """Checks that the last listing of this node showed only known pods."""
        return node in self._listed and not self._suspects.get(node)

    def remove_node(self, node: str) -> None:
        """Drops a node that this process no longer serves."""
        self._listed.pop(node, None)
        self._suspects.pop(node, None)

    def check_deleted(self, ref: PodRef) -> None:
        """Checks a workload that the backend has. If the deletion of its pod was observed, as after the restore of a worker, it is
        terminated without a second listing: only a read of the API is needed to prove that it is an orphan."""
        if not self._known(ref) and self._dispatch.informer.saw_deleted(ref.uid):
            self._returned[ref.uid] = ref
            self.controller.add(ref.uid)

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

    async def _reconcile(self, key: str) -> float | None:
        if not self._dispatch.informer.synced:
            return 5.0
        return await (self._sweep() if key == _SWEEP else self._terminate_returned(key))

    async def _terminate_returned(self, uid: str) -> float | None:
        ref = self._returned.get(uid)
        if ref is None:
            return None
        if not self._known(ref) and await self._is_missing(ref) and not self._known(ref):
            self._terminate(ref)
        self._returned.pop(uid, None)
        return None

    async def _sweep(self) -> float | None:
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
