"""Rights that an API server has refused to this process, until it grants them.

Invariant: a right counts as refused after the authorizer has refused it, and until a SelfSubjectAccessReview confirms it or no request has
needed it for `FORGOTTEN` seconds; the refusal of an admission plugin is none.
"""

import asyncio
import re
from collections.abc import Callable, Sequence

from attrs import evolve

from vkubelet.api.rbac import Check
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.rights import may
from vkubelet.errors import ApiError, Forbidden

FORGOTTEN = 900.0
"""Seconds: longer than any back-off, so that a request that is still refused has been repeated."""
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


class Refusals:
    """The rights that one API server refuses to the user of a client. `changed(rights)` is called with all of them after each change."""

    def __init__(self, client: Client, clock: Clock, changed: Callable[[Sequence[Check]], None]) -> None:
        self._client = client
        self._clock = clock
        self._changed = changed
        self._refused: dict[Check, tuple[Check, float]] = {}
        """By the right to any object: the last one that was refused, perhaps to one object, and when."""
        self._any = asyncio.Event()

    async def run(self) -> None:
        """Notes refusals, and drops those that are granted, until cancelled."""
        with self._client.transport.refusing(self._note):
            while True:
                await self._any.wait()
                await self._clock.sleep(CHECKED_EVERY)
                await self._recheck()

    def _note(self, error: Forbidden) -> None:
        right = refused_right(error)
        if right is None:
            return
        to_any = evolve(right, name="")
        is_new = to_any not in self._refused
        self._refused[to_any] = right, self._clock.monotonic()
        self._any.set()
        if is_new:
            self._report()

    async def _recheck(self) -> None:
        for to_any, noted in list(self._refused.items()):
            right, refused_at = noted
            try:
                is_granted = await may(self._client, right.attributes)
            except ApiError:
                # An API server that does not respond grants nothing.
                return
            is_unused = self._clock.monotonic() - refused_at > FORGOTTEN
            if self._refused[to_any] == noted and (is_granted or is_unused):
                del self._refused[to_any]
                self._report()
        if not self._refused:
            self._any.clear()

    def _report(self) -> None:
        self._changed(sorted(self._refused, key=str))
