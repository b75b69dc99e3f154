"""An asyncio event loop without time and sockets of its own: the same seed runs the same program in the same order.

Invariant: virtual time passes only when no callback is ready, and nothing but the program, the seed and the virtual time decides what runs
next.

asyncio defines the order of callbacks that are ready, and leaves open that of timers that are due at the same moment: these are shuffled
by the seed. All input and output of a simulation arrives by timers, so the seed decides in which order answers and events are received.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

_MOST_CALLBACKS = 200_000
"""Callbacks at one moment of virtual time after which the program counts as running in circles."""

_CLOSES = 20
_TASKS = 500
"""Tasks that may have ended before they are forgotten, beside as many as there are."""

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
"""Wall clock at the virtual time 0: a Monday morning."""

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="")
"""The simulated process to which a task and all its callbacks belong; "" for the world around the processes."""


class Stuck(RuntimeError):
    """The program waits for something that never happens, or runs in circles without waiting."""


class _Hashed:
    """Has a hash that does not depend on the address in memory, so that sets of these have the same order in every process."""

    _number = 0
    _loop: SimulatedLoop

    def __hash__(self) -> int:
        if not self._number:
            self._number = self._loop.next_number()
        return self._number


class SimulatedTask(_Hashed, asyncio.Task[Any]):
    """A task with a number."""


class SimulatedFuture(_Hashed, asyncio.Future[Any]):
    """A future with a number."""


class _Call:
    """A callback that is ready or has a time. Smaller than `asyncio.Handle`: most of what a simulation does is to call back."""

    __slots__ = ("args", "callback", "context", "off", "time")

    def __init__(self, callback: Any, args: Any, context: contextvars.Context | None, time: float = 0.0) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.off = False
        """Whether it was cancelled."""
        self.time = time

    def cancel(self) -> None:
        self.off = True
        self.callback = self.args = None

    def cancelled(self) -> bool:
        return self.off

    def when(self) -> float:
        return self.time


class _Wait(_Call):
    """A wait that a task awaits: for one task what a future is that is set when it is due, and the callback that lets the task run."""

    __slots__ = ("_asyncio_future_blocking", "_loop", "is_due")

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self.callback = None
        self.off = self.is_due = False

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True
        yield self

    # --- what asyncio requires of what a task awaits ---

    def add_done_callback(self, callback: Any, *, context: contextvars.Context) -> None:
        self.callback, self.context = callback, context
        self.args = self._loop.passed

    def cancel(self, msg: Any = None) -> bool:  # type: ignore[override]
        if self.is_due or self.off:
            return False
        self.off = True
        if self.callback is not None:
            self._loop.call_soon(self.callback, self, context=self.context)
        return True

    def result(self) -> None:
        """Raises CancelledError: one that is due passes what `passed` is."""
        raise asyncio.CancelledError


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one simulation. `kill` ends a simulated process as SIGKILL does: none of its code runs any more."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self._wall_at, self._wall = 0.0, START
        self._numbers = 0
        self._timers = 0
        self._due: list[tuple[float, int, _Call]] = []
        """Heap of timers, by time and number."""
        self._at_once = 0
        self._moments: list[float] = []
        self._on_moment: Callable[[float], None] = lambda moment: None
        self._dead: set[str] = set()
        self._stalled: dict[str, list[_Call]] = {}
        self._tasks: list[tuple[str, SimulatedTask]] = []
        """Those that have not ended, and some that have; with their processes."""
        self._most_tasks = _TASKS
        self.callbacks = 0
        """Number of callbacks run."""
        self.problems: list[str] = []
        """Exceptions that no task has handled."""
        over: asyncio.Future[None] = asyncio.Future(loop=self)
        over.set_result(None)
        self.passed = (over,)
        """What a task is called with whose wait is over."""
        self.set_exception_handler(self._unhandled)

    # --- what asyncio requires of a loop ---

    def time(self) -> float:
        return self._now

    get_debug = bool  # type: ignore[assignment]
    """It is not debugged: asyncio asks for each task and future, which a function in C answers sooner."""

    def wall(self) -> datetime:
        """Returns the time of a wall clock that is right; most of it is read several times at a moment."""
        if self._wall_at != self._now:
            self._wall_at, self._wall = self._now, START + timedelta(seconds=self._now)
        return self._wall

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None) -> SimulatedTask:
        task = SimulatedTask(coro, loop=self, name=name, context=context)
        self._tasks.append((PROCESS.get() if context is None else context.get(PROCESS, ""), task))
        if len(self._tasks) > self._most_tasks:
            self._tasks = self._unfinished()
            self._most_tasks = 2 * len(self._tasks) + _TASKS
        return task

    def next_number(self) -> int:
        """Returns the number of a task or future that is put into a set."""
        self._numbers += 1
        return self._numbers

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Runs the function in a callback of its own; it takes no virtual time."""
        future = self.create_future()
        self.call_soon(_settle, future, func, args)
        return future

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """Does nothing: no byte ever arrives at a port of a simulation."""

    def remove_reader(self, fd: Any) -> bool:
        return False

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        call = _Call(callback, args, context)
        self._ready.append(call)  # type: ignore[attr-defined]
        return call

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        call = _Call(callback, args, context, when)
        self._timers += 1
        heappush(self._due, (when, self._timers, call))
        return call

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        when = self._after(delay)
        call = _Call(callback, args, context, when)
        self._timers += 1
        heappush(self._due, (when, self._timers, call))
        return call

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def after(self, delay: float) -> _Wait:
        """Returns what the current task awaits, at once, to run again in so many seconds."""
        wait = _Wait(self)
        self._timers += 1
        heappush(self._due, (self._after(delay), self._timers, wait))
        return wait

    def _after(self, delay: float) -> float:
        now = self._now
        if delay <= 0:
            return now
        # However short, a wait takes time: a program that waits for a moment that rounding puts a trifle later must reach it.
        moment = now + delay
        return moment if moment > now else math.nextafter(now, math.inf)

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("there are no sockets in a simulation")

    def _run_once(self) -> None:
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        due, dead, stalled = self._due, self._dead, self._stalled
        if ready:
            self._at_once += len(ready)
            if self._at_once > _MOST_CALLBACKS:
                raise Stuck(f"callbacks run without end at {self._now:.3f} s: {ready[0]!r}")
        else:
            self._at_once = 0
            self._advance()
        if due and due[0][0] <= self._now:
            self._take_due(ready)
        next_call, passed = ready.popleft, 0
        for _ in range(number := len(ready)):
            call = next_call()
            if call.off:
                passed += 1
                continue
            if dead or stalled:
                process = call.context.get(PROCESS, "")
                if process and (process in dead or process in stalled):
                    if process not in dead:
                        stalled[process].append(call)
                    passed += 1
                    continue
            try:
                call.context.run(call.callback, *call.args)
            except Exception as error:
                self.problems.append(f"Exception in callback {call.callback!r}: {error!r}")
        self.callbacks += number - passed

    def _advance(self) -> None:
        due, moments = self._due, self._moments
        while True:
            while due and due[0][2].off:
                heappop(due)
            if not due:
                raise Stuck("every task waits, and no timer is set")
            first = due[0][0]
            if not moments or moments[-1] > first:
                break
            self._now = moments.pop()
            self._on_moment(self._now)
        if first > self._now:
            self._now = first

    def _take_due(self, ready: deque[Any]) -> None:
        """Moves the timers that are due to the callbacks that are ready, those of one moment in the order of the seed."""
        waiting, now = self._due, self._now
        due = []
        while waiting and waiting[0][0] <= now:
            timer = heappop(waiting)
            if not timer[2].off:
                due.append(timer)
        if len(due) > 1:
            is_one_moment = due[0][0] == due[-1][0]
            shuffle(due, self._rng.getrandbits)
            if not is_one_moment:
                due.sort(key=itemgetter(0))
        for _, _, each in due:
            if type(each) is _Wait:
                each.is_due = True
                if each.callback is None:
                    continue
            ready.append(each)

    def _unfinished(self) -> list[tuple[str, SimulatedTask]]:
        return [each for each in self._tasks if not each[1].done()]

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.problems.append(f"{context.get('message')}: {error!r}")

    def at_moments(self, moments: Iterable[float], callback: Callable[[float], None]) -> None:
        """Calls back at each of these moments, before any timer of that moment. A moment at which nothing is done leaves no trace."""
        self._moments, self._on_moment = sorted(moments, reverse=True), callback

    # --- processes ---

    def start(self, process: str, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a coroutine as the main task of a simulated process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coro, context=context)

    def kill(self, process: str) -> None:
        """Ends a process where it is: no handler, no `finally`, no cancellation."""
        self._dead.add(process)

    def stall(self, process: str, seconds: float) -> None:
        """Stops a process for so long, as SIGSTOP does; what becomes due meanwhile runs afterwards."""
        if process not in self._stalled:
            self._stalled[process] = []
            self.call_later(seconds, self._resume, process, context=contextvars.Context())

    def _resume(self, process: str) -> None:
        self._ready.extend(self._stalled.pop(process))  # type: ignore[attr-defined]

    def lives(self, process: str) -> bool:
        """Whether a process was not killed."""
        return process not in self._dead

    def tasks_of(self, process: str) -> list[str]:
        """Returns the names of the unfinished tasks of a process."""
        return [task.get_name() for owner, task in self._unfinished() if owner == process]

    def dispose(self) -> None:
        """Closes all coroutines, after what they did was judged: left to the garbage collector they would disturb a later simulation."""
        self.set_exception_handler(lambda loop, context: None)
        for _, task in self._unfinished():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        self._tasks.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._due.clear()

    def __del__(self) -> None:
        """Does not warn: it has nothing to close."""


