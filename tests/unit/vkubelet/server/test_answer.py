"""Whether a client has got everything, as far as a transport tells it."""

from __future__ import annotations

import asyncio

from tests.support.memory_transport import MemoryTransport
from vkubelet.server.answer import undelivered, until_delivered
from vkubelet.testing.clock import ManualClock


async def test_what_waits_in_the_transport_is_not_delivered() -> None:
    transport = MemoryTransport()
    assert undelivered(transport) == 0
    transport.stuck = True
    transport.write(b"12345")
    assert undelivered(transport) == 5


async def test_a_slow_client_is_waited_for_but_not_for_ever() -> None:
    clock, transport = ManualClock(), MemoryTransport()
    transport.stuck = True
    transport.write(b"12345")
    waiting = asyncio.ensure_future(until_delivered(transport, clock, within=100.0))
    await clock.advance(99.0)
    assert not waiting.done()
    transport.read_all()
    await clock.advance(0.5)
    assert waiting.done()
    transport.stuck = True
    transport.write(b"12345")
    waiting = asyncio.ensure_future(until_delivered(transport, clock, within=100.0))
    await clock.advance(101.0)
    assert waiting.done()


async def test_nobody_is_waited_for_when_the_connection_is_gone() -> None:
    transport = MemoryTransport()
    transport.stuck = True
    transport.write(b"12345")
    transport.close()
    await until_delivered(transport, ManualClock(), within=100.0)
    await until_delivered(None, ManualClock(), within=100.0)
