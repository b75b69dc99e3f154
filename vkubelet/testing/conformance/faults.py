"""The tested provider, with a backend that fails, loses responses or hangs.

Invariant: a call without a planned fault passes unchanged, and the provider has exactly its own capabilities.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any, TypeVar

from attrs import define, field

from vkubelet.api.objects import Pod, PodRef
from vkubelet.errors import Unavailable
from vkubelet.provider import ResolvedPod

P = TypeVar("P")

CONTAINER_CALLS = ("prepare_pod", "start_container", "stop_container", "remove_pod", "list_containers")
POD_CALLS = ("sync_pod", "delete_pod", "list_pods")
CALLS = (*CONTAINER_CALLS, *POD_CALLS, "ping")
"""Calls that can fail on demand: all that the runtime retries."""


class Fault(enum.Enum):
    """Effect on a call."""

    BEFORE = "fails before it takes effect"
    AFTER = "takes effect, then fails"
    HANGS = "hangs until the backend is back, then fails without effect"
    SILENT = "takes effect and never answers"


@define
class _Plan:
    method: str
    fault: Fault
    pod: str
    times: int | None


@define(eq=False)
class Faults:
    """Faults of one backend; without plans there are none."""

    _plans: list[_Plan] = field(factory=list)
    _hung: dict[str, asyncio.Event] = field(factory=dict)

    def plan(self, *methods: str, fault: Fault, pod: str = "", times: int | None = None) -> None:
        """Plans faults: the next `times` calls of each method fail, None: all until `clear`; only those for the pod of this name if one
        is given."""
        self._plans += [_Plan(method, fault, pod, times) for method in methods]

    def clear(self) -> None:
        """Clears all faults: the backend responds, and calls that hang fail."""
        self._plans.clear()
        for pod in list(self._hung):
            self.release(pod=pod)

    def release(self, *, pod: str) -> None:
        """Releases calls that hang for this pod, which fail; empty: those for nodes."""
        hung = self._hung.pop(pod, None)
        if hung is not None:
            hung.set()

    async def play(self, method: str, about: object, call: Callable[[], Awaitable[Any]]) -> Any:
        """Performs the call with the fault that is planned for it. Raises Unavailable."""
        pod = _pod_of(about)
        fault = self._take(method, pod)
        if fault is None:
            return await call()
        if fault is Fault.HANGS:
            await self._hung.setdefault(pod, asyncio.Event()).wait()
        elif fault is not Fault.BEFORE:
            await call()
        if fault is Fault.SILENT:
            await asyncio.Event().wait()
        raise Unavailable(f"{method} was made to fail: it {fault.value}")

    def _take(self, method: str, pod: str) -> Fault | None:
        plan = next((p for p in self._plans if p.method == method and p.pod in ("", pod) and p.times != 0), None)
        if plan is None:
            return None
        if plan.times is not None:
            plan.times -= 1
        return plan.fault


def _pod_of(about: object) -> str:
    """Returns the name of the pod of a call; empty for a node."""
    if isinstance(about, ResolvedPod):
        about = about.pod
    if isinstance(about, Pod):
        about = about.ref
    return about.name if isinstance(about, PodRef) else ""


def faulty(inner: P, faults: Faults) -> P:
    """Returns the same provider, whose calls fail as planned."""
    public = [name for name in dir(inner) if not name.startswith("_")]
    body: dict[str, object] = {name: property(attrgetter(f"inner.{name}")) for name in public}
    body |= {name: _failing(name, faults) for name in CALLS if name in public}
    made = type(type(inner).__name__, (), {**body, "__module__": type(inner).__module__, "inner": inner})()
    found: P = made
    return found


def _failing(name: str, faults: Faults) -> Callable[..., Awaitable[Any]]:
    async def call(self: Any, about: object, *more: Any, **named: Any) -> Any:
        return await faults.play(name, about, lambda: getattr(self.inner, name)(about, *more, **named))

    return call
