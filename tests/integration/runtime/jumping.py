"""The mock provider in a process whose wall clock the test sets.

Invariant: nothing but the clock differs from the mock provider.
"""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from tests.support.shifted import shift
from vkubelet_providers.mock import Mock


class Jumping(Mock):
    @frozen(kw_only=True)
    class Settings(Mock.Settings):
        offset: str
        """File with the seconds by which the clock is off; 0 without the file."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        shift(Path(settings.offset))
