"""A clock that runs fast."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from vkubelet.clock import SystemClock


class FastClock(SystemClock):
    """Ten seconds pass in one."""

    FACTOR = 10.0

    def __init__(self) -> None:
        self._began = super().now()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=(super().now() - self._began).total_seconds() * self.FACTOR)

    def monotonic(self) -> float:
        return super().monotonic() * self.FACTOR

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / self.FACTOR)


@pytest.fixture
def fast_clock() -> FastClock:
    return FastClock()
