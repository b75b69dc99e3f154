"""Authentication and authorization: client certificate or bearer token, then a SubjectAccessReview for this node's subresource.

Invariant: no route receives a request before its caller is authenticated and authorized; a doubt about either is a refusal. The
right that a request needs follows from the matched route, never from the text of the request.
"""

import base64
import hashlib
import hmac
import logging
import secrets
import ssl
from collections.abc import Mapping, Sequence
from functools import partial

from aiohttp import hdrs, web
from attrs import field, frozen

from vkubelet.api.objects import SUBJECTACCESSREVIEWS, TOKENREVIEWS, Json
from vkubelet.client.rest import Client
from vkubelet.clock import Clock
from vkubelet.control.backoff import with_retry
from vkubelet.control.cache import Answer, SharedCache
from vkubelet.errors import ApiError
from vkubelet.logformat import bind
from vkubelet.server.settings import ServerSettings
from vkubelet.server.tls import peer_certificate

log = logging.getLogger(__name__)

AUTHENTICATED = "system:authenticated"
UNAUTHORIZED = "Unauthorized"
TOKEN_HELD, ALLOW_HELD, DENY_HELD = 120.0, 300.0, 30.0
"""Seconds for which a review of the cluster is cached; those of a kubelet by default."""

_CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
_TOKEN_PROTOCOL = "base64url.bearer.authorization.k8s.io."
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OWN_SUBRESOURCES = {
    "stats": "stats",
    "metrics": "metrics",
    "logs": "log",
    "checkpoint": "checkpoint",
}
_FINE_SUBRESOURCES = {"pods": "pods", "runningpods": "pods", "healthz": "healthz", "configz": "configz"}
_WORKS_INSIDE = frozenset({"exec", "attach", "run", "portForward"})
_DEBUG_PATHS = ("run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs")


