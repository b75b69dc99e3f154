"""Keeps an error in one item from stopping the loop that handles all items.

Invariant: of all errors only LeadershipLost propagates; an error that stays the same is logged once for each item, with its traceback.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vkubelet.errors import LeadershipLost
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

_REMEMBERED = 1000
"""Items whose last error is stored; a loop with more failing items logs some of them again."""


class Isolation:
    """Contexts for the items of a loop: calling it with the name of an item returns its context; `loop` names the loop in log lines."""

    def __init__(self, loop: str) -> None:
        self._loop = loop
        self._failed: OrderedDict[tuple[str, Callable[..., object] | None], str] = OrderedDict()

    @contextmanager
    def __call__(self, item: str, *, part: Callable[..., object] | None = None) -> Iterator[None]:
        """Logs and drops what is raised inside the `with`; `part` is one of several functions that handle the item."""
        try:
            yield
        except LeadershipLost:
            raise
        except Exception as error:
            self._log_once(item, part, error)
        else:
            self._failed.pop((item, part), None)

    def _log_once(self, item: str, part: Callable[..., object] | None, error: Exception) -> None:
        known = self._failed.get((item, part))
        self._failed[item, part] = text = repr(error)
        self._failed.move_to_end((item, part))
        if len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)
        if known != text:
            with bind(loop=self._loop, item=item, part=getattr(part, "__qualname__", "")):
                log.error("item skipped after an unexpected error; the loop continues", exc_info=error)
