"""Serves requests from storage: reads here, everything else by the handlers of `writes`, `deletions` and `subresources`.

Invariant: a request either is refused and changes nothing, or takes effect completely; nothing here waits.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.faults.model.admission import Admission
from tests.faults.model.deletions import Deleter
from tests.faults.model.kinds import Kinds, Route, no_such_resource
from tests.faults.model.refusals import bad_request, expired
from tests.faults.model.request import Request, encode, not_allowed
from tests.faults.model.selectors import selector
from tests.faults.model.storage import Key, Storage, Stored
from tests.faults.model.subresources import Subresources
from tests.faults.model.writes import Writer

Body = dict[str, Any]

_PLAIN = {"/version": b'{"major":"1","minor":"34","gitVersion":"v1.34.4"}', "/readyz": b"ok", "/livez": b"ok", "/healthz": b"ok"}
_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue "
    "parameter, or use the continue token in this response to retrieve the remainder of the results."
)


class Requests:
    """The handlers of one API server."""

    def __init__(self, storage: Storage, kinds: Kinds, *, now: Callable[[], datetime], rng: random.Random) -> None:
        self._storage = storage
        self._kinds = kinds
        admission = Admission(storage, kinds, suffix=lambda: self.writer.suffix())
        self.writer = Writer(storage, admission, now=now, rng=rng)
        self._deleter = Deleter(storage, admission, now=now)
        self.subresources = Subresources(storage, kinds, deleter=self._deleter, now=now, rng=rng)

    def serve(self, request: Request) -> bytes:
        """Returns the body of the response. Raises Refusal."""
        if not request.path.startswith(("/api/", "/apis/")):
            if request.path in _PLAIN:
                return _PLAIN[request.path]
            raise no_such_resource()
        resources = self._kinds.discovered(request.path) if request.method == "GET" else None
        if resources is not None:
            return encode(resources)
        route = self._kinds.route(request.path)
        match request.method:
            case "GET" if route.kind.stored:
                return self._get(route, request) if route.name else self._list(route, request)
            case "POST":
                return self._post(route, request)
            case "PUT" if route.name:
                return self.writer.put(route, request)
            case "PATCH" if route.name:
                return self.writer.patch(route, request)
            case "DELETE" if route.name and not route.subresource:
                return self._deleter.delete(route, request, request.decoded() if request.body else {})
        raise not_allowed()

    def _post(self, route: Route, request: Request) -> bytes:
        if route.subresource:
            return self.subresources.post(route, request)
        if not route.kind.stored:
            return self.subresources.review(route.kind, request)
        if route.name or (route.kind.namespaced and not route.namespace):
            raise not_allowed()
        return self.writer.post(route, request)

    def _get(self, route: Route, request: Request) -> bytes:
        found = self._storage.get(route.kind, (route.namespace, route.name), self._version_of(request))
        if found is None:
            raise route.kind.target(route.name).not_found()
        return found.whole

    def _list(self, route: Route, request: Request) -> bytes:
        params, kind = request.params, route.kind
        check = selector(params.get("labelSelector", ""), params.get("fieldSelector", ""), kind.kind)
        version = self._version_of(request)
        after: Key | None = None
        if params.get("continue"):
            version, after = self._continued(params["continue"])
        objects = self._storage.table(kind).at(version)
        keys = sorted(key for key in objects if route.namespace in ("", key[0]) and (after is None or key > after))
        found = [(key, objects[key]) for key in keys if check is None or check(objects[key].body)]
        limit = int(params.get("limit") or 0) or len(found)
        metadata: Body = {"resourceVersion": str(version)}
        if len(found) > limit:
            metadata["continue"] = _token(version, found[limit - 1][0])
            if check is None:
                metadata["remainingItemCount"] = len(found) - limit
        return _page(kind.kind, kind.api_version, metadata, [each for _, each in found[:limit]])

    def _version_of(self, request: Request) -> int:
        """Returns what a read is served from: the watch cache where the client accepts any version, else etcd."""
        if request.version is not None:
            return request.version
        return self._storage.seen if request.params.get("resourceVersion") == "0" else self._storage.version

    def _continued(self, token: str) -> tuple[int, Key]:
        try:
            found = json.loads(base64.urlsafe_b64decode(token))
            version, key = int(found["rv"]), (found["ns"], found["name"])
        except (ValueError, KeyError, TypeError) as error:
            raise bad_request("continue key is not valid") from error
        if not self._storage.compacted <= version <= self._storage.version:
            raise expired(_EXPIRED)
        return version, key


def _page(kind: str, api_version: str, metadata: Body, items: list[Stored]) -> bytes:
    head = f'{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":'.encode()
    return b'%b%b,"items":[%b]}' % (head, encode(metadata), b",".join(each.item for each in items))


def _token(version: int, key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps({"rv": version, "ns": key[0], "name": key[1]}).encode()).decode()
