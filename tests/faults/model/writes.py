"""Creates and updates objects as k8s.io/apiserver does (pkg/registry/generic/registry, pkg/endpoints/handlers).

Invariant: a write is admitted, prepared and validated before it is stored; one that changes nothing is not stored.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from tests.faults.model import patches, strategies, validation
from tests.faults.model.admission import Admission
from tests.faults.model.applying import apply_of
from tests.faults.model.kinds import Kind, Route
from tests.faults.model.refusals import Cause, Refusal, bad_request
from tests.faults.model.request import Request, object_of, sent_object, timestamp
from tests.faults.model.shapes import WrongShape
from tests.faults.model.storage import Storage, Stored

Body = dict[str, Any]

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE: Final = 58
_VERBS: Final = {"PUT": "update", "PATCH": "patch"}
_MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"


Guard = Callable[[str, Kind, str, Body], str]
"""Returns why admission policies refuse what a user creates: `guard(user, kind, namespace, object)`; "" when they do not."""


class Writer:
    """Handlers of POST, PUT and PATCH."""

    def __init__(self, storage: Storage, admission: Admission, *, now: Callable[[], datetime], rng: random.Random) -> None:
        self._storage = storage
        self._admission = admission
        self._now = now
        self._random = rng
        self._applied: dict[tuple[str, str], Body] = {}
        """What each manager applied last, by its name and the UID of the object."""
        self.created: Callable[[Stored], None] = lambda stored: None
        """Called after each creation."""
        self.guard: Guard = lambda user, kind, namespace, obj: ""

    # --- Creations ------------------------------------------------------------------------------------------------------------------

    def post(self, route: Route, request: Request) -> bytes:
        obj = sent_object(route.kind, request, route.namespace)
        if obj["metadata"].get("resourceVersion"):
            text = "Internal error occurred: resourceVersion should not be set on objects to be created"
            raise Refusal(code=500, reason="InternalError", message=text)
        return self._create(route, request, obj).whole

    def _create(self, route: Route, request: Request, obj: Body) -> Stored:
        kind, metadata = route.kind, obj["metadata"]
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(name, None)
        metadata["uid"] = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        metadata["creationTimestamp"] = timestamp(self._now())
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"][:_LONGEST_BASE] + self.suffix()
        self._admission.create(kind, route.namespace, obj)
        if why := self.guard(request.user, kind, route.namespace, obj):
            raise kind.target(metadata.get("name", "")).forbidden(why)
        strategies.prepare_create(kind, obj, now=metadata["creationTimestamp"])
        if causes := validation.on_create(kind, obj):
            raise kind.target(metadata.get("name", "")).invalid(causes)
        key = (route.namespace, metadata["name"])
        if self._storage.get(kind, key) is not None:
            raise kind.target(metadata["name"]).already_exists()
        if request.dry:
            return Stored(kind, obj, 0)
        metadata.pop("resourceVersion", None)
        made = self._storage.put(kind, key, obj, user=request.user, verb="create", path=request.path)
        made.settled = kind.kind != "PersistentVolumeClaim"
        self.created(made)
        return made

    def suffix(self) -> str:
        """Returns the random end of a generated name."""
        return "".join(self._random.choices(_LETTERS, k=5))

    # --- Updates --------------------------------------------------------------------------------------------------------------------

    def put(self, route: Route, request: Request) -> bytes:
        kind = route.kind
        new = sent_object(kind, request, route.namespace)
        metadata = new["metadata"]
        if metadata.get("name") != route.name:
            raise bad_request(f"the name of the object ({metadata.get('name', '')}) does not match the name on the URL ({route.name})")
        known = self._storage.get(kind, (route.namespace, route.name))
        found = known.body["metadata"]["uid"] if known is not None else ""
        if known is None and not (kind.creates_on_update and not route.subresource):
            raise kind.target(route.name).not_found()
        if metadata.get("uid") not in (None, found):
            raise kind.target(route.name).conflict(
                f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {found}"
            )
        if known is None:
            return self._create(route, request, new).whole
        return self._update(route, request, known, new=new)

    def patch(self, route: Route, request: Request) -> bytes:
        kind, content_type = route.kind, request.content_type
        known = self._storage.get(kind, (route.namespace, route.name))
        patch = request.decoded()
        if content_type == _APPLY:
            return self._apply(route, request, known, patch=patch)
        if content_type != _MERGE and (content_type != _STRATEGIC or kind.custom):
            raise Refusal(code=415, reason="UnsupportedMediaType", message="the body of the request was in an unknown format")
        if known is None:
            raise kind.target(route.name).not_found()
        if content_type == _MERGE:
            patched = patches.merge(known.body, patch)
        else:
            patched = patches.strategic(known.body, patch, kind.shape)
        return self._update(route, request, known, new=self._patched(kind, patched, known))

    def _patched(self, kind: Kind, patched: Body, known: Stored) -> Body:
        try:
            return object_of(kind, patched, known.body)
        except WrongShape as error:
            raise kind.target("").invalid([Cause("patch", f"Invalid value: {error}")]) from error

    def _apply(self, route: Route, request: Request, known: Stored | None, *, patch: Body) -> bytes:
        """Applies (server-side); the manager loses what it applied before and does not any more."""
        kind, manager = route.kind, request.params.get("fieldManager", "")
        if known is None:
            if route.subresource:
                raise kind.target(route.name).not_found()
            if uid := (patch.get("metadata") or {}).get("uid"):
                raise kind.target(route.name).conflict(f"Precondition failed: UID in precondition: {uid}, UID in object meta: ")
            made = self._create(route, request, sent_object(kind, request, route.namespace))
        else:
            before = self._applied.get((manager, known.body["metadata"]["uid"]), {})
            patched = apply_of(known.body, patch, before, kind.shape)
            self._update(route, request, known, new=self._patched(kind, patched, known))
            made = self._storage.get(kind, (route.namespace, route.name)) or known
        if not request.dry:
            self._applied[manager, made.body["metadata"]["uid"]] = patch
        return made.whole

    def _update(self, route: Route, request: Request, known: Stored, *, new: Body) -> bytes:
        kind, old = route.kind, known.body
        if new is old:
            return known.whole
        if new["metadata"] is old["metadata"]:
            new["metadata"] = dict(old["metadata"])
        self._admission.update(kind, new, route.subresource)
        self._check_version(route, new["metadata"].get("resourceVersion"), old["metadata"]["resourceVersion"])
        self._prepare(route, new, old)
        if causes := validation.on_update(kind, new, old, route.subresource):
            raise kind.target(route.name).invalid(causes)
        verb, key = _VERBS[request.method], (route.namespace, route.name)
        before = old["metadata"]
        if "deletionTimestamp" in before and not before.get("deletionGracePeriodSeconds") and not new["metadata"].get("finalizers"):
            # The last finalizer is removed: the object is deleted instead of stored.
            if not request.dry and kind.kind != "Namespace":
                self._storage.remove(kind, key, user=request.user, verb=verb, path=request.path)
            return Stored(kind, new, known.version).whole
        if new == old and known.settled:
            return known.whole
        if request.dry:
            return Stored(kind, new, known.version).whole
        return self._storage.put(kind, key, new, user=request.user, verb=verb, path=request.path).whole

    def _check_version(self, route: Route, version: str | None, current: str) -> None:
        kind = route.kind
        if not version and not kind.unconditional:
            cause = Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
            target = kind.target(route.name)
            text = f'{target.resource} "{route.name}" is invalid: {cause.field}: {cause.message}'
            raise Refusal(code=422, reason="Invalid", message=text, kind=kind.plural, group=kind.group, name=route.name, causes=[cause])
        if version and version != current:
            raise kind.target(route.name).modified()

    def _prepare(self, route: Route, new: Body, old: Body) -> None:
        """Sets what an update cannot change (rest.BeforeUpdate)."""
        metadata, before = new["metadata"], old["metadata"]
        metadata["resourceVersion"] = before["resourceVersion"]
        strategies.prepare_update(route.kind, new, old, route.subresource, now=timestamp(self._now()))
        metadata = new["metadata"]
        metadata["uid"] = metadata.get("uid") or before["uid"]
        metadata["creationTimestamp"] = before["creationTimestamp"]
        if "deletionTimestamp" in before:
            metadata["deletionTimestamp"] = before["deletionTimestamp"]
        if before.get("deletionGracePeriodSeconds") is not None:
            metadata.setdefault("deletionGracePeriodSeconds", before["deletionGracePeriodSeconds"])
