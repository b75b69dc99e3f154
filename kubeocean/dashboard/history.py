"""Capacity over time and the ledger of requests, from the readings of this process.

Invariant: both are bounded however long the process runs, and each states since when it observes; nothing is extrapolated.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Self

from attrs import define, field, frozen

from kubeocean.dashboard.fleet import Fleet
from kubeocean.model.node_state import OPEN
from vkubelet.api.quantity import ZERO, Resources, sum_resources
from vkubelet.clock import Clock, in_batches

MOST_SAMPLES: Final = 360
MOST_ACCOUNTS: Final = 500
OTHERS: Final = "(others)"
LONGEST_GAP: Final = timedelta(minutes=2)
"""Time between two readings over which the first one counts; a longer gap was not observed."""
_HOUR: Final = 3600.0
_PODS: Final = 2_000
"""Pods that are counted in one turn of the event loop."""
_GIBIBYTE: Final = float(1 << 30)


@frozen(kw_only=True)
class Sample:
    """Capacity at one instant, in cores and GiB; `requested_*` is None where pods may not all be listed."""

    at: datetime
    open: int
    nodes: int
    cpu: float
    memory: float
    requested_cpu: float | None
    requested_memory: float | None


@frozen(kw_only=True)
class Account:
    """What the pods of a namespace requested of a binding since the ledger was started."""

    namespace: str
    binding: str
    cpu_hours: float
    memory_gib_hours: float
    pod_hours: float


def cores(amounts: Resources) -> float:
    return amounts.get("cpu", ZERO).nanos / 1e9


def gibibytes(amounts: Resources) -> float:
    return amounts.get("memory", ZERO).nanos / 1e9 / _GIBIBYTE


def sample_of(fleet: Fleet) -> Sample:
    """Computes the capacity that open nodes offer, and what pods on virtual nodes request (pure)."""
    offered = sum_resources(node.offered for node in fleet.nodes if node.state == OPEN)
    requested = sum_resources(node.requested for node in fleet.nodes) if fleet.complete else None
    return Sample(
        at=fleet.at,
        open=sum(node.state == OPEN for node in fleet.nodes),
        nodes=len(fleet.nodes),
        cpu=cores(offered),
        memory=gibibytes(offered),
        requested_cpu=None if requested is None else cores(requested),
        requested_memory=None if requested is None else gibibytes(requested),
    )


@define
class History:
    """Samples of capacity. When they are too many, every second one is dropped, so that they still cover all of the time."""

    samples: list[Sample] = field(factory=list)
    _least_gap: timedelta = timedelta()

    def add(self, sample: Sample) -> None:
        """Adds a sample, unless the last one is too recent for the time that the samples cover."""
        if self.samples and sample.at - self.samples[-1].at < self._least_gap:
            return
        self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]
            covered = self.samples[-1].at - self.samples[0].at
            self._least_gap = covered / len(self.samples)


@define
class Ledger:
    """Requests over time by namespace and binding: what each reading shows counts until the next one."""

    since: datetime | None = None
    observed: timedelta = timedelta()
    _accounts: dict[tuple[str, str], list[float]] = field(factory=dict, alias="accounts")
    _last: Fleet | None = None

    async def add(self, fleet: Fleet, clock: Clock) -> None:
        """Adds the time since the last reading; other tasks of the loop run between batches."""
        last, self._last = self._last, fleet
        self.since = self.since or fleet.at
        if last is None or not last.complete:
            return
        passed = fleet.at - last.at
        if not timedelta() < passed <= LONGEST_GAP:
            return
        self.observed += passed
        hours = passed.total_seconds() / _HOUR
        for key, (amounts, pods) in (await _requested(last, clock)).items():
            account = self._account(key)
            for at, amount in enumerate((cores(amounts), gibibytes(amounts), float(pods))):
                account[at] += amount * hours

    def _account(self, key: tuple[str, str]) -> list[float]:
        if key not in self._accounts and len(self._accounts) >= MOST_ACCOUNTS:
            key = (OTHERS, OTHERS)
        return self._accounts.setdefault(key, [0.0, 0.0, 0.0])

    def of(self, namespaces: Collection[str]) -> Self:
        """Returns the same, of these namespaces alone."""
        own = {key: amounts for key, amounts in self._accounts.items() if key[0] in namespaces}
        return type(self)(since=self.since, observed=self.observed, accounts=own)

    def accounts(self) -> Sequence[Account]:
        """Returns the accounts, the largest first."""
        made = [
            Account(namespace=namespace, binding=binding, cpu_hours=cpu, memory_gib_hours=memory, pod_hours=pods)
            for (namespace, binding), (cpu, memory, pods) in self._accounts.items()
        ]
        return sorted(made, key=lambda each: (-each.cpu_hours, -each.memory_gib_hours, each.namespace, each.binding))


async def _requested(fleet: Fleet, clock: Clock) -> Mapping[tuple[str, str], tuple[Resources, int]]:
    found: dict[tuple[str, str], list[Resources]] = {}
    async for pod in in_batches(clock, fleet.pods or (), size=_PODS):
        node = fleet.by_name.get(pod.node)
        if pod.counts and node is not None:
            found.setdefault((pod.namespace, node.binding), []).append(pod.requests)
    await clock.sleep(0)
    return {key: (sum_resources(parts), len(parts)) for key, parts in found.items()}
