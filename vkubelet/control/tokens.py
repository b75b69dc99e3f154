"""Service account tokens of pods: requests one that is bound to its pod, and computes when it is renewed.

Invariant: a token becomes invalid with the pod that it was requested for; a pod's place among the renewals of many never changes.
"""

import hashlib
from datetime import datetime, timedelta
from typing import Final

from attrs import field, frozen

from vkubelet.api.objects import SERVICEACCOUNTS, Json, Pod
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, parse_rfc3339

_OLDEST: Final = timedelta(hours=24)
"""Age at which a token is renewed, however long it is valid, as by a kubelet."""
FIRST, LAST = 0.1, 0.9
"""Shares of its lifetime by the monotonic clock: a token is renewed after the first although the wall clock, which may be ahead, shows that
it is due, and before the last although the wall clock, which may be behind, does not."""


@frozen
class IssuedToken:
    """A token as issued by the API server."""

    text: str = field(repr=False)
    expiry: datetime
    lifetime: int
    """Seconds from its issue to its expiry; the API server may limit the requested lifetime."""


async def request_token(client: Client, pod: Pod, *, audience: str, expiration: int) -> IssuedToken:
    """Requests a token of the pod's service account, bound to the pod (TokenRequest, authentication.k8s.io/v1). Raises ApiError.

    `audience` "" is that of the API server; `expiration` is the requested lifetime in seconds.
    """
    spec: Json = {
        "audiences": [audience] if audience else [],
        "expirationSeconds": expiration,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid},
    }
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    account = pod.service_account
    answer = (await client.create(SERVICEACCOUNTS, body, namespace=pod.metadata.namespace, subresource="token", parent=account)).body
    return IssuedToken(
        answer["status"]["token"], parse_rfc3339(answer["status"]["expirationTimestamp"]), answer["spec"]["expirationSeconds"]
    )


def renewal_time(expiry: datetime, *, lifetime: float, share: float) -> datetime:
    """Returns when a token valid for `lifetime` seconds is renewed: after this share of them, and at most after a day."""
    issued = expiry - timedelta(seconds=lifetime)
    return min(issued + timedelta(seconds=lifetime * share), issued + _OLDEST)


def wait_for_renewal(due: datetime, *, received: float, lifetime: float, clock: Clock) -> float:
    """Returns the seconds until a token is renewed that this process received at this time of the monotonic clock."""
    first, last = (received + share * lifetime - clock.monotonic() for share in (FIRST, LAST))
    return max(first, min(last, (due - clock.now()).total_seconds()))


def is_issued_later(expiry: datetime, *, now: datetime, lifetime: float) -> bool:
    """Checks whether a token was issued later than now, by more than the clocks of two machines may differ: then it is due at once."""
    return (expiry - now).total_seconds() > (1 + FIRST) * lifetime


def spread_of(uid: str) -> float:
    """Returns a number from 0 up to 1, always the same for one pod: tokens issued together are not renewed all at once."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") / 2**32
