"""Rights that an API server has refused to this process, until it grants them.

Invariant: a right counts as refused after the authorizer has refused a request and then a SelfSubjectAccessReview, as an API server that
starts refuses everything for a moment; until a review grants it, or no request has needed it for `FORGOTTEN` seconds.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from attrs import define, evolve

from vkubelet.api.rbac import Check
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.rights import may
from vkubelet.errors import ApiError, Forbidden

FORGOTTEN = 900.0
"""Seconds: longer than any back-off, so that a request that is still refused has been repeated."""
CONFIRMED_AFTER = 2.0
CHECKED_EVERY = 30.0
# What the authorizer of an API server writes (k8s.io/apiserver, endpoints/handlers/responsewriters/errors.go).
_SENTENCE = re.compile(
    r'(?:"(?P<name>[^"]+)" is forbidden: User .*)?'
    r'cannot (?P<verb>\S+) resource "(?P<resource>[^"/]+)(?:/(?P<subresource>[^"]+))?" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


def refused_right(error: Forbidden) -> Check | None:
    """Returns the right that a refusal names; None for one of an admission plugin, or of a path without a resource."""
    found = _SENTENCE.search(error.message)
    if found is None:
        return None
    verb, group, resource, subresource, namespace, name = found.group("verb", "group", "resource", "subresource", "namespace", "name")
    return Check(verb=verb, group=group, resource=resource, subresource=subresource or "", namespace=namespace or "", name=name or "")


@define
class _Refused:
    """`right` is to the last object that was refused, `shown` without its name, and without a namespace if several were refused.

    `reviewed_at` is None until a review has refused it too.
    """

    right: Check
    shown: Check
    refused_at: float
    reviewed_at: float | None = None


class Refusals:
    """The rights that one API server refuses to this process. `changed(rights)` is called with all of them after each change."""

    def __init__(self, clock: Clock, changed: Callable[[Sequence[Check]], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._clients: list[Client] = []
        self._refused: dict[Check, _Refused] = {}
        """By the right to any object in any namespace, so that one to many namespaces is one."""
        self._reported: Sequence[Check] = ()
        self._any = asyncio.Event()

    @contextmanager
    def noting(self, client: Client) -> Iterator[None]:
        """Notes inside what is refused to the client; the last such client sends the reviews."""
        self._clients.append(client)
        try:
            with client.transport.refusing(self._note):
                yield
        finally:
            self._clients.remove(client)

    async def run(self) -> None:
        """Reports what is refused, and drops what is granted, until cancelled."""
        while True:
            await self._any.wait()
            await self._clock.sleep(CONFIRMED_AFTER)
            if self._clients:
                await self._review(self._clients[-1])

    def _note(self, error: Forbidden) -> None:
        right = refused_right(error)
        if right is None:
            return
        to_any, shown = evolve(right, name="", namespace=""), evolve(right, name="")
        known = self._refused.setdefault(to_any, _Refused(right, shown, 0.0))
        known.right, known.refused_at = right, self._clock.monotonic()
        if known.shown != shown:
            known.shown = to_any
        self._any.set()

    async def _review(self, client: Client) -> None:
        """Reviews each right that is due, and reports what has changed; without a response all stays as it is."""
        for to_any, refused in list(self._refused.items()):
            now = self._clock.monotonic()
            if refused.reviewed_at is not None and now - refused.reviewed_at < CHECKED_EVERY:
                continue
            try:
                is_granted = await may(client, refused.right.attributes)
            except Forbidden:
                is_granted = False
            except ApiError:
                break
            if not is_granted and now - refused.refused_at <= FORGOTTEN:
                refused.reviewed_at = now
            elif refused.refused_at < now:
                del self._refused[to_any]
        self._report(tuple(sorted((refused.shown for refused in self._refused.values() if refused.reviewed_at is not None), key=str)))
        if not self._refused:
            self._any.clear()

    def _report(self, refused: Sequence[Check]) -> None:
        if refused != self._reported:
            self._reported = refused
            self._changed(refused)
