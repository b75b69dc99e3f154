"""Decodes JSON bytes of an API server to heads and plain dicts, and encodes them; decodes the YAML of files.

Invariant: the output shares no memory with the input, so the buffer of a complete list or watch chunk can be freed.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec
import yaml
from attrs import frozen

from vkubelet import errors
from vkubelet.api.objects import Json, KubeObject, ObjectMeta

T = TypeVar("T", bound=KubeObject)

_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser of libyaml takes a tenth of the time; a PyYAML that was built without it still works."""
_SERVER = "the server"
_INITIAL_END = "k8s.io/initial-events-end"
_CLASSES: dict[int, type[errors.ApiError]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.ServerError,
    409: errors.Conflict,
    410: errors.Expired,
    429: errors.TooManyRequests,
}


class EventType(enum.Enum):
    """Types of watch events that carry an object; ERROR is raised instead."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@frozen
class ObjectList(Generic[T]):
    """A list, or one page of it; `continue_` is empty on the last page. `kind` is that of the list, if it has one."""

    items: Sequence[T]
    resource_version: str = ""
    continue_: str = ""
    kind: str = ""


@frozen
class WatchEvent(Generic[T]):
    """One event; a BOOKMARK's object has only a resourceVersion.

    `initial_end` marks the bookmark after the last initial event (KEP-3157, annotation k8s.io/initial-events-end).
    """

    type: EventType
    object: T
    initial_end: bool = False


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, frozen=True, gc=False):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True, gc=False):
    # Without `items` it is no list, and not an empty one: every object would count as deleted.
    items: list[msgspec.Raw] | None
    metadata: _ListMeta = _ListMeta()
    kind: str = ""


class _Kinded(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""


class _KindedEvent(msgspec.Struct, frozen=True, gc=False):
    object: _Kinded = _Kinded()


class _Marker(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()


LONGEST_RETRY_AFTER = 60
"""Seconds; a server that requests a longer delay is asked again after these."""
_DIGITS = 9
"""Digits of a delay that are read; Python refuses to parse thousands of them."""


class _Cause(msgspec.Struct, frozen=True, gc=False):
    field: str = ""


class _Details(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: int = 0


class _Status(msgspec.Struct, frozen=True, gc=False):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_envelope = msgspec.json.Decoder(_Envelope).decode
_list = msgspec.json.Decoder(_List).decode
_status = msgspec.json.Decoder(_Status).decode
_marker = msgspec.json.Decoder(_Marker).decode
_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_kinded = msgspec.json.Decoder(_Kinded).decode
_kinded_event = msgspec.json.Decoder(_KindedEvent).decode
_KIND_FIRST = re.compile(rb'\{"type":"[A-Z]+","object":\{(?:"apiVersion":"[^"\\]*",)?"kind":"([A-Za-z0-9]+)"')
"""How an event starts as API servers write it; to read only this is faster than to parse all of the object once more."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding; the last for text that nests thousands of levels."""
_TYPES = {each.value: each for each in EventType}


def decode_object(head: type[T], data: bytes, *, attempt: str = "", server: str = _SERVER) -> T:
    """Decodes one object. Raises ServerError, of this attempt and server, when the data is none."""
    try:
        return head.decode(data)
    except _UNREADABLE as error:
        raise _unreadable(attempt or f"decode {head.__name__}", server, error) from error


def decode_list(head: type[T], data: bytes, *, attempt: str = "", server: str = _SERVER) -> ObjectList[T]:
    """Decodes a list or one page of it. Raises ServerError when the data is none."""
    try:
        page = _list(data)
        items = [head.decode(item) for item in page.items or ()]
    except _UNREADABLE as error:
        raise _unreadable(attempt or f"decode {head.__name__}", server, error) from error
    return ObjectList(items, page.metadata.resource_version, page.metadata.continue_, page.kind)


