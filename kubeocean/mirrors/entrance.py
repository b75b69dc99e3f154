"""Lets a pod wait until the mirrors of its namespace are in the worker.

Invariant: a pod waits for some seconds at most. Where rights are missing only the first pods of a namespace wait, as rights may follow
the label of a new one; the others wait again as soon as the list that was refused is answered.
"""

import asyncio
from collections.abc import Callable
from typing import Final

_FIRST_WAIT: Final = 5.0
"""Seconds that a pod waits for the mirrors of its namespace."""


class Entrance:
    """Where pods wait. `is_behind` checks that mirrors of a hub namespace are missing, `is_refused` that rights for them are."""

    def __init__(self, *, is_behind: Callable[[str], bool], is_refused: Callable[[str], bool], wait: float = _FIRST_WAIT) -> None:
        self._is_behind = is_behind
        self._is_refused = is_refused
        self._wait = wait
        self._progress = asyncio.Event()
        self._without_rights: set[str] = set()
        """Namespaces for whose rights pods have waited in vain."""

    def notify(self) -> None:
        """Makes the pods that wait check again."""
        self._progress.set()

    def drop(self, namespace: str) -> None:
        """Drops the state of a namespace that has none in the worker."""
        self._without_rights.discard(namespace)

    def is_open(self, namespace: str) -> bool:
        """Checks that pods of a namespace need not wait, because rights are known to be missing."""
        if namespace in self._without_rights and not self._is_refused(namespace):
            self._without_rights.discard(namespace)
        return namespace in self._without_rights

    async def passed(self, namespace: str) -> bool:
        """Returns when a pod may be created: its namespace has its mirrors, or rights are missing; False when that takes longer."""
        if self.is_open(namespace):
            return True
        try:
            async with asyncio.timeout(self._wait):
                while self._is_behind(namespace):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            if not self._is_refused(namespace):
                return False
            self._without_rights.add(namespace)
        return True
