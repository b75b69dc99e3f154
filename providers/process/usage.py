"""Resource usage of containers, by their control groups or, where the host lets us have none, by /proc.

Invariant: a container's CPU time never decreases while it runs.
"""

from collections.abc import Iterable

from attrs import define, evolve, field

from vkubelet.stats import Filesystem, Usage
from vkubelet_providers.process.attempts import Attempt, State
from vkubelet_providers.process.cgroups import Cgroups
from vkubelet_providers.process.keeper import procfs
from vkubelet_providers.process.keeper.logfile import name_of, numbers


def by_processes(keeper: int) -> Usage:
    """Returns the usage of everything below a keeper, including processes that it has waited for."""
    own = procfs.stat_of(keeper)
    stats = [found for pid in procfs.descendants(keeper) if (found := procfs.stat_of(pid)) is not None]
    spent = sum(each.cpu + each.waited_cpu for each in stats) + (own.waited_cpu if own is not None else 0.0)
    resident = sum(each.resident for each in stats)
    return Usage(cpu_seconds=spent, memory_bytes=resident, rss_bytes=resident)


@define
class Meters:
    """The last measurement of each container, from which the rate is computed."""

    _seen: dict[str, tuple[float, float, float | None]] = field(factory=dict)

    def read(self, uid: str, attempt: Attempt, state: State, *, cgroups: Cgroups, now: float) -> Usage:
        """Measures a container; `now` is monotonic."""
        name = group_of(attempt)
        usage = cgroups.usage(uid, name) if cgroups.hierarchies else Usage()
        if usage.cpu_seconds is None or usage.memory_bytes is None:
            read = by_processes(state.keeper)
            usage = evolve(
                usage,
                cpu_seconds=usage.cpu_seconds if usage.cpu_seconds is not None else read.cpu_seconds,
                memory_bytes=usage.memory_bytes if usage.memory_bytes is not None else read.memory_bytes,
                rss_bytes=usage.rss_bytes if usage.rss_bytes is not None else read.rss_bytes,
            )
        if usage.memory_limit_bytes is None:
            usage = evolve(usage, memory_limit_bytes=attempt.about().memory_limit)
        return self._with_rate(f"{uid}/{name}", usage, now)

    def forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            for key in [key for key in list(self._seen) if key.startswith(f"{uid}/")]:
                self._seen.pop(key, None)

    def _with_rate(self, key: str, usage: Usage, now: float) -> Usage:
        spent = usage.cpu_seconds or 0.0
        before, then, rate = self._seen.get(key, (spent, now, None))
        spent = max(spent, before)
        if now - then >= 1.0:
            rate = (spent - before) / (now - then)
            self._seen[key] = (spent, now, rate)
        elif key not in self._seen:
            self._seen[key] = (spent, now, None)
        return evolve(usage, cpu_seconds=spent, cpu_cores=rate)


def group_of(attempt: Attempt) -> str:
    """Returns the control group of one start of a container, in that of its pod."""
    return f"{attempt.container}.{attempt.number}"


def logs_of(attempt: Attempt) -> Filesystem:
    size = 0
    for number in numbers(str(attempt.logs)):
        try:
            size += (attempt.logs / name_of(number)).stat().st_size
        except OSError:
            continue
    return Filesystem(used_bytes=size)
