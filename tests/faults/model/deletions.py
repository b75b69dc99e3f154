"""Deletes objects as k8s.io/apiserver does: preconditions, grace periods, finalizers and propagation (pkg/registry/rest/delete.go).

Invariant: an object with finalizers, or with a kubelet that has to stop it first, is marked and stays.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from tests.faults.model.admission import Admission
from tests.faults.model.kinds import Kind, Route
from tests.faults.model.refusals import Refusal
from tests.faults.model.request import Request, encode, timestamp
from tests.faults.model.storage import Storage, Stored
from tests.faults.model.strategies import grace_period

Body = dict[str, Any]

_COLLECTORS: Final = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}


class Deleter:
    """Handler of DELETE."""

    def __init__(self, storage: Storage, admission: Admission, *, now: Callable[[], datetime]) -> None:
        self._storage = storage
        self._admission = admission
        self._now = now

    def delete(self, route: Route, request: Request, options: Body) -> bytes:
        """Deletes or marks an object; `options` are DeleteOptions. Raises Refusal."""
        kind, known = route.kind, self._storage.get(route.kind, (route.namespace, route.name))
        self._admission.delete(kind, route.name)
        if known is None:
            raise kind.target(route.name).not_found()
        check_preconditions(route, known, options.get("preconditions") or {})
        old = known.body["metadata"]
        metadata: Body = dict(old)
        graceful = False
        if kind.kind == "Pod":
            grace = options.get("gracePeriodSeconds")
            graceful, pending = self._graceful(kind, known.body, metadata, 1 if grace is not None and grace < 0 else grace)
            if pending:
                return known.whole
        if kind.kind == "Namespace" and (known.body.get("spec") or {}).get("finalizers"):
            return self._terminate(route, request, known)
        self._set_finalizers(metadata, options.get("propagationPolicy"))
        if not graceful and old.get("finalizers") and not metadata.get("finalizers"):
            _check_released(route, options.get("preconditions") or {})
        dry = request.dry or "All" in (options.get("dryRun") or ())
        marked = self._mark(metadata, graceful=graceful)
        if marked and metadata != old and not dry:
            body = {**known.body, "metadata": metadata}
            known = self._storage.put(kind, (route.namespace, route.name), body, user=request.user, verb="delete", path=request.path)
        elif marked:
            known = Stored(kind, {**known.body, "metadata": metadata}, known.version)
        if metadata.get("finalizers") or (graceful and metadata["deletionGracePeriodSeconds"] > 0):
            return known.whole
        if not dry:
            known = self._storage.remove(kind, (route.namespace, route.name), user=request.user, verb="delete", path=request.path)
        return _deleted(kind, known)

    def _graceful(self, kind: Kind, obj: Body, metadata: Body, asked: int | None) -> tuple[bool, bool]:
        """Sets the time of deletion; returns whether it is to be stored, and whether it was requested before."""
        if "deletionTimestamp" not in metadata:
            period = grace_period(obj, asked)
            metadata["deletionTimestamp"] = timestamp(self._now() + timedelta(seconds=period))
            metadata["deletionGracePeriodSeconds"] = period
            metadata["generation"] += 1
            return True, False
        before = metadata.get("deletionGracePeriodSeconds")
        if not before:
            return False, False
        if asked is None or asked >= before:
            return False, True
        moment = datetime.fromisoformat(metadata["deletionTimestamp"]) - timedelta(seconds=before - asked)
        if moment < self._now():
            moment, asked = self._now(), 1 if asked else 0
        metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"] = timestamp(moment), asked
        return True, False

    def _set_finalizers(self, metadata: Body, propagation: str | None) -> None:
        """Adds or removes the finalizers by which a propagation policy works."""
        if propagation is None:
            return
        kept = [each for each in metadata.get("finalizers") or () if each not in _COLLECTORS.values()]
        if propagation in _COLLECTORS:
            kept.append(_COLLECTORS[propagation])
        if kept:
            metadata["finalizers"] = kept
        else:
            metadata.pop("finalizers", None)

    def _mark(self, metadata: Body, *, graceful: bool) -> bool:
        """Marks an object that stays for its finalizers; returns whether the object has to be stored."""
        if graceful:
            return True
        if not metadata.get("finalizers"):
            return False
        if "deletionTimestamp" not in metadata:
            if metadata.get("generation"):
                metadata["generation"] += 1
            metadata["deletionTimestamp"] = timestamp(self._now())
        elif datetime.fromisoformat(metadata["deletionTimestamp"]) > self._now():
            metadata["deletionTimestamp"] = timestamp(self._now())
        metadata["deletionGracePeriodSeconds"] = 0
        return True

    def _terminate(self, route: Route, request: Request, known: Stored) -> bytes:
        if "deletionTimestamp" in known.body["metadata"]:
            return known.whole
        metadata = {**known.body["metadata"], "deletionTimestamp": timestamp(self._now())}
        body = {**known.body, "metadata": metadata, "status": {**known.body["status"], "phase": "Terminating"}}
        return self._storage.put(route.kind, ("", route.name), body, user=request.user, verb="delete", path=request.path).whole


def check_preconditions(route: Route, known: Stored, wanted: Body) -> None:
    """Raises Refusal when the object is another one, or was modified."""
    metadata, kind = known.body["metadata"], route.kind
    for name, shown, why in (
        ("uid", "UID", "The object might have been deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "The object might have been modified"),
    ):
        if wanted.get(name) not in (None, metadata[name]):
            problem = f"the {shown} in the precondition ({wanted[name]}) does not match the {shown} in record ({metadata[name]}). {why}"
            text = f'Operation cannot be fulfilled on {kind.target(route.name).qualified} "{route.name}": {problem}'
            raise Refusal(code=409, reason="Conflict", message=text, kind=kind.kind, group=kind.group, name=route.name)


def _check_released(route: Route, wanted: Body) -> None:
    """Raises Refusal when a version is required of an object that the removal of its last finalizer deletes: a real server then compares
    with no version at all (updateForGracefulDeletionAndFinalizers returns errDeleteNow and no object)."""
    if wanted.get("resourceVersion") is not None:
        target = route.kind.target(route.name)
        text = f'Operation cannot be fulfilled on {target.qualified} "{route.name}": the ResourceVersion in the precondition () is another'
        raise Refusal(code=409, reason="Conflict", message=text, kind=route.kind.kind, group=route.kind.group, name=route.name)


def _deleted(kind: Kind, stored: Stored) -> bytes:
    if kind.returns_deleted:
        return stored.whole
    details: Body = {"name": stored.body["metadata"]["name"], "kind": kind.plural, "uid": stored.body["metadata"]["uid"]}
    if kind.group:
        details["group"] = kind.group
    return encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
