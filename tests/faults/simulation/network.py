"""The network between simulated processes and the API server models, in the place of the client's transport: latency, and the faults of a
schedule.

Invariant: a request that was sent is handled in the context of the world, so that it takes effect also when its sender is killed meanwhile;
answers and events of one connection arrive in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Self

import aiohttp
from attrs import define, field, frozen

from tests.faults.model.refusals import Refusal
from tests.faults.model.server import ApiModel
from tests.faults.simulation.branches import Branch, of_event, of_write
from tests.faults.simulation.calls import counts, refusal, request_of, site_of
from tests.faults.simulation.loop import PROCESS, SimulatedLoop
from tests.faults.simulation.schedule import Fault, Kind
from vkubelet.api.codec import encode_json
from vkubelet.client.connection import Connection
from vkubelet.client.transport import Call, Transport
from vkubelet.clock import Clock
from vkubelet.errors import Unreachable
from vkubelet.metrics import Metrics

LATENCIES = (0.001, 0.001, 0.002, 0.002, 0.003, 0.005, 0.008, 0.020)
"""Seconds on the way, in one direction. Few values, so that messages often arrive at the same moment, in the order of the seed."""
_BITS = len(LATENCIES).bit_length()
_CONNECT = 10.0


Answer = asyncio.Future[Any]
Handle = Callable[..., Any]


def address_of(cluster: str) -> str:
    """The URL of the API server of a simulated cluster."""
    return f"https://{cluster}.simulated:6443"


def kubeconfig_of(cluster: str, *, token: str = "token") -> str:
    """A kubeconfig of a simulated cluster, in base64 as in the data of a Secret."""
    text = f"""
apiVersion: v1
kind: Config
clusters: [{{name: {cluster}, cluster: {{server: "{address_of(cluster)}", insecure-skip-tls-verify: true}}}}]
users: [{{name: user, user: {{token: {token}}}}}]
contexts: [{{name: {cluster}, context: {{cluster: {cluster}, user: user}}}}]
current-context: {cluster}
"""
    return base64.b64encode(text.encode()).decode()


@frozen
class Sent:
    """A write of a process as the network saw it: `number` counts all of them, `site` names what is written where, `target` is its path."""

    number: int
    time: float
    process: str
    site: str
    target: str
    outcome: str


@define
class Side:
    """One API server, by the name that schedules use."""

    name: str
    url: str
    model: ApiModel
    silent_until: float = 0.0
    closed_until: float = 0.0
    broken_until: float = 0.0
    lagging_until: float = 0.0
    streams: list[SimulatedStream] = field(factory=list)


class Network:
    """All API servers, and what the schedule does to the way to them. `on_crash(process, seconds)` kills and restarts a process."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, branch: Branch) -> None:
        self.loop = loop
        self.rng = rng
        self.sides: dict[str, Side] = {}
        self.writes: list[Sent] = []
        self.events: Counter[str] = Counter()
        self.open: Counter[tuple[str, str]] = Counter()
        """Clients that are open, by process and API server; each of them may have connections."""
        self.injected: list[tuple[str, str]] = []
        """Kind of each fault that took effect, and its site."""
        self.on_crash: Callable[[str, float], None] = lambda process, seconds: None
        self._bits = rng.getrandbits
        self._world = contextvars.Context()
        self._branch = branch

    def add(self, name: str, url: str, model: ApiModel) -> None:
        self.sides[url] = Side(name, url, model)

    def side(self, name: str) -> Side:
        return next(side for side in self.sides.values() if side.name == name)

    def latency(self) -> float:
        """Returns what `random.Random.choice` would choose, by the same random bits."""
        while (number := self._bits(_BITS)) >= len(LATENCIES):
            pass
        return LATENCIES[number]

    def later(self, seconds: float, callback: Callable[..., Any], *args: Any) -> None:
        """Calls back in the context of the world, whoever asks for it."""
        self.loop.call_later(seconds, callback, *args, context=self._world)

    def spawn(self, coro: Any) -> None:
        """Runs a coroutine in the context of the world."""
        self.loop.create_task(coro, context=self._world)

    def fault_of_write(self, number: int) -> Fault | None:
        """Returns the fault of a write: the last one, where a schedule has several."""
        return next(reversed(self._branch.faults_at(of_write(number))), None)

    def fault_of_event(self, side: Side) -> Fault | None:
        self.events[side.name] += 1
        return next(reversed(self._branch.faults_at(of_event(side.name, self.events[side.name]))), None)

    def note(self, kind: Kind, site: str) -> None:
        self.injected.append((kind.value, site))

    def transport(self, connection: Connection, *, clock: Clock, metrics: Metrics | None = None) -> SimulatedTransport:
        """Creates what the product's client uses in place of its transport."""
        return SimulatedTransport(connection, clock=clock, metrics=metrics, network=self)

    def close(self, side: Side, seconds: float) -> None:
        """Closes the connections of a side, and refuses new ones for so long."""
        side.closed_until = self.loop.time() + seconds
        for stream in list(side.streams):
            stream.break_off(Unreachable(stream.attempt, "connection reset by peer"))

    # --- faults that have a time ---

    def begin(self, fault: Fault) -> None:
        """Starts a fault of an API server now."""
        side, now = self.side(fault.side), self.loop.time()
        self.note(fault.kind, side.name)
        match fault.kind:
            case Kind.CUT:
                side.silent_until = now + fault.value
            case Kind.CLOSED:
                self.close(side, fault.value)
            case Kind.BROKEN:
                side.broken_until = now + fault.value
            case Kind.LAG:
                side.lagging_until = now + fault.value
            case Kind.STALE:
                side.model.storage.lag(int(fault.value))
                self.later(fault.lasts, side.model.storage.lag, 0)
            case Kind.EXPIRED:
                side.model.compact()
                for stream in list(side.streams):
                    stream.break_off(None)
            case _:
                raise AssertionError(f"{fault.kind} is no fault of an API server")


