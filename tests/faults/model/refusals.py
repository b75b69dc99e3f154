"""Refusals of an API server: Status objects with the code, reason, message and causes that a real one sends.

Invariant: a refusal is raised before anything is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from attrs import frozen

from vkubelet.api.codec import status_error
from vkubelet.errors import ApiError

_encode = msgspec.json.Encoder().encode


@frozen
class Cause:
    """One invalid field."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


@frozen(kw_only=True)
class Refusal(Exception):
    """An answer of 400 or above; `retry_after` in seconds."""

    code: int
    reason: str
    message: str
    kind: str = ""
    group: str = ""
    name: str = ""
    causes: Sequence[Cause] = ()
    retry_after: int = 0

    def status(self) -> dict[str, object]:
        """Returns the Status object."""
        details: dict[str, object] = {}
        for key, value in (("name", self.name), ("group", self.group), ("kind", self.kind), ("retryAfterSeconds", self.retry_after)):
            if value:
                details[key] = value
        if self.causes:
            details["causes"] = [{"reason": each.reason, "message": each.message, "field": each.field} for each in self.causes]
        body: dict[str, object] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        body |= {"reason": self.reason, "code": self.code}
        return {**body, "details": details} if details else body

    def error(self, attempt: str) -> ApiError:
        """Returns the error that our client raises for this answer."""
        return status_error(attempt, _encode(self.status()), code=self.code, retry_after=str(self.retry_after or ""))


def bad_request(message: str) -> Refusal:
    return Refusal(code=400, reason="BadRequest", message=message)


def expired(message: str) -> Refusal:
    return Refusal(code=410, reason="Expired", message=message)


@frozen
class Target:
    """The object that a request is about, as it is named in refusals."""

    plural: str
    group: str
    kind: str
    name: str

    @property
    def resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def not_found(self) -> Refusal:
        return self._about(404, "NotFound", f'{self.resource} "{self.name}" not found')

    def already_exists(self) -> Refusal:
        return self._about(409, "AlreadyExists", f'{self.resource} "{self.name}" already exists')

    def conflict(self, why: str) -> Refusal:
        return self._about(409, "Conflict", f'Operation cannot be fulfilled on {self.resource} "{self.name}": {why}')

    def forbidden(self, why: str) -> Refusal:
        return self._about(403, "Forbidden", f'{self.resource} "{self.name}" is forbidden: {why}')

    def modified(self) -> Refusal:
        return self.conflict("the object has been modified; please apply your changes to the latest version and try again")

    def invalid(self, causes: Sequence[Cause]) -> Refusal:
        texts = [f"{cause.field}: {cause.message}" for cause in causes]
        shown = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        text = f'{self.qualified} "{self.name}" is invalid: {shown}'
        return Refusal(code=422, reason="Invalid", message=text, kind=self.kind, group=self.group, name=self.name, causes=causes)

    def _about(self, code: int, reason: str, message: str) -> Refusal:
        return Refusal(code=code, reason=reason, message=message, kind=self.plural, group=self.group, name=self.name)
