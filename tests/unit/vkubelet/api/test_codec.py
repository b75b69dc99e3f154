"""Bytes of an API server become values or the right error."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from vkubelet.api.codec import (
    LONGEST_RETRY_AFTER,
    EventType,
    decode_event,
    decode_json,
    decode_list,
    decode_object,
    encode_json,
    status_error,
)
from vkubelet.api.objects import Node, Pod, Unknown
from vkubelet.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)


def event(type_: str, obj: dict[str, Any]) -> bytes:
    return encode_json({"type": type_, "object": obj})


@pytest.mark.parametrize("type_", ["ADDED", "MODIFIED", "DELETED"])
def test_events_carry_their_object(type_: str) -> None:
    got = decode_event(Pod, event(type_, {"metadata": {"name": "web"}, "spec": {"nodeName": "n"}}))
    assert (got.type, got.object.metadata.name, got.object.node, got.initial_end) == (EventType(type_), "web", "n", False)


def test_bookmark_says_whether_the_initial_events_are_over() -> None:
    metadata = {"resourceVersion": "9", "creationTimestamp": None}
    plain = decode_event(Pod, event("BOOKMARK", {"kind": "Pod", "metadata": metadata, "spec": {"containers": None}, "status": {}}))
    assert (plain.type, plain.object.metadata.resource_version, plain.initial_end) == (EventType.BOOKMARK, "9", False)
    last = {**metadata, "annotations": {"k8s.io/initial-events-end": "true"}}
    assert decode_event(Unknown, event("BOOKMARK", {"metadata": last})).initial_end


def test_error_event_with_410_is_expired() -> None:
    status = {"kind": "Status", "message": "too old resource version: 1 (9)", "reason": "Expired", "code": 410}
    with pytest.raises(Expired, match="too old") as caught:
        decode_event(Pod, event("ERROR", status))
    assert caught.value.status == 410


def test_other_error_events_are_their_class() -> None:
    with pytest.raises(ServerError):
        decode_event(Pod, event("ERROR", {"kind": "Status", "code": 500, "message": "etcd"}))
    with pytest.raises(ApiError):
        decode_event(Pod, event("SOMETHING", {"kind": "Pod"}))


@pytest.mark.parametrize("line", [b"", b"{", b"<html>", b'{"type":"ADDED"}', b'{"type":"ADDED","object":{"metadata":{"name":5}}}', b"\xff"])
def test_lines_that_are_no_events_are_server_errors_that_do_not_quote_them(line: bytes) -> None:
    with pytest.raises(ServerError) as caught:
        decode_event(Pod, line)
    assert "<html>" not in str(caught.value)


def test_list_gives_items_version_and_continuation() -> None:
    data = encode_json({"metadata": {"resourceVersion": "5", "continue": "next"}, "items": [{"metadata": {"name": "a"}}]})
    got = decode_list(Node, data)
    assert ([item.metadata.name for item in got.items], got.resource_version, got.continue_) == (["a"], "5", "next")
    assert decode_list(Node, b'{"metadata":{},"items":null}').items == []


def test_what_is_kept_does_not_keep_the_answer() -> None:
    data = encode_json({"metadata": {}, "items": [{"metadata": {"name": "a"}, "spec": {"x": "y" * 1000}}] * 3})
    got = decode_list(Unknown, data)
    one = got.items[0]
    held = {id(referent) for referent in gc.get_referents(got, got.items, one) if isinstance(referent, bytes | memoryview)}
    assert id(data) not in held
    assert len(one.raw) < len(data) / 2


def test_objects_that_are_none_are_server_errors() -> None:
    with pytest.raises(ServerError, match="decode Pod"):
        decode_object(Pod, b"[]")
    with pytest.raises(ServerError, match="decode Pod"):
        decode_list(Pod, b"oops")


def test_json_goes_both_ways() -> None:
    value = {"a": [1, 2.5, None, True, {"b": "ü"}]}
    assert decode_json(encode_json(value)) == value
    for bad in (b"[1]", b"{", b"\xff"):
        with pytest.raises(ValueError, match="JSON"):
            decode_json(bad)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", Invalid),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Expired),
        (415, "UnsupportedMediaType", Invalid),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerError),
        (503, "", ServerError),
        (504, "Timeout", ServerError),
        (302, "", ApiError),
    ],
)
def test_each_answer_has_its_class(code: int, reason: str, kind: type[ApiError]) -> None:
    error = status_error("create pods default/web", encode_json({"reason": reason, "message": "because"}), code=code)
    assert type(error) is kind
    assert (error.status, error.reason, str(error)) == (code, reason, "create pods default/web: because")


def test_causes_and_retry_after_are_taken_from_the_details() -> None:
    details = {
        "causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid", "message": "x"}, {"message": "y"}],
        "retryAfterSeconds": 3,
    }
    error = status_error("patch", encode_json({"message": "m", "details": details}), code=422)
    assert (error.causes, error.retry_after) == (("metadata.uid",), 3.0)
    assert status_error("patch", encode_json({"details": details}), code=429, retry_after="7").retry_after == 7.0
    assert status_error("patch", encode_json({"details": {"causes": None}}), code=422).causes == ()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", None),
        ("5", 5.0),
        ("86400", LONGEST_RETRY_AFTER),
        ("9" * 5000, LONGEST_RETRY_AFTER),
        ("-1", None),
        ("1.5", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("\u00b2", None),
        ("\u0663", None),
        ("\udcb2", None),
        ("", None),
    ],
)
def test_no_retry_after_stops_a_client(header: str, seconds: float | None) -> None:
    """Digits of other scripts are no numbers of HTTP, and some of them are no numbers at all."""
    assert status_error("list pods", b"", code=429, retry_after=header).retry_after == seconds


def test_no_retry_after_of_a_status_stops_a_client() -> None:
    for asked, seconds in ((10**18, LONGEST_RETRY_AFTER), (-5, None)):
        body = encode_json({"details": {"retryAfterSeconds": asked}})
        assert status_error("list pods", body, code=503).retry_after == seconds


def test_a_page_that_is_no_status_is_not_quoted() -> None:
    error = status_error("get nodes", b"<html>secret</html>", code=502)
    assert isinstance(error, ServerError)
    assert "secret" not in str(error)
    assert "502" in str(error)


def test_lone_surrogates_are_sent_as_question_marks() -> None:
    value = {"a\udcff": ["\ud800b", ("c", "\udfff")], "n": 1, "deep": {"x": "ü😀\udcff"}}
    assert decode_json(encode_json(value)) == {"a?": ["?b", ["c", "?"]], "n": 1, "deep": {"x": "ü😀?"}}


# Python 3.11 accepts a thousand levels, 3.13 some thousands.
@pytest.mark.parametrize("depth", [20_000, 100_000])
def test_text_that_nests_too_deep_is_no_object_and_no_crash(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    with pytest.raises(ServerError):
        decode_object(Pod, b'{"metadata":{"name":"a"},"spec":{"x":' + deep + b"}}")
    with pytest.raises(ServerError):
        decode_event(Unknown, b'{"type":"ADDED","object":{"spec":' + deep + b"}}")
    with pytest.raises(ValueError, match="JSON"):
        decode_json(b'{"x":' + deep + b"}")


def test_a_number_of_seconds_that_no_machine_has_is_no_error_of_ours() -> None:
    status = b'{"details":{"retryAfterSeconds":' + b"9" * 400 + b"}}"
    assert status_error("get", status, code=429).retry_after in (None, LONGEST_RETRY_AFTER)