@frozen
class User:
    """User as in the response to a TokenReview."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@frozen
class Caller:
    """A user, and whether a client certificate authenticated it."""

    user: User
    by_certificate: bool = False


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@frozen
class Question:
    """Whether `user` may do `verb` on a subresource of nodes, or on another resource. An empty name means: on all of them."""

    user: User
    verb: str
    subresource: str = ""
    name: str = ""
    resource: str = field(default="nodes", kw_only=True)
    group: str = field(default="", kw_only=True)
    namespace: str = field(default="", kw_only=True)
    """Empty for what has no namespace, and for all namespaces."""


class Gate:
    """Admission of requests; reviews are cached as long as a kubelet caches them by default."""

    def __init__(self, client: Client, clock: Clock, *, settings: ServerSettings) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings
        self._salt = secrets.token_bytes(32)
        self._users: SharedCache[bytes, User | None] = SharedCache(clock)
        self._rights: SharedCache[Question, bool] = SharedCache(clock)

    async def authenticate(self, request: web.BaseRequest) -> Caller:
        """Authenticates the caller. Raises the 401 of a kubelet."""
        caller = await self._authenticate(request)
        if caller is None:
            raise web.HTTPUnauthorized(text=UNAUTHORIZED)
        return caller

    async def authorize(self, user: User, request: web.Request, *, node: str) -> None:
        """Checks that `user` has the right on `node` that the matched route needs. Raises the 403 or 500 of a kubelet."""
        right = needed(request.method, served_path(request), strict=self._settings.exec_needs_create)
        asked = f"user={user.name}, verb={right.verb}, resource=nodes"
        for subresource in right.subresources:
            try:
                allowed = await self.may(Question(user, right.verb, subresource, node))
            except ApiError as error:
                with bind(error=str(error)):
                    log.warning("authorization failed")
                raise web.HTTPInternalServerError(text=f"Authorization error ({asked}, subresource={subresource})") from error
            if allowed:
                return
        raise web.HTTPForbidden(text=f"Forbidden ({asked}, subresource(s)=[{' '.join(right.subresources)}])")

    async def _authenticate(self, request: web.BaseRequest) -> Caller | None:
        """Authenticates by any one method; an invalid token never counts as an absent one."""
        connection = request.transport.get_extra_info("ssl_object") if request.transport else None
        presented = peer_certificate(connection) if isinstance(connection, ssl.SSLObject) else None
        if presented is not None:
            user = user_of_certificate(*presented)
            if user is not None:
                return Caller(user, by_certificate=True)
        token = bearer_token(request.headers)
        if token and self._settings.token_review:
            found = await self._user_of_token(token)
            return Caller(found) if found is not None else None
        return Caller(ANONYMOUS) if self._settings.anonymous and not token else None

    async def _user_of_token(self, token: str) -> User | None:
        async def look_up() -> Answer[User | None]:
            review = {"spec": {"token": token}}
            answer = await with_retry(partial(self._client.create, TOKENREVIEWS, review), clock=self._clock)
            status: Json = answer.body.get("status", {})
            return Answer(user_of_review(status), 0.0 if status.get("error") else TOKEN_HELD)

        try:
            return await self._users.get(hmac.digest(self._salt, token.encode(), "sha256"), look_up)
        except ApiError as error:
            with bind(error=str(error)):
                log.warning("token review failed")
            return None

    async def may(self, question: Question) -> bool:
        """Asks the cluster whether a user has a right. Raises ApiError."""

        async def look_up() -> Answer[bool]:
            review = {"spec": access_review(question)}
            answer = await with_retry(partial(self._client.create, SUBJECTACCESSREVIEWS, review), clock=self._clock)
            allowed = answer.body.get("status", {}).get("allowed") is True
            return Answer(allowed, ALLOW_HELD if allowed else DENY_HELD)

        return await self._rights.get(question, look_up)


# --- Pure -------------------------------------------------------------------------------------------------------------------------------


def user_of_certificate(subject: Mapping[str, Sequence[str]], der: bytes) -> User | None:
    """Returns the user: CN is its name, every O a group (authentication by X.509 client certificates); None without a CN."""
    names = subject.get("commonName", ())
    if not names or not names[-1]:
        return None
    fingerprint = f"X509SHA256={hashlib.sha256(der).hexdigest()}"
    return User(names[-1], _with_authenticated(subject.get("organizationName", ())), extra=((_CREDENTIAL_ID, (fingerprint,)),))


def user_of_review(status: Json) -> User | None:
    """Returns the user in the status of a TokenReview; None when it rejects the token."""
    if status.get("authenticated") is not True:
        return None
    user: Json = status.get("user", {})
    extra = tuple(sorted((key, tuple(values)) for key, values in (user.get("extra") or {}).items()))
    return User(user.get("username", ""), _with_authenticated(user.get("groups") or ()), user.get("uid", ""), extra)


def _with_authenticated(groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*groups, AUTHENTICATED)))


def bearer_token(headers: Mapping[str, str]) -> str:
    """Returns the token of the Authorization header or of a WebSocket subprotocol, "" for none. Raises 401 for bytes that cannot be a
    token."""
    scheme, _, token = headers.get(hdrs.AUTHORIZATION, "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return _encodable(token.strip())
    for protocol in headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(","):
        if protocol.strip().startswith(_TOKEN_PROTOCOL):
            return _decoded(protocol.strip().removeprefix(_TOKEN_PROTOCOL))
    return ""


def _encodable(token: str) -> str:
    """Checks the encoding: aiohttp decodes headers with surrogates, which no TokenReview can carry."""
    try:
        token.encode()
    except UnicodeEncodeError as error:
        raise web.HTTPUnauthorized(text=UNAUTHORIZED) from error
    return token


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        # Not base64, not ASCII, or not UTF-8 inside.
        raise web.HTTPUnauthorized(text=UNAUTHORIZED) from error


def access_review(question: Question) -> Json:
    """Returns the spec of a SubjectAccessReview."""
    user = question.user
    resource: Json = {"verb": question.verb, "resource": question.resource}
    if not question.group:
        resource["version"] = "v1"
    for key in ("group", "subresource", "name", "namespace"):
        if value := getattr(question, key):
            resource[key] = value
    review: Json = {"user": user.name, "groups": list(user.groups), "resourceAttributes": resource}
    if user.uid:
        review["uid"] = user.uid
    if user.extra:
        review["extra"] = {key: list(values) for key, values in user.extra}
    return review


# --- Rights: verb and subresource of `nodes` that a route needs; pure ---------------------------------------------------------------------


@frozen
class Right:
    """`verb` on one of these subresources of `nodes`; they are checked in this order."""

    verb: str
    subresources: tuple[str, ...]


def served_path(request: web.Request) -> str:
    """Returns the path of the matched route, with its placeholders; where no route matches, the path as the router reads it."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else request.rel_url.path_safe


def needed(method: str, path: str, *, strict: bool = False) -> Right:
    """Returns the right for a method on a `served_path`; `strict`: every request that works inside containers is a create."""
    return Right(verb_of(method, path, strict=strict), subresources(path))


def verb_of(method: str, path: str, *, strict: bool) -> str:
    """Returns the verb of a method, as a kubelet maps it: every unknown method is a get."""
    if strict and _first_segment(path) in _WORKS_INSIDE:
        return "create"
    return _VERBS.get(method.upper(), "get")


def subresources(path: str) -> tuple[str, ...]:
    """Returns the subresources of which one must be allowed, the narrow one first (KEP-2862, on since Kubernetes 1.33)."""
    first = _first_segment(path)
    if first in _OWN_SUBRESOURCES:
        return (_OWN_SUBRESOURCES[first],)
    return (_FINE_SUBRESOURCES[first], "proxy") if first in _FINE_SUBRESOURCES else ("proxy",)


def is_debug(path: str) -> bool:
    """Checks whether a `served_path` belongs to the handlers that `server.debug.handlers` turns off."""
    parts = path.split("/")
    return len(parts) > 1 and (parts[1] in _DEBUG_PATHS or parts[1:3] == ["debug", "pprof"])


def _first_segment(path: str) -> str:
    return path.split("/")[1] if path.startswith("/") else ""
