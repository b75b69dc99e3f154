"""Annotations of a pod that script the mock provider.

Invariant: pure; an invalid value rejects the pod, with the annotation and the remedy in the message.

All are below `mock.vkubelet.io/`, times in seconds. Read when the pod is created: `start-delay` until the containers run; `ready-delay`
until they are ready then; `run-for` until they terminate by themselves (else never), with `exit-code`; `restart-delay` until they run
again, where the restart policy requires it; `log-lines` written when they start (1) and `log-interval` between further ones (none);
`reject` with a reason; `sync-failures`: this number of first calls fails.

Read again whenever they change: `log-text` of each line, with `{hostname}`, `{node}` and `{container}` filled in; `stop-delay` between a
deletion and the termination; `exec-delay` before a command starts; `exec-output` and `exec-exit-code`, written and returned instead of
running the command; `ports`, such as `80=http,7=discard,9000`: the ports that are open and their service (`echo`, `http`, `discard`),
without it every port is open and echoes; `cpu-usage` (10m) and `memory-usage` (16Mi) of each container.
"""

import math
from collections.abc import Mapping
from typing import Final, Self

from attrs import fields, frozen

from vkubelet.api.quantity import Quantity
from vkubelet.provider import PodRejected

PREFIX: Final = "mock.vkubelet.io/"
ANSWERS: Final = ("echo", "http", "discard")
_NANO: Final = 10**9


@frozen(kw_only=True)
class Script:
    """Parsed annotations of a pod."""

    start_delay: float = 0.0
    ready_delay: float = 0.0
    run_for: float = math.inf
    exit_code: int = 0
    restart_delay: float = 1.0
    stop_delay: float = 0.0
    log_lines: int = 1
    log_interval: float = math.inf
    log_text: str = ""
    sync_failures: int = 0
    reject: str = ""
    exec_delay: float = 0.0
    exec_output: str | None = None
    exec_exit_code: int | None = None
    ports: Mapping[int, str] | None = None
    cpu_usage: float = 0.01
    """CPU usage in cores."""
    memory_usage: int = 16 << 20
    """Memory usage in bytes."""

    @classmethod
    def of(cls, annotations: Mapping[str, str]) -> Self:
        """Parses annotations. Raises PodRejected when an annotation is not one of ours or its value is invalid."""
        own = {key: value for key, value in annotations.items() if key.startswith(PREFIX)}
        known = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        values: dict[str, object] = {}
        for key, value in own.items():
            name = known.get(key.removeprefix(PREFIX))
            if name is None:
                raise PodRejected("BadScript", f"annotation {key} is unknown to the mock provider; use one of {', '.join(sorted(known))}")
            try:
                values[name] = _read(name, value)
            except ValueError as error:
                raise PodRejected("BadScript", f"annotation {key} is {value!r}; it must be {error}") from error
        return cls(**values)  # type: ignore[arg-type]


def _read(name: str, text: str) -> object:
    """Parses a value. Raises ValueError that contains the expected format."""
    match name:
        case "exit_code" | "log_lines" | "sync_failures" | "exec_exit_code":
            return _whole(text)
        case "reject" | "exec_output" | "log_text":
            return text
        case "ports":
            return ports_of(text)
        case "cpu_usage":
            return _amount(text) / _NANO
        case "memory_usage":
            return _amount(text) // _NANO
        case _:
            return _seconds(text, positive=name == "log_interval")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a number such as 0 or 7")
    return int(text)


def _amount(text: str) -> int:
    try:
        nanos = Quantity.parse(text).nanos
    except ValueError as error:
        raise ValueError("a quantity such as 250m or 64Mi") from error
    if nanos < 0:
        raise ValueError("a quantity of zero or more")
    return nanos


def _seconds(text: str, *, positive: bool) -> float:
    try:
        seconds = float(text)
    except ValueError as error:
        raise ValueError("a number of seconds such as 1.5") from error
    if not seconds >= 0 or (positive and seconds == 0):
        raise ValueError("a number of seconds, more than zero" if positive else "a number of seconds, zero or more")
    return seconds


def ports_of(text: str) -> Mapping[int, str]:
    """Parses `80=http,7=discard,9000`; an empty text means that no port is open. Raises ValueError."""
    found: dict[int, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        number, _, answer = part.partition("=")
        answer = answer or "echo"
        if not number.isdecimal() or not 0 < int(number) < 65536 or answer not in ANSWERS:
            raise ValueError(f"a list such as 80=http,9000; after = stands {', '.join(ANSWERS)}")
        found[int(number)] = answer
    return found
