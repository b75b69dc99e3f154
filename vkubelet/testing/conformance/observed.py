"""The tested provider, with every call to it and every report of it recorded.

Invariant: it has exactly the capabilities of the provider itself, and changes neither calls nor results.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar, cast

from attrs import define, field, frozen

from vkubelet.api.objects import Json, JsonView, Pod, PodRef
from vkubelet.api.podspec import CONTAINER_STATUSES, containers
from vkubelet.clock import Clock
from vkubelet.errors import NoSuchPod, NotSupported, Unavailable
from vkubelet.provider import Host, NodeDescription, PodFailure, PodReport, Provider, SupportsPolling, contract
from vkubelet.testing.conformance.rules import Broken

T = TypeVar("T")
CAPABILITIES: Mapping[str, type] = {name: kind for name, kind in sorted(vars(contract).items()) if name.startswith("Supports")}


class Changes:
    """Notifies waiters of recorded events; nothing polls, a condition is checked after each event."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, condition: Callable[[], T | None], what: str, *, seconds: float) -> T:
        """Returns the first true value of `condition`. Raises Broken."""
        try:
            async with asyncio.timeout(seconds):
                while not (found := condition()):
                    await self._event.wait()
                return found
        except TimeoutError:
            raise Broken(f"not within {seconds:g} s: {what}") from None


def capabilities_of(made: object) -> dict[str, bool]:
    """Returns all capabilities, by the name of their Protocol, and whether this provider has them."""
    return {name: isinstance(made, kind) for name, kind in CAPABILITIES.items()}


@define(eq=False)
class Call:
    """One call of the runtime to the provider; `uid` is empty where it concerns a node."""

    method: str
    uid: str
    subject: str
    began: float
    ended: float | None = None
    error: str = ""
    refusal: str = ""
    """Text of the NotSupported that it raised."""


@define(eq=False)
class Reported:
    """Report of the provider about one pod, at monotonic time `at`: names of its containers; None: that it is missing."""

    pod: PodRef
    containers: frozenset[str] | None
    at: float


@frozen
class Stop:
    """Result of a `run` that was stopped, and the seconds it took."""

    seconds: float
    cancelled: bool


@define(eq=False)
class Recording:
    """Everything since the start, over all simulated processes."""

    clock: Clock
    calls: list[Call] = field(factory=list)
    reports: list[Reported] = field(factory=list)
    nodes: dict[str, NodeDescription] = field(factory=dict)
    """Nodes declared by the current run."""
    ever_declared: set[str] = field(factory=set)
    complete: bool = False
    runs: int = 0
    handed: dict[str, Pod] = field(factory=dict)
    ending: dict[str, PodRef] = field(factory=dict)
    """By UID: the pods whose deletion was requested from a provider that is polled, and that its list still contains."""
    held_before: dict[str, bool] | None = None
    """When set: whether `list_pods` contained a pod before its first `sync_pod`."""
    stop_told: float | None = None
    """When the runtime was stopped; it handles the nodes before it notifies the provider."""
    stop_heard: float | None = None
    """When `until_stopped` returned."""
    stops: list[Stop] = field(factory=list)
    scope: asyncio.Timeout | None = None
    changes: Changes = field(factory=Changes)

    def begin(self, method: str, about: object) -> Call:
        pod = about.ref if isinstance(about, Pod) else about
        uid, subject = (pod.uid, str(pod.key)) if isinstance(pod, PodRef) else ("", str(pod))
        call = Call(method, uid, subject, self.clock.monotonic())
        self.calls.append(call)
        if isinstance(about, Pod):
            self.handed[uid] = about
        self.changes.notify()
        return call

    def calling(self, method: str, about: object) -> Calling:
        """Records a call for the duration of the context."""
        return Calling(self, self.begin(method, about))

    def add_report(self, report: Reported) -> None:
        self.reports.append(report)
        self.changes.notify()

    def list_told(self, node: str, reports: Iterable[PodReport]) -> None:
        """Records a list of a provider that is polled, which replaces `report` and `pod_gone`."""
        listed = {report.pod.uid: report for report in reports}
        now = self.clock.monotonic()
        for report in listed.values():
            self.add_report(Reported(report.pod, frozenset(container.name for container in report.containers), now))
        for ref in [ref for ref in self.ending.values() if ref.node == node and ref.uid not in listed]:
            del self.ending[ref.uid]
            self.add_report(Reported(ref, None, now))

    def of(self, method: str, uid: str) -> list[Call]:
        return [call for call in self.calls if call.method == method and call.uid == uid]

    def refusal(self, uid: str) -> str:
        """Returns the text by which the provider refused a call for this pod as not supported; empty: it refused none."""
        return next((call.refusal for call in self.calls if call.uid == uid and call.refusal), "")

    def gone_at(self, uid: str) -> float | None:
        """Returns when the provider first reported that it has nothing of this pod."""
        return next((report.at for report in self.reports if report.pod.uid == uid and report.containers is None), None)

    def cut_off(self) -> None:
        """Cancels the provider's `run`, as when it fails: the runtime starts it again."""
        assert self.scope is not None
        self.nodes, self.complete = {}, False
        self.scope.reschedule(asyncio.get_running_loop().time())