class LoopClock:
    """The product's Clock on the time of the loop. `skew` moves the wall clock alone, as an administrator or NTP does."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.skew = timedelta()

    def now(self) -> datetime:
        return self._loop.wall() + self.skew if self.skew else self._loop.wall()

    def monotonic(self) -> float:
        return self._loop._now

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return _slept(self._loop, seconds)  # type: ignore[return-value]


@types.coroutine
def _slept(loop: SimulatedLoop, seconds: float) -> Generator[Any, None, None]:
    """Lets the other tasks that are ready run, at least, as `asyncio.sleep`: one frame, as most of what tasks do is to sleep."""
    if seconds > 0:
        wait = loop.after(seconds)
        wait._asyncio_future_blocking = True
        yield wait
    else:
        yield


def shuffle(items: list[Any], getrandbits: Callable[[int], int]) -> None:
    """Shuffles in place, as `random.Random.shuffle`, by the same random bits."""
    for last in range(len(items) - 1, 0, -1):
        bits = (last + 1).bit_length()
        while (other := getrandbits(bits)) > last:
            pass
        items[last], items[other] = items[other], items[last]


def _settle(future: asyncio.Future[Any], func: Callable[..., Any], args: Iterable[Any]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except Exception as error:
        future.set_exception(error)
    else:
        with suppress(asyncio.InvalidStateError):
            future.set_result(result)


def _close(coro: Any) -> None:
    """Closes a coroutine and those that it awaits, the innermost first; one that awaits something meanwhile is closed again."""
    chain = []
    while coro is not None and hasattr(coro, "close"):
        chain.append(coro)
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)
    for each in reversed(chain):
        for _ in range(_CLOSES):
            try:
                each.close()
                break
            except RuntimeError:
                continue
            except BaseException:
                # What a dropped process does on its way out is no part of the simulation.
                break
