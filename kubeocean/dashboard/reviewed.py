"""A client that reads only what another user may read: each request is reviewed before it is sent with the rights of this process.

Invariant: nothing but GET of objects of the API is sent, and only after a SubjectAccessReview of exactly that verb, resource, namespace and
name has allowed it. A path that cannot be classified is refused.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from vkubelet.api.rbac import Check
from vkubelet.client.rest import Client
from vkubelet.client.transport import Call, Outgoing, Transport
from vkubelet.errors import Forbidden

Review = Callable[[Check], Awaitable[bool]]
"""Asks the cluster whether the user has a right. Raises ApiError."""

# No percent sign: an API server classifies a path after it is decoded.
_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:-]+")

_PREFIXES = frozenset({"watch", "proxy"})
"""Deprecated verbs in the place of a resource."""


class ReviewedTransport(Transport):
    """Sends reviewed reads through another transport, which must be open."""

    def __init__(self, inner: Transport, review: Review) -> None:
        super().__init__(inner.connection, clock=inner.clock)
        self._inner = inner
        self._review = review

    @asynccontextmanager
    async def open(self, call: Call, timeout: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        """Opens a response after the review. Raises Forbidden, ApiError."""
        asked = attributes(call)
        if asked is None or not await self._review(asked):
            raise Forbidden(call.attempt, "the reader of this page has no right to it")
        async with self._inner.open(call, timeout) as response:
            yield response

    async def outgoing(self, path: str, params: object = ()) -> Outgoing:
        """Refuses what is not reviewed, such as WebSockets. Raises Forbidden."""
        raise Forbidden(f"call {path}", "pages only read objects")


def reviewed(client: Client, review: Review) -> Client:
    """Returns a client that reads what the reviews allow, through the pool of `client`."""
    return client.through(ReviewedTransport(client.transport, review))


def attributes(call: Call) -> Check | None:
    """Classifies a request as an API server does (RequestInfo); None unless it is a GET of objects (pure)."""
    head, *parts = call.path.removeprefix("/").split("/")
    if call.method != "GET" or not all(_PART.fullmatch(part) for part in parts):
        return None
    if head == "apis" and len(parts) > 2:
        group, _, *parts = parts
    elif head == "api" and len(parts) > 1:
        group, _, *parts = "", *parts
    else:
        return None
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    if len(parts) > 3 or parts[0] in _PREFIXES:
        return None
    resource, name, subresource = (*parts, "", "")[:3]
    watches = any(key == "watch" and value != "false" for key, value in call.params)
    verb = "get" if name else "watch" if watches else "list"
    return Check(group=group, resource=resource, subresource=subresource, verb=verb, namespace=namespace, name=name)
