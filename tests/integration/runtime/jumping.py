"""The mock provider in a process whose wall clock the test sets.

Invariant: only the wall clock moves, as when somebody sets a machine's time; `vkubelet.clock` is the one place that reads it, which the
architecture test holds.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from pathlib import Path

from attrs import frozen

from vkubelet import clock
from vkubelet_providers.mock import Mock


class Jumping(Mock):
    @frozen(kw_only=True)
    class Settings(Mock.Settings):
        offset: str
        """File with the seconds by which the clock is off; 0 without the file."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        file = Path(settings.offset)

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:
                off = float(file.read_text()) if file.exists() else 0.0
                return datetime.now(tz) + timedelta(seconds=off)

        clock.datetime = Shifted  # type: ignore[misc]
