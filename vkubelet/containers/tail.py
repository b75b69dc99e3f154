"""Last part of a container's log as its termination message, for the policy FallbackToLogsOnError.

Invariant: at most what a kubelet takes, 80 lines and 2 KiB, is kept; the work is linear in the bytes of the log, however long its lines.
"""

from __future__ import annotations

from collections import deque

from vkubelet.api.objects import PodRef
from vkubelet.api.shapes import JsonView
from vkubelet.errors import ProviderError
from vkubelet.provider import LogOptions, SupportsLogs, Terminated

_LINES, _BYTES = 80, 2048
_TIME = 64
"""Maximum bytes of the time before a line."""


def wants_log(spec: JsonView, end: Terminated) -> bool:
    """Checks that it failed without a termination message."""
    return spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and end.exit_code != 0 and not end.message


async def log_tail(provider: object, pod: PodRef, container: str, *, previous: bool) -> str:
    """Returns the last part of the log, empty without a log."""
    if not isinstance(provider, SupportsLogs):
        return ""
    lines: deque[bytes] = deque(maxlen=_LINES)
    rest = b""
    try:
        async for chunk in provider.stream_logs(pod, container, LogOptions(previous=previous, tail=_LINES)):
            *complete, rest = (rest + chunk).split(b"\n")
            lines.extend(_end_of(line) for line in complete[-_LINES:])
            rest = _end_of(rest)
    except ProviderError:
        return ""
    if rest:
        lines.append(rest)
    # Each line starts with its time.
    text = b"".join(line.partition(b" ")[2] + b"\n" for line in lines)
    return text[-_BYTES:].decode(errors="ignore")


def _end_of(line: bytes) -> bytes:
    """Returns the time of a line, and as much of its last part as a message can show."""
    if len(line) <= _TIME + _BYTES:
        return line
    time, space, text = line.partition(b" ")
    return time[:_TIME] + space + text[-_BYTES:]
