"""Calls of the product's client as the simulation sees them: the write site, the request on the wire, an injected refusal.

Invariant: pure; what a call is called here stands in schedules and reports.
"""

from tests.faults.model.requests import Request
from vkubelet.api.codec import encode_json, status_error
from vkubelet.client.transport import Call
from vkubelet.errors import ApiError

_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}


def site_of(cluster: str, call: Call) -> str:
    """What a call writes: `hub patch pods/status`."""
    last = call.path.rpartition("/")[2]
    subresource = last if last in ("status", "eviction", "binding", "token", "resize", "ephemeralcontainers", "approval") else ""
    return f"{cluster} {call.verb or call.method.lower()} {call.resource}{f'/{subresource}' if subresource else ''}"


def request_of(call: Call, process: str) -> Request:
    """The call as its API server receives it, from a process that has a user of its name."""
    return Request(
        method=call.method,
        path=call.path,
        user=process,
        params=dict(call.params),
        body=call.body or b"",
        content_type=call.content_type,
    )


def counts(call: Call) -> bool:
    """Whether a call is one of the writes that faults number: renewals of Leases and queries sent by POST are not."""
    if call.method in ("GET", "HEAD") or call.resource.endswith("reviews"):
        return False
    return not (call.resource == "leases" and call.method == "PUT")


def refusal(call: Call, code: int) -> ApiError:
    """The error of a status code that the API server answers with."""
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": _REASONS[code], "message": "injected"}
    return status_error(call.attempt, encode_json(body), code=code, retry_after="1" if code == 429 else "")
