"""Every error of the project, as one tree.

Invariant: only the attribute `retryable` of the class decides whether a failed step may be retried; no caller matches on text.

    VKubeletError
    ├─ SettingsError                     a path and a sentence; the process exits with 2
    ├─ ApiError                          response of an API server, or that there was none
    │   ├─ Unauthorized  Forbidden  NotFound  Invalid  Expired
    │   ├─ AlreadyExists  Conflict       both are 409, distinguished by `reason`
    │   └─ TooManyRequests  ServerError  Unreachable          retryable
    ├─ ProviderError                     raised by providers, meant for the runtime
    │   ├─ PodRejected                   the pod becomes Failed
    │   │   └─ NotAdmitted               before anything of it was started
    │   ├─ NoSuchPod  NoSuchContainer    404 at the kubelet server
    │   ├─ Unavailable                   503, or retried later
    │   ├─ NotSupported                  501
    │   └─ BadRequest                    400
    ├─ Fenced                            a write refused by the leader's fence
    └─ LeadershipLost                    another leader was observed; the process exits with 1
"""

from collections.abc import Sequence
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class VKubeletError(Exception):
    """Root of the tree."""

    retryable = False


class SettingsError(VKubeletError):
    """A setting is invalid; `path` names it as written in YAML (`server.certificate.file`), the sentence contains the remedy."""

    def __init__(self, path: str, sentence: str) -> None:
        super().__init__(f"{path}: {sentence}" if path else sentence)
        self.path = path


class ApiError(VKubeletError):
    """An API server refused `attempt` (such as "create pods default/web"); `status` is the HTTP code, 0 without a response.

    `reason` is the machine-readable reason of the Status object and `causes` the field paths it names.
    """

    def __init__(
        self,
        attempt: str,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float | None = None,
        causes: Sequence[str] = (),
    ) -> None:
        super().__init__(f"{attempt}: {message}")
        self.attempt = attempt
        self.message = message
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.causes = tuple(causes)


class Unauthorized(ApiError):
    """401: the credentials were not accepted."""


class Forbidden(ApiError):
    """403: the credentials are known, the right is missing."""

    @property
    def lacks_right(self) -> bool:
        """Whether authorization refuses it; False for admission, such as a quota or a namespace that is being deleted."""
        return "cannot " in self.message and " resource " in self.message


class NotFound(ApiError):
    """404: the object, or the resource type itself, does not exist."""


class Invalid(ApiError):
    """400, 405, 406, 413, 415 or 422: the request itself is invalid; repeating it will not help."""


class Expired(ApiError):
    """410, or an ERROR event in a watch: the resourceVersion is too old; list again."""


class AlreadyExists(ApiError):
    """409 with reason AlreadyExists: a create found the name in use."""


class Conflict(ApiError):
    """409 otherwise: the object changed since it was read, or a precondition failed."""


class TooManyRequests(ApiError):
    """429: too many requests; `retry_after` is the requested delay in seconds."""

    retryable = True


class ServerError(ApiError):
    """5xx: the API server failed."""

    retryable = True


class Unreachable(ApiError):
    """No response: the connection failed, was interrupted, or timed out.

    `silent` is True when the server's address was dialled and no connection was established. Everything else leaves open whether the server
    runs: its name was not resolved, its certificate not accepted, a proxy is in between, or its response was late or incomplete.
    """

    retryable = True

    def __init__(self, attempt: str, message: str, *, silent: bool = False) -> None:
        super().__init__(attempt, message)
        self.silent = silent


class ProviderError(VKubeletError):
    """Raised by providers to control the runtime."""


class PodRejected(ProviderError):
    """The pod can never run here: it becomes Failed with this reason (CamelCase) and message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class NotAdmitted(PodRejected):
    """The node does not admit the pod, as judged before anything of it was started; reason and message are the kubelet's."""


class NoSuchPod(ProviderError):
    """The backend has no such pod."""


class NoSuchContainer(ProviderError):
    """The pod has no such container."""


class Unavailable(ProviderError):
    """Not now: retried after `retry_after` seconds, or with back-off when it is None.

    Raised by `sync_pod`, it is reported to the user by an event with the reason `event`, and the pod's containers wait for `waiting`; both
    may be empty where the provider has reported already.
    """

    retryable = True

    def __init__(
        self, message: str, *, retry_after: float | None = None, event: str = "FailedSync", waiting: str = "ProviderFailed"
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.event = event
        self.waiting = waiting


class NotSupported(ProviderError):
    """The backend cannot do this, or may not; the text contains the remedy."""


class BadRequest(ProviderError):
    """The request of the caller is invalid."""


class Fenced(VKubeletError):
    """A write was refused because leadership has not been confirmed lately."""

    retryable = True


class LeadershipLost(VKubeletError):
    """Another process holds the leader Lease."""


def first_error(group: BaseExceptionGroup[E]) -> E:
    """Returns the first error inside nested exception groups."""
    first = group.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first


def task_error(group: BaseExceptionGroup[E]) -> E | BaseExceptionGroup[E]:
    """Returns what the first failed task of a TaskGroup raised, which may be a group itself, for callers that do not know the tasks."""
    return group.exceptions[0]
