"""Service account tokens of pods, each bound to its pod.

Invariant: a token is renewed before it expires, and not before it is due, however often it is requested; it is only in memory and its file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from attrs import field, frozen

from vkubelet.api.objects import Pod
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.tokens import renewal_time, request_token, spread_of
from vkubelet.errors import ApiError
from vkubelet.resolve.volumes import TokenSource

log = logging.getLogger(__name__)

_SHARE: Final = 0.8
_SPREAD: Final = timedelta(seconds=10)


@frozen
class Token:
    """An issued token, with the time from which on it has to be renewed."""

    text: str = field(repr=False)
    expiry: datetime
    due: datetime


def due_at(uid: str, expiry: datetime, *, life: float) -> datetime:
    """Returns when a token valid for `life` seconds is renewed: after 80 % of that, at most a day, a few seconds apart for each pod."""
    return renewal_time(expiry, lifetime=life, share=_SHARE) - _SPREAD * spread_of(uid)


class TokenCache:
    """Tokens by the UID of their pod."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens: dict[str, dict[TokenSource, Token]] = {}

    async def read(self, pod: Pod, sources: Iterable[TokenSource], client: Client) -> dict[TokenSource, str]:
        """Returns a valid token for each source. Raises ApiError when there is none at all."""
        return {source: await self._read(pod, source, client) for source in dict.fromkeys(sources)}

    def due_in(self, uid: str) -> float | None:
        """Returns the seconds until a token of the pod is due; None: it has none."""
        now = self._clock.now()
        return min(((token.due - now).total_seconds() for token in self._tokens.get(uid, {}).values()), default=None)

    def forget(self, uid: str) -> None:
        """Drops the tokens of a deleted pod."""
        self._tokens.pop(uid, None)

    async def _read(self, pod: Pod, source: TokenSource, client: Client) -> str:
        known = self._tokens.get(pod.metadata.uid, {}).get(source)
        if known is not None and self._clock.now() < known.due:
            return known.text
        try:
            fresh = await self._issue(pod, source, client)
        except ApiError as error:
            if known is None or self._clock.now() >= known.expiry:
                raise
            log.debug("a token could not be renewed yet: %s", error)
            return known.text
        self._tokens.setdefault(pod.metadata.uid, {})[source] = fresh
        return fresh.text

    async def _issue(self, pod: Pod, source: TokenSource, client: Client) -> Token:
        issued = await request_token(client, pod, audience=source.audience, expiration=source.expiration)
        return Token(issued.text, issued.expiry, due_at(pod.metadata.uid, issued.expiry, life=issued.lifetime))
