"""Result of a provider's call: as HTTP code, and as the Status object that completes a stream. Pure.

Invariant: a message is only sent if it is meant for the caller; of every other error only that it happened.
"""

from collections.abc import Mapping, Sequence

from aiohttp import web

from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Json
from vkubelet.errors import BadRequest, NoSuchContainer, NoSuchPod, NotSupported, ProviderError, Unavailable, first_error

HTTP_STATUS: Mapping[type[ProviderError], int] = {
    NoSuchPod: 404,
    NoSuchContainer: 404,
    BadRequest: 400,
    NotSupported: 501,
    Unavailable: 503,
}
HIDDEN, NOT_IMPLEMENTED = "internal error", "not implemented by the provider of this node"

STATUS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
SUCCESS: Json = {"metadata": {}, "status": "Success"}
_REASONS = {400: "BadRequest", 404: "NotFound", 501: "NotImplemented", 503: "ServiceUnavailable"}


def http_status(error: BaseException) -> int | None:
    """Returns the code of an error that the caller may see; None for all others."""
    return next((code for kind, code in HTTP_STATUS.items() if isinstance(error, kind)), None)


def meant(error: Exception, kinds: tuple[type[Exception], ...]) -> Exception:
    """Returns the error itself, or the first inside a group, of these types. Raises a group that also contains others."""
    if not isinstance(error, ExceptionGroup):
        return error
    ours, others = error.split(kinds)
    if ours is None or others is not None:
        raise error
    return first_error(ours)


def exit_code(returned: int) -> int:
    """Returns the exit code as a shell reports it, 0 to 255; a negative number is the signal that killed a process, as asyncio returns
    it."""
    return 128 - returned if -128 < returned < 0 else min(abs(returned), 255)


def exit_status(code: int, command: Sequence[str]) -> Json:
    """Returns the Status of a command that exited."""
    if code == 0:
        return SUCCESS
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: error executing command [{' '.join(command)}], exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failure(error: BaseException | str, action: str) -> Json:
    """Returns the Status of a failure: the provider's own message for an error that has its own code, else that `action` failed."""
    code = None if isinstance(error, str) else http_status(error)
    if code is not None:
        return {"metadata": {}, "status": "Failure", "message": str(error), "reason": _REASONS[code], "code": code}
    cause = f"error {action}: {error if isinstance(error, str) else NOT_IMPLEMENTED if isinstance(error, NotImplementedError) else HIDDEN}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {cause}",
        "reason": "InternalError",
        "details": {"causes": [{"message": cause}]},
        "code": 500,
    }


def not_supported(what: str) -> web.HTTPException:
    """Returns 501 with a Status object: client-go takes every body that is a YAML mapping for a Status, so text such as `a: b` would
    vanish."""
    message = f"the provider of this node does not support {what}"
    status = {**STATUS, "status": "Failure", "message": message, "reason": _REASONS[501], "code": 501}
    return web.HTTPNotImplemented(text=encode_json(status).decode(), content_type="application/json")


def rendered(status: Json, *, structured: bool) -> bytes:
    """Renders for the error stream: an object for clients that support it, else nothing for success, or a sentence."""
    if structured:
        return encode_json(status)
    return b"" if status["status"] == "Success" else str(status["message"]).encode()
