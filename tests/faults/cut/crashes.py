"""Kills a process with its n-th API write during one operation, starts it again, and waits for the desired state.

Invariant: the process is dead before its (n+1)-th write reaches an API server; after each kill the desired state is reached, and the
process has ended by itself only where the operation permits it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from attrs import define, field

from tests.faults.cut.choice import Choice
from tests.support.gate import Gate, of_objects
from tests.support.program import Program, eventually
from tests.support.troubles import Asked

NEVER = 1 << 30
REACHED_WITHIN = 120.0
SETTLED = 1.5
"""Seconds without a write after which there is none to come."""


async def _nothing() -> None:
    pass


@define(eq=False, kw_only=True)
class Operation:
    """`prepare` makes the ground, `begin` causes the writes, `reached` is the desired state. `counts`: which writes are counted.

    `ends_saying`: text of the last log line of a process that may end by itself, and is started again then, as its Deployment would do.
    """

    name: str
    begin: Callable[[], Awaitable[None]]
    reached: Callable[[], Awaitable[bool]]
    prepare: Callable[[], Awaitable[None]] = _nothing
    counts: Callable[[Asked], bool] = of_objects
    ends_saying: str = ""


@define(eq=False)
class Killer:
    """Kills `program`, whose connections lead through `gate`."""

    gate: Gate
    program: Program
    choice: Choice
    kills: dict[str, list[str]] = field(factory=dict)
    """By operation: each kill that happened, as its write."""

    async def at_each_write(self, *operations: Operation, count: int = 2) -> None:
        """Performs the operations by turns, first undisturbed to count their writes, then with a kill at each write, or at `count`."""
        totals = {operation.name: await self._undisturbed(operation) for operation in operations}
        print("writes:", totals)
        plans = {name: list(self._plan(total, count)) for name, total in totals.items()}
        for turn in range(max(map(len, plans.values()))):
            for operation in operations:
                plan = plans[operation.name]
                number, withheld = plan[min(turn, len(plan) - 1)]
                await self._killed_at(operation, number, withheld=withheld)
        print("killed at:", {name: len(kills) for name, kills in self.kills.items()})
        assert set(self.kills) == set(totals), f"no kill met {set(totals) - set(self.kills)}"

    def _plan(self, total: int, count: int) -> Iterator[tuple[int, bool]]:
        """Numbers of writes, and whether the answer is withheld: both in the whole run, else by the seed."""
        for number in self.choice.part(range(1, total + 1), count):
            if self.choice.whole:
                yield from ((number, False), (number, True))
            else:
                yield number, self.choice.random.random() < 0.5

    async def _undisturbed(self, operation: Operation) -> int:
        await operation.prepare()
        self.gate.arm(NEVER, self.program, withheld=False, counts=operation.counts)
        await operation.begin()
        await self._eventually(operation, lambda: self._dead_or_done(operation), "undisturbed")
        written = self.gate.written
        self.gate.disarm()
        for number, write in enumerate(written, 1):
            print(f"  {operation.name} {number}: {write}")
        assert written, f"{operation.name} writes nothing"
        return len(written)

    async def _killed_at(self, operation: Operation, number: int, *, withheld: bool) -> None:
        await operation.prepare()
        self.gate.arm(number, self.program, withheld=withheld, counts=operation.counts)
        await operation.begin()
        await self._eventually(operation, lambda: self._dead_or_done(operation), f"write {number}, or the desired state")
        written = self.gate.written
        if not self.gate.disarm():
            return
        where = f"{operation.name}, write {number}{', its answer withheld' if withheld else ''}"
        self.kills.setdefault(operation.name, []).append(where)
        print(f"  killed: {where}: {written[number - 1]}")
        self.program.kill()
        self.program.start()
        await self._eventually(operation, operation.reached, f"the desired state after a kill: {where}")

    async def _dead_or_done(self, operation: Operation) -> bool:
        """Done is what is as it should be and stays so without a write."""
        before = self.gate.writes
        self._keep_running(operation)
        if self.gate.fired or not await operation.reached():
            return self.gate.fired
        await asyncio.sleep(SETTLED)
        return self.gate.fired or self.gate.writes == before

    def _keep_running(self, operation: Operation) -> None:
        """Starts a process again that has ended by itself, where that may be."""
        if self.program.alive or self.gate.fired:
            return
        last = self.program.tail(1)
        assert operation.ends_saying and operation.ends_saying in last, f"{operation.name}: the process has ended by itself: {last}"
        self.program.start()

    async def _eventually(self, operation: Operation, check: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            await eventually(check, f"{operation.name}: {what}", seconds=REACHED_WITHIN, every=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.program.tail()}") from None