class SimulatedTransport(Transport):
    """The transport of one client. It keeps to the timeouts of the real one, in virtual time."""

    def __init__(self, connection: Connection, *, clock: Clock, metrics: Metrics | None, network: Network) -> None:
        super().__init__(connection, clock=clock, metrics=metrics)
        self._network = network
        self._connected = False
        self._opened = False

    async def __aenter__(self) -> Self:
        self._opened, self._closed = True, False
        self._network.open[self._owner()] += 1
        return self

    async def __aexit__(self, *args: object) -> None:
        self._opened, self._closed = False, True
        self._network.open[self._owner()] -= 1

    def _owner(self) -> tuple[str, str]:
        return PROCESS.get(), self.connection.url

    async def fetch(self, call: Call, timeout: float) -> bytes:
        if self._closed:
            raise Unreachable(call.attempt, "the client is closed")
        if not self._opened:
            raise RuntimeError("the client is not open: use `async with`")
        if call.allow is not None:
            call.allow()
        future: asyncio.Future[Any] = self._network.loop.create_future()
        self._send(call, future, self._handle)
        answer: bytes = await self._answered(call, future, timeout)
        return answer

    def server_now(self) -> datetime:
        """The clock of an API server is not that of the process."""
        return self._network.loop.wall()

    async def _answered(self, call: Call, future: Answer, timeout: float | None) -> Any:
        timer = None if timeout is None else self._network.loop.call_later(timeout, self._give_up, call, future)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()

    def _give_up(self, call: Call, future: Answer) -> None:
        """Closes a connection that stayed silent: the next request needs another one."""
        if not future.done():
            self._connected = False
            future.set_exception(Unreachable(call.attempt, "no response within the time limit"))

    @asynccontextmanager
    async def open(self, call: Call, timeout: aiohttp.ClientTimeout) -> AsyncIterator[Any]:
        future: asyncio.Future[Any] = self._network.loop.create_future()
        self._send(call, future, self._watch)
        stream: SimulatedStream = await self._answered(call, future, timeout.connect if timeout.total is None else timeout.total)
        stream.silence = timeout.sock_read
        try:
            yield stream
        finally:
            stream.leave()

    # --- on the way; from here on in the context of the world ---

    def _send(self, call: Call, future: asyncio.Future[Any], handle: Callable[..., Any]) -> None:
        network = self._network
        side = network.sides[self.connection.url]
        now = network.loop.time()
        if now < side.closed_until:
            network.later(network.latency(), _fail, future, Unreachable(call.attempt, "connection refused", silent=True))
            return
        if now < side.silent_until:
            if not self._connected:
                error = Unreachable(call.attempt, "no connection within the time limit", silent=True)
                network.later(_CONNECT, _fail, future, error)
            return
        self._connected = True
        network.later(network.latency(), self._arrive, side, call, future, handle, PROCESS.get())

    def _arrive(self, side: Side, call: Call, future: asyncio.Future[Any], handle: Callable[..., Any], process: str) -> None:
        network = self._network
        now = network.loop.time()
        if now < side.broken_until:
            self._answer(side, future, refusal(call, 503))
            return
        if not counts(call):
            handle(side, call, future, process)
            return
        number = len(network.writes) + 1
        site = site_of(side.name, call)
        fault = network.fault_of_write(number)
        network.writes.append(Sent(number, now, process, site, call.path, fault.kind.value if fault else ""))
        if fault is None:
            handle(side, call, future, process)
            return
        network.note(fault.kind, site)
        match fault.kind:
            case Kind.UNSENT:
                self._answer(side, future, Unreachable(call.attempt, "connection reset by peer"))
            case Kind.REFUSED:
                self._answer(side, future, refusal(call, int(fault.value)))
            case Kind.SLOW:
                network.later(fault.value, handle, side, call, future, process)
            case Kind.LOST:
                handle(side, call, network.loop.create_future(), process)
                if not fault.value:
                    self._answer(side, future, Unreachable(call.attempt, "connection reset by peer"))
            case Kind.SEVERED:
                handle(side, call, network.loop.create_future(), process)
                # Before the event of this write is sent.
                network.close(side, fault.value)
                self._answer(side, future, Unreachable(call.attempt, "connection reset by peer"))
            case Kind.CRASH:
                handle(side, call, network.loop.create_future(), process)
                network.on_crash(process, fault.value)

    def _handle(self, side: Side, call: Call, future: asyncio.Future[Any], process: str) -> None:
        try:
            answer: Any = side.model.serve(request_of(call, process))
        except Refusal as refused:
            answer = refused.error(call.attempt)
        self._answer(side, future, answer)

    def _answer(self, side: Side, future: asyncio.Future[Any], answer: Any) -> None:
        """Sends an answer; one that is sent during a cut is lost."""
        network = self._network
        if network.loop.time() < side.silent_until:
            return
        network.later(network.latency(), _fail if isinstance(answer, Exception) else _succeed, future, answer)

    def _watch(self, side: Side, call: Call, future: asyncio.Future[Any], process: str) -> None:
        self._network.spawn(self._serve_watch(side, call, future, process))

    async def _serve_watch(self, side: Side, call: Call, future: asyncio.Future[Any], process: str) -> None:
        if not dict(call.params).get("resourceVersion") and not await side.model.is_fresh():
            self._answer(side, future, refusal(call, 504))
            return
        try:
            watch = side.model.open_watch(request_of(call, process))
        except Refusal as refused:
            self._answer(side, future, refused.error(call.attempt))
            return
        stream = SimulatedStream(self._network, side, call.attempt, process)
        side.streams.append(stream)
        self._answer(side, future, stream)
        try:
            await stream.pump(watch)
        finally:
            side.streams.remove(stream)
            side.model.close_watch(watch)


