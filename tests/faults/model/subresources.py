"""Subresources that are created (binding, eviction, token), and reviews, which are answered and not stored.

Invariant: a binding or an eviction changes its pod as the same request to a real server would, in as many writes.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tests.faults.model.budgets import spent
from tests.faults.model.deletions import Deleter, check_preconditions
from tests.faults.model.kinds import Kind, Kinds, Route
from tests.faults.model.refusals import Refusal, bad_request
from tests.faults.model.request import Request, encode, not_allowed, success, timestamp
from tests.faults.model.storage import Storage, Stored

Body = dict[str, Any]


class Subresources:
    """Handlers of POST to a subresource or a review."""

    def __init__(self, storage: Storage, kinds: Kinds, *, deleter: Deleter, now: Callable[[], datetime], rng: random.Random) -> None:
        self._storage = storage
        self._kinds = kinds
        self._deleter = deleter
        self._now = now
        self._random = rng
        self.allowed: Callable[[str, Body], bool] = lambda user, attributes: True
        """Decides access reviews."""

    def post(self, route: Route, request: Request) -> bytes:
        """Raises Refusal."""
        match route.kind.kind, route.subresource:
            case "Pod", "binding":
                return self._bind(route, request)
            case "Pod", "eviction":
                return self._evict(route, request)
            case "ServiceAccount", "token":
                return self._token(route, request)
        raise not_allowed()

    def review(self, kind: Kind, request: Request) -> bytes:
        """Answers a TokenReview or an access review."""
        spec: Body = request.decoded().get("spec") or {}
        if kind.plural == "tokenreviews":
            status: Body = {"authenticated": False, "user": {}}
        else:
            status = {"allowed": self.allowed(spec.get("user") or request.user, spec)}
        return encode({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {}, "spec": spec, "status": status})

    def _found(self, route: Route) -> Stored:
        found = self._storage.get(route.kind, (route.namespace, route.name))
        if found is None:
            raise route.kind.target(route.name).not_found()
        return found

    def _put(self, route: Route, request: Request, body: Body, *, verb: str) -> None:
        self._storage.put(route.kind, (route.namespace, route.name), body, user=request.user, verb=verb, path=request.path)

    # --- Pods -----------------------------------------------------------------------------------------------------------------------

    def _bind(self, route: Route, request: Request) -> bytes:
        body, known = request.decoded(), self._found(route).body
        node, uid = body["target"]["name"], (body.get("metadata") or {}).get("uid")
        metadata = dict(known["metadata"])
        if uid not in (None, "", metadata["uid"]):
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
            raise route.kind.target(route.name).conflict(why)
        if problem := _unbindable(known):
            text = f'Operation cannot be fulfilled on pods/binding "{route.name}": {problem}'
            raise Refusal(code=409, reason="Conflict", message=text, kind="pods/binding", name=route.name)
        status = self._with_condition(known["status"], {"type": "PodScheduled", "status": "True"})
        self._put(
            route, request, {**known, "metadata": metadata, "spec": {**known["spec"], "nodeName": node}, "status": status}, verb="bind"
        )
        return success()

    def _with_condition(self, status: Body, condition: Body) -> Body:
        """Sets a condition as podutil.UpdatePodCondition does: at its place, or as the last."""
        before = status.get("conditions") or []
        was = next((each for each in before if each["type"] == condition["type"]), None)
        moved = timestamp(self._now()) if was is None or was.get("status") != condition["status"] else was.get("lastTransitionTime")
        made = {**condition, "lastProbeTime": None, "lastTransitionTime": moved}
        if was is not None and all(was.get(key) == made.get(key) for key in was.keys() | made.keys()):
            return status
        changed = [made if each is was else each for each in before] if was is not None else [*before, made]
        return {**status, "conditions": changed}

    def _evict(self, route: Route, request: Request) -> bytes:
        body, stored = request.decoded(), self._found(route)
        if (body.get("metadata") or {}).get("name") != route.name:
            raise bad_request("name in URL does not match name in Eviction object")
        options: Body = dict(body.get("deleteOptions") or {})
        preconditions = dict(options.get("preconditions") or {})
        self._spend_budget(route, request, stored.body)
        check_preconditions(route, stored, preconditions)
        known = stored.body
        reason = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
        status = self._with_condition(known["status"], {"type": "DisruptionTarget", "status": "True", **reason})
        if status is not known["status"]:
            self._put(route, request, {**known, "metadata": dict(known["metadata"]), "status": status}, verb="evict")
        if preconditions.pop("resourceVersion", None):
            # It was checked, and this eviction itself has changed it.
            options["preconditions"] = preconditions
        if self._storage.get(route.kind, (route.namespace, route.name)) is not None:
            self._deleter.delete(Route(route.kind, route.namespace, route.name, ""), request, options)
        return success()

    def _spend_budget(self, route: Route, request: Request, pod: Body) -> None:
        budgets = self._kinds.get("policy", "v1", "poddisruptionbudgets")
        stored = [each.body for (namespace, _), each in self._storage.table(budgets).now.items() if namespace == route.namespace]
        changed = spent(pod, stored, now=self._now())
        if changed is not None:
            self._put(Route(budgets, route.namespace, changed["metadata"]["name"], ""), request, changed, verb="evict")

    # --- Tokens ---------------------------------------------------------------------------------------------------------------------

    def _token(self, route: Route, request: Request) -> bytes:
        account, spec = self._found(route), request.decoded().get("spec") or {}
        bound: Body = spec.get("boundObjectRef") or {}
        if bound.get("kind") == "Pod":
            pods = self._kinds.get("", "v1", "pods")
            pod = self._storage.get(pods, (route.namespace, bound.get("name", "")))
            if pod is None:
                raise pods.target(bound.get("name", "")).not_found()
            found = pod.body["metadata"]["uid"]
            if bound.get("uid") not in (None, "", found):
                why = f"the UID in the bound object reference ({bound['uid']}) does not match the UID in record ({found})"
                raise pods.target(bound["name"]).conflict(f"{why}. The object might have been deleted and then recreated")
        seconds = spec.get("expirationSeconds") or 3600
        text = "".join(self._random.choices(string.ascii_letters, k=32))
        status = {"token": text, "expirationTimestamp": timestamp(self._now() + timedelta(seconds=seconds))}
        head = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        name = {"name": account.body["metadata"]["name"], "namespace": route.namespace}
        metadata = {**name, "creationTimestamp": timestamp(self._now())}
        return encode({**head, "metadata": metadata, "spec": {**spec, "expirationSeconds": seconds}, "status": status})


def _unbindable(pod: Body) -> str:
    name = pod["metadata"]["name"]
    if "deletionTimestamp" in pod["metadata"]:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if pod["spec"].get("nodeName"):
        return f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
    return f"pod {name} has non-empty .spec.schedulingGates" if pod["spec"].get("schedulingGates") else ""
