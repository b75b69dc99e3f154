"""Responses of a worker that are complete JSON and not what was asked for: other kinds, other objects, or nothing that is one.

Invariant: each names what the product has to report about it, and all contents carry CONTENT, which must never reach the hub.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from tests.faults.attack.worker import Asked, Misbehave, answer

CONTENT = "content-of-a-foreign-secret"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
STRANGER = "stranger"
"""Name and namespace of the objects that no one asked for."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@frozen
class Wrong:
    """Answers the requests of one kind, `list`, `watch`, `get` or `write`; `reported` is part of the error that a client makes of it."""

    asked: str
    body: Callable[[Asked], Any]
    reported: str
    at: str = ""
    """The end of the paths of these requests, "" for all."""

    def misbehave(self) -> Misbehave:
        """Returns the attack. A list is asked for only where the server sends no initial events."""

        async def misbehave(asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if asked.kind == self.asked and asked.path.endswith(self.at):
                data = json.dumps(self.body(asked)).encode()
                writer.write(CHUNKED + chunk(data + b"\n") if asked.kind == "watch" else answer(200, data))
                return True
            if asked.kind == "watch" and self.asked == "list":
                code = 410 if asked.query.get("resourceVersion") else 400
                writer.write(answer(code, json.dumps({"kind": "Status", "code": code, "message": "no initial events"}).encode()))
                return True
            return False

        return misbehave


def secret(**metadata: Any) -> dict[str, Any]:
    meta = {"name": STRANGER, "namespace": STRANGER, "uid": STRANGER, "resourceVersion": "7", "annotations": {"note": CONTENT}, **metadata}
    return {"kind": "Secret", "apiVersion": "v1", "metadata": meta, "data": {"password": CONTENT}, "status": {"message": CONTENT}}


def listed(items: Any, kind: str = "") -> dict[str, Any]:
    head = {"kind": kind, "apiVersion": "v1"} if kind else {}
    return {**head, "metadata": {"resourceVersion": "7"}, "items": items}


def event(obj: Any) -> dict[str, Any]:
    return {"type": "ADDED", "object": obj}


def nameless(obj: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in obj.items() if key not in ("kind", "metadata")}


STATUS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": CONTENT}
WRONG: Mapping[str, Wrong] = {
    "a-list-that-is-an-array": Wrong("list", lambda asked: [], "Expected `object`, got `array`"),
    "a-list-that-is-a-status": Wrong("list", lambda asked: STATUS, "responded with a Status instead of"),
    "a-list-without-anything": Wrong("list", lambda asked: {}, "missing required field `items`"),
    "items-that-are-an-object": Wrong("list", lambda asked: listed({}), "Expected `array | null`, got `object`"),
    "items-that-are-null": Wrong("list", lambda asked: {"items": None}, "responded with a list without resourceVersion"),
    "a-list-of-secrets": Wrong("list", lambda asked: listed([secret()], "SecretList"), "responded with a SecretList instead of"),
    "items-without-metadata": Wrong("list", lambda asked: listed([nameless(secret())]), "without a name"),
    "items-of-another-namespace": Wrong("list", lambda asked: listed([nameless(secret()) | {"metadata": secret()["metadata"]}]), STRANGER),
    "an-event-that-is-an-array": Wrong("watch", lambda asked: [], "Expected `object`, got `array`"),
    "an-event-without-an-object": Wrong("watch", lambda asked: {"type": "ADDED"}, "missing required field `object`"),
    "an-event-of-another-kind": Wrong("watch", lambda asked: event(secret()), "responded with a Secret instead of"),
    "an-event-whose-object-is-a-list": Wrong("watch", lambda asked: event([]), "Expected `object`, got `array`"),
    "an-event-without-metadata": Wrong("watch", lambda asked: event(nameless(secret())), "without a name"),
    "an-event-of-another-namespace": Wrong("watch", lambda asked: event(nameless(secret()) | {"metadata": secret()["metadata"]}), STRANGER),
    "an-object-that-is-an-array": Wrong("get", lambda asked: [], "Expected `object`, got `array`"),
    "an-object-that-is-a-status": Wrong("get", lambda asked: STATUS, "responded with a Status instead of"),
    "an-object-of-another-kind": Wrong("get", lambda asked: secret(name=asked.path.rpartition("/")[2]), "a Secret instead of"),
    "an-object-of-another-name": Wrong("get", lambda asked: {"metadata": {"name": STRANGER, "uid": STRANGER}}, f"{STRANGER} instead of"),
    "an-object-without-metadata": Wrong("get", lambda asked: nameless(secret()), "without a name"),
}
_OTHER = nameless(secret()) | {"metadata": secret()["metadata"]}
WRITES: Mapping[str, Wrong] = {
    "an-array": Wrong("write", lambda asked: [], "Expected `object`, got `array`", "/pods"),
    "a-status": Wrong("write", lambda asked: STATUS, "responded with a Status instead of", "/pods"),
    "another-kind": Wrong("write", lambda asked: secret(), "responded with a Secret instead of", "/pods"),
    "another-name": Wrong("write", lambda asked: _OTHER, f"{STRANGER}/{STRANGER} instead of", "/pods"),
    "nothing": Wrong("write", lambda asked: {}, "without a name", "/pods"),
}
"""Responses to the creation of a pod, which is not executed."""
