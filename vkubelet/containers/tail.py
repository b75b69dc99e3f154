"""The end of a container's log as its termination message, for the policy FallbackToLogsOnError.

Invariant: at most what a kubelet takes: 80 lines and 2 KiB.
"""

from __future__ import annotations

from collections import deque

from vkubelet.api.objects import PodRef
from vkubelet.api.shapes import JsonView
from vkubelet.errors import ProviderError
from vkubelet.provider import LogOptions, SupportsLogs, Terminated

_LINES, _BYTES = 80, 2048


def wants_log(spec: JsonView, end: Terminated) -> bool:
    """It failed and left no message of its own."""
    return spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and end.exit_code != 0 and not end.message


async def log_tail(provider: object, pod: PodRef, container: str, *, previous: bool) -> str:
    """Empty where there is no log."""
    if not isinstance(provider, SupportsLogs):
        return ""
    lines: deque[bytes] = deque(maxlen=_LINES)
    rest = b""
    try:
        async for chunk in provider.stream_logs(pod, container, LogOptions(previous=previous, tail=_LINES)):
            *whole, rest = (rest + chunk).split(b"\n")
            lines.extend(whole)
    except ProviderError:
        return ""
    if rest:
        lines.append(rest)
    # Each line begins with its time.
    text = b"".join(line.partition(b" ")[2] + b"\n" for line in lines)
    return text[-_BYTES:].decode(errors="ignore")
