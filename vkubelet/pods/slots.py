"""Limits how many pods are synced at once, without occupying a worker for those that wait.

Invariant: at most `limit` slots are taken or granted; waiting pods are woken by priority, then by arrival, when a slot becomes free.
"""

from collections.abc import Callable

from vkubelet.control.workqueue import Priority


class Slots:
    """Slots for syncs; `wake(uid, priority)` is called with a waiting pod that was granted a slot; it must call `take` or `drop`."""

    def __init__(self, limit: int, *, wake: Callable[[str, Priority], None]) -> None:
        self._limit = limit
        self._wake = wake
        self._used: set[str] = set()
        self._granted: set[str] = set()
        self._waiting: dict[Priority, dict[str, None]] = {priority: {} for priority in Priority}

    def __contains__(self, uid: str) -> bool:
        """Checks whether the pod waits for a slot, or was granted one that it has not taken."""
        return uid in self._granted or any(uid in waiting for waiting in self._waiting.values())

    def __len__(self) -> int:
        """Returns the number of pods that wait for a slot."""
        return sum(map(len, self._waiting.values()))

    def take(self, uid: str, priority: Priority) -> bool:
        """Takes a slot; returns False when there is none, and the pod waits."""
        if uid in self._granted or len(self._used) + len(self._granted) < self._limit:
            self._granted.discard(uid)
            self._used.add(uid)
            return True
        known = next((each for each, waiting in self._waiting.items() if uid in waiting), None)
        if known is None or priority < known:
            self._stop_waiting(uid)
            self._waiting[priority][uid] = None
        return False

    def free(self, uid: str) -> None:
        """Frees the slot of a pod whose sync has finished."""
        self._used.discard(uid)
        self._grant()

    def drop(self, uid: str) -> None:
        """Drops the request of a pod that needs no slot any more; a slot that was granted to it goes to the next pod."""
        self._stop_waiting(uid)
        if uid in self._granted:
            self._granted.discard(uid)
            self._grant()

    def _stop_waiting(self, uid: str) -> None:
        for waiting in self._waiting.values():
            waiting.pop(uid, None)

    def _grant(self) -> None:
        for priority, waiting in self._waiting.items():
            while waiting and len(self._used) + len(self._granted) < self._limit:
                uid = next(iter(waiting))
                del waiting[uid]
                self._granted.add(uid)
                self._wake(uid, priority)
