"""Rewrites the content of an object of the hub for its mirrors in the worker, as a kind of `extra_kinds` declares. Pure.

Invariant: the given objects are not changed, and equal inputs give equal mirrors; what a path cannot be applied to is a reason to mirror
nothing of the object.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from kubeocean.model.keys import label_value
from kubeocean.model.kinds import ANY, ITEM, REFERENCE, Rewrite
from vkubelet.api.objects import Json, JsonView

_MOST_ITEMS: Final = 100
_MOST_MIB: Final = 4
"""Limits of the mirrors of one object, as they are made in one turn of the event loop."""
_SPLIT: Final = "split the object"


@frozen
class Rewritten:
    """Bodies of the mirrors of one object, by the digest of their item; "" without one. `refused`: why there are none."""

    bodies: Mapping[str, Json]
    refused: str = ""


class _Unfit(Exception):
    """An object whose fields do not have the types that the rewriting needs, or whose mirrors would be too large."""


def rewritten(rewrites: Iterable[Rewrite], original: JsonView, base: Json, *, worker_namespace: Callable[[str], str]) -> Rewritten:
    """Applies the first case that an object meets to `base`, the body of its mirror with the unchanged content.

    `worker_namespace` returns the namespace in the worker for one of the hub, and the mount namespace for an empty text.
    """
    case = next((each for each in rewrites if _meets(each, original)), None)
    if case is None:
        return Rewritten({"": base})
    if case.refuse:
        return Rewritten({}, case.refuse)
    items = [None] if not case.each else [each for each in _at(original, case.each) if _selects(case, original, each)]
    if not items:
        return Rewritten({}, f"no item of {case.each} has {' and '.join(path for path in case.when if _is_of_item(path))}")
    different = {_digest(item): item for item in items}
    if len(different) > _MOST_ITEMS:
        return Rewritten({}, f"{case.each} has {len(different)} different items, and an object has at most {_MOST_ITEMS} mirrors; {_SPLIT}")
    try:
        return Rewritten(_applied(case, original, base, different, worker_namespace))
    except _Unfit as error:
        return Rewritten({}, str(error))


def _applied(
    case: Rewrite, original: JsonView, base: Json, items: Mapping[str, Any], worker_namespace: Callable[[str], str]
) -> Mapping[str, Json]:
    """Returns the bodies by the digest of their item. Raises _Unfit."""
    common: Json = json.loads(json.dumps(base))
    for path in case.remove:
        _remove(common, path)
    text, left = json.dumps(common), _MOST_MIB << 20
    bodies: dict[str, Json] = {}
    for digest, item in items.items():
        bodies[digest] = _Case(case, original, item, worker_namespace).applied(json.loads(text))
        left -= len(json.dumps(bodies[digest], ensure_ascii=False).encode(errors="replace"))
        if left < 0:
            raise _Unfit(f"its mirrors{case.each and f' for the items of {case.each}'} have more than {_MOST_MIB} MiB together; {_SPLIT}")
    return bodies


@frozen
class _Case:
    """A case with what its templates refer to."""

    rewrite: Rewrite
    original: JsonView
    item: Any
    worker_namespace: Callable[[str], str]

    def applied(self, body: Json) -> Json:
        """Sets what the case sets, and returns the body."""
        for path, template in self.rewrite.values.items():
            self._set(body, path, template, lambda text: text)
        for path, template in self.rewrite.namespaces.items():
            self._set(body, path, template, self.worker_namespace)
        for path, labels in self.rewrite.labels.items():
            made = {key: self._text(template) for key, template in labels.items()}
            known = {key: label_value(value) for key, value in made.items() if value is not None}
            if known:
                parent, name = _parent(body, path)
                parent[name] = {**_map(parent.get(name) or {}, path), **known}
        return body

    def _set(self, body: Json, path: str, template: str, change: Callable[[str], str]) -> None:
        whole = REFERENCE.fullmatch(template)
        found = _value(self.original, self.item, whole[1]) if whole else None
        if isinstance(found, list) and all(isinstance(each, str) for each in found):
            value: Any = list(dict.fromkeys(map(change, found)))
        else:
            text = self._text(template)
            if text is None:
                return
            value = change(text)
        parent, name = _parent(body, path)
        parent[name] = value

    def _text(self, template: str) -> str | None:
        """Returns the text of a template; None when the object has no value for it."""
        out, end = "", 0
        for found in REFERENCE.finditer(template):
            value = _value(self.original, self.item, found[1])
            if value in (None, ""):
                value = found[2]
            if value is None:
                return None
            if not isinstance(value, str | int):
                raise _Unfit(f"{found[1]} is not a text")
            out, end = f"{out}{template[end : found.start()]}{value}", found.end()
        return out + template[end:]


def _meets(case: Rewrite, original: JsonView) -> bool:
    if case.each and not (isinstance(items := _at(original, case.each), list) and items):
        return False
    return all(_holds(_at(original, path), text) for path, text in case.when.items() if not _is_of_item(path))


def _selects(case: Rewrite, original: JsonView, item: Any) -> bool:
    return all(_holds(_value(original, item, path), text) for path, text in case.when.items() if _is_of_item(path))


def _holds(value: Any, wanted: str) -> bool:
    if wanted == ANY:
        return value not in (None, "", [], {})
    return value is not None and value == wanted or isinstance(value, bool) and str(value).lower() == wanted


def _is_of_item(path: str) -> bool:
    return path.partition(".")[0] == ITEM


def _value(original: JsonView, item: Any, path: str) -> Any:
    if not _is_of_item(path):
        return _at(original, path)
    rest = path.partition(".")[2]
    return _at(item, rest) if rest else item


def _at(body: Any, path: str) -> Any:
    """Returns the value at a path, None where there is none."""
    for name in path.split("."):
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


def _parent(body: Json, path: str) -> tuple[Json, str]:
    """Returns the map with the last part of a path; missing ones are created."""
    *above, name = path.split(".")
    for part in above:
        if body.get(part) is None:
            body[part] = {}
        body = _map(body[part], path)
    return body, name


def _map(value: Any, path: str) -> Json:
    if not isinstance(value, dict):
        raise _Unfit(f"{path} cannot be set, as a part of it is not a map")
    return value


def _remove(body: Json, path: str) -> None:
    *above, name = path.split(".")
    parent = _at(body, ".".join(above)) if above else body
    if isinstance(parent, dict):
        parent.pop(name, None)


def _digest(item: Any) -> str:
    """Identifies an item by its content, so that another order of the list changes no mirror."""
    return "" if item is None else digest_of(item)


def digest_of(value: Any) -> str:
    """Returns a short hash of JSON data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def covers(live: Any, wanted: Any) -> bool:
    """Checks that an object has everything that is desired; what a server or a controller added to it does not count."""
    if live is None:
        return wanted in (None, "", [], {})
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(covers(live.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        same = isinstance(live, Sequence) and not isinstance(live, str) and len(live) == len(wanted)
        return same and all(map(covers, live, wanted))
    return bool(live == wanted)