class SimulatedStream:
    """The body of a watch, between an API server model and the client; it is its own `content`."""

    def __init__(self, network: Network, side: Side, attempt: str, process: str) -> None:
        self.content = self
        self.attempt = attempt
        self.silence: float | None = None
        self._network = network
        self._side = side
        self.process = process
        self._in_flight: deque[bytes | Exception] = deque()
        self._received: deque[bytes | Exception] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._order = 0.0
        self._expires = False
        self._over: asyncio.Future[None] = network.loop.create_future()
        self._ended = False

    # --- the client's end ---

    async def readany(self) -> bytes:
        while not self._received:
            self._waiter = self._network.loop.create_future()
            timer = self._network.loop.call_later(self.silence, _fail, self._waiter, TimeoutError()) if self.silence is not None else None
            try:
                await self._waiter
            finally:
                if timer is not None:
                    timer.cancel()
        found = self._received.popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def leave(self) -> None:
        """The client closes the connection."""
        _succeed(self._over, None)

    # --- the server's end ---

    async def pump(self, response: Any) -> None:
        """Sends on what the server sends, until either end closes the connection."""
        reader = self._network.loop.create_task(self._read(response), name="server's end of a watch")
        try:
            await asyncio.wait({reader, self._over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()

    async def _read(self, response: Any) -> None:
        with suppress(asyncio.CancelledError):
            while not self._ended:
                chunk = await response.content.readany()
                if not chunk:
                    self._deliver(b"")
                    return
                for line in chunk.splitlines(keepends=True):
                    self._event(line)

    def _event(self, line: bytes) -> None:
        if self._expires:
            return
        if b'"BOOKMARK"' in line[:24]:
            self._deliver(line)
            return
        fault = self._network.fault_of_event(self._side)
        if fault is None:
            self._deliver(line)
            return
        self._network.note(fault.kind, f"{self._side.name} {self.attempt}")
        now = self._network.loop.time()
        if fault.kind is Kind.DELAYED:
            self._order = max(self._order, now + fault.value)
            self._deliver(line)
        elif fault.kind is Kind.ENDED:
            self._deliver(line)
            self._deliver(b"")
        else:
            self._expires = True
            self._order = max(self._order, now + fault.value)
            self._deliver(_EXPIRED)

    def _deliver(self, item: bytes | Exception) -> None:
        network, side = self._network, self._side
        now = network.loop.time()
        self._order = max(self._order, now + network.latency(), side.lagging_until, side.silent_until)
        self._in_flight.append(item)
        network.later(self._order - now, self._receive)

    def break_off(self, error: Exception | None) -> None:
        """Ends the stream at the server, with an error at the client if there is one."""
        self._deliver(error if error is not None else b"")

    def _receive(self) -> None:
        """Receives the oldest item on the way: whichever timer rings first, the order of the server is kept."""
        now = self._network.loop.time()
        if now < self._side.silent_until:
            # A cut began while it was on the way; TCP sends it again afterwards.
            self._network.later(self._side.silent_until - now + 0.001, self._receive)
            return
        item = self._in_flight.popleft()
        if not item or isinstance(item, Exception):
            self._ended = True
            _succeed(self._over, None)
        self._received.append(item)
        if self._waiter is not None:
            _succeed(self._waiter, None)


_EXPIRED = (
    encode_json({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}})
    + b"\n"
)


def _succeed(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()