class Calling:
    """Records when a call returned, and with which error."""

    def __init__(self, recording: Recording, call: Call) -> None:
        self._recording = recording
        self._call = call

    def __enter__(self) -> Call:
        return self._call

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._call.ended = self._recording.clock.monotonic()
        self._call.error = kind.__name__ if kind is not None else ""
        self._call.refusal = (str(error) or "not supported") if isinstance(error, NotSupported) else ""
        self._recording.changes.notify()


class ObservedHost:
    """The runtime's host; records all reports of the provider and forwards them."""

    def __init__(self, host: Host, recording: Recording) -> None:
        self._host = host
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    async def until_stopped(self) -> None:
        await self._host.until_stopped()
        if self._recording.stop_heard is None:
            self._recording.stop_heard = self._recording.clock.monotonic()

    def set_node(self, node: NodeDescription) -> None:
        self._recording.nodes[node.name] = node
        self._recording.ever_declared.add(node.name)
        self._recording.changes.notify()
        self._host.set_node(node)

    def nodes_complete(self) -> None:
        self._recording.complete = True
        self._recording.changes.notify()
        self._host.nodes_complete()

    def remove_node(self, name: str) -> None:
        self._recording.nodes.pop(name, None)
        self._recording.changes.notify()
        self._host.remove_node(name)

    def report(self, report: PodReport) -> None:
        names = frozenset(container.name for container in report.containers)
        self._recording.add_report(Reported(report.pod, names, self._recording.clock.monotonic()))
        self._host.report(report)

    def set_pod_status(self, pod: PodRef, status: JsonView, *, annotations: Mapping[str, str] | None = None) -> None:
        self._recording.add_report(Reported(pod, frozenset(status_names(status)), self._recording.clock.monotonic()))
        self._host.set_pod_status(pod, status, annotations=annotations)

    def fail_pod(self, pod: PodRef, failure: PodFailure) -> None:
        self._recording.add_report(Reported(pod, frozenset(), self._recording.clock.monotonic()))
        self._host.fail_pod(pod, failure)

    def pod_gone(self, pod: PodRef) -> None:
        self._recording.add_report(Reported(pod, None, self._recording.clock.monotonic()))
        self._host.pod_gone(pod)


def status_names(status: JsonView) -> Iterator[str]:
    """Yields the names of all containers in a PodStatus."""
    for kind in CONTAINER_STATUSES:
        yield from (entry["name"] for entry in status.get(kind) or ())


