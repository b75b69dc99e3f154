"""Maps requests to rights on `nodes`: verb and subresource, derived from the route that serves the request. Pure.

Invariant: the matched route decides, never the text of the request; however a path is written, a handler always needs the same right.
"""

from __future__ import annotations

from aiohttp import web
from attrs import frozen

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OWN_SUBRESOURCES = {
    "stats": "stats",
    "metrics": "metrics",
    "logs": "log",
    "checkpoint": "checkpoint",
    "statusz": "statusz",
    "flagz": "configz",
}
_FINE_SUBRESOURCES = {"pods": "pods", "runningpods": "pods", "healthz": "healthz", "configz": "configz"}
_WORKS_INSIDE = frozenset({"exec", "attach", "run", "portForward"})
_DEBUG_PATHS = ("run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs")


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
