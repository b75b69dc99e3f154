"""Objects of any kind, named as for kubectl, by the `kubernetes` package.

A kubectl costs a tenth of a second of CPU, and the tests ask by thousands.

Invariant: the answers are those of `kubectl get -o json`; what is not understood here is for kubectl, and nothing is guessed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

from attrs import define, field, frozen
from kubernetes import client as k8s
from urllib3.exceptions import HTTPError

from tests.support.witness import api_client
from vkubelet.testing.cluster import CommandFailed, ControlPlane

Body = dict[str, Any]

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@frozen
class Kind:
    """Where objects of a kind are, and what they are called."""

    root: str
    plural: str
    kind: str
    api_version: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """An empty namespace: all."""
        inner = f"namespaces/{namespace}/" if self.namespaced and namespace else ""
        return f"{self.root}/{inner}{self.plural}" + (f"/{name}" if name else "")


@frozen
class Question:
    """The arguments of a `kubectl get`; an empty name: a list, an empty namespace: all of them."""

    word: str
    name: str = ""
    namespace: str = "default"
    labels: str = ""
    fields: str = ""

    @classmethod
    def of(cls, args: Sequence[str]) -> Question | None:
        """None when only kubectl understands it."""
        names = {"-n": "namespace", "--namespace": "namespace", "-l": "labels", "--selector": "labels", "--field-selector": "fields"}
        left, told, words = list(args), {}, []
        while left:
            word, equals, value = left.pop(0).partition("=")
            if word in ("-A", "--all-namespaces"):
                told["namespace"] = ""
            elif word in names and (equals or left):
                told[names[word]] = value if equals else left.pop(0)
            elif word.startswith("-"):
                return None
            else:
                words.append(word + equals + value)
        if len(words) not in (1, 2):
            return None
        kind, _, name = words[0].partition("/") if len(words) == 1 else (words[0], "", words[1])
        if "," in kind or "/" in kind or "/" in name:
            return None
        return cls(kind, name, **told)


@frozen
class Deletion:
    """The arguments of a `kubectl delete --wait=false`: one object, or all that are listed."""

    which: Question
    ignore_not_found: bool = False
    grace: int | None = None
    """Seconds; None: as the objects themselves say."""

    @classmethod
    def of(cls, args: Sequence[str]) -> Deletion | None:
        """None when only kubectl understands it, or shall wait."""
        flags = [
            arg for arg in args if arg in ("--wait=false", "--ignore-not-found", "--all", "--force") or arg.startswith("--grace-period=")
        ]
        which = Question.of([arg for arg in args if arg not in flags])
        graces = [int(flag.partition("=")[2]) for flag in flags if flag.startswith("--grace-period=")]
        several = which is not None and bool(which.labels or which.fields or "--all" in flags)
        if which is None or "--wait=false" not in flags or bool(which.name) == several:
            return None
        # kubectl takes an object away at once only when it is forced to.
        if graces == [0] and "--force" not in flags:
            return None
        return cls(which, "--ignore-not-found" in flags, graces[-1] if graces else None)


@define
class Objects:
    """Of one cluster, as its administrator."""

    cluster: ControlPlane
    _api: k8s.ApiClient = field(init=False, default=None)
    _kinds: dict[str, Kind] = field(init=False, factory=dict)

    async def get(self, question: Question) -> Body | None:
        """One object or None, or a List. Raises CommandFailed."""
        return await asyncio.to_thread(self._get, question)

    async def apply(self, body: Mapping[str, Any]) -> bool:
        """As `kubectl apply` makes what is not there yet and leaves what is like that already; False for all else, which is for kubectl."""
        return await asyncio.to_thread(self._apply, body)

    async def delete(self, deletion: Deletion) -> None:
        """Does not wait for the end of the objects. Raises CommandFailed."""
        await asyncio.to_thread(self._delete, deletion)

    def _delete(self, deletion: Deletion) -> None:
        which = deletion.which
        kind = self._kind(which.word)
        listed = None if which.name else self._get(which)
        metas = [{"name": which.name, "namespace": which.namespace}] if listed is None else [each["metadata"] for each in listed["items"]]
        for meta in metas:
            body = {"propagationPolicy": "Background", **({} if deletion.grace is None else {"gracePeriodSeconds": deletion.grace})}
            path = kind.path(meta.get("namespace", ""), meta["name"])
            status, said = self._call("DELETE", path, body)
            gone = status == 404 and (deletion.ignore_not_found or not which.name)
            if status not in (200, 202) and not gone:
                raise CommandFailed(("delete", path), 1, f"Error from server ({said.get('reason')}): {said.get('message')}")

    async def patch(self, which: Question, change: Mapping[str, Any]) -> Body | None:
        """Merges a change into one object; its new state, None when it is not there. Raises CommandFailed."""
        return await asyncio.to_thread(self._patch, which, change)

    def _patch(self, which: Question, change: Mapping[str, Any]) -> Body | None:
        path = self._kind(which.word).path(which.namespace, which.name)
        status, said = self._call("PATCH", path, change, content="application/merge-patch+json")
        if status not in (200, 404):
            raise CommandFailed(("patch", path), 1, f"Error from server ({said.get('reason')}): {said.get('message')}")
        return said if status == 200 else None

    def _get(self, question: Question) -> Body | None:
        kind = self._kind(question.word)
        query = {"labelSelector": question.labels, "fieldSelector": question.fields}
        path = f"{kind.path(question.namespace, question.name)}?{urlencode({key: value for key, value in query.items() if value})}"
        status, found = self._call("GET", path)
        if status == 404 and question.name:
            return None
        if status != 200:
            raise CommandFailed(("get", path), 1, f"Error from server ({found.get('reason')}): {found.get('message')}")
        if question.name:
            return found
        # kubectl writes on each item what a list says once.
        each = {"apiVersion": kind.api_version, "kind": kind.kind}
        return {"apiVersion": "v1", "kind": "List", "items": [{**each, **item} for item in found["items"]]}

    def _apply(self, body: Mapping[str, Any]) -> bool:
        kind = self._find(f"{body['apiVersion']}/{body['kind']}")
        if kind is None:
            return False
        meta = body["metadata"]
        applied = {_APPLIED: json.dumps(body, separators=(",", ":")) + "\n"}
        made = {**body, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **applied}}}
        namespace = meta.get("namespace") or "default"
        how = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict"
        status, _ = self._call("POST", f"{kind.path(namespace)}?{how}", made)
        if status != 409:
            return status == 201
        status, there = self._call("GET", kind.path(namespace, meta["name"]))
        return status == 200 and is_applied(body, there)

    def _kind(self, word: str) -> Kind:
        found = self._find(word.lower())
        if found is None:
            raise CommandFailed(("get", word), 1, f'error: the server doesn\'t have a resource type "{word}"')
        return found

    def _find(self, word: str) -> Kind | None:
        """What is not known may have come since it was asked for."""
        return self._known().get(word) or self._known(anew=True).get(word)

    def _known(self, *, anew: bool = False) -> Mapping[str, Kind]:
        """By plural, singular, kind and short names, alone and with the group; by `apiVersion/kind`, too."""
        if anew or not self._kinds:
            found: dict[str, Kind] = {}
            for root in ("/api", "/apis"):
                _, groups = self._call("GET", root, accept=_DISCOVERY)
                for group in groups["items"]:
                    for version in group["versions"]:
                        _add(found, root, group["metadata"].get("name", ""), version)
            self._kinds = found
        return self._kinds

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        accept: str = "application/json",
        content: str = "application/json",
    ) -> tuple[int, Body]:
        if self._api is None:
            self._api = api_client(self.cluster.kubeconfig)
        headers = {"Accept": accept, "Content-Type": content}
        try:
            answer: Any = self._api.call_api(method, f"{self._api.configuration.host}{path}", header_params=headers, body=body)
            text = answer.read().decode(errors="replace")
        except HTTPError as error:
            raise CommandFailed((method, path), 1, str(error)) from error
        # Of paths that it does not have the server tells in plain text.
        return answer.status, json.loads(text) if text.startswith("{") else {"message": text}


def _add(found: dict[str, Kind], root: str, group: str, version: Mapping[str, Any]) -> None:
    """The first word stays: groups and versions come in the order of preference."""
    api_version = f"{group}/{version['version']}" if group else version["version"]
    for each in version.get("resources") or ():
        name, plural = each["responseKind"]["kind"], each["resource"]
        kind = Kind(f"{root}/{api_version}", plural, name, api_version, each["scope"] == "Namespaced")
        found.setdefault(f"{api_version}/{name}", kind)
        for word in (plural, each.get("singularResource") or name.lower(), name.lower(), *each.get("shortNames", ())):
            found.setdefault(word, kind)
            found.setdefault(f"{word}.{group}", kind)


def is_applied(body: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Nothing would be changed, and nothing that was applied before would be taken away."""
    before = json.loads((there["metadata"].get("annotations") or {}).get(_APPLIED, "{}"))
    return _within(body, there) and _within(before, body)


def _within(part: Any, whole: Any) -> bool:
    """What is empty may be left out."""
    if whole is None:
        return not part
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(_within(value, whole.get(key)) for key, value in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) == len(whole) and all(map(_within, part, whole))
    return bool(part == whole)


_OF: WeakKeyDictionary[ControlPlane, Objects] = WeakKeyDictionary()


def objects_of(cluster: ControlPlane) -> Objects:
    """The connections of a cluster are kept as long as it is there."""
    return _OF.setdefault(cluster, Objects(cluster))