def observed(inner: Provider, recording: Recording) -> Provider:
    """Returns the same provider, recorded."""
    body: dict[str, object] = {"run": _run(inner, recording), "sync_pod": _sync(inner, recording), "delete_pod": _delete(inner, recording)}
    if isinstance(inner, SupportsPolling):
        body["list_pods"] = _list_polled(inner, recording)
    for kind in (Provider, *(CAPABILITIES[name] for name, has in capabilities_of(inner).items() if has)):
        for name in _members(kind):
            member = getattr(inner, name)
            if name in body:
                continue
            if not callable(member):
                body[name] = member
            elif inspect.iscoroutinefunction(vars(kind)[name]):
                body[name] = _awaited(name, member, recording)
            else:
                body[name] = _streamed(name, member, recording)
    return cast(Provider, type(f"Observed{type(inner).__name__}", (), body)())


def _members(kind: type) -> list[str]:
    return [name for name in {**vars(kind), **inspect.get_annotations(kind)} if not name.startswith("_")]


def _run(inner: Provider, recording: Recording) -> Callable[[object, Host], Awaitable[None]]:
    async def run(self: object, host: Host) -> None:
        recording.runs += 1
        cancelled = False
        try:
            async with asyncio.timeout(None) as scope:
                recording.scope = scope
                await inner.run(cast(Host, ObservedHost(host, recording)))
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise Unavailable("the suite cut the provider off") from error
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            if recording.stop_told is not None:
                heard = recording.stop_told if recording.stop_heard is None else recording.stop_heard
                recording.stops.append(Stop(recording.clock.monotonic() - heard, cancelled))

    return run


def _sync(inner: Provider, recording: Recording) -> Callable[[object, Pod], Awaitable[None]]:
    async def sync_pod(self: object, pod: Pod) -> None:
        with recording.calling("sync_pod", pod):
            held = recording.held_before
            if held is not None and pod.ref.uid not in held:
                listed = {report.pod.uid for report in await inner.list_pods(pod.node)}
                held[pod.ref.uid] = pod.ref.uid in listed
            await inner.sync_pod(pod)

    return sync_pod


def _delete(inner: Provider, recording: Recording) -> Callable[[object, PodRef, float], Awaitable[None]]:
    polled = isinstance(inner, SupportsPolling)

    async def delete_pod(self: object, pod: PodRef, grace: float) -> None:
        try:
            with recording.calling("delete_pod", pod):
                await inner.delete_pod(pod, grace)
        except NoSuchPod:
            # It counts as `pod_gone`, of a provider that is polled too.
            recording.ending.pop(pod.uid, None)
            recording.add_report(Reported(pod, None, recording.clock.monotonic()))
            raise
        if polled:
            recording.ending[pod.uid] = pod

    return delete_pod


def _list_polled(inner: Provider, recording: Recording) -> Callable[[object, str], Awaitable[Iterable[PodReport]]]:
    async def list_pods(self: object, node: str) -> Iterable[PodReport]:
        with recording.calling("list_pods", node):
            reports = list(await inner.list_pods(node))
        recording.list_told(node, reports)
        return reports

    return list_pods


def _awaited(name: str, method: Callable[..., Awaitable[Any]], recording: Recording) -> Callable[..., Awaitable[Any]]:
    async def call(self: object, about: object, *more: Any) -> Any:
        with recording.calling(name, about):
            return await method(about, *more)

    return call


def _streamed(name: str, method: Callable[..., AsyncIterator[bytes]], recording: Recording) -> Callable[..., AsyncIterator[bytes]]:
    async def stream(self: object, about: object, *more: Any) -> AsyncIterator[bytes]:
        with recording.calling(name, about):
            chunks = method(about, *more)
            try:
                async for chunk in chunks:
                    yield chunk
            finally:
                close = getattr(chunks, "aclose", None)
                if close is not None:
                    await close()

    return stream


def containers_of(pod: Pod | Json) -> set[str]:
    """Returns the names of all containers in a pod's spec, of every type."""
    spec = pod.spec if isinstance(pod, Pod) else pod["spec"]
    return {container["name"] for container in containers(spec)}