def decode_event(head: type[T], line: bytes, *, attempt: str = "", server: str = _SERVER) -> WatchEvent[T]:
    """Decodes one line of a watch.

    Raises Expired or another ApiError for an ERROR event, ServerError when the line is no event.
    """
    try:
        envelope = _envelope(line)
        type_ = _TYPES.get(envelope.type)
        if type_ is None:
            raise status_error(attempt or f"watch {head.__name__}", bytes(envelope.object))
        event = WatchEvent(type_, head.decode(envelope.object))
        if type_ is EventType.BOOKMARK:
            annotations = _marker(envelope.object).metadata.annotations
            return WatchEvent(type_, event.object, annotations.get(_INITIAL_END) == "true")
        return event
    except _UNREADABLE as error:
        raise _unreadable(attempt or f"decode {head.__name__}", server, error) from error


def kind_of(data: bytes) -> str:
    """Returns the kind of an object, "" where it has none or the data is no object."""
    try:
        return _kinded(data).kind
    except _UNREADABLE:
        return ""


def kind_of_event(line: bytes) -> str:
    """Returns the kind of the object of an event that can be decoded, "" where it has none."""
    known = _KIND_FIRST.match(line)
    return known[1].decode() if known else _kinded_event(line).object.kind


def decode_json(data: bytes) -> Json:
    """Decodes a JSON object to a plain dict. Raises ValueError, without the content, when the data is none."""
    try:
        value = _any(data)
    except _UNREADABLE as error:
        raise ValueError("not valid JSON") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast(Json, value)


def encode_json(value: object) -> bytes:
    """Encodes dicts, lists, text and numbers as compact JSON. Lone surrogates, which stand for bytes that are not UTF-8, become "?"."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_encodable(value))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(each) for each in value]
    return value


def status_error(attempt: str, data: bytes, *, code: int = 0, retry_after: str = "", plain: str = "") -> errors.ApiError:
    """Returns the error for a `metav1.Status` body; `code` is the HTTP code, 0 inside a watch.

    `retry_after` is the header of that name. A body that is no Status (such as a proxy's page) is not quoted; `plain` is used instead.
    """
    try:
        status = _status(data)
    except _UNREADABLE:
        status = _Status()
    code = code or status.code
    details = status.details or _Details()
    return _class_of(code, status.reason)(
        attempt,
        status.message or plain or f"the server responded with status {code} and without a message",
        status=code,
        reason=status.reason,
        retry_after=_requested_delay(retry_after) or _requested_delay(str(details.retry_after_seconds)),
        causes=tuple(dict.fromkeys(cause.field for cause in details.causes or () if cause.field)),
    )


def _requested_delay(text: str) -> float | None:
    """Parses seconds; API servers do not send the form with a date. No server decides that a request is never repeated."""
    return float(min(int(text[:_DIGITS]), LONGEST_RETRY_AFTER)) or None if text.isascii() and text.isdigit() else None


def _class_of(code: int, reason: str) -> type[errors.ApiError]:
    if code == 409 and reason == "AlreadyExists":
        return errors.AlreadyExists
    if code >= 500:
        return errors.ServerError
    return _CLASSES.get(code, errors.Invalid if 400 <= code < 500 else errors.ApiError)


def _unreadable(attempt: str, server: str, error: Exception) -> errors.ServerError:
    sentence = str(error) if isinstance(error, msgspec.ValidationError) else "it is not valid JSON"
    return errors.ServerError(attempt, f"the response of {server} cannot be decoded: {sentence}")


def decode_yaml(text: str | bytes) -> Any:
    """Returns the plain value of one YAML document. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, _YAML_LOADER)
    except yaml.YAMLError:
        # The parser of Python names the line of the mistake more exactly.
        return yaml.load(text, yaml.SafeLoader)


def decode_yaml_documents(text: str | bytes) -> list[Any]:
    """Returns the plain values of all YAML documents, an empty one as None. Raises yaml.YAMLError."""
    return list(yaml.load_all(text, _YAML_LOADER))
