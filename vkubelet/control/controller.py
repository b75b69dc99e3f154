"""Controller: a workqueue, workers, and a reconciler; and the isolation of errors in other loops.

Invariant: whatever a reconcile raises, its key is retried and no other key is affected; only LeadershipLost and SettingsError stop the
controller. Of the errors of an item of another loop only LeadershipLost propagates; one that stays the same is logged once for each item.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from functools import cache, partial
from types import TracebackType
from typing import Generic, TypeVar

from vkubelet import errors
from vkubelet.clock import Clock, in_batches
from vkubelet.control.backoff import Backoff
from vkubelet.control.workqueue import Priority, Workqueue
from vkubelet.logformat import bind
from vkubelet.metrics import Metrics

log = logging.getLogger(__name__)

A = TypeVar("A")
K = TypeVar("K", bound=Hashable)

Reconcile = Callable[[K], Awaitable[float | None]]
"""Reconciles the object of a key, whatever happened to it; returns the seconds until the next check, or None."""

_FATAL = (errors.LeadershipLost, errors.SettingsError)
_EXPECTED = (errors.Conflict, errors.NotFound, errors.AlreadyExists)
LONGEST_RETRY = 60.0
"""Seconds between two retries of a key that keeps failing, unless a controller sets another limit."""

_OUTAGE_LIMIT = 5.0
"""Seconds between two retries while nothing can be reached or written."""

_FAILED_ITEMS = 1000
"""Items whose last error is stored; a loop with more failing items logs some of them again."""

_STARTED_AT_ONCE = 4
"""Reconciles that are started before other tasks run again."""

_ADDED_AT_ONCE = 100
"""Keys that `add_many` takes before other tasks run again."""

_EXPECTED_FAILURES = 8
"""Consecutive failures from which on even expected errors are logged as warnings."""


class Controller(Generic[K]):
    """Workers that call `reconcile` for added keys, at most `workers` at a time and never twice at once for the same key."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile[K],
        *,
        workers: int,
        clock: Clock,
        metrics: Metrics | None = None,
        longest_retry: float = LONGEST_RETRY,
    ) -> None:
        """Sets up the controller; `longest_retry` is the limit of the back-off, in seconds."""
        self.name = name
        self.queue: Workqueue[K] = Workqueue(name, clock=clock, metrics=metrics)
        self._reconcile = reconcile
        self._clock = clock
        self._count = _counting(metrics, name) if metrics is not None else None
        self._backoff = Backoff(limit=longest_retry)
        self._slots = asyncio.Semaphore(workers)
        self._running: dict[K, asyncio.Task[None]] = {}
        self._many: deque[tuple[Iterator[K], Priority]] = deque()
        self._many_added = asyncio.Event()

    def add(self, key: K, *, after: float = 0.0, priority: Priority = Priority.HIGH) -> None:
        """Queues the key for a reconcile in `after` seconds; an earlier time that is already set stays."""
        self.queue.add(key, after=after, priority=priority)

    def add_many(self, keys: Iterable[K], *, priority: Priority = Priority.LOW) -> None:
        """Queues thousands of keys without blocking the loop: they are taken from `keys` in batches while `run` runs."""
        self._many.append((iter(keys), priority))
        self._many_added.set()

    def cancel_running(self, key: K) -> None:
        """Cancels the running reconcile of the key, if any. The key runs again only if it is, or was meanwhile, added."""
        task = self._running.get(key)
        if task is not None:
            task.cancel()

    def discard(self, key: K) -> None:
        """Drops a key whose object no longer exists; a reconcile that runs for it is not interrupted."""
        self.queue.discard(key)
        self._backoff.reset(key)

    def reset_backoff(self, key: K) -> None:
        """Resets the back-off of the key, as after a success."""
        self._backoff.reset(key)

    async def run(self) -> None:
        """Runs until cancelled. Raises a group with LeadershipLost or SettingsError when a reconcile did."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run(), name=f"{self.name} timer")
            group.create_task(self._queue_many(), name=f"{self.name} batches")
            started = 0
            while True:
                await self._slots.acquire()
                key = await self.queue.get()
                task = group.create_task(self._attempt(key), name=f"{self.name} {key}")
                self._running[key] = task
                # A callback, because a task that is cancelled before its first step runs no `finally`.
                task.add_done_callback(partial(self._finished, key))
                # Few starts per iteration of the loop: a burst of keys must not block it while Leases and probes are due.
                started += 1
                if self.queue.has_due and started % _STARTED_AT_ONCE == 0:
                    await self._clock.sleep(0)

    async def _queue_many(self) -> None:
        while True:
            await self._many_added.wait()
            self._many_added.clear()
            while self._many:
                keys, priority = self._many.popleft()
                async for key in in_batches(self._clock, keys, size=_ADDED_AT_ONCE):
                    self.queue.add(key, priority=priority)

    def _finished(self, key: K, task: asyncio.Task[None]) -> None:
        del self._running[key]
        self._slots.release()
        self.queue.done(key)

    async def _attempt(self, key: K) -> None:
        began = self._clock.monotonic()
        result = "cancelled"
        try:
            with bind(controller=self.name, key=key):
                result = await self._reconcile_once(key)
        finally:
            if self._count is not None:
                self._count(result, self._clock.monotonic() - began)

    async def _reconcile_once(self, key: K) -> str:
        try:
            again = await _undisturbed(self._reconcile(key))
        except Exception as problem:
            error = _essence(problem)
            if isinstance(error, _FATAL):
                raise
            self.queue.add(key, after=self._delay(key, error), priority=self.queue.priority(key))
            self._log_error(key, error)
            return _result(error)
        self._backoff.reset(key)
        if again is not None:
            self.queue.add(key, after=again, priority=Priority.LOW)
        return "success"

    def _delay(self, key: K, error: Exception) -> float:
        wait = self._backoff.next(key)
        if isinstance(error, (errors.Fenced, errors.Unreachable)):
            # An outage is not the fault of the key: when it is over, no key should wait long.
            return min(wait, _OUTAGE_LIMIT)
        if isinstance(error, errors.Unavailable) and error.retry_after is not None:
            return error.retry_after
        return max(wait, error.retry_after or 0.0) if isinstance(error, errors.ApiError) else wait

    def _log_error(self, key: K, error: Exception) -> None:
        failures = self._backoff.failures(key)
        # At the first, second, fourth, eighth … failure: a persistent error is not repeated every minute for each of thousands of keys.
        milestone = failures & (failures - 1) == 0
        if not isinstance(error, errors.VKubeletError):
            log.log(logging.ERROR if milestone else logging.DEBUG, "reconcile failed unexpectedly", exc_info=error)
            return
        usual = error.retryable or isinstance(error, _EXPECTED)
        level = logging.WARNING if milestone and (not usual or failures >= _EXPECTED_FAILURES) else logging.DEBUG
        with bind(error=str(error), failures=failures):
            log.log(level, "reconcile failed and will be retried")


def _counting(metrics: Metrics, name: str) -> Callable[[str, float], None]:
    """Returns a function that counts a result and its duration; finding a series by its labels costs as much as the rest of a small
    reconcile."""
    total, seconds = cache(partial(metrics.reconcile_total.labels, name)), metrics.reconcile_seconds.labels(name)

    def count(result: str, took: float) -> None:
        total(result).inc()
        seconds.observe(took)

    return count


async def _undisturbed(step: Awaitable[float | None]) -> float | None:
    """Turns a cancellation that was not requested, such as that of a future the reconciler awaits, into an ordinary error."""
    try:
        return await step
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("a future that the reconciler awaited was cancelled") from error


def _essence(problem: Exception) -> Exception:
    """Returns the one error that decides how a group is handled: a fatal one, else an unexpected one, else the first."""
    if not isinstance(problem, ExceptionGroup):
        return problem
    leaves = [_essence(each) for each in problem.exceptions]
    fatal = [each for each in leaves if isinstance(each, _FATAL)]
    unexpected = [each for each in leaves if not isinstance(each, errors.VKubeletError)]
    return (fatal or unexpected or leaves)[0]


def _result(error: Exception) -> str:
    if not isinstance(error, errors.VKubeletError):
        return "unexpected"
    return "retry" if error.retryable or isinstance(error, _EXPECTED) else "error"


Part = Callable[..., object] | None


class Isolation:
    """Contexts for the items of a loop: calling it with an item, whose text names it, returns its context; `loop` names the loop in log
    lines."""

    def __init__(self, loop: str) -> None:
        self._loop = loop
        self.failed: OrderedDict[tuple[str, Part], str] = OrderedDict()
        """Last errors by item and part; empty in most loops, which then call nothing for a success."""

    def __call__(self, item: object) -> "_Isolated":
        """Logs and drops what is raised inside the `with`."""
        return _Isolated(self, item)

    def call(self, part: Callable[[A], object], argument: A, item: object) -> None:
        """Calls one of several functions that handle an item; logs and drops what it raises."""
        try:
            part(argument)
        except errors.LeadershipLost:
            raise
        except Exception as error:
            self.log_once(error, item, part)
        else:
            if self.failed:
                self.succeeded(item, part)

    def succeeded(self, item: object, part: Part = None) -> None:
        """Notes that an item was handled: its next error is new."""
        self.failed.pop((str(item), part), None)

    def log_once(self, error: Exception, item: object, part: Part = None) -> None:
        """Logs the error of an item, unless it is the one that the item had before."""
        item = str(item)
        known = self.failed.get((item, part))
        self.failed[item, part] = text = repr(error)
        self.failed.move_to_end((item, part))
        if len(self.failed) > _FAILED_ITEMS:
            self.failed.popitem(last=False)
        if known != text:
            with bind(loop=self._loop, item=item, part=getattr(part, "__qualname__", "")):
                log.error("item skipped after an unexpected error; the loop continues", exc_info=error)


class _Isolated:
    """The context of one item."""

    __slots__ = ("_isolation", "_item")

    def __init__(self, isolation: Isolation, item: object) -> None:
        self._isolation, self._item = isolation, item

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            if self._isolation.failed:
                self._isolation.succeeded(self._item)
            return False
        if isinstance(error, errors.LeadershipLost) or not isinstance(error, Exception):
            return False
        self._isolation.log_once(error, self._item)
        return True
