"""What the agent waits for, for its log, its readiness and the Events of its Deployment.

Invariant: each state is reported once, at its start; a text contains no token, key or kubeconfig.
"""

import logging

from vkubelet.control.recorder import ObjectReference, Recorder
from vkubelet.logformat import bind

log = logging.getLogger(__name__)


class Situation:
    """The state of the way to the hub; `subject` is the Deployment of the agent, once that is known."""

    def __init__(self, recorder: Recorder) -> None:
        self.subject: ObjectReference | None = None
        self.waiting_for = "the agent starts"
        """Why the cluster is not joined, with the remedy; "" when it is."""
        self._recorder = recorder
        self._last = ""
        self._warned: dict[str, str] = {}

    def waits(self, reason: str, message: str) -> None:
        """Reports an obstacle."""
        self.waiting_for = message
        self._report(reason, message, warning=True)

    def proceeds(self, reason: str, message: str, *, joined: bool = False) -> None:
        """Reports a step; with `joined` it was the last."""
        self.waiting_for = "" if joined else message
        self._report(reason, message, warning=False)

    def warns(self, reason: str, message: str) -> None:
        """Reports a problem beside the way to the hub, once for each reason until its message is another."""
        if self._warned.get(reason) != message:
            self._warned[reason] = message
            self._record(reason, message, warning=True)

    def _report(self, reason: str, message: str, *, warning: bool) -> None:
        if message != self._last:
            self._last = message
            self._record(reason, message, warning=warning)

    def _record(self, reason: str, message: str, *, warning: bool) -> None:
        with bind(reason=reason):
            log.log(logging.WARNING if warning else logging.INFO, "%s", message)
        if self.subject is not None:
            self._recorder.event(self.subject, reason, message, warning=warning)
