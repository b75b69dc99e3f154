"""A request as the handlers of the model see it, and its body.

Invariant: what a request says is not changed while it is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from attrs import field, frozen

from tests.faults.model.kinds import Kind
from tests.faults.model.refusals import Refusal, bad_request
from tests.faults.model.shapes import WrongShape

Body = dict[str, Any]

_decode: Final = msgspec.json.Decoder().decode
encode: Final = msgspec.json.Encoder().encode


@frozen(kw_only=True)
class Request:
    """One request; `version` is what a read is served from, None for the newest state."""

    method: str
    path: str
    user: str
    params: Mapping[str, str] = field(factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    version: int | None = None

    @property
    def dry(self) -> bool:
        return self.params.get("dryRun") == "All"

    def decoded(self) -> Body:
        """Returns the body as a new dict. Raises Refusal."""
        try:
            found = _decode(self.body)
        except msgspec.DecodeError as error:
            raise bad_request(f"the object provided is unrecognized: {error}") from error
        if not isinstance(found, dict):
            raise bad_request("the object provided is unrecognized")
        return found


def object_of(kind: Kind, body: Body, known: Body | None = None) -> Body:
    """Returns a body as an object of this type, in the form in which it is stored. Raises Refusal, WrongShape."""
    version, name = body.get("apiVersion") or kind.api_version, body.get("kind") or kind.kind
    if version != kind.api_version:
        raise bad_request(f"the API version in the data ({version}) does not match the expected API version ({kind.api_version})")
    if name != kind.kind:
        raise bad_request(f'{name} in version "{kind.version}" cannot be handled as a {kind.kind}')
    made: Body = kind.shape.clean(body, known)
    if not kind.custom:
        made.pop("kind", None)
        made.pop("apiVersion", None)
    elif "kind" not in made:
        made = {"apiVersion": kind.api_version, "kind": kind.kind, **made}
    metadata = made["metadata"]
    if known is None or metadata is not known["metadata"]:
        metadata.pop("managedFields", None)
        metadata.pop("selfLink", None)
    return made


def sent_object(kind: Kind, request: Request, namespace: str) -> Body:
    """Returns the object in the body of a POST or PUT. Raises Refusal."""
    try:
        made = object_of(kind, request.decoded())
    except WrongShape as error:
        raise bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {error}') from error
    metadata = made["metadata"]
    if not kind.namespaced:
        metadata.pop("namespace", None)
    elif (metadata.get("namespace") or namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    else:
        metadata["namespace"] = namespace
    return made


def timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()[:19] + "Z"


def not_allowed() -> Refusal:
    return Refusal(code=405, reason="MethodNotAllowed", message="the server does not allow this method on the requested resource")


def success() -> bytes:
    """Returns the answer to the creation of a subresource."""
    return encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
