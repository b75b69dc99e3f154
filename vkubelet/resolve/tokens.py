"""Service account tokens of pods, each bound to its pod.

Invariant: a token is renewed before it expires, and not before it is due, however often it is requested; it is only in memory and its file.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from attrs import field, frozen

from vkubelet.api.objects import Pod
from vkubelet.api.shapes import Json
from vkubelet.client.resources import SERVICEACCOUNTS
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, parse_rfc3339
from vkubelet.errors import ApiError
from vkubelet.resolve.volumes import TokenSource

log = logging.getLogger(__name__)

_SHARE: Final = 0.8
_OLDEST: Final = timedelta(hours=24)
_SPREAD: Final = timedelta(seconds=10)


@frozen
class Token:
    """An issued token, with the time from which on it has to be renewed."""

    text: str = field(repr=False)
    expiry: datetime
    due: datetime


def due_at(uid: str, expiry: datetime, *, life: float) -> datetime:
    """Returns when a token valid for `life` seconds is renewed: after 80 % of that, at most a day, a few seconds apart for each pod."""
    issued = expiry - timedelta(seconds=life)
    spread = _SPREAD * (int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") / 2**32)
    return min(issued + _OLDEST, issued + timedelta(seconds=life * _SHARE)) - spread


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
        meta, account = pod.metadata, pod.spec.get("serviceAccountName") or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        spec: Json = {"audiences": [source.audience] if source.audience else [], "expirationSeconds": source.expiration}
        body: Json = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {**spec, "boundObjectRef": bound},
        }
        answer = (await client.create(SERVICEACCOUNTS, body, namespace=meta.namespace, subresource="token", parent=account)).body
        expiry = parse_rfc3339(answer["status"]["expirationTimestamp"])
        # The API server may limit the requested lifetime.
        due = due_at(meta.uid, expiry, life=answer["spec"]["expirationSeconds"])
        return Token(answer["status"]["token"], expiry, due)
