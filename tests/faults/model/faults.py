"""What a schedule may do to calls and watches of the model.

Invariant: the model itself never fails, delays or repeats anything; all of that comes through this protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tests.faults.model.watching import Watch, WatchLine
from vkubelet.client.transport import Call


class Faults(Protocol):
    """Faults of one API server. All four are called for the calls of every client of the model."""

    async def before(self, call: Call) -> None:
        """Runs before a call arrives: may wait, or raise an ApiError (nothing was sent) or a Refusal (the server's answer)."""

    async def after(self, call: Call) -> None:
        """Runs after a call took effect: may wait, or raise an ApiError, so that the answer is lost."""

    def event(self, watch: Watch, event: WatchLine) -> Iterable[WatchLine]:
        """Returns what is sent in the place of an event; `watch.pause` delays it and all later ones."""

    def read_version(self, call: Call) -> int | None:
        """Returns the version that a GET, a LIST or a new watch is served from, None for the newest."""
