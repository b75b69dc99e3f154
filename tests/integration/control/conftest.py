"""The time of those who stand for election."""

from __future__ import annotations

import pytest

from tests.support.program import eventually
from vkubelet.testing.clock import ManualClock


class CandidatesClock(ManualClock):
    """Goes on only when it is told to, and while all candidates sleep: however long the API server takes to answer, it takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.candidates = 0
        """How many run now; each has one task that sleeps or waits for an answer."""

    async def advance(self, seconds: float) -> None:
        end = self.monotonic() + seconds
        await self._all_asleep()
        while (due := self._next_due()) is not None and due <= end:
            self._wake_next()
            await self._all_asleep()
        self._elapsed = max(self._elapsed, end)

    async def _all_asleep(self) -> None:
        await eventually(lambda: self.sleepers >= self.candidates, "all candidates have their answers", every=0.005)


@pytest.fixture
def clock() -> CandidatesClock:
    return CandidatesClock()
