"""Writing to a peer that is slow, and parting from one that may not listen."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.memory_transport import MemoryTransport
from vkubelet.server import wire as module
from vkubelet.server.wire import UNREAD_ANSWERS, WRITE_BUFFER, Wire
from vkubelet.testing.clock import ManualClock


class Driver:
    """What a session passes on."""

    def __init__(self, wire: Wire) -> None:
        self.pause_writing = wire.pause_writing
        self.resume_writing = wire.resume_writing
        self._wire = wire

    def connection_lost(self, error: Exception | None) -> None:
        self._wire.lost()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
async def wire(transport: MemoryTransport, clock: ManualClock) -> Wire:
    made = Wire(transport, clock)
    transport.protocol = Driver(made)
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_CUT_AFTER", "_STALLED", "_LINGER", "_LOOK_EVERY"):
        monkeypatch.setattr(module, name, 0.02)


def fill(wire: Wire, transport: MemoryTransport) -> None:
    transport.stuck = True
    wire.write(bytes(WRITE_BUFFER + 1))


async def test_room_is_there_until_the_peer_is_slow(wire: Wire, transport: MemoryTransport, clock: ManualClock) -> None:
    await wire.room(lambda: True)
    fill(wire, transport)
    waiting = asyncio.create_task(wire.room(lambda: True))
    await clock.settle()
    assert not waiting.done()
    transport.read_all()
    await waiting


async def test_room_that_nobody_wants_any_more_is_not_waited_for(wire: Wire, transport: MemoryTransport, clock: ManualClock) -> None:
    wanted = [True]
    fill(wire, transport)
    waiting = asyncio.create_task(wire.room(lambda: wanted[0]))
    wire.wake()
    await clock.settle()
    assert not waiting.done()
    wanted.clear()
    wanted.append(False)
    wire.wake()
    await waiting


async def test_answers_go_out_with_the_next_write_and_before_it(wire: Wire, transport: MemoryTransport) -> None:
    wire.answer(b"one")
    wire.answer(b"two")
    assert transport.sent == b""
    wire.write(b"three")
    wire.answer(b"four")
    wire.write(b"")
    assert transport.sent == b"onetwothreefour"


async def test_only_answers_that_a_slow_peer_does_not_read_are_counted(wire: Wire, transport: MemoryTransport) -> None:
    wire.answer(bytes(UNREAD_ANSWERS))
    assert wire.answers_are_read
    fill(wire, transport)
    wire.answer(bytes(UNREAD_ANSWERS))
    assert not wire.answers_are_read
    transport.read_all()
    assert wire.answers_are_read


async def test_writer_that_never_waits_lets_others_run(wire: Wire) -> None:
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    task = asyncio.create_task(other())
    for _ in range(module._BURST // 32768 - 1):
        await wire.breathe(32768)
    assert not ran
    await wire.breathe(32768)
    assert ran
    await task


async def test_leave_waits_for_the_peer_to_go_first(wire: Wire, transport: MemoryTransport, clock: ManualClock) -> None:
    wire.read(False)
    leaving = asyncio.create_task(wire.leave())
    await clock.settle()
    wire.write(b"too late")
    assert (leaving.done(), transport.reading, transport.is_closing(), bytes(transport.sent)) == (False, True, False, b"")
    transport.lose()
    await leaving
    assert wire.closed


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("stuck", [True, False])
async def test_leave_closes_after_all_was_sent_and_cuts_off_a_peer_that_reads_nothing(
    wire: Wire, transport: MemoryTransport, stuck: bool
) -> None:
    transport.stuck = stuck
    wire.write(b"x" * 1000)
    await wire.leave()
    assert transport.is_closing()
    assert transport.aborted == stuck


@pytest.mark.usefixtures("impatient")
async def test_leave_waits_for_a_peer_that_reads_slowly(wire: Wire, transport: MemoryTransport) -> None:
    transport.stuck = True
    wire.write(b"x" * 100)
    leaving = asyncio.create_task(wire.leave())
    for _ in range(99):
        transport.unread -= 1
        wire.wake()
        await asyncio.sleep(0)
        assert not leaving.done()
    transport.read_all()
    await leaving
    assert not transport.aborted


@pytest.mark.usefixtures("impatient")
async def test_close_sends_what_is_left_but_does_not_wait_for_ever(wire: Wire, transport: MemoryTransport) -> None:
    transport.stuck = True
    wire.write(b"x" * 1000)
    wire.close()
    assert (transport.is_closing(), transport.aborted) == (True, False)
    async with asyncio.timeout(10):
        while not transport.aborted:
            await asyncio.sleep(0.01)


async def test_cancelled_leave_leaves_no_connection(wire: Wire, transport: MemoryTransport, clock: ManualClock) -> None:
    leaving = asyncio.create_task(wire.leave())
    await clock.settle()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert transport.is_closing()


async def test_idle_time_counts_from_what_was_sent_or_received_last(wire: Wire, clock: ManualClock) -> None:
    await clock.advance(5)
    assert wire.idle == 5
    wire.received()
    assert wire.idle == 0
    await clock.advance(3)
    wire.write(b"x")
    assert wire.idle == 0
    wire.write(b"")
    await clock.advance(1)
    assert wire.idle == 1


@pytest.mark.usefixtures("impatient")
async def test_peer_is_probed_only_while_nothing_is_read_and_it_takes_what_is_sent(transport: MemoryTransport, clock: ManualClock) -> None:
    wire = Wire(transport, clock, probe=b"?")
    transport.protocol = Driver(wire)
    await asyncio.sleep(0.1)
    wire.read(False)
    assert transport.sent == b""
    async with asyncio.timeout(5):
        while len(transport.sent) < 3:
            await asyncio.sleep(0.01)
    fill(wire, transport)
    sent = len(transport.sent)
    await asyncio.sleep(0.1)
    wire.read(True)
    transport.read_all()
    await asyncio.sleep(0.1)
    assert len(transport.sent) == sent
    wire.lost()
