"""One process as the kernel sees it: what it costs, measured from outside.

Invariant: nothing is asked of the process itself; the numbers are those of proc(5).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from attrs import define, field, frozen

_TICKS = os.sysconf("SC_CLK_TCK")


@frozen
class Outside:
    """A living process by its id."""

    pid: int

    def cpu_seconds(self) -> float:
        """User and system time of all its threads since it began."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_mib(self) -> float:
        return self._status("VmRSS")

    def peak_mib(self) -> float:
        """The largest resident size so far."""
        return self._status("VmHWM")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _status(self, name: str) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


@define
class Meter:
    """CPU of a process over a span: from the making of the meter until `stop`, or until it is read."""

    process: Outside
    _before: float = field(init=False)
    _began: float = field(init=False)
    _stopped: tuple[float, float] | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._before, self._began = self.process.cpu_seconds(), time.monotonic()

    def stop(self) -> None:
        self._stopped = self._now()

    def _now(self) -> tuple[float, float]:
        return self.process.cpu_seconds() - self._before, time.monotonic() - self._began

    @property
    def cpu(self) -> float:
        """Seconds of CPU used."""
        return (self._stopped or self._now())[0]

    @property
    def cores(self) -> float:
        """CPU used per second."""
        cpu, seconds = self._stopped or self._now()
        return cpu / seconds
